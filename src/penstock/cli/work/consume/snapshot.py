"""`penstock consume --snapshot`: the last value of each key, now or as of an offset or a time.

- As of offset N: of the records below N. As of a time: of those stamped before it, wherever they stand, so that one
  record with a wrong timestamp spoils nothing but itself. Of one key's records the last one in the log holds, whatever
  the timestamps say. A key whose last record is a tombstone is not shown; a record without a key is none.
- With read_committed: of the records whose transaction is committed by now; it may have been open at that moment.
- One partition after the other, each read twice: first which offset is the last of each key (snapshot_survey), then
  these. The first reading holds hashes instead of keys, the second eight bytes a key: values are never held.
- What compaction and retention have removed cannot be shown. Standard error says how much that may be; where it says
  nothing, the snapshot is exact (snapshot_survey says what that rests on).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.output import run_async, say, write_bytes
from penstock.cli.record_format import RowFormatter, RowShape, row_formatter
from penstock.cli.work.consume.snapshot_survey import PartitionSurvey, Survey
from penstock.cli.work.consume.work import chosen_partitions
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions, OffsetOutOfRangeError
from penstock.client.kafka.offsets import OffsetRange, offset_ranges
from penstock.client.kafka.rows import rows_of
from penstock.net.address import parse_addresses

if TYPE_CHECKING:
    import polars as pl


class SnapshotPlan(msgspec.Struct, frozen=True):
    topic: str
    # At most one of the two; neither: as of now.
    moment_ms: int | None = None
    until_offset: int | None = None
    # None of them: all.
    partitions: tuple[int, ...] = ()
    count: int | None = None
    is_read_committed: bool = False


def snapshot(bootstrap: str, plan: SnapshotPlan, shape: RowShape) -> None:
    run_async(_snapshot(bootstrap, plan, row_formatter(plan.topic, shape)))


async def _snapshot(bootstrap: str, plan: SnapshotPlan, formatter: RowFormatter) -> None:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        partitions = await chosen_partitions(client, plan.topic, plan.partitions)
        if plan.until_offset is not None and len(partitions) > 1:
            raise CommandError(
                "--until-offset means one partition's offset: name it with --partition", exit_code=EXIT_USAGE
            )
        ranges = await offset_ranges(client, plan.topic, partitions, is_read_committed=plan.is_read_committed)
        left = plan.count
        for partition in partitions:
            if left == 0:
                break
            held = ranges[partition]
            survey = await _survey(client, plan, partition, held)
            for sentence in warnings(partition, held, survey):
                say(sentence)
            shown = await _show(client, plan, partition, survey.offsets, formatter, count=left)
            left = None if left is None else left - shown


async def _survey(client: ClusterClient, plan: SnapshotPlan, partition: int, held: OffsetRange) -> Survey:
    until_offset = held.end if plan.until_offset is None else max(plan.until_offset, held.start)
    if until_offset > held.end:
        where = f"partition {partition} of topic {plan.topic!r}"
        raise OffsetOutOfRangeError(f"{where} has no offset {until_offset}: it ends at {held.end}")
    survey = PartitionSurvey(start=held.start, end=held.end, moment_ms=plan.moment_ms, until_offset=until_offset)
    await _read_into(survey, client, plan, partition, start=held.start, end=until_offset)
    # Behind it stands nothing that counts. It is read only to learn for how many keys an older value may be gone.
    if survey.hole_count:
        await _read_into(survey, client, plan, partition, start=until_offset, end=held.end)
    return survey.finish()


async def _read_into(
    survey: PartitionSurvey, client: ClusterClient, plan: SnapshotPlan, partition: int, *, start: int, end: int
) -> None:
    consumer = _consumer(client, plan, partition, start=start, end=end)
    try:
        while not consumer.is_done:
            for fetched in await consumer.poll():
                survey.add(fetched)
    finally:
        consumer.close()


async def _show(
    client: ClusterClient,
    plan: SnapshotPlan,
    partition: int,
    offsets: pl.Series,
    formatter: RowFormatter,
    *,
    count: int | None,
) -> int:
    """Writes the records at these offsets, but for tombstones; how many that were."""
    if len(offsets) == 0:
        return 0
    wanted = _Wanted(offsets)
    shown = 0
    consumer = _consumer(client, plan, partition, start=int(offsets[0]), end=int(offsets[-1]) + 1)
    try:
        while not consumer.is_done and shown != count:
            for fetched in await consumer.poll():
                rows = [row for row in rows_of(fetched) if wanted.takes(row.offset) and row.value is not None]
                rows = rows if count is None else rows[: count - shown]
                shown += len(rows)
                write_bytes(b"".join([formatter(partition, row) for row in rows]))
    finally:
        consumer.close()
    missed_count = len(offsets) - wanted.found_count
    if missed_count and shown != count:
        say(
            f"partition {partition}: {missed_count:,} values are not shown: newer ones came, and compaction "
            "removed them while the snapshot was read"
        )
    return shown


class _Wanted:
    """Offsets to be found in a log that is read in order."""

    def __init__(self, offsets: pl.Series) -> None:
        self._offsets = offsets
        self._place = 0
        self._next = int(offsets[0])
        self.found_count = 0

    def takes(self, offset: int) -> bool:
        while self._next < offset:
            self._step()
        if self._next != offset:
            return False
        self.found_count += 1
        self._step()
        return True

    def _step(self) -> None:
        self._place += 1
        # Past the last one: no offset reaches it.
        self._next = int(self._offsets[self._place]) if self._place < len(self._offsets) else sys.maxsize


def _consumer(client: ClusterClient, plan: SnapshotPlan, partition: int, *, start: int, end: int) -> Consumer:
    options = ConsumerOptions(is_read_committed=plan.is_read_committed)
    return Consumer(client, plan.topic, {partition: start}, ends={partition: end}, options=options)


def warnings(partition: int, held: OffsetRange, survey: Survey) -> list[str]:
    """What a reader of the snapshot has to know, a sentence each."""
    found: list[str] = []
    if held.start > 0:
        found.append(
            f"partition {partition}: everything below offset {held.start:,} was deleted; a key that was last written "
            "there is not shown"
        )
    if survey.lost_keys_max:
        found.append(
            f"partition {partition}: up to {survey.lost_keys_max:,} keys may have had a value then that is not shown: "
            f"compaction has removed {survey.hole_count:,} records of that time; {survey.newer_key_count:,} keys have "
            "only newer values now, and those deleted since may have left no trace"
        )
    if survey.keyless_count:
        found.append(f"partition {partition}: {survey.keyless_count:,} records without a key are not shown")
    return found
