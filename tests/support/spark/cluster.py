"""A standalone Spark cluster on this machine: a master and workers, each in a process group of its own.

with SparkCluster(tmp_path, workers=2) as cluster:
    driver … cluster.master …
    cluster.kill_worker_of(process_id)
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.pipeline.session.java_home import find_java_home
from support.node_process import die_with_parent

START_SECONDS_MAX: Final = 120.0
_MASTER: Final = re.compile(r"spark://127\.0\.0\.1:\d+")
_REGISTERED: Final = "Successfully registered with master"


class SparkCluster:
    def __init__(self, directory: Path, *, workers: int) -> None:
        self.master = ""
        self._directory = directory
        self._worker_count = workers
        self._master_process: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_all()

    def kill_worker_of(self, process_id: int) -> None:
        """SIGKILL of the worker that the process descends from, and of its executors."""
        pid = process_id
        while pid not in self._workers:
            assert pid > 1, f"{process_id} is nobody's"
            pid = _parent_of(pid)
        _kill_group(self._workers.pop(pid))

    @property
    def worker_count(self) -> int:
        return sum(process.poll() is None for process in self._workers.values())

    def _start(self) -> None:
        self._master_process, log = self._launch("master", "org.apache.spark.deploy.master.Master", "--port", "0")
        self.master = _wait_for(log, _MASTER, self._master_process)
        for number in range(self._worker_count):
            arguments = ("--cores", "1", "--memory", "700m", "--work-dir", str(self._directory / f"work-{number}"))
            process, log = self._launch(
                f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *arguments, self.master
            )
            self._workers[process.pid] = process
            _wait_for(log, re.compile(_REGISTERED), process)

    def _launch(self, name: str, main_class: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        import pyspark

        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(find_java_home(os.environ)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        command = [
            str(home / "bin" / "spark-class"),
            main_class,
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *arguments,
        ]
        path = self._directory / f"{name}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  one system call, no lock
            )
        return process, path

    def _end_all(self) -> None:
        for process in [*self._workers.values(), *([self._master_process] if self._master_process else [])]:
            _kill_group(process)
        self._workers.clear()
        self._master_process = None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Its leader is not waited for yet, so the number is still ours.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _wait_for(log: Path, wanted: re.Pattern[str], process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        text = log.read_text(errors="replace")
        found = wanted.search(text)
        if found is not None:
            return found[0]
        assert process.poll() is None, f"it ended:\n{text[-4000:]}"
        assert time.monotonic() < deadline, f"not ready:\n{text[-4000:]}"
        time.sleep(0.05)
