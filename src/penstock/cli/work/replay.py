"""The work of `penstock replay`: Spark chooses and orders the messages, this process sends them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.chance import SYSTEM_CHANCE
from penstock.base.clock import SystemClock
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.option_values import moment_ms_if_given
from penstock.cli.output import counted, print_json, print_table, say
from penstock.cli.progress import BenchProgress
from penstock.cli.reach import reach_node
from penstock.cli.work.archive_show import check_installed, moment
from penstock.cli.work.query import archive_of, end_spark, in_words_of_options, spark_log_level
from penstock.pipeline.replay.pace import BadPace, Pace, parse_pace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.archive.frame import TopicRange
    from penstock.pipeline.replay.rows import PartitionCount

COUNT_COLUMNS: Final = ("partition", "messages", "first offset", "last offset", "oldest", "youngest")


class ReplayWish(msgspec.Struct, frozen=True):
    bootstrap: str
    topic: str
    target: str
    archive: str | None = None
    since: str | None = None
    until: str | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    partitions: tuple[int, ...] | None = None
    rate: str | None = None
    speed: str | None = None
    where: str | None = None
    key: str | None = None
    keeps_partition: bool = False
    # None: a new one, which nobody goes on with.
    name: str | None = None
    is_dry_run: bool = False
    fails_on_data_loss: bool = True
    master: str | None = None


class Replayed(msgspec.Struct, frozen=True):
    name: str
    topic: str
    target: str
    replayed_count: int


def replay(wanted: ReplayWish, *, as_json: bool) -> None:
    pace = parse_pace(rate=wanted.rate, speed=wanted.speed)
    if isinstance(pace, BadPace):
        raise CommandError(pace.reason, exit_code=EXIT_USAGE)
    # Before Spark is started for nothing.
    _range(wanted)
    if wanted.archive is not None:
        check_installed()
    if wanted.archive is not None and archive_of(wanted.topic, (wanted.archive,)) is None:
        raise CommandError(f"{wanted.archive} holds nothing of topic {wanted.topic!r}")
    reach_node(wanted.bootstrap)
    from penstock.pipeline.archive.query import SETTINGS, QueryError, python_error, quiet_statements
    from penstock.pipeline.session.spark import open_session

    spark = open_session("penstock replay", master=wanted.master, conf=SETTINGS, log_level=spark_log_level())
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    quiet_statements()

    try:
        if wanted.is_dry_run:
            show_counts(dry_run(spark, wanted), as_json=as_json)
        else:
            done = run(spark, wanted, pace)
            if as_json:
                print_json(done)
            say(f"{counted(done.replayed_count, 'message')} of {done.topic} replayed into {done.target}")
    except QueryError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from error
    except (PySparkException, Py4JError) as error:
        raise CommandError(in_words_of_options(python_error(str(error)))) from error
    finally:
        end_spark(spark)


def dry_run(spark: SparkSession, wanted: ReplayWish) -> list[PartitionCount]:
    from penstock.pipeline.replay.rows import chosen_rows, count_rows

    return count_rows(chosen_rows(spark, _range(wanted), where=wanted.where, key=wanted.key, done=_done(wanted)))


def run(spark: SparkSession, wanted: ReplayWish, pace: Pace) -> Replayed:
    from penstock.pipeline.replay.rows import chosen_rows, lay_down, rows_in
    from penstock.pipeline.replay.send import ReplayTarget, send_rows

    name = wanted.name or SYSTEM_CHANCE.uuid().hex[:12]
    frame = chosen_rows(spark, _range(wanted), where=wanted.where, key=wanted.key, done=_done(wanted))
    with tempfile.TemporaryDirectory(prefix="penstock-replay-") as directory:
        count = lay_down(frame, Path(directory))
        target = ReplayTarget(wanted.bootstrap, wanted.target, name, pace, wanted.keeps_partition)
        with BenchProgress(f"replay {wanted.topic}", float(count)) as progress:
            sent = asyncio.run(
                send_rows(
                    target,
                    rows_in(Path(directory)),
                    lambda done: progress.update(done, f"{done:,} of {counted(count, 'message')}"),
                )
            )
    return Replayed(name, wanted.topic, wanted.target, sent)


def _done(wanted: ReplayWish) -> dict[int, int]:
    from penstock.pipeline.replay.send import replayed_below

    if wanted.name is None:
        return {}
    return asyncio.run(replayed_below(wanted.bootstrap, wanted.name, wanted.topic))


def _range(wanted: ReplayWish) -> TopicRange:
    from penstock.pipeline.archive.frame import TopicRange

    now_ms = SystemClock().now_ms()
    return TopicRange(
        topic=wanted.topic,
        bootstrap=wanted.bootstrap,
        archive=wanted.archive,
        timestamp_ms_min=moment_ms_if_given(wanted.since, "--since", now_ms=now_ms),
        timestamp_ms_end=moment_ms_if_given(wanted.until, "--until", now_ms=now_ms),
        offset_min=wanted.from_offset,
        offset_end=wanted.to_offset,
        partitions=wanted.partitions,
        fails_on_data_loss=wanted.fails_on_data_loss,
    )


def show_counts(counts: list[PartitionCount], *, as_json: bool) -> None:
    total = sum(each.count for each in counts)
    if as_json:
        print_json({"count": total, "partitions": [msgspec.structs.asdict(each) for each in counts]})
        return
    if counts:
        print_table(
            COUNT_COLUMNS,
            [
                (
                    each.partition,
                    each.count,
                    each.first_offset,
                    each.last_offset,
                    moment(each.timestamp_ms_first),
                    moment(each.timestamp_ms_last),
                )
                for each in counts
            ],
        )
    say(f"{counted(total, 'message')} would be replayed, none was")
