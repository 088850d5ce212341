"""An archive as it is at one version of its table: which messages of which partitions it holds, and in which files.

    first ────────── archived ────────── end
    the oldest offset in its files       the first offset that no commit has held yet

Everything that is asked of an archive is asked of one snapshot, so that commits, compactions and removals that happen
in the meantime change nothing. Between `first` and `end` the archive has every message that the log had; older ones
were removed by age, or lie before the day it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.pipeline.table.commit import identity_name, open_table, position_name
from penstock.pipeline.table.options import TableError, TableOptions
from penstock.pipeline.table.upkeep import StoredFile, stored_files

if TYPE_CHECKING:
    from deltalake import DeltaTable

PARTITION_BY: Final = ("topic", "date")
SPLIT_BY: Final = ("partition",)
COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers", "date")
SCHEMA: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, date date"
)
# Partitions without a file may have been archived and removed: so many numbers after the last known one are tried.
PARTITIONS_PROBED: Final = 8

# The last moment of the year 9999: what is later has no text, and so no place in Delta's statistics.
TIMESTAMP_MS_FAR: Final = 253_402_300_799_999

Place = tuple[str, int]


class ArchiveFile(msgspec.Struct, frozen=True, order=True):
    """One file: messages of one partition, of one day, in the order of their offsets."""

    topic: str
    partition: int
    offset_first: int
    offset_last: int
    day: str
    path: str
    row_count: int
    size_bytes: int
    timestamp_ms_first: int
    # Rounded up: no message is younger.
    timestamp_ms_last: int


class ArchivedRange(msgspec.Struct, frozen=True):
    """What the archive holds of one partition."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    row_count: int
    file_count: int
    size_bytes: int
    timestamp_ms_first: int | None
    timestamp_ms_last: int | None


class ArchiveSnapshot(msgspec.Struct, frozen=True):
    path: str
    version: int
    schema_json: str
    description: str | None
    # In the order of topic, partition, offset.
    files: tuple[ArchiveFile, ...]
    # The first offset that is not archived, for every partition of which that is known.
    ends: dict[Place, int]
    # Which topics of these names they are; none where that was not kept.
    topic_ids: dict[str, int] = {}
    _by_place: dict[Place, list[ArchiveFile]] = {}

    def __post_init__(self) -> None:
        by_place: dict[Place, list[ArchiveFile]] = {}
        for file in self.files:
            by_place.setdefault((file.topic, file.partition), []).append(file)
        msgspec.structs.force_setattr(self, "_by_place", by_place)

    def files_of(self, topic: str, partition: int) -> Sequence[ArchiveFile]:
        return self._by_place.get((topic, partition), ())

    def first_of(self, topic: str, partition: int) -> int | None:
        """The oldest offset that is there; None: there is none."""
        return min((file.offset_first for file in self.files_of(topic, partition)), default=None)

    @property
    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.ends})


def archive_options(path: str, *, compact_every: int = 0, description: str | None = None) -> TableOptions:
    return TableOptions(path, PARTITION_BY, SPLIT_BY, True, compact_every, description)


def open_archive(
    path: str, *, version: int | None = None, partitions: Mapping[str, Sequence[int]] | None = None
) -> ArchiveSnapshot | None:
    """None: there is no table yet. `partitions` are those that the caller knows of, whether archived or not."""
    table = open_table(path, version=version)
    if table is None:
        return None
    if tuple(table.metadata().partition_columns) != PARTITION_BY:
        raise TableError(f"{path} is a Delta table, but not an archive: it is not partitioned by topic and date")
    files = sorted(_archive_file(path, stored) for stored in stored_files(table))
    ends = _ends(table, files, partitions or {})
    return ArchiveSnapshot(
        path=path,
        version=table.version(),
        schema_json=table.schema().to_json(),
        description=table.metadata().description,
        files=tuple(files),
        ends=ends,
        topic_ids=_topic_ids(table, {topic for topic, _ in ends}),
    )


def _archive_file(path: str, stored: StoredFile) -> ArchiveFile:
    topic, day = stored.partition_values["topic"], stored.partition_values["date"]
    low, high = stored.lowest, stored.highest
    if topic is None or "offset" not in low or low.get("partition") != high.get("partition", -1):
        raise TableError(f"{path}: {stored.path} has not the statistics of an archive's file: who wrote it?")
    return ArchiveFile(
        topic=topic,
        partition=low["partition"],
        offset_first=low["offset"],
        offset_last=high["offset"],
        day=day.isoformat() if isinstance(day, date) else str(day),
        path=stored.path,
        row_count=stored.row_count,
        size_bytes=stored.size_bytes,
        timestamp_ms_first=_milliseconds(low.get("timestamp"), otherwise=-1),
        timestamp_ms_last=_milliseconds(high.get("timestamp"), otherwise=TIMESTAMP_MS_FAR),
    )


def _milliseconds(moment: Any, *, otherwise: int) -> int:
    """`otherwise`: statistics say nothing of it, and the file may hold any time."""
    if not isinstance(moment, datetime):
        return otherwise
    since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _ends(table: DeltaTable, files: Iterable[ArchiveFile], partitions: Mapping[str, Sequence[int]]) -> dict[Place, int]:
    last: dict[str, int] = {topic: max(numbers, default=-1) for topic, numbers in partitions.items()}
    for file in files:
        last[file.topic] = max(last.get(file.topic, -1), file.partition)
    ends: dict[Place, int] = {}
    for topic, highest in sorted(last.items()):
        for partition in range(highest + 1 + PARTITIONS_PROBED):
            end = table.transaction_version(position_name(topic, partition))
            # None was archived; or what was is forgotten, which Delta cannot say otherwise.
            if end:
                ends[topic, partition] = end
    return ends


def _topic_ids(table: DeltaTable, topics: Iterable[str]) -> dict[str, int]:
    known = {topic: table.transaction_version(identity_name(topic)) for topic in sorted(topics)}
    return {topic: identity for topic, identity in known.items() if identity}


def ranges_of(snapshot: ArchiveSnapshot) -> list[ArchivedRange]:
    ranges: list[ArchivedRange] = []
    for (topic, partition), end in sorted(snapshot.ends.items()):
        files = snapshot.files_of(topic, partition)
        dated = [file for file in files if file.timestamp_ms_first >= 0]
        ranges.append(
            ArchivedRange(
                topic=topic,
                partition=partition,
                first_offset=min((file.offset_first for file in files), default=end),
                end_offset=end,
                row_count=sum(file.row_count for file in files),
                file_count=len(files),
                size_bytes=sum(file.size_bytes for file in files),
                timestamp_ms_first=min((file.timestamp_ms_first for file in dated), default=None),
                timestamp_ms_last=max((file.timestamp_ms_last for file in dated), default=None),
            )
        )
    return ranges
