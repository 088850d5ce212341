"""Celery on kombu's SQS transport, as it is: real workers in processes of their own run real tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.node_process import NodeProcess

TASKS = """
import os
import time

from celery import Celery

app = Celery("tasks", broker="sqs://key:secret@" + os.environ["SQS_ADDRESS"])
app.conf.update(
    broker_transport_options={
        "is_secure": False,
        "region": "eu-central-1",
        "visibility_timeout": 3,
        "wait_time_seconds": 1,
        "polling_interval": 0.1,
    },
    task_default_queue="celery-tasks",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def write(name, text):
    with open(os.path.join(os.environ["RESULTS"], name), "a") as file:
        file.write(text + "\\n")


@app.task
def note_time(name):
    with open(os.path.join(os.environ["RESULTS"], name), "a") as file:
        file.write(str(time.time()) + "\\n")


@app.task(bind=True, max_retries=3, default_retry_delay=0)
def fail_once(self, name):
    marker = os.path.join(os.environ["RESULTS"], name)
    if not os.path.exists(marker):
        open(marker, "w").close()
        raise self.retry(countdown=0)
    with open(marker, "a") as file:
        file.write("done\\n")


@app.task
def die_once(name):
    marker = os.path.join(os.environ["RESULTS"], name)
    if not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), 9)
    with open(marker, "a") as file:
        file.write("done\\n")
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path / "node", has_http=True).start()
    yield running
    running.terminate()


@pytest.fixture
def place(tmp_path: Path, node: NodeProcess) -> Iterator[tuple[Path, dict[str, str]]]:
    (tmp_path / "tasks.py").write_text(TASKS)
    results = tmp_path / "results"
    results.mkdir()
    environment = {**os.environ, "SQS_ADDRESS": node.http, "RESULTS": str(results), "PYTHONPATH": str(tmp_path)}
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "2", "-l", "INFO"],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        )
    yield tmp_path, environment
    worker.terminate()
    try:
        worker.wait(15)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait(5)


def send(place: tuple[Path, dict[str, str]], code: str) -> None:
    directory, environment = place
    program = f"import tasks\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=directory, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def wait_for(path: Path, lines: int, directory: Path) -> list[str]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = path.read_text().splitlines() if path.exists() else []
        if len(found) >= lines:
            return found
        time.sleep(0.1)
    raise AssertionError(
        f"{path.name} has not come; the worker says:\n{(directory / 'worker.log').read_text()[-3000:]}"
    )


def test_workers_run_tasks_in_time_retry_those_that_fail_and_those_whose_worker_died(
    place: tuple[Path, dict[str, str]],
) -> None:
    directory, environment = place
    results = Path(environment["RESULTS"])
    send(place, "for n in range(20): tasks.write.delay('numbers', str(n))\ntasks.fail_once.delay('failed')")
    assert sorted(wait_for(results / "numbers", 20, directory), key=int) == [str(number) for number in range(20)]
    assert wait_for(results / "failed", 1, directory) == ["done"]
    # Celery waits for a countdown itself; what says DelaySeconds waits here.
    began = time.time()
    send(place, "tasks.note_time.apply_async(args=['counted'], countdown=1)")
    send(place, "tasks.note_time.apply_async(args=['delayed'], DelaySeconds=3)")
    stats = httpx.get(f"http://{environment['SQS_ADDRESS']}/v1/queues/celery-tasks/sqs/stats").json()
    assert stats["delayed_count"] == 1
    assert float(wait_for(results / "counted", 1, directory)[0]) >= began + 1
    assert float(wait_for(results / "delayed", 1, directory)[0]) >= began + 3
    # Its process is killed in the middle: the lease runs out, and another one gets it.
    send(place, "tasks.die_once.delay('killed')")
    assert wait_for(results / "killed", 1, directory) == ["done"]
    assert sorted((results / "numbers").read_text().split(), key=int) == [str(number) for number in range(20)]
