"""The life of running pipelines, with queries that do as the test says and a clock that runs by itself."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from penstock.base.clock import ManualClock
from penstock.pipeline.declared.build import Built, Site
from penstock.pipeline.declared.document import Pipeline, Restart, TopicSource
from penstock.pipeline.declared.progress import BatchDone, QueryEnded, QueryEvent
from penstock.pipeline.declared.runner import RESTART_MS_MAX, Prepared, Runner, RunPlan
from penstock.pipeline.declared.sinks.console import ConsoleSink
from penstock.pipeline.declared.state import PipelineState
from penstock.pipeline.declared.status import FAILED, FINISHED, STOPPED, Status
from support.spark.declared_scene import RecordingView

_NUMBERS = count()
TRANSIENT = "Timed out while waiting for the Python worker to connect back"


class HurriedClock(ManualClock):
    """Half a second passes whenever somebody looks."""

    def monotonic_ms(self) -> int:
        self.advance_ms(500)
        return super().monotonic_ms()


class FakeQuery:
    """Ends after some looks, with an error or without."""

    def __init__(self, looks: int = 3, error: str | None = None, *, is_busy: bool = False) -> None:
        self.id = "q"
        self.runId = f"run-{next(_NUMBERS)}"
        self.looks = looks
        self.error = error
        self.is_busy = is_busy
        self.is_stopped = False

    @property
    def isActive(self) -> bool:  # noqa: N802  Spark's name
        self.looks -= 1
        return self.looks > 0 and not self.is_stopped

    @property
    def status(self) -> dict[str, Any]:
        return {"message": "Processing", "isTriggerActive": self.is_busy}

    def exception(self) -> str | None:
        return self.error

    def stop(self) -> None:
        self.is_stopped = True


class FakeSpark:
    def __init__(self) -> None:
        self.streams = self

    def addListener(self, listener: Any) -> None:  # noqa: N802  Spark's name
        """Nobody calls it."""


class SilentReports:
    def __init__(self) -> None:
        self.is_last = False

    def report(
        self, statuses: list[Status], positions: Mapping[str, Mapping[str, Any]], *, is_last: bool = False
    ) -> dict[str, int]:
        self.is_last = is_last
        return {}


class LateEvents(SimpleQueue[QueryEvent]):
    """Spark's listeners on a busy machine: nothing comes for a while."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def get(self, block: bool = True, timeout: float | None = None) -> QueryEvent:
        self.looks -= 1
        if self.looks > 0:
            raise Empty
        return super().get(block, timeout)

    def get_nowait(self) -> QueryEvent:
        return self.get(block=False)


class World:
    """Pipelines by name, each with the queries that its starts give."""

    def __init__(self, directory: Path, *, is_once: bool = False, **lives: list[FakeQuery]) -> None:
        self.view, self.reports, self.clock = RecordingView(), SilentReports(), HurriedClock()
        self.lives = lives
        self.waits: list[int] = []
        builts = [Built(name, self.pipeline(name), FakeSpark(), {}, {}, None) for name in lives]
        pipelines = [Prepared(built, PipelineState(directory, built.name, None)) for built in builts]
        site = Site(directory, "127.0.0.1:1", directory)
        plan = RunPlan(directory / "f.yaml", site, "local", is_once, poll_seconds=0.0001)
        self.runner = Runner(pipelines, plan, view=self.view, reporter=self.reports, clock=self.clock, start=self.start)

    def pipeline(self, name: str) -> Pipeline:
        restart = Restart.ON_FAILURE if name.startswith("restarting") else Restart.NEVER
        return Pipeline(
            sources={"a": TopicSource(topic="t")}, sink=ConsoleSink(console=1), restart=restart, restarts_max=3
        )

    def start(self, built: Built, *arguments: Any, **options: Any) -> dict[str, Any]:
        query = self.lives[built.name].pop(0)
        self.runner._events.put(QueryEnded(query.id, query.runId, None))
        return {built.name: query}

    def run(self) -> dict[str, Status]:
        return {status.name: status for status in self.runner.run()}


def test_a_pipeline_that_comes_to_its_end_is_finished(tmp_path: Path) -> None:
    world = World(tmp_path, is_once=True, plain=[FakeQuery()])
    assert world.run()["plain"].state == FINISHED
    assert world.reports.is_last


def test_a_failure_ends_the_others_and_is_told_once(tmp_path: Path) -> None:
    other = FakeQuery(looks=10_000)
    world = World(tmp_path, broken=[FakeQuery(error="ValueError: no")], other=[other])
    statuses = world.run()
    assert (statuses["broken"].state, statuses["other"].state) == (FAILED, STOPPED)
    assert other.is_stopped
    assert statuses["broken"].last_error == "ValueError: no"
    (told,) = world.view.named("pipeline failed")
    assert told["details"] == str(tmp_path / "broken" / "failure.log")
    assert "ValueError: no" in (tmp_path / "broken" / "failure.log").read_text()


def test_once_lets_the_others_come_to_their_end(tmp_path: Path) -> None:
    world = World(tmp_path, is_once=True, broken=[FakeQuery(error="no")], other=[FakeQuery(looks=50)])
    statuses = world.run()
    assert (statuses["broken"].state, statuses["other"].state) == (FAILED, FINISHED)


def test_a_pipeline_that_may_is_started_again_after_longer_and_longer_waits(tmp_path: Path) -> None:
    lives = [FakeQuery(error="no") for _ in range(4)]
    world = World(tmp_path, restarting=lives)
    status = world.run()["restarting"]
    assert (status.state, status.restarts) == (FAILED, 3)
    assert [told["wait_ms"] for told in world.view.named("pipeline restarts")] == [1_000, 2_000, 4_000]
    assert RESTART_MS_MAX == 60_000


def test_a_start_that_worked_is_not_counted_against_it(tmp_path: Path) -> None:
    lives = [FakeQuery(error="no"), FakeQuery(error="no"), FakeQuery()]
    world = World(tmp_path, restarting=lives)
    status = world.run()["restarting"]
    assert (status.state, status.restarts, status.last_error) == (FINISHED, 2, "no")


def test_a_machine_that_was_too_slow_is_no_failure_of_the_pipeline(tmp_path: Path) -> None:
    world = World(tmp_path, plain=[FakeQuery(error=TRANSIENT), FakeQuery()])
    assert world.run()["plain"].state == FINISHED


def test_a_signal_waits_for_the_batch_and_a_second_one_does_not(tmp_path: Path) -> None:
    quiet, busy = FakeQuery(looks=10_000), FakeQuery(looks=10_000, is_busy=True)
    world = World(tmp_path, quiet=[quiet], busy=[busy])
    world.runner.ask_to_stop()
    before = world.clock.now_ms()
    statuses = world.run()
    # It never came to the end of its batch: after a minute it was broken off.
    assert world.clock.now_ms() - before > 60_000
    assert {status.state for status in statuses.values()} == {STOPPED}
    impatient = World(tmp_path / "second", busy=[FakeQuery(looks=10_000, is_busy=True)])
    impatient.runner.ask_to_stop()
    impatient.runner.ask_to_stop()
    before = impatient.clock.now_ms()
    assert impatient.run()["busy"].state == STOPPED
    assert impatient.clock.now_ms() - before < 60_000


def test_batches_add_up_and_dead_letters_are_counted_apart(tmp_path: Path) -> None:
    world = World(tmp_path, is_once=True, plain=[FakeQuery(looks=20)])
    done = BatchDone("plain", "q", 0, rows_in=10, rows_out=8, rows_per_second=5.0, batch_ms=90, watermark="w")
    idle = BatchDone("plain", "q", 1, rows_in=0, rows_out=1, rows_per_second=0.0, batch_ms=10)
    letters = BatchDone("plain-dead-letters", "d", 0, rows_in=10, rows_out=2, rows_per_second=5.0, batch_ms=50)
    for event in (done, idle, letters):
        world.runner._events.put(event)
    status = world.run()["plain"]
    assert (status.rows_in, status.rows_out, status.bad_rows, status.batch_id) == (10, 9, 2, 1)
    # Of the last batch that had rows: an empty one says nothing of how fast it is.
    assert (status.rows_per_second, status.batch_ms) == (5.0, 90)
    assert [told["rows"] for told in world.view.named("bad rows")] == [2]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_query_has_ended_when_spark_has_told_of_its_last_batch(tmp_path: Path, *, is_stopped: bool) -> None:
    world = World(tmp_path, is_once=not is_stopped, plain=[FakeQuery(looks=10_000 if is_stopped else 3)])
    world.runner._events = LateEvents(looks=15)
    world.runner._events.put(BatchDone("plain", "q", 0, rows_in=10, rows_out=8, rows_per_second=5.0, batch_ms=90))
    if is_stopped:
        world.runner.ask_to_stop()
    status = world.run()["plain"]
    assert (status.state, status.rows_in, status.rows_out) == (STOPPED if is_stopped else FINISHED, 10, 8)
