"""Archive and log as one: which offsets come from which, and the archive's half as Arrow batches.

    log          │       archive            │        log
    ─────────────┼──────────────────────────┼─────────────
              first                        end                 of one snapshot of the archive

A message has one offset, and each offset is asked of one side only, so none comes twice, however the two overlap. What
only the log could give and has removed is a loss that the log's reader tells. The snapshot is taken before the log is
asked where it ends: an archive that runs at this moment only moves the boundary of the next query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.pipeline.archive.snapshot import ArchiveFile, ArchiveSnapshot, open_archive
from penstock.pipeline.source import positions as source_positions
from penstock.pipeline.source.filters import Narrowing
from penstock.pipeline.source.options import EARLIEST, LATEST, Bound, OptionError, SourceOptions, TimestampStrategy
from penstock.pipeline.source.ranges import OffsetSpan, Position
from penstock.pipeline.source.topic_identity import check_archived, identities
from penstock.pipeline.table.files import open_directory

if TYPE_CHECKING:
    import pyarrow as pa

# What one task reads of an archive: some seconds of work.
PIECE_BYTES_MAX: Final = 128 * 1024 * 1024
ROWS_PER_BATCH: Final = 50_000
EVERYTHING: Final = Narrowing()


class ArchivedSpan(msgspec.Struct, frozen=True):
    """What one task reads of an archive: the messages from `start`, up to but without `end`, that these files hold."""

    archive: str
    topic: str
    partition: int
    start: int
    end: int
    paths: tuple[str, ...]


def snapshot_of(options: SourceOptions, partitions: Mapping[str, Sequence[int]]) -> ArchiveSnapshot | None:
    """None: the query has no archive, or there is nothing in it yet."""
    if options.archive is None:
        return None
    return open_archive(options.archive, version=options.archive_version, partitions=partitions)


async def resolve(
    client: ClusterClient,
    bound: Bound,
    partitions: Mapping[str, list[int]],
    options: SourceOptions,
    snapshot: ArchiveSnapshot | None,
    *,
    is_end: bool = False,
) -> Position:
    """As `source/positions.resolve`, where the messages that only the archive has count too."""
    # With an archive nothing is an error that it could have answered.
    strategy = options.strategy if snapshot is None else TimestampStrategy.LATEST
    found = await source_positions.resolve(
        client, bound, partitions, strategy=strategy, is_read_committed=options.is_read_committed, is_end=is_end
    )
    if snapshot is None:
        return found
    await check_topics(client, snapshot, partitions)
    if is_end and bound.everywhere == LATEST:
        check_not_ahead(snapshot, found, options)
    return {
        topic: {partition: _earlier(snapshot, bound, topic, partition, offset) for partition, offset in offsets.items()}
        for topic, offsets in found.items()
    }


async def raised_to_time(
    client: ClusterClient, start: Position, end: Position, time_ms: int, snapshot: ArchiveSnapshot | None
) -> Position:
    """As `source/positions.raised_to_time`, where the messages that only the archive has count too."""
    raised = await source_positions.raised_to_time(client, start, end, time_ms)
    if snapshot is None:
        return raised
    for topic, partitions in raised.items():
        for partition, offset in partitions.items():
            archived = first_since(snapshot, topic, partition, time_ms)
            if archived is not None:
                partitions[partition] = max(min(offset, archived), start[topic][partition])
    return raised


def _earlier(snapshot: ArchiveSnapshot, bound: Bound, topic: str, partition: int, offset: int) -> int:
    wanted: int | None = bound.everywhere
    timestamp_ms = bound.timestamp_ms
    if bound.offsets is not None:
        wanted = bound.offsets[topic][partition]
    if bound.timestamps_ms is not None:
        timestamp_ms = bound.timestamps_ms[topic][partition]
    archived: int | None = None
    if timestamp_ms is not None:
        archived = first_since(snapshot, topic, partition, timestamp_ms)
    elif wanted == EARLIEST:
        archived = snapshot.first_of(topic, partition)
    return offset if archived is None else min(offset, archived)


def first_since(snapshot: ArchiveSnapshot, topic: str, partition: int, timestamp_ms: int) -> int | None:
    """The first archived offset whose message is that young or younger. Few files are opened: the one that it lies in,
    and those of other days that begin before it."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file_system, root = open_directory(snapshot.path)
    found: int | None = None
    for file in snapshot.files_of(topic, partition):
        if found is not None and file.offset_first >= found:
            break
        if file.timestamp_ms_last < timestamp_ms:
            continue
        columns = pq.read_table(f"{root}/{file.path}", columns=["offset", "timestamp"], filesystem=file_system)
        micros = pc.cast(columns["timestamp"], "int64")
        young = columns["offset"].filter(pc.greater_equal(micros, timestamp_ms * 1000))
        first = pc.min(young).as_py()
        if first is not None:
            found = int(first) if found is None else min(found, int(first))
    return found


def divide(
    snapshot: ArchiveSnapshot | None,
    spans: Sequence[OffsetSpan],
    narrowing: Narrowing = EVERYTHING,
    *,
    is_log_half: bool = False,
) -> list[OffsetSpan | ArchivedSpan]:
    """Each span as pieces of the log and of the archive, in the order of their offsets. Pure."""
    if snapshot is None:
        return list(spans)
    pieces: list[OffsetSpan | ArchivedSpan] = []
    for span in spans:
        end = snapshot.ends.get((span.topic, span.partition), 0)
        first = snapshot.first_of(span.topic, span.partition)
        if first is None or span.end <= first or span.start >= end:
            pieces.append(span)
            continue
        if span.start < first:
            pieces.append(OffsetSpan(span.topic, span.partition, span.start, first))
        if not is_log_half:
            part = OffsetSpan(span.topic, span.partition, max(span.start, first), min(span.end, end))
            pieces += _archived(snapshot, part, narrowing)
        if span.end > end:
            pieces.append(OffsetSpan(span.topic, span.partition, end, span.end))
    return pieces


def _archived(snapshot: ArchiveSnapshot, span: OffsetSpan, narrowing: Narrowing) -> Iterator[ArchivedSpan]:
    held: list[ArchiveFile] = []

    def piece() -> ArchivedSpan:
        paths = tuple(file.path for file in held)
        return ArchivedSpan(snapshot.path, span.topic, span.partition, span.start, span.end, paths)

    for file in snapshot.files_of(span.topic, span.partition):
        if file.offset_last < span.start or file.offset_first >= span.end or not is_needed(file, narrowing):
            continue
        if held and sum(each.size_bytes for each in held) + file.size_bytes > PIECE_BYTES_MAX:
            yield piece()
            held = []
        held.append(file)
    if held:
        yield piece()


def is_needed(file: ArchiveFile, narrowing: Narrowing) -> bool:
    """Whether a message of that file may lie within the times that are asked for."""
    if narrowing.time_ms_min is not None and file.timestamp_ms_last < narrowing.time_ms_min:
        return False
    return narrowing.time_ms_end is None or file.timestamp_ms_first < narrowing.time_ms_end


async def check_topics(client: ClusterClient, snapshot: ArchiveSnapshot | None, topics: Iterable[str]) -> None:
    """Raises if the archive is known to be of other topics of these names."""
    if snapshot is not None:
        check_archived(snapshot.path, snapshot.topic_ids, await identities(client, topics))


def check_not_ahead(snapshot: ArchiveSnapshot | None, latest: Position, options: SourceOptions) -> None:
    """An archive that knows more than the log is of another topic of that name."""
    if snapshot is None or not options.fails_on_data_loss:
        return
    for (topic, partition), end in snapshot.ends.items():
        known = latest.get(topic, {}).get(partition)
        if known is not None and end > known:
            raise OptionError(
                f"the archive has partition {partition} of {topic!r} up to offset {end}, the log ends at {known}: was "
                "the topic made anew? With failOnDataLoss=false the query goes on."
            )


def read_archived(span: ArchivedSpan, *, includes_headers: bool) -> Iterator[pa.RecordBatch]:
    """In the schema of the source. Row groups that lie outside are not read."""
    import pyarrow.parquet as pq

    file_system, root = open_directory(span.archive)
    names = ["key", "value", "partition", "offset", "timestamp", "timestampType"]
    names += ["headers"] if includes_headers else []
    for path in span.paths:
        with pq.ParquetFile(f"{root}/{path}", filesystem=file_system) as parquet:
            groups = [number for number in range(parquet.num_row_groups) if _overlaps(parquet, number, span)]
            if not groups:
                continue
            for batch in parquet.iter_batches(batch_size=ROWS_PER_BATCH, row_groups=groups, columns=names):
                rows = _within(batch, span)
                if rows.num_rows:
                    yield _as_source_rows(rows, span.topic, includes_headers=includes_headers)


def _overlaps(parquet: Any, number: int, span: ArchivedSpan) -> bool:
    group = parquet.metadata.row_group(number)
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == "offset" and column.statistics is not None and column.statistics.has_min_max:
            return bool(column.statistics.max >= span.start and column.statistics.min < span.end)
    return True


def _within(batch: pa.RecordBatch, span: ArchivedSpan) -> pa.RecordBatch:
    import pyarrow.compute as pc

    offsets = batch.column("offset")
    low, high = offsets[0].as_py(), offsets[-1].as_py()
    if low >= span.start and high < span.end:
        # Offsets rise within a file.
        return batch
    return batch.filter(pc.and_(pc.greater_equal(offsets, span.start), pc.less(offsets, span.end)))


def _as_source_rows(rows: pa.RecordBatch, topic: str, *, includes_headers: bool) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    topics = pa.array([topic], pa.string()).take(pa.array(np.zeros(rows.num_rows, dtype=np.int32)))
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    columns = [topics if name == "topic" else rows.column(name) for name in names]
    if includes_headers:
        names = [*names, "headers"]
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns.append(rows.column("headers").cast(kind))
    return pa.RecordBatch.from_arrays(columns, names=names)
