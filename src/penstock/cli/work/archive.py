"""The work of `penstock archive TOPIC… --to PATH`: a stream of Spark's, watched, and the table's upkeep beside it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.base.clock import SystemClock
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.option_values import duration_ms
from penstock.cli.output import counted, print_json, say
from penstock.cli.progress import BenchProgress
from penstock.cli.reach import reach_node
from penstock.cli.work.query import end_spark, in_words_of_options, spark_log_level
from penstock.pipeline.archive.job import FORMATS, ArchiveRequest, ArchiveRun, start_archive
from penstock.pipeline.archive.query import SETTINGS, python_error
from penstock.pipeline.session.spark import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often Spark is asked how far it is.
LOOK_SECONDS: Final = 1
# Days end once a day; an hour late is soon enough.
UPKEEP_SECONDS: Final = 3_600.0


def request_of(
    bootstrap: str,
    topics: list[str],
    path: str,
    *,
    every: str,
    rows: int,
    schema: str | None,
    value_format: str,
    compact_every: int,
    group: str,
    is_once: bool,
    allows_loss: bool,
) -> ArchiveRequest:
    if value_format not in FORMATS:
        raise CommandError(f"--format is {value_format!r}, one of {', '.join(FORMATS)} is meant", exit_code=EXIT_USAGE)
    return ArchiveRequest(
        bootstrap=bootstrap,
        topics=tuple(dict.fromkeys(topics)),
        # Spark's workers may have another directory.
        path=path if "://" in path or not path else str(Path(path).absolute()),
        is_once=is_once,
        trigger_ms=duration_ms(every, "--every"),
        rows_per_batch=rows,
        compact_every=compact_every,
        group=group,
        value_schema=schema,
        value_format=value_format,
        fails_on_data_loss=not allows_loss,
    )


class Means(NamedTuple):
    """Whoever runs archives."""

    open_session: Callable[..., SparkSession] = open_session
    start: Callable[[SparkSession, ArchiveRequest], ArchiveRun] = start_archive
    reach: Callable[[str], None] = reach_node


SPARK: Final = Means()


def run(request: ArchiveRequest, *, keep: str | None, master: str | None, as_json: bool, means: Means = SPARK) -> None:
    keep_ms = None if keep is None else duration_ms(keep, "--keep")
    means.reach(request.bootstrap)
    ending = _Ending()
    spark = means.open_session("penstock archive", master=master, conf=SETTINGS, log_level=spark_log_level())
    ending.listen()
    try:
        archive = means.start(spark, request)
        try:
            _watch(archive, request, ending, keep_ms)
            _finish(archive, as_json=as_json, request=request)
        finally:
            archive.stop()
    finally:
        end_spark(spark)


class _Ending:
    """SIGINT and SIGTERM end the run in order: the batch under way is given up, what is committed stays."""

    def __init__(self) -> None:
        self.is_asked = False
        self.listen()

    def listen(self) -> None:
        """Again when Spark is there: it takes SIGINT for itself, and throws whatever is under way."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True


def _watch(archive: ArchiveRun, request: ArchiveRequest, ending: _Ending, keep_ms: int | None) -> None:
    started = time.monotonic()
    upkeep_due = started
    topics = ", ".join(request.topics)
    if not request.is_once:
        say(f"archiving {topics} to {request.path}, Ctrl-C ends it")
    with BenchProgress(f"archive {topics}", None) as progress:
        while archive.query.isActive and not ending.is_asked:
            _wait(archive)
            latest = archive.report()
            if latest is not None:
                seconds = time.monotonic() - started
                progress.update(archive.row_count, _note(archive, latest, seconds))
            if keep_ms is not None and time.monotonic() >= upkeep_due and archive.row_count:
                upkeep_due = time.monotonic() + UPKEEP_SECONDS
                _keep(request.path, keep_ms)


def _wait(archive: ArchiveRun) -> None:
    from pyspark.errors import StreamingQueryException

    # It failed: told at the end, with the reason.
    with contextlib.suppress(StreamingQueryException):
        archive.query.awaitTermination(LOOK_SECONDS)


def _note(archive: ArchiveRun, latest: dict[str, Any], seconds: float) -> str:
    rate = latest["row_count"] * 1000 / max(latest["durationMs"].get("triggerExecution", 0), 1)
    commits = counted(latest["batchId"] + 1, "commit")
    return f"{counted(archive.row_count, 'message')}, {rate:,.0f}/s, {commits}, {seconds:,.0f} s"


def _keep(path: str, keep_ms: int) -> None:
    """Beside a stream that commits: whoever is overtaken tries again in an hour."""
    from deltalake.exceptions import DeltaError

    from penstock.pipeline.table import upkeep as table_upkeep
    from penstock.pipeline.table.options import TableError

    try:
        removed = table_upkeep.keep_days(path, keep_ms=keep_ms, now_ms=SystemClock().now_ms())
        table_upkeep.vacuum(path)
    except (DeltaError, OSError, TableError) as error:
        say(f"the table's upkeep waits for an hour: {error}")
        return
    if removed:
        say(f"{counted(removed, 'message')} of old days removed")


def _finish(archive: ArchiveRun, *, as_json: bool, request: ArchiveRequest) -> None:
    error = archive.query.exception()
    if error is not None:
        raise CommandError(f"the archive stopped: {in_words_of_options(python_error(str(error)))}")
    archive.report()
    if as_json:
        print_json({"path": request.path, "topics": request.topics, "archived_count": archive.row_count})
    say(f"{counted(archive.row_count, 'message')} archived")
