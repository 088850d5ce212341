"""What the partition of a FIFO queue remembers of what was sent to it: the deduplication window, and its last delayed
message.

It is the partition's: whoever has the partition has it, and it is gone with the partition's shell. It is memory, built
when something is first sent there after a start, before anything is taken: from the headers of the log's last five
minutes and of what is pending in the schedule.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.machine.portions import JournalDamagedError
from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.reader import QueueReader
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.values import DueCursor, NotScheduled, PendingMessage
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.codec.batch.records import Headers, StoredRecord
from penstock.domain.queue.deduplication import DEDUPLICATION_HEADER, WINDOW_MS, DeduplicationWindow, Sent
from penstock.domain.queue.receipt import read_scheduled_id
from penstock.domain.schedule.headers import MESSAGE_ID_HEADER, SCHEDULED_AT_HEADER

# Of what is pending, when a window is built.
PAGE_COUNT: Final = 1_000
# Nothing that is sent to a FIFO queue is delayed for longer: SQS's own maximum.
DELAY_MS_MAX: Final = 900_000
_DIGITS_MAX: Final = 18


@dataclass(slots=True)
class FifoLane:
    """What is known of one partition."""

    window: DeduplicationWindow = field(default_factory=DeduplicationWindow)
    # The delayed message that is due last, as far as it may still be pending.
    last_due_ms: int = 0
    last_origin: int = -1
    # Of the request at hand: the last one that goes into the schedule with it.
    later_due_ms: int = 0
    # Something may be on the disk that is not here: this is not to be used again.
    is_unsure: bool = False

    def begin(self, hidden_below: int) -> None:
        """A request. Nobody waits for what a purge has hidden."""
        self.later_due_ms = 0
        if self.last_origin < hidden_below:
            self.last_origin = -1

    def note_delayed(self, origin: int, due_ms: int) -> None:
        if due_ms >= self.last_due_ms:
            self.last_due_ms, self.last_origin = due_ms, origin


class FifoWindow:
    """One for each partition's shell. `lock` is held from the look into the lane to the write that it decides."""

    __slots__ = ("_lane", "_partition", "_reader", "lock")

    def __init__(self, partition: PartitionShell, reader: QueueReader) -> None:
        self.lock = asyncio.Lock()
        self._partition = partition
        self._reader = reader
        self._lane: FifoLane | None = None

    async def lane(self, schedules: NodeSchedules, now_ms: int) -> FifoLane:
        """StoreUnavailableError, JournalDamagedError: it cannot be known what was sent, now or before a repair."""
        assert self.lock.locked(), "somebody else could build it at the same time"
        if self._lane is None:
            lane = FifoLane()
            # In this order: what is released meanwhile is found twice, and not nowhere.
            await self._read_pending(lane, schedules, now_ms)
            await self._read_log(lane, now_ms)
            self._lane = lane
        return self._lane

    def forget(self) -> None:
        """The disk did not take what was noted, or nobody knows: it is built anew from what is there."""
        self._lane = None

    async def _read_log(self, lane: FifoLane, now_ms: int) -> None:
        # What was delayed is dated with its due time: whatever was sent since then is behind this.
        found = await asyncio.to_thread(self._partition.offset_for_timestamp, now_ms - WINDOW_MS)
        if isinstance(found, ReadProblem):
            raise _unreadable(found)
        offset = self._partition.readable_end if found is None else found.offset
        while offset < self._partition.readable_end:
            batch = await self._reader.batch_at(offset, is_committed_only=False)
            if isinstance(batch, ReadProblem):
                raise _unreadable(batch)
            if batch is None:
                break
            for record in batch.records:
                _note(lane.window, record.headers, record.key, _sent_of(record))
            offset = batch.next_offset

    async def _read_pending(self, lane: FifoLane, schedules: NodeSchedules, now_ms: int) -> None:
        schedule = await schedules.existing_shell(self._partition)
        if schedule is None:
            return
        if isinstance(schedule, NotScheduled):
            raise not_read(schedule)
        after: DueCursor | None = None
        while True:
            page = await schedule.pending.list_due(after, PAGE_COUNT)
            if isinstance(page, NotScheduled):
                raise not_read(page)
            for message in page.messages:
                _note_pending(lane, message)
            after = page.next
            if after is None or after.due_ms > now_ms + DELAY_MS_MAX:
                return


def not_read(schedule: NotScheduled) -> Exception:
    return (JournalDamagedError if schedule.refusal is Refusal.DAMAGED else StoreUnavailableError)(schedule.reason)


def _unreadable(problem: ReadProblem) -> StoreUnavailableError:
    return StoreUnavailableError(f"the log of the queue is {problem.value}")


def _note_pending(lane: FifoLane, message: PendingMessage) -> None:
    sent = Sent(message.origin, message.arrived_ms, is_delayed=True)
    if _note(lane.window, message.headers, message.key, sent):
        lane.note_delayed(message.origin, message.due_ms)


def _note(window: DeduplicationWindow, headers: Headers, key: bytes | None, sent: Sent) -> bool:
    """False: it was not sent to a FIFO queue."""
    token = dict(headers).get(DEDUPLICATION_HEADER)
    if token is None:
        return False
    text = token.decode(errors="replace")
    # Both ways of counting: which one the queue uses may have changed since.
    window.note(text, sent)
    window.note(text, sent, scope=(key or b"").decode(errors="replace"))
    return True


def _sent_of(record: StoredRecord) -> Sent:
    headers = dict(reversed(record.headers))
    place = read_scheduled_id((headers.get(MESSAGE_ID_HEADER) or b"").decode(errors="replace"))
    sent_ms = (headers.get(SCHEDULED_AT_HEADER) or b"").decode(errors="replace")
    # Any Kafka producer can write these headers.
    if place is None or not (sent_ms.isascii() and sent_ms.isdigit() and len(sent_ms) <= _DIGITS_MAX):
        return Sent(record.offset, record.timestamp_ms)
    return Sent(place.offset, int(sent_ms), is_delayed=True)
