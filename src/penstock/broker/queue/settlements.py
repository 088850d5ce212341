"""When messages of a queue were finished, as its journal tells: for reports, which look at many messages at once.

Only the newest part of a journal is read, in pieces, on a thread.
"""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial
from typing import Final

import msgspec

from penstock.broker.machine.portions import Batches, read_slices
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind
from penstock.codec.batch.header import BatchProblem
from penstock.codec.batch.records import read_records
from penstock.domain.queue.records import Died, Finished, read_record
from penstock.domain.queue.settlements import Settled, SettlementPage

# Of a partition's journal, about: some hundred thousand batches of acks.
NEWEST_BYTES_MAX: Final = 64 * 1024 * 1024
_NOTHING: Final = SettlementPage([], None)


async def read_settlements(
    broker: Broker, partition: PartitionShell, group: str, *, after: int | None, readers: Executor
) -> SettlementPage:
    """The page that begins at `after`; the first one without it."""
    if not broker.has_companion(partition, CompanionKind.QUEUES):
        return _NOTHING
    journal = await broker.companion(partition, CompanionKind.QUEUES)
    log = journal.log
    start = log.log_start if after is None else max(after, log.log_start)
    if after is None:
        left_bytes = log.size_bytes
        for segment in log.segments[:-1]:
            if left_bytes <= NEWEST_BYTES_MAX:
                break
            left_bytes -= segment.size
            start = segment.next_offset
    look = partial(_settled, group.encode())
    async for part in read_slices(journal, start, look, readers=readers, bytes_max=1):
        return SettlementPage(*part.seen)
    return _NOTHING


def _settled(group: bytes, loaded: memoryview, batches: Batches) -> tuple[list[Settled], int | None]:
    """What was finished, and where the next page begins; None: nothing behind it can be read."""
    settled: list[Settled] = []
    for position, _header in batches:
        records = read_records(loaded, position)
        if isinstance(records, BatchProblem):
            return settled, None
        for record in records:
            if record.key == group and record.value is not None:
                settled += _finished(record.value)
    return settled, batches[-1][1].next_offset


def _finished(value: bytes) -> list[Settled]:
    try:
        record = read_record(value)
    except msgspec.DecodeError:
        return []
    # The queue is done with those too that died.
    if not isinstance(record, Finished | Died):
        return []
    return [Settled(first, last, record.at_ms) for first, last in record.ranges]
