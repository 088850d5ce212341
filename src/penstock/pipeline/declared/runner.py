"""Runs pipelines until they end, fail or are told to stop.

    start ──► running ──► finished            --once: everything that was there is done
                │  ▲  └──► stopped             a signal: after the batch that was running
                ▼  │
             restarting ──► failed             restart: on-failure, up to restarts_max times in a row

One thread, this one, decides and changes; Spark's threads hand over events (`progress`). A pipeline that has
failed for good ends the others as well, after their batches: whoever supervises this process sees it at once. With
`--once` the others come to their end first.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock.base.clock import Clock
from penstock.pipeline.declared.bad_rows import explain_row
from penstock.pipeline.declared.build import Built, Site
from penstock.pipeline.declared.checks import DEAD_LETTERS
from penstock.pipeline.declared.document import Restart, TopicSource
from penstock.pipeline.declared.errors import is_transient, read_failure
from penstock.pipeline.declared.progress import BatchDone, Position, QueryEnded, QueryEvent, make_listener
from penstock.pipeline.declared.queries import start_queries
from penstock.pipeline.declared.state import PipelineState
from penstock.pipeline.declared.status import (
    ALIVE,
    FAILED,
    FINISHED,
    RESTARTING,
    RUNNING,
    STARTING,
    STOPPED,
    Status,
)

POLL_SECONDS: Final = 0.2
# A batch that takes longer is broken off: it will be done again, and written once all the same.
STOP_MS_MAX: Final = 60_000
# Each query starts Python processes, and Spark gives them ten seconds: with all queries of a file at once, a small
# machine would not make it.
SOURCES_MS_MAX: Final = 30_000
# Spark tells of batches in a thread of its own, which on a busy machine is seconds behind.
LAST_WORDS_MS_MAX: Final = 10_000
TRANSIENT_MAX: Final = 3
RESTART_MS_FIRST: Final = 1_000
RESTART_MS_MAX: Final = 60_000


class Reports(Protocol):
    def report(
        self, statuses: list[Status], positions: Mapping[str, Mapping[str, Position]], *, is_last: bool = False
    ) -> dict[str, int]:
        """By pipeline how far it is behind."""
        ...


class View(Protocol):
    """Whoever watches: a live table, or lines of a log."""

    def event(self, name: str, **fields: object) -> None: ...

    def show(self, statuses: list[Status]) -> None: ...

    def rows(self, pipeline: str, batch_id: int, columns: list[str], rows: list[dict[str, Any]]) -> None: ...


@dataclass(slots=True)
class _Running:
    built: Built
    state: PipelineState
    status: Status
    # By name; none while it waits for its next start.
    queries: dict[str, Any] = field(default_factory=dict)
    # How far each query has read.
    positions: dict[str, Position] = field(default_factory=dict)
    restart_at_ms: int | None = None
    restarts_in_a_row: int = 0


class Prepared(msgspec.Struct, frozen=True):
    """A pipeline that can start, and what is kept of it between starts."""

    built: Built
    state: PipelineState


class RunPlan(msgspec.Struct, frozen=True):
    """How the pipelines of one file are run."""

    file: Path
    site: Site
    # Of Spark: where the queries run.
    master: str
    # Until everything that was there is done.
    is_once: bool
    # For events of queries, and between two looks at them.
    poll_seconds: float = POLL_SECONDS


class Runner:
    def __init__(
        self,
        pipelines: Sequence[Prepared],
        plan: RunPlan,
        *,
        view: View,
        reporter: Reports,
        clock: Clock,
        start: Callable[..., dict[str, Any]] = start_queries,
    ) -> None:
        self._plan = plan
        self._view = view
        self._reporter = reporter
        self._clock = clock
        self._start_queries = start
        self._events: queue.SimpleQueue[QueryEvent] = queue.SimpleQueue()
        # Runs of queries that have said their last word.
        self._ended: set[str] = set()
        self._stop_count = 0
        self._all = {
            each.built.name: _Running(each.built, each.state, first_status(each.built, plan, now_ms=clock.now_ms()))
            for each in pipelines
        }

    @property
    def statuses(self) -> list[Status]:
        return [running.status for running in self._all.values()]

    def ask_to_stop(self) -> None:
        """Safe in a signal handler. The second time, batches are broken off."""
        self._stop_count += 1

    def run(self) -> list[Status]:
        """Blocking; how each of them ended."""
        for running in self._all.values():
            running.built.spark.streams.addListener(make_listener(self._events))
        try:
            for running in self._all.values():
                self._start(running)
            while self._is_anything_left() and not self._must_stop():
                self._turn()
        finally:
            self._stop_all()
            self._drain()
            self._report(is_last=True)
        return self.statuses

    # -- one turn

    def _turn(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._apply(self._events.get(timeout=self._plan.poll_seconds))
            self._drain()
        for running in self._all.values():
            if running.queries:
                self._look(running)
            elif running.restart_at_ms is not None and self._clock.monotonic_ms() >= running.restart_at_ms:
                self._start(running)
        self._report()

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._apply(self._events.get_nowait())

    def _is_anything_left(self) -> bool:
        return any(running.status.state in ALIVE for running in self._all.values())

    def _must_stop(self) -> bool:
        has_failed = any(running.status.state == FAILED for running in self._all.values())
        return self._stop_count > 0 or (has_failed and not self._plan.is_once)

    # -- a pipeline's life

    def _start(self, running: _Running) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        name = running.built.name
        running.restart_at_ms = None
        try:
            running.queries = self._start_queries(
                running.built, running.state, self._plan.site, show=self._show_rows(name), is_once=self._plan.is_once
            )
        except (PySparkException, Py4JError) as error:
            self._fail(running, str(error))
            return
        query_id = str(running.queries[name].id)
        self._change(running, state=RUNNING, query_id=query_id)
        self._view.event("pipeline started", pipeline=name, query_id=query_id, checkpoint=running.state.checkpoint)
        self._await_sources(running)

    def _await_sources(self, running: _Running) -> None:
        deadline_ms = self._clock.monotonic_ms() + SOURCES_MS_MAX
        for query in running.queries.values():
            while (
                query.isActive
                and query.status["message"].startswith("Initializing")
                and self._clock.monotonic_ms() < deadline_ms
                and not self._stop_count
            ):
                with contextlib.suppress(queue.Empty):
                    self._apply(self._events.get(timeout=self._plan.poll_seconds))

    def _look(self, running: _Running) -> None:
        """Spark ends a query without asking us."""
        # Asked once: one that fails between two questions must not pass for one that came to its end.
        ended = [query for query in running.queries.values() if not query.isActive]
        failed = [query for query in ended if query.exception() is not None]
        if failed:
            error = failed[0].exception()
            self._stop_queries(running, is_patient=False)
            self._fail(running, f"{error}\n\n{getattr(error, '_stackTrace', '') or ''}")
        elif len(ended) == len(running.queries):
            self._await_last_words(running)
            running.queries = {}
            self._change(running, state=FINISHED)
            self._view.event("pipeline finished", pipeline=running.built.name, rows_in=running.status.rows_in)

    def _fail(self, running: _Running, text: str) -> None:
        pipeline, sentence = (
            running.built.pipeline,
            read_failure(text, lambda row: explain_row(running.built.plans, row)),
        )
        log_file = running.state.write_failure(text)
        self._change(running, last_error=sentence, last_error_ms=self._clock.now_ms(), log_file=str(log_file))
        running.queries = {}
        restarts_max = pipeline.restarts_max if pipeline.restart is Restart.ON_FAILURE else 0
        if is_transient(text):
            restarts_max = max(restarts_max, TRANSIENT_MAX)
        can_restart = running.restarts_in_a_row < restarts_max
        fields = {"pipeline": running.built.name, "error": sentence, "details": str(log_file)}
        if not can_restart or self._stop_count:
            self._change(running, state=FAILED)
            self._view.event("pipeline failed", **fields)
            return
        wait_ms = min(RESTART_MS_FIRST << min(running.restarts_in_a_row, 16), RESTART_MS_MAX)
        running.restarts_in_a_row += 1
        running.restart_at_ms = self._clock.monotonic_ms() + wait_ms
        self._change(running, state=RESTARTING, restarts=running.status.restarts + 1)
        self._view.event("pipeline restarts", **fields, wait_ms=wait_ms, restart=running.restarts_in_a_row)

    def _apply(self, event: QueryEvent) -> None:
        if isinstance(event, QueryEnded):
            self._ended.add(event.run_id)
        if not isinstance(event, BatchDone):
            return
        running = self._all.get(event.query) or self._all.get(event.query.removesuffix(DEAD_LETTERS))
        if running is None:
            return
        running.positions[event.query] = event.position
        if event.query != running.built.name:
            self._change(running, bad_rows=running.status.bad_rows + event.rows_out)
            if event.rows_out:
                self._view.event("bad rows", pipeline=running.built.name, rows=event.rows_out)
            return
        # It works again: the next failure is a first one.
        running.restarts_in_a_row = 0
        status = running.status
        changes: dict[str, Any] = {"batch_id": event.batch_id, "watermark": event.watermark}
        if event.rows_in:
            changes |= {"rows_per_second": event.rows_per_second, "batch_ms": event.batch_ms}
        self._change(
            running, rows_in=status.rows_in + event.rows_in, rows_out=status.rows_out + event.rows_out, **changes
        )
        if event.rows_in:
            self._view.event(
                "batch",
                pipeline=event.query,
                batch=event.batch_id,
                rows_in=event.rows_in,
                rows_out=event.rows_out,
                rows_per_second=round(event.rows_per_second, 1),
                batch_ms=event.batch_ms,
                state_rows=event.state_rows,
            )

    def _change(self, running: _Running, **changes: Any) -> None:
        running.status = msgspec.structs.replace(running.status, updated_ms=self._clock.now_ms(), **changes)

    # -- the end

    def _stop_all(self) -> None:
        for running in self._all.values():
            self._stop_queries(running, is_patient=True)
            if running.status.state in ALIVE:
                self._change(running, state=STOPPED)
                self._view.event("pipeline stopped", pipeline=running.built.name)

    def _stop_queries(self, running: _Running, *, is_patient: bool) -> None:
        deadline_ms = self._clock.monotonic_ms() + STOP_MS_MAX
        for query in running.queries.values():
            while (
                is_patient
                and query.isActive
                and query.status["isTriggerActive"]
                and self._stop_count < 2
                and self._clock.monotonic_ms() < deadline_ms
            ):
                with contextlib.suppress(queue.Empty):
                    self._apply(self._events.get(timeout=self._plan.poll_seconds))
            query.stop()
        self._await_last_words(running)
        running.queries = {}

    def _await_last_words(self, running: _Running) -> None:
        """That a query has ended, Spark tells after its last batch: rows and positions are known then."""
        deadline_ms = self._clock.monotonic_ms() + LAST_WORDS_MS_MAX
        runs = {str(query.runId) for query in running.queries.values()}
        while not runs <= self._ended and self._stop_count < 2 and self._clock.monotonic_ms() < deadline_ms:
            with contextlib.suppress(queue.Empty):
                self._apply(self._events.get(timeout=self._plan.poll_seconds))
        self._ended -= runs

    def _report(self, *, is_last: bool = False) -> None:
        positions = {name: dict(running.positions) for name, running in self._all.items()}
        lags = self._reporter.report(self.statuses, positions, is_last=is_last)
        for name, lag in lags.items():
            running = self._all[name]
            running.status = msgspec.structs.replace(running.status, lag=lag)
        self._view.show(self.statuses)

    def _show_rows(self, name: str) -> Callable[[list[dict[str, Any]], int, list[str]], None]:
        def show(rows: list[dict[str, Any]], batch_id: int, columns: list[str]) -> None:
            self._view.rows(name, batch_id, columns, rows)

        return show


def first_status(built: Built, plan: RunPlan, *, now_ms: int) -> Status:
    return Status(
        name=built.name,
        state=STARTING,
        updated_ms=now_ms,
        started_ms=now_ms,
        file=str(plan.file.absolute()),
        host=socket.gethostname(),
        pid=os.getpid(),
        master=plan.master,
        sources=[
            source.topic if isinstance(source, TopicSource) else source.path
            for source in built.pipeline.sources.values()
        ],
        sink=built.pipeline.sink.describe().name,
        group=f"penstock-spark-{built.name}",
    )
