"""A start on a disk without a free block, and a file system that takes no writes: what is there is served.

The disk is a small tmpfs in namespaces that a sleeping process holds, so that one node after another can use it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka.messages import fetch, produce
from support.door.raw_kafka import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    RawConnection,
    create_by_asking,
    fetch_request,
    one_batch,
    produce_request,
    records_of,
)
from support.node_process import NodeProcess

DISK_MEGABYTES = 48
RESUME_SECONDS_MAX = 30.0


class SmallDisk:
    """A disk of its own, which outlives the processes that use it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        script = f'mount -t tmpfs -o size={DISK_MEGABYTES}m none "$0" && echo mounted && exec sleep 600'
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(directory)]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._holder.stdout is not None
        self.is_there = self._holder.stdout.readline() == b"mounted\n"

    @property
    def enter(self) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self._holder.pid), "--user", "--mount", "--preserve-credentials")

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.enter, "sh", "-c", script, str(self.directory), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def take_the_rest(self) -> None:
        """A neighbour writes until there is not one page left."""
        self.run('head -c 1000000000 /dev/zero > "$0/neighbour"; head -c 1000000 /dev/zero > "$0/neighbour2"')

    def give_back(self) -> None:
        assert self.run('rm "$0/neighbour" "$0/neighbour2"').returncode == 0

    def free_bytes(self) -> int:
        return int(self.run('stat -f --format %f "$0"').stdout)

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("no namespace with a small disk can be made here")
    disk = SmallDisk(tmp_path / "cramped")
    try:
        if not disk.is_there or disk.run("true").returncode:
            pytest.skip("no namespace with a small disk can be made here")
        yield disk
    finally:
        disk.close()


def produce_one(connection: RawConnection, topic: str, value: bytes) -> int:
    reply = connection.ask(produce_request(topic, {0: one_batch(value)}), produce.ProduceResponse, PRODUCE_VERSION)
    return reply.responses[0].partition_responses[0].error_code


def stored(connection: RawConnection, topic: str) -> bytes:
    reply = connection.ask(fetch_request(topic), fetch.FetchResponse, FETCH_VERSION)
    return records_of(reply.responses[0].partitions[0])


def test_node_starts_on_a_full_disk_serves_and_heals(small_disk: SmallDisk, tmp_path: Path, topic: str) -> None:
    environment = {"PENSTOCK_STORAGE__FREE_BYTES_MIN": str(8 << 20)}
    node = NodeProcess(tmp_path / "node", wrapper=small_disk.enter, environment=environment)
    node.data_directory = small_disk.directory / "data"
    with node:
        with RawConnection(node) as connection:
            create_by_asking(connection, topic)
            assert produce_one(connection, topic, b"before") == wire.ErrorCode.NONE
        # Twice: the second time there is no reserve left to be used.
        for _ in range(2):
            small_disk.take_the_rest()
            assert small_disk.free_bytes() == 0
            node.kill()
            node.start()
            with RawConnection(node) as connection:
                assert b"before" in stored(connection, topic)
                assert produce_one(connection, topic, b"refused") == wire.ErrorCode.KAFKA_STORAGE_ERROR
        small_disk.give_back()
        with RawConnection(node) as connection:
            deadline = time.monotonic() + RESUME_SECONDS_MAX
            while produce_one(connection, topic, b"after") != wire.ErrorCode.NONE:
                assert time.monotonic() < deadline, f"writes did not resume within {RESUME_SECONDS_MAX} s"
            assert b"refused" not in stored(connection, topic)
        assert node.terminate() == 0, node.log_tail()
        node.start()
    assert "Traceback" not in node.log_path.read_text()


READ_ONLY = """
import errno, sys
from penstock.storage.files import DirectoryFiles
files = DirectoryFiles()
file = files.open(sys.argv[1] + "/there")
assert file.read_at(0, 100) == b"whole", file.read_at(0, 100)
assert files.is_read_only(sys.argv[1])
new = sys.argv[1] + "/new"
for attempt in (lambda: file.write_at(b"x", 0), lambda: file.truncate(0), lambda: files.open(new, create=True)):
    try:
        attempt()
    except OSError as error:
        assert error.errno == errno.EROFS, error
    else:
        raise AssertionError("a write was taken")
print("served")
"""


def test_file_of_a_read_only_file_system_is_opened_for_reading(small_disk: SmallDisk) -> None:
    script = 'printf whole > "$0/there" && mount -o remount,ro "$0" && exec "$1" -c "$2" "$0"'
    done = small_disk.run(script, sys.executable, READ_ONLY)
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
