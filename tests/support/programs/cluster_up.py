"""`penstock cluster up` in a process of its own, with its nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from support.node_process import NodeFailedError

READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 90.0
FREE_PORTS: Final = ("--kafka-port", "0", "--http-port", "0", "--cluster-port", "0")


class ClusterUp:
    def __init__(self, directory: Path, *, nodes: int = 3, arguments: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.bootstrap = ""
        # Of each node, the addresses of its doors.
        self.nodes: list[dict[str, str]] = []
        self._log_path = directory / "up.log"
        self._command = [
            *(sys.executable, "-m", "penstock.main", "cluster", "up", "--json", "--nodes", str(nodes)),
            *("--directory", str(directory / "cluster"), *FREE_PORTS, *arguments),
        ]
        self._process: subprocess.Popen[str] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NodeFailedError(f"the cluster is not ready:\n{self.said}")
        ready = json.loads(line)
        self.bootstrap, self.nodes = ready["bootstrap"], ready["nodes"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()

    def stop(self) -> int:
        """Its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_SECONDS_MAX)

    @property
    def said(self) -> str:
        return self._log_path.read_text()

    def process_ids(self) -> list[int]:
        """Of the nodes that run, by number."""
        assert self._process is not None
        text = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return sorted(map(int, text.split()))

    def kill_node(self) -> None:
        """The last that was started, by -9."""
        os.kill(self.process_ids()[-1], signal.SIGKILL)

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + READY_SECONDS_MAX
        while not is_so():
            if time.monotonic() > until:
                raise NodeFailedError(f"not {what} after {READY_SECONDS_MAX:g} s:\n{self.said}")
            time.sleep(0.05)
