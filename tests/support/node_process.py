"""A real node in a process of its own: it shares no event loop, no memory and no fate with the test.

    with NodeProcess(tmp_path / "node") as node:
        client = Producer({"bootstrap.servers": node.kafka})
        node.kill()        # -9: nothing is flushed, nothing is said
        node.start()       # same directory, same ports: clients find it again

Every wait has a bound, and its failure shows the node's own log: a test that hangs tells nobody why.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

# A node starts in under a second; CI machines run two suites at once on slow disks.
READY_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 30.0
LOG_BYTES_SHOWN_MAX: Final = 8_000

_READY = re.compile(r"^ready\b.*\bkafka=")
_DOOR = re.compile(r"\b(\w+)=(\S+)")


_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """A test run that is killed must not leave nodes behind."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


class NodeFailedError(AssertionError):
    """The node did not become ready, or did not end when told to."""


class NodeProcess:
    def __init__(
        self,
        directory: Path,
        *,
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        memory: bool = False,
        wrapper: tuple[str, ...] = (),
        has_http: bool = False,
    ) -> None:
        """`wrapper` is put before the node's command line, e.g. `("strace", "-f", …)`."""
        self.directory = directory
        self.data_directory = directory / "data"
        self.log_path = directory / "node.log"
        self.kafka = ""
        self.metrics = ""
        self.http = ""
        self.ready_seconds = 0.0
        self._arguments = arguments
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._memory = memory
        self._wrapper = wrapper
        self._has_http = has_http
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    # life

    def start(self) -> Self:
        """Returns at the ready line. A second start takes the first one's ports: clients find it again."""
        assert self._process is None, "the node runs already"
        began = time.monotonic()
        with self.log_path.open("ab") as log_file:
            self._process = subprocess.Popen(
                self.command(),
                preexec_fn=die_with_parent,  # noqa: PLW1509  one system call, no lock
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=self._environment,
                # A group of its own: an interrupted test run must not race the node's own shutdown.
                start_new_session=True,
            )
        self._read_ready_line(began + READY_SECONDS_MAX)
        self.ready_seconds = time.monotonic() - began
        return self

    def command(self) -> list[str]:
        command = [*self._wrapper, sys.executable, "-m", "penstock.main", "serve"]
        command += ["--kafka", self.kafka or "127.0.0.1:0", "--metrics", self.metrics or "127.0.0.1:0"]
        command += ["--http", (self.http or "127.0.0.1:0") if self._has_http else "off"]
        command += ["--memory"] if self._memory else ["--data-dir", str(self.data_directory)]
        return [*command, *self._arguments]

    def kill(self) -> None:
        """kill -9. Whatever the node had not handed to the kernel is gone."""
        process = self._running()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS_MAX)
        self._forget()

    def terminate(self) -> int:
        """SIGTERM, and the exit code of the graceful end."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        process = self._running()
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeFailedError(f"the node did not end within {STOP_SECONDS_MAX} s\n{self.log_tail()}") from None
        self._forget()
        return code

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self._running().pid, number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # looking at it

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.kafka.rpartition(":")
        return host, int(port)

    def connect(self, *, timeout_seconds: float = 10.0) -> socket.socket:
        return socket.create_connection(self.address, timeout=timeout_seconds)

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None, "the kernel tells no VmRSS"
        return int(found[1]) * 1024

    def open_file_count(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        return f"--- the node's log ---\n{self.log_text()[-LOG_BYTES_SHOWN_MAX:]}\n--- end of log ---"

    # context

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            # SIGKILL: a test that wants the graceful end asks for it and looks at its exit code.
            self.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the node does not run"
        return self._process

    def _forget(self) -> None:
        process = self._running()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def _read_ready_line(self, deadline: float) -> None:
        process = self._running()
        assert process.stdout is not None
        descriptor, text = process.stdout.fileno(), b""
        while True:
            left_seconds = deadline - time.monotonic()
            readable, _, _ = select.select([descriptor], [], [], max(0.0, left_seconds))
            if not readable:
                self._give_up(f"no ready line within {READY_SECONDS_MAX} s, only {text!r}")
            chunk = os.read(descriptor, 4096)
            if not chunk:
                self._give_up(f"the node ended with code {process.wait()} before it was ready")
            text += chunk
            for line in text.decode(errors="replace").splitlines():
                if _READY.match(line) is not None and text.endswith(b"\n"):
                    doors = dict(_DOOR.findall(line))
                    self.kafka, self.metrics, self.http = (doors.get(name, "") for name in ("kafka", "metrics", "http"))
                    return

    def _give_up(self, reason: str) -> None:
        if self.is_running:
            self.kill()
        else:
            self._forget()
        raise NodeFailedError(f"{reason}\n{self.log_tail()}")
