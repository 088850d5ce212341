"""When messages of a queue were finished, as its journal tells: for reports, which look at many messages at once.

Only the newest part of a journal is read, in pieces, on a thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Final

import msgspec

from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind
from penstock.codec.batch.header import BatchProblem, walk_headers
from penstock.codec.batch.records import read_records
from penstock.domain.queue.records import Died, Finished, read_record
from penstock.domain.queue.settlements import Settled, SettlementPage
from penstock.storage.errors import Damage
from penstock.storage.log.read_plan import ReadPlan

PAGE_BYTES: Final = 1024 * 1024
# Of a partition's journal, about: some hundred thousand batches of acks.
NEWEST_BYTES_MAX: Final = 64 * 1024 * 1024
_NOTHING: Final = SettlementPage([], None)


async def read_settlements(
    broker: Broker, partition: PartitionShell, group: str, *, after: int | None, readers: Executor
) -> SettlementPage:
    """The page that begins at `after`; the first one without it."""
    if not broker.has_companion(partition, CompanionKind.QUEUES):
        return _NOTHING
    log = (await broker.companion(partition, CompanionKind.QUEUES)).log
    start = log.log_start if after is None else max(after, log.log_start)
    if after is None:
        left_bytes = log.size_bytes
        for segment in log.segments[:-1]:
            if left_bytes <= NEWEST_BYTES_MAX:
                break
            left_bytes -= segment.size
            start = segment.next_offset
    plan = log.plan_read(start, bytes_max=PAGE_BYTES) if start < log.readable_end else None
    if not isinstance(plan, ReadPlan):
        return _NOTHING
    return await asyncio.get_running_loop().run_in_executor(readers, partial(_read, plan, group.encode()))


def _read(plan: ReadPlan, group: bytes) -> SettlementPage:
    loaded = plan.load()
    if isinstance(loaded, Damage):
        return _NOTHING
    settled: list[Settled] = []
    next_offset: int | None = None
    for position, header in walk_headers(loaded):
        next_offset = header.next_offset
        records = read_records(loaded, position)
        if isinstance(records, BatchProblem):
            return SettlementPage(settled, None)
        for record in records:
            if record.key == group and record.value is not None:
                settled += _finished(record.value)
    return SettlementPage(settled, next_offset)


def _finished(value: bytes) -> list[Settled]:
    try:
        record = read_record(value)
    except msgspec.DecodeError:
        return []
    # The queue is done with those too that died.
    if not isinstance(record, Finished | Died):
        return []
    return [Settled(first, last, record.at_ms) for first, last in record.ranges]
