"""A producer's batch of which some records are to be delivered later: into the schedule, and what is left into the log.

    DelayPossible ─► open, find ─► check the producer ─► schedule ─► (durable) ─► batch with holes ─► append
                         │ nothing is delayed                                                          ▲
                         └────────────────────────────────── as it came ───────────────────────────────┘

The schedule has a record before the topic has its hole, so a retry that is answered "duplicate" has lost nothing. After
a crash in between the producer sends the batch again: the schedule knows it and takes nothing twice. The connection
waits, so nothing of the same producer overtakes; what comes from elsewhere is out of order, as ever.

A transaction ends in the schedule first, then in the log. Its end waits for batches of it that are on their way here:
else one could come into the schedule behind the end, and the *next* transaction would decide about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, ParamSpec, Protocol, TypeVar

import msgspec

from penstock.base.checksum import crc32c
from penstock.base.clock import Clock
from penstock.broker.partition.acks import ALL, Acks
from penstock.broker.partition.batch_look import BatchLook
from penstock.broker.partition.outcome import Appended, AppendRefused, Refusal, VerificationNeeded
from penstock.broker.partition.recompression import Recompression
from penstock.broker.partition.refusals import refuse_producer
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import DelayedMessage, NotScheduled
from penstock.codec.batch.header import BatchHeader, BatchProblem
from penstock.codec.batch.holes import OpenBatch, holds_any, leave_out, open_payload, records_with
from penstock.codec.batch.records import StoredRecord
from penstock.codec.batch.rewrite import header_of
from penstock.domain.schedule.delivery import BadRecords, Delayed, find_delayed
from penstock.domain.schedule.headers import SEARCHED_FOR
from penstock.domain.schedule.records import ProducerBatch
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.partition import NotVerified, TransactionOpen
from penstock.domain.transaction.verification import NO_GUARD

# More is opened and put together in a thread: the loop has others to serve. So much may hold 8,000 headers.
LOOP_BYTES_MAX: Final = 16 * 1024

# Records: some ten milliseconds of work.
SCHEDULED_AT_ONCE: Final = 1_000
# In threads. Each may take a hundred megabytes for as long as it lasts, and cores are few.
OPENED_AT_ONCE_MAX: Final = 2

P = ParamSpec("P")
T = TypeVar("T")

_ENCODER: Final = msgspec.msgpack.Encoder()

# Whose transaction, where.
_Key = tuple[PartitionShell, int]


class Schedules(Protocol):
    """What is needed of `NodeSchedules`."""

    async def shell_of(self, partition: PartitionShell) -> ScheduleShell | NotScheduled: ...

    async def end_transaction(self, partition: PartitionShell, end: TransactionEnd) -> bool: ...


class _Found(msgspec.Struct, frozen=True):
    """Records that hold the name of a delivery header, wherever in them."""

    opened: OpenBatch
    records: list[tuple[int, StoredRecord]]


class DelayedBatches:
    def __init__(self, schedules: Schedules, *, clock: Clock) -> None:
        self._schedules = schedules
        self._clock = clock
        # Batches of transactions between schedule and log: how many, and whom to tell when there is none any more.
        self._under_way: dict[_Key, int] = {}
        self._idle: dict[_Key, asyncio.Event] = {}
        self._ending: dict[_Key, int] = {}
        self._opening = asyncio.Semaphore(OPENED_AT_ONCE_MAX)

    async def append(
        self, shell: PartitionShell, records: memoryview, *, guard: int = NO_GUARD, acks: Acks = ALL
    ) -> Appended | AppendRefused:
        """A batch that `produce` said DelayPossible of. `records` is nobody else's."""
        arrived_ms = self._clock.now_ms()
        header = header_of(records)
        # What is compressed may be a thousand times as large as it looks.
        is_small = len(records) <= LOOP_BYTES_MAX and not header.codec
        codec = shell.recompression
        is_small = is_small and codec is None
        found = await self._aside(_look_inside, is_small, shell.batch_look, codec, records, header, arrived_ms)
        if isinstance(found, AppendRefused):
            return found
        if isinstance(found, memoryview):
            return shell.append_checked(found, guard=guard)
        named = [(number, record.headers) for number, record in found.records]
        delayed = find_delayed(named, arrived_ms, is_repeatable=header.producer_id >= 0)
        if isinstance(delayed, BadRecords):
            return AppendRefused(Refusal.INVALID, delayed.reason, delayed.numbers)
        if not delayed:
            return await self._append_whole(shell, codec, records, guard, acks)
        schedule = await self._schedules.shell_of(shell)
        if isinstance(schedule, NotScheduled):
            return AppendRefused(schedule.refusal, schedule.reason)
        # No await from here to the schedule's: what is checked now holds when the schedule takes the records.
        answer = self._refuse(shell, header, guard, acks)
        if answer is not None:
            return answer
        key = (shell, header.producer_id)
        self._under_way[key] = self._under_way.get(key, 0) + 1
        try:
            return await self._schedule_and_append(shell, schedule, found, delayed, codec, guard, acks)
        finally:
            self._leave(key)

    async def _append_whole(
        self, shell: PartitionShell, codec: Recompression | None, records: memoryview, guard: int, acks: Acks
    ) -> Appended | AppendRefused:
        if codec is not None:
            recompressed = await self._aside(codec.recompress_batch, False, records, header_of(records))
            if isinstance(recompressed, AppendRefused):
                return recompressed
            records = recompressed
        return shell.append_checked(records, guard=guard, acks=acks)

    def _refuse(
        self, shell: PartitionShell, header: BatchHeader, guard: int, acks: Acks
    ) -> Appended | AppendRefused | None:
        """What can be known before anything is put into the schedule."""
        if header.producer_id >= 0:
            answer = shell.check_producer(header, guard=guard, acks=acks)
            if isinstance(answer, VerificationNeeded):
                return refuse_producer(NotVerified())
            if answer is not None:
                return answer
            if header.is_transactional and (shell, header.producer_id) in self._ending:
                return refuse_producer(TransactionOpen())
        return shell.refusal()

    async def _schedule_and_append(
        self,
        shell: PartitionShell,
        schedule: ScheduleShell,
        found: _Found,
        delayed: Sequence[Delayed],
        codec: Recompression | None,
        guard: int,
        acks: Acks,
    ) -> Appended | AppendRefused:
        refused = await _schedule(schedule, found, delayed)
        if refused is not None:
            return refused
        numbers = [each.number for each in delayed]
        is_small = len(found.opened.payload) <= LOOP_BYTES_MAX
        holed = await self._aside(leave_out, is_small, found.opened, numbers)
        return await self._append_whole(shell, codec, memoryview(holed), guard, acks)

    async def _aside(self, work: Callable[P, T], is_small: bool, *args: P.args, **kwargs: P.kwargs) -> T:
        if is_small:
            return work(*args, **kwargs)
        async with self._opening:
            return await asyncio.to_thread(work, *args, **kwargs)

    def _leave(self, key: _Key) -> None:
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
            idle = self._idle.pop(key, None)
            if idle is not None:
                idle.set()

    # Transactions

    @asynccontextmanager
    async def ending(self, shell: PartitionShell, end: TransactionEnd) -> AsyncIterator[bool]:
        """Inside, the schedule knows the end of the transaction, durably, and the log's marker is to be written.
        False: it could not be told, try again later."""
        key = (shell, end.producer_id)
        self._ending[key] = self._ending.get(key, 0) + 1
        try:
            while key in self._under_way:
                await self._idle.setdefault(key, asyncio.Event()).wait()
            yield await self._schedules.end_transaction(shell, end)
        finally:
            self._ending[key] -= 1
            if not self._ending[key]:
                del self._ending[key]


def _look_inside(
    look: BatchLook, codec: Recompression | None, records: memoryview, header: BatchHeader, now_ms: int
) -> _Found | AppendRefused | memoryview:
    """The batch as it is to be stored, where there is no delivery header that counts, or nobody can read the batch and
    its topic takes it all the same."""
    payload = look.open_aside(records, header, now_ms)
    if isinstance(payload, AppendRefused):
        return payload
    is_changed = codec is not None and codec.changes(header)
    if payload is None:
        return codec.refuse_unreadable("it cannot be opened") if codec is not None and is_changed else records
    if look.search is None or not look.search.is_on or not holds_any(payload, SEARCHED_FOR):
        if codec is None or not is_changed:
            return records
        recompressed = codec.recompress(header, payload)
        return recompressed if isinstance(recompressed, AppendRefused) else memoryview(recompressed)
    opened = open_payload(header, payload)
    if isinstance(opened, BatchProblem):
        return AppendRefused(Refusal.INVALID, opened.reason)
    found = records_with(opened, SEARCHED_FOR)
    return AppendRefused(Refusal.INVALID, found.reason) if isinstance(found, BatchProblem) else _Found(opened, found)


async def _schedule(schedule: ScheduleShell, found: _Found, delayed: Sequence[Delayed]) -> AppendRefused | None:
    """In portions: the loop has others to serve. Of a producer's batch the schedule is told all from the first on, and
    takes what it does not have: so after a crash in between, too."""
    header = found.opened.header
    records = dict(found.records)
    producer = _producer_of(header, [records[each.number] for each in delayed])
    # Grows: to make all of them anew for every portion would take as long as the square of their number.
    messages: list[DelayedMessage] = []
    for start in range(0, len(delayed), SCHEDULED_AT_ONCE):
        portion = delayed[start : start + SCHEDULED_AT_ONCE]
        messages += [_message(records[each.number], each.due_ms) for each in portion]
        outcome = await schedule.schedule(
            messages[start:] if producer is None else messages,
            producer=producer,
            is_transactional=header.is_transactional,
        )
        if isinstance(outcome, NotScheduled):
            return AppendRefused(outcome.refusal, outcome.reason)
    return None


def _producer_of(header: BatchHeader, delayed: Sequence[StoredRecord]) -> ProducerBatch | None:
    if header.producer_id < 0:
        return None
    checksum = 0
    for record in delayed:
        # Without their dates and due times: those may be others when they are sent again.
        checksum = crc32c(_ENCODER.encode((record.key, record.value, record.headers)), checksum)
    return ProducerBatch(header.producer_id, header.producer_epoch, header.base_sequence, checksum=checksum or 1)


def _message(record: StoredRecord, due_ms: int) -> DelayedMessage:
    return DelayedMessage(due_ms, record.key, record.value, record.headers, record.timestamp_ms)
