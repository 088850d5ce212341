"""What a batch query reads: where the table begins and ends, and which spans of it are left after the conditions.

A table is one snapshot: where it begins and ends is found out once, and told to every further query on it (the option
`snapshot`), so that two halves of a union see the same messages however fast the topic grows.
"""

from __future__ import annotations

import msgspec

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.pipeline.archive import source as archive_source
from penstock.pipeline.archive.snapshot import ArchiveSnapshot
from penstock.pipeline.archive.source import ArchivedSpan
from penstock.pipeline.source import positions as source_positions
from penstock.pipeline.source.filters import Narrowing
from penstock.pipeline.source.options import SourceOptions, TableSnapshot
from penstock.pipeline.source.ranges import OffsetSpan, cut, spans_between


async def take_snapshot(options: SourceOptions) -> TableSnapshot:
    """As the options say it, at this moment."""
    async with source_positions.connect(options) as client:
        return (await _snapshot(client, options))[0]


async def plan(options: SourceOptions, narrowing: Narrowing) -> list[OffsetSpan | ArchivedSpan]:
    async with source_positions.connect(options) as client:
        table, archive = await _snapshot(client, options)
        start, end = narrowing.kept(table.start), narrowing.kept(table.end)
        if narrowing.time_ms_min is not None:
            # After the end is known: what is younger and comes later is not in this table.
            start = await archive_source.raised_to_time(client, start, end, narrowing.time_ms_min, archive)
    spans = cut(
        spans_between(narrowing.raised(start), narrowing.lowered(end)),
        count_min=options.partitions_min,
        rows_max=options.rows_per_partition_max,
    )
    return archive_source.divide(archive, spans, narrowing, is_log_half=options.is_log_half)


async def _snapshot(client: ClusterClient, options: SourceOptions) -> tuple[TableSnapshot, ArchiveSnapshot | None]:
    if options.snapshot is not None:
        known = options.snapshot
        indexes = {topic: list(offsets) for topic, offsets in known.end.items()}
        options = msgspec.structs.replace(options, archive_version=known.archive_version)
        return known, None if known.archive_version is None else archive_source.snapshot_of(options, indexes)
    partitions = await source_positions.find_partitions(client, options)
    # Before the log is asked for anything: an archive that goes on meanwhile is as it was.
    archive = archive_source.snapshot_of(options, partitions)
    start = await archive_source.resolve(client, options.starting, partitions, options, archive)
    end = await archive_source.resolve(client, options.ending, partitions, options, archive, is_end=True)
    return TableSnapshot(start, end, None if archive is None else archive.version), archive
