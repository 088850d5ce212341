"""The command line as a process of its own, where something is wrong: it says what, and never falls silent."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from support.node_process import NodeProcess

# A line comes after two seconds; a busy machine starts a process in some more.
LINE_SECONDS_MAX: Final = 30
# More than any disk has.
EXABYTE: Final = 1 << 60


@contextmanager
def command(
    *words: str, stdin: bytes = b"", environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    try:
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
        yield process
    finally:
        process.kill()
        process.wait(LINE_SECONDS_MAX)


def read_line(process: subprocess.Popen[bytes]) -> str:
    """The next line on its standard error."""
    assert process.stderr is not None
    descriptor, text, deadline = process.stderr.fileno(), b"", time.monotonic() + LINE_SECONDS_MAX
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"silence, after {text!r}"
        byte = os.read(descriptor, 1)
        assert byte, f"it ended with {process.wait()}, after {text!r}"
        text += byte
    return text.decode().rstrip()


@pytest.fixture
def silent_door() -> Iterator[socket.socket]:
    """Takes connections and never answers: a node that is stopped, or whose machine is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("topic", "list", "--bootstrap"), "penstock: no answer from {} yet"),
        (("queue", "list", "--http"), "penstock: no answer from the HTTP door at {} yet"),
    ],
)
def test_node_that_does_not_answer_is_told_while_the_command_still_waits(
    silent_door: socket.socket, words: tuple[str, ...], sentence: str
) -> None:
    address = address_of(silent_door)
    with command(*words, address) as process:
        assert read_line(process) == sentence.format(address)
        assert process.poll() is None, "the line comes before the end"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LINE_SECONDS_MAX)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_wait_is_a_json_object_where_json_is_asked_for(silent_door: socket.socket) -> None:
    with command("topic", "list", "--json", "--bootstrap", address_of(silent_door)) as process:
        assert json.loads(read_line(process)) == {"waiting": f"no answer from {address_of(silent_door)} yet"}


def test_producer_says_that_the_disk_is_full_while_it_tries_again(tmp_path: Path) -> None:
    full = {"PENSTOCK_STORAGE__FREE_BYTES_MIN": str(EXABYTE)}
    with (
        NodeProcess(tmp_path, environment=full) as node,
        command("produce", "t", "--bootstrap", node.kafka, stdin=b"a\n") as process,
    ):
        line = read_line(process)
        assert "kafka storage error" in line
        assert "trying for up to 30 s" in line
        assert process.poll() is None


def test_reader_of_our_output_that_leaves_is_no_failure(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, memory=True) as node:
        lines = b"".join(b"%d %s\n" % (number, b"x" * 100) for number in range(50_000))
        with command("produce", "t", "--bootstrap", node.kafka, stdin=lines) as process:
            assert process.wait(LINE_SECONDS_MAX) == 0
        with command("consume", "t", "--bootstrap", node.kafka) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
            process.stdout = None
            _, err = process.communicate(timeout=LINE_SECONDS_MAX)
            assert (process.returncode, err) == (0, b"")


def test_data_directory_is_taken_from_the_environment_and_its_holder_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "some where"
    doors = ("--kafka", "127.0.0.1:0", "--http", "off")
    environment = {"PENSTOCK_DATA_DIR": str(directory)}
    with command("serve", *doors, "--json", environment=environment) as first:
        assert first.stdout is not None
        ready = json.loads(first.stdout.readline())
        assert (ready["is_ready"], ready["data_dir"]) == (True, str(directory))
        assert {"kafka", "version"} <= ready.keys()
        assert (directory / "lock").exists()
        with command("serve", *doors, environment=environment) as second:
            _, err = second.communicate(timeout=LINE_SECONDS_MAX)
        assert second.returncode == 1
        assert f"is used by another process (pid {first.pid})" in err.decode().splitlines()[-1]
        verify = ("log", "verify", "--json", "--data-dir", str(directory))
        with command(*verify) as third:
            _, err = third.communicate(timeout=LINE_SECONDS_MAX)
        assert f"(pid {first.pid})" in json.loads(err)["error"]
