"""A topic as one DataFrame: Spark reads the archive's files by itself, with its own pruning, and the log through us.

The same boundary as in `source`, from one version of the table for both halves, so each message is there once.
Columns as people ask for them: texts instead of bytes, headers by name, and the fields that the archive was given a
schema for, made for the log's half as well.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.pipeline.archive.job import archive_rows, with_parsed
from penstock.pipeline.archive.snapshot import COLUMNS, ArchiveFile, ArchiveSnapshot
from penstock.pipeline.archive.source import check_topics, is_needed, snapshot_of
from penstock.pipeline.source import positions as source_positions
from penstock.pipeline.source.filters import Narrowing
from penstock.pipeline.source.options import parse_options
from penstock.pipeline.table import writer as table_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Beside the parsed fields. `bytes` are the values as they came, `json` is null where the value is none.
PLAIN_COLUMNS: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "cast(key as string) as key",
    "cast(value as string) as value",
    "map_from_entries(transform(headers, each -> struct(each.key, cast(each.value as string)))) as headers",
    "try_parse_json(cast(value as string)) as json",
    "key as key_bytes",
    "value as value_bytes",
)


class TopicRange(msgspec.Struct, frozen=True):
    """Which messages of a topic are meant; None: no bound. Ends are exclusive."""

    topic: str
    bootstrap: str
    archive: str | None = None
    timestamp_ms_min: int | None = None
    timestamp_ms_end: int | None = None
    offset_min: int | None = None
    offset_end: int | None = None
    partitions: tuple[int, ...] | None = None
    is_read_committed: bool = True
    fails_on_data_loss: bool = True


def raw_rows(spark: SparkSession, wanted: TopicRange) -> DataFrame:
    """The columns of an archive, for archive and log alike. Raises `TopicMissingError`, before anything is read."""
    # A topic that is missing is told here, not by a task in the middle of a query.
    snapshot = source_positions.run(_snapshot(wanted))
    log_rows = archive_rows(_log_rows(spark, wanted, snapshot))
    if snapshot is None:
        return _bounded(log_rows, wanted)
    described = json.loads(snapshot.description or "{}")
    if described.get("schema"):
        log_rows = with_parsed(log_rows, described["schema"], described.get("format", "json"))
    root = snapshot.path.rstrip("/")
    uris = [f"{root}/{file.path}" for file in snapshot.files if _is_wanted(file, wanted)]
    archived = table_writer.read_files(spark, snapshot.path, snapshot.schema_json, uris)
    halves = [archived, log_rows]
    return _bounded(reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), halves), wanted)


def readable_rows(frame: DataFrame) -> DataFrame:
    """Of `raw_rows`, the columns that a query sees."""
    parsed = [f"`{name}`" for name in frame.columns if name not in COLUMNS]
    return frame.selectExpr(*PLAIN_COLUMNS, *parsed)


async def _snapshot(wanted: TopicRange) -> ArchiveSnapshot | None:
    options = parse_options(_options(wanted) | {"archive": wanted.archive or ""}, is_streaming=False)
    async with source_positions.connect(options) as client:
        partitions = await source_positions.find_partitions(client, options)
        snapshot = snapshot_of(options, partitions)
        await check_topics(client, snapshot, partitions)
        return snapshot


def _log_rows(spark: SparkSession, wanted: TopicRange, snapshot: ArchiveSnapshot | None) -> DataFrame:
    options = _options(wanted) | {"includeHeaders": "true", "narrow": msgspec.json.encode(_narrowing(wanted)).decode()}
    if snapshot is not None:
        options |= {
            "archive": snapshot.path,
            "archiveVersion": str(snapshot.version),
            "archiveHalf": "log",
        }
    return spark.read.format("penstock").options(**options).load()


def _options(wanted: TopicRange) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": wanted.bootstrap,
        "subscribe": wanted.topic,
        "kafka.isolation.level": "read_committed" if wanted.is_read_committed else "read_uncommitted",
        "failOnDataLoss": "true" if wanted.fails_on_data_loss else "false",
    }


def _is_wanted(file: ArchiveFile, wanted: TopicRange) -> bool:
    """By what is known of the file without opening it."""
    if file.topic != wanted.topic or (wanted.partitions is not None and file.partition not in wanted.partitions):
        return False
    if wanted.offset_min is not None and file.offset_last < wanted.offset_min:
        return False
    if wanted.offset_end is not None and file.offset_first >= wanted.offset_end:
        return False
    return is_needed(file, _narrowing(wanted))


def _narrowing(wanted: TopicRange) -> Narrowing:
    return Narrowing(
        offset_min=wanted.offset_min,
        offset_end=wanted.offset_end,
        time_ms_min=wanted.timestamp_ms_min,
        time_ms_end=wanted.timestamp_ms_end,
        partitions=None if wanted.partitions is None else frozenset(wanted.partitions),
    )


def _bounded(frame: DataFrame, wanted: TopicRange) -> DataFrame:
    """As plain conditions: reading was narrowed to them, but not to the row."""
    conditions = [
        (wanted.timestamp_ms_min, "timestamp >= timestamp_millis({})"),
        (wanted.timestamp_ms_end, "timestamp < timestamp_millis({})"),
        (wanted.offset_min, "offset >= {}"),
        (wanted.offset_end, "offset < {}"),
    ]
    for bound, text in conditions:
        if bound is not None:
            frame = frame.where(text.format(bound))
    if wanted.partitions is not None:
        frame = frame.where(f"partition in ({', '.join(map(str, wanted.partitions))})")
    return frame
