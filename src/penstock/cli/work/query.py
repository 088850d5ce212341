"""The work of `penstock query`: topics become tables of a Spark session, the result a table, JSON or CSV."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import os
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.base.clock import SystemClock
from penstock.cli.failure import EXIT_USAGE, TRACEBACK_VARIABLE, CommandError
from penstock.cli.option_values import moment_ms_if_given
from penstock.cli.output import print_json, print_table, say, write_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A cell of a table: more than this of a value is seen by --json.
CELL_CHARACTERS_MAX: Final = 100


class QueryWish(msgspec.Struct, frozen=True):
    sql: str
    bootstrap: str
    archives: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    # 0: no limit.
    row_limit: int = 0
    is_read_committed: bool = True
    fails_on_data_loss: bool = True
    master: str | None = None


def spark_log_level() -> str:
    """What Spark has to say comes as the command's own sentence: without pages of Java in front of it."""
    return "ERROR" if os.environ.get(TRACEBACK_VARIABLE) else "FATAL"


def end_spark(spark: SparkSession) -> None:
    """Where its Java is gone already there is nothing to end, and why it went is told by whoever noticed."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(ConnectionError, Py4JError):
        spark.stop()


def in_words_of_options(sentence: str) -> str:
    """What the source says to programs, said to people."""
    return sentence.replace("With failOnDataLoss=false the query goes on", "With --allow-loss it goes on")


def query(wanted: QueryWish, *, as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise CommandError("--json or --csv, not both", exit_code=EXIT_USAGE)
    now_ms = SystemClock().now_ms()
    since_ms = moment_ms_if_given(wanted.since, "--since", now_ms=now_ms)
    bounds = (since_ms, moment_ms_if_given(wanted.until, "--until", now_ms=now_ms))
    from penstock.pipeline.archive.query import SETTINGS, QueryError, python_error, query_topics
    from penstock.pipeline.session.spark import open_session

    spark = open_session("penstock query", master=wanted.master, conf=SETTINGS, log_level=spark_log_level())
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        frame = query_topics(spark, wanted.sql, lambda topic: topic_frame(spark, wanted, topic, bounds))
        names, rows, is_cut = fetch(frame, wanted.row_limit)
    except QueryError as error:
        raise CommandError(str(error), exit_code=EXIT_USAGE) from error
    except (PySparkException, Py4JJavaError) as error:
        raise CommandError(in_words_of_options(python_error(str(error)))) from error
    except (ConnectionError, Py4JError) as error:
        raise CommandError("Spark's Java has ended, most often for want of memory: ask for less at once") from error
    finally:
        end_spark(spark)
    show(names, rows, as_json=as_json, as_csv=as_csv)
    if is_cut:
        say(f"only the first {wanted.row_limit:,} rows; --limit shows more")


def topic_frame(spark: SparkSession, wanted: QueryWish, topic: str, bounds: tuple[int | None, int | None]) -> DataFrame:
    from penstock.pipeline.archive.frame import TopicRange, raw_rows, readable_rows

    rows = raw_rows(
        spark,
        TopicRange(
            topic=topic,
            bootstrap=wanted.bootstrap,
            archive=archive_of(topic, wanted.archives),
            timestamp_ms_min=bounds[0],
            timestamp_ms_end=bounds[1],
            is_read_committed=wanted.is_read_committed,
            fails_on_data_loss=wanted.fails_on_data_loss,
        ),
    )
    return readable_rows(rows)


def archive_of(topic: str, archives: Sequence[str]) -> str | None:
    """The one that holds the topic. One that is named and is none is a mistake of whoever named it."""
    from penstock.pipeline.archive.snapshot import open_archive

    for path in archives:
        snapshot = open_archive(path, partitions={topic: [0]})
        if snapshot is None:
            raise CommandError(f"{path} is not an archive: there is no Delta table")
        if topic in snapshot.topics:
            return path
    return None


def fetch(frame: DataFrame, row_limit: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """Names, rows, and whether there were more."""
    rows = [tuple(row) for row in (frame.limit(row_limit + 1) if row_limit else frame).collect()]
    is_cut = bool(row_limit) and len(rows) > row_limit
    return frame.columns, rows[:row_limit] if is_cut else rows, is_cut


def show(names: Sequence[str], rows: Sequence[Sequence[Any]], *, as_json: bool, as_csv: bool) -> None:
    if as_json:
        names = different(names)
        print_json([dict(zip(names, map(plain, row), strict=True)) for row in rows])
    elif as_csv:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([["" if value is None else _flat(value) for value in map(plain, row)] for row in rows])
        write_text(lines.getvalue())
    elif rows:
        print_table(names, [[_cell(value) for value in row] for row in rows])
    else:
        say("no rows")


def different(names: Sequence[str]) -> list[str]:
    """Columns may have one name; the fields of an object cannot: `key`, `key_2`."""
    found: dict[str, None] = {}
    for name in names:
        number, unused = 1, name
        while unused in found:
            number += 1
            unused = f"{name}_{number}"
        found[unused] = None
    return list(found)


def plain(value: Any) -> Any:
    """As JSON knows it. Bytes that are no text come as base64."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return _text(bytes(value))
        case datetime():
            # Spark's are of this machine's time zone, and do not say so.
            return (value if value.tzinfo is not None else value.astimezone()).isoformat()
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case dict():
            return {str(plain(name)): plain(each) for name, each in value.items()}
        case _ if hasattr(value, "asDict"):
            return {name: plain(each) for name, each in value.asDict().items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _ if hasattr(value, "toJson"):
            # A variant. As Python's own its numbers with a fraction would be decimals, and texts in JSON.
            return json.loads(value.toJson())
        case _:
            return str(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _flat(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _cell(value: Any) -> object:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(_flat(plain(value)))
    return text if len(text) <= CELL_CHARACTERS_MAX else f"{text[: CELL_CHARACTERS_MAX - 1]}…"
