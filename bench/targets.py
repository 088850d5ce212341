"""Brokers to measure, each in a process of its own that says `ready kafka=HOST:PORT` when it accepts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from bench.load import Achieved, Load

READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0
LOAD_SECONDS_MAX: Final = 300.0
# As where a package is installed, modules are compiled once and not at every start; outside of the checkouts, which may
# be closed to us.
BYTECODE: Final = {
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(Path(__file__).parents[1] / "build" / "pycache"),
}


class Target:
    """A context in which the broker runs."""

    def __init__(
        self, name: str, command: list[str], *, log_path: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.bootstrap = ""
        self.metrics = ""
        self.http = ""
        self.ready_seconds = 0.0
        self._command = command
        self._log_path = log_path
        self._environment = {**os.environ, **BYTECODE, **(environment or {})}

    def __enter__(self) -> Self:
        began = time.monotonic()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.match(r"ready\b.*\bkafka=", line)
        if found is None:
            self.kill()
            raise AssertionError(f"{self.name} said {line!r}: {self._log_path.read_text()[-2000:]}")
        self.ready_seconds = time.monotonic() - began
        doors = dict(re.findall(r"\b(\w+)=(\S+)", line))
        self.bootstrap, self.metrics, self.http = (doors.get(name, "") for name in ("kafka", "metrics", "http"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def null_broker(directory: Path, value_bytes: int) -> Target:
    command = [sys.executable, "-m", "bench.null_broker", "--value-bytes", str(value_bytes)]
    return Target("null broker", command, log_path=directory / "null-broker.log")


def mock_cluster(directory: Path) -> Target:
    command = [sys.executable, "-m", "bench.mock_cluster"]
    return Target("mock cluster", command, log_path=directory / "mock-cluster.log")


def penstock(
    directory: Path,
    *,
    environment: dict[str, str] | None = None,
    has_http: bool = False,
    tree: Path | None = None,
    module: str = "penstock.main",
) -> Target:
    """A node of this checkout, or of the one at `tree`."""
    if tree is not None:
        environment = {**(environment or {}), "PYTHONPATH": str(tree / "src")}
    data_directory = directory / "data"
    command = [sys.executable, "-m", module, "serve", "--data-dir", str(data_directory)]
    command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0" if has_http else "off", "--metrics", "127.0.0.1:0"]
    data_directory.mkdir(parents=True, exist_ok=True)
    return Target("penstock", command, log_path=directory / "penstock.log", environment=environment)


def run_load(load: Load) -> Achieved:
    """One run of the client, in a new process: no connection, cache or heap of an earlier run helps it."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", msgspec.json.encode(load).decode()],
        capture_output=True,
        timeout=LOAD_SECONDS_MAX,
        text=True,
    )
    assert done.returncode == 0, f"the client failed: {done.stderr[-2000:]}"
    return msgspec.json.decode(done.stdout, type=Achieved)
