"""FIFO queues: a message whose deduplication id was sent within five minutes is not stored again, and no message
overtakes another.

    sent ─► known? ─► answered as the first one was
              │
              ├─► nothing before it is delayed ─► the log
              └─► delayed, or behind a delayed one ─► the schedule, due no earlier than the last one there

The window of a queue is memory, and so is what its last delayed message is. Both are rebuilt when the queue is first
sent to after a start, before anything is taken: from the headers of the log's last five minutes and of what is pending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.publisher import Delayed, NotPublished, Outgoing, Placed, Published, Publisher, PublishOutcome
from penstock.broker.queue.hidden import hidden_below
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.shell import QueueShell
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.values import DueCursor, NotScheduled, PendingMessage
from penstock.broker.topic.not_here import NotHere
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.batch.records import Headers, Record, StoredRecord
from penstock.codec.sqs.errors import SqsError
from penstock.domain.queue.deduplication import WINDOW_MS, DeduplicationWindow, Sent
from penstock.domain.queue.definition import QueueDefinition
from penstock.domain.queue.receipt import MessageId, read_scheduled_id, write_scheduled_id
from penstock.domain.schedule.headers import MESSAGE_ID_HEADER, SCHEDULED_AT_HEADER
from penstock.gateways.sqs.attributes import DELAY_SECONDS_MAX, attributes_of
from penstock.gateways.sqs.context import SqsRefusal, not_here
from penstock.gateways.sqs.records import DEDUPLICATION_HEADER, header_text

# Of what is pending, at a rebuild.
PAGE_COUNT: Final = 1_000
_DIGITS_MAX: Final = 18
# Refusals after which something may be there all the same.
_UNSURE: Final = frozenset({Refusal.OFFLINE, Refusal.NOT_LEADER})


@dataclass(slots=True)
class _Lane:
    """What is known of one partition."""

    window: DeduplicationWindow = field(default_factory=DeduplicationWindow)
    # The delayed message that is due last, as far as it may still be pending.
    last_due_ms: int = 0
    last_origin: int = -1
    # Of the request at hand: the last one that goes into the schedule with it.
    later_due_ms: int = 0

    def begin(self, hidden_below: int) -> None:
        """A request. Nobody waits for what a purge has hidden."""
        self.later_due_ms = 0
        if self.last_origin < hidden_below:
            self.last_origin = -1

    def note_delayed(self, origin: int, due_ms: int) -> None:
        if due_ms >= self.last_due_ms:
            self.last_due_ms, self.last_origin = due_ms, origin


class _Later(msgspec.Struct, frozen=True):
    """One that goes into the schedule."""

    message: Outgoing
    token: str
    scope: str
    # Among those of its request.
    number: int


class FifoGate:
    def __init__(self, queues: NodeQueues, schedules: NodeSchedules, publisher: Publisher, clock: Clock) -> None:
        self._queues = queues
        self._schedules = schedules
        self._publisher = publisher
        self._clock = clock
        # By topic id: a queue that is made again knows nothing of its predecessor's messages. One for each partition.
        self._lanes: dict[bytes, list[_Lane]] = {}
        self._locks: dict[bytes, asyncio.Lock] = {}

    async def send(
        self, definition: QueueDefinition, topic: ServedTopic, messages: Sequence[Outgoing]
    ) -> list[PublishOutcome]:
        is_by_group = attributes_of(definition.options).get("DeduplicationScope") == "messageGroup"
        # Nobody else's message comes between looking and writing. What goes into the log is only written here, and
        # waits for the disk outside; what is delayed waits here, because its place is known only then.
        async with self._locks.setdefault(topic.topic_id, asyncio.Lock()):
            lanes = await self._lanes_of(topic)
            for partition, lane in enumerate(lanes):
                lane.begin(hidden_below(definition, partition))
            placed = await self._write(topic, lanes, messages, is_by_group=is_by_group)
        outcomes = await self._publisher.settle(placed)
        if any(
            isinstance(outcome, NotPublished) and isinstance(each.outcome, Published)
            for outcome, each in zip(outcomes, placed, strict=True)
        ):
            # The disk did not take what was noted. Whoever sends it again must not be told that it is there.
            self._lanes.pop(topic.topic_id, None)
        return outcomes

    async def _write(
        self, topic: ServedTopic, lanes: Sequence[_Lane], messages: Sequence[Outgoing], *, is_by_group: bool
    ) -> list[Placed]:
        placed: list[Placed | _Later] = []
        # Those of this request that go into the schedule, by partition, scope and token: it may repeat itself.
        later: dict[tuple[int, str, str], _Later] = {}
        for message in messages:
            token, key = _token(message.record), (message.record.key or b"").decode()
            scope = key if is_by_group else ""
            partition = self._publisher.partition_of(topic, message.record, None)
            known = later.get((partition, scope, token))
            if known is None:
                sending = _Later(Outgoing(message.record, partition, message.due_ms), token, scope, len(later))
                found = await self._place(topic, lanes[partition], sending)
                if isinstance(found, _Later):
                    later[partition, scope, token] = found
                placed.append(found)
            else:
                placed.append(known)
        outcomes = await self._schedule(topic, lanes, list(later.values())) if later else []
        return [outcomes[each.number] if isinstance(each, _Later) else each for each in placed]

    async def _place(self, topic: ServedTopic, lane: _Lane, sending: _Later) -> Placed | _Later:
        """In the log, if it goes there, or when it is due."""
        message, now_ms = sending.message, self._clock.now_ms()
        assert message.partition is not None
        shell = topic.find(message.partition)
        if isinstance(shell, NotHere):
            refused = shell.refusal()
            return Placed(NotPublished(refused.refusal, refused.reason))
        before = lane.window.find(sending.token, now_ms, scope=sending.scope)
        if before is not None:
            return _repeated(topic, shell, before)
        if lane.window.is_full(now_ms):
            return Placed(NotPublished(Refusal.DISK_FULL, "too many messages within five minutes"))
        due_ms = await self._due_ms(lane, shell, message.due_ms, now_ms)
        if due_ms is not None:
            lane.later_due_ms = due_ms
            return msgspec.structs.replace(sending, message=msgspec.structs.replace(message, due_ms=due_ms))
        (placed,) = self._publisher.place(topic, [message])
        if isinstance(placed.outcome, Published):
            lane.window.note(sending.token, Sent(placed.outcome.offset, now_ms), scope=sending.scope)
        return placed

    async def _schedule(self, topic: ServedTopic, lanes: Sequence[_Lane], later: Sequence[_Later]) -> list[Placed]:
        now_ms = self._clock.now_ms()
        outcomes = await self._publisher.schedule(topic, [each.message for each in later])
        if any(isinstance(outcome, NotPublished) and outcome.refusal in _UNSURE for outcome in outcomes):
            # Whether it is kept is known when the disk is well again, or to whoever leads.
            self._lanes.pop(topic.topic_id, None)
        for each, outcome in zip(later, outcomes, strict=True):
            if isinstance(outcome, Delayed):
                lane = lanes[outcome.partition]
                lane.note_delayed(outcome.origin, outcome.due_ms)
                lane.window.note(each.token, Sent(outcome.origin, now_ms, is_delayed=True), scope=each.scope)
        return [Placed(outcome) for outcome in outcomes]

    async def _due_ms(self, lane: _Lane, shell: PartitionShell, due_ms: int | None, now_ms: int) -> int | None:
        """Not before the last one that is delayed, also if the queue's own delay was made shorter since."""
        if lane.later_due_ms:
            return max(due_ms or 0, lane.later_due_ms)
        if lane.last_origin >= 0 and (due_ms or now_ms) <= lane.last_due_ms:
            return lane.last_due_ms
        if due_ms is not None or lane.last_origin < 0:
            return due_ms
        # It is due; whether it has gone is another question. Who cannot be asked has it still.
        schedule = await self._schedules.existing_shell(shell)
        if isinstance(schedule, NotScheduled):
            if schedule.refusal is Refusal.DAMAGED:
                raise _not_read(schedule)
            return now_ms
        if schedule is not None and await schedule.show(lane.last_origin) is not None:
            return now_ms
        lane.last_origin = -1
        return None

    # Rebuilding

    async def _lanes_of(self, topic: ServedTopic) -> list[_Lane]:
        lanes = self._lanes.setdefault(topic.topic_id, [])
        while len(lanes) < topic.partition_count:
            partition = topic.find(len(lanes))
            if isinstance(partition, NotHere):
                raise not_here(partition)
            lanes.append(await self._rebuilt(await self._queues.shell(partition)))
        return lanes

    async def _rebuilt(self, shell: QueueShell) -> _Lane:
        lane = _Lane()
        # In this order: what is released meanwhile is found twice, and not nowhere.
        await self._read_pending(lane, shell.partition)
        await self._read_log(lane, shell)
        return lane

    async def _read_log(self, lane: _Lane, shell: QueueShell) -> None:
        since_ms = self._clock.now_ms() - WINDOW_MS
        partition = shell.partition
        # What was delayed is dated with its due time: whatever was sent since then is behind this.
        found = await asyncio.to_thread(partition.offset_for_timestamp, since_ms)
        if isinstance(found, ReadProblem):
            raise _unreadable(found.value)
        offset = partition.readable_end if found is None else found.offset
        while offset < partition.readable_end:
            batch = await shell.reader.batch_at(offset, is_committed_only=False)
            if isinstance(batch, ReadProblem):
                raise _unreadable(batch.value)
            if batch is None:
                break
            for record in batch.records:
                _note(lane.window, record.headers, record.key, _sent_of(record))
            offset = batch.next_offset

    async def _read_pending(self, lane: _Lane, partition: PartitionShell) -> None:
        schedule = await self._schedules.existing_shell(partition)
        if schedule is None:
            return
        if isinstance(schedule, NotScheduled):
            raise _not_read(schedule)
        latest_ms = self._clock.now_ms() + DELAY_SECONDS_MAX * 1000
        after: DueCursor | None = None
        while True:
            page = await schedule.list_due(after, PAGE_COUNT)
            if isinstance(page, NotScheduled):
                raise _not_read(page)
            for message in page.messages:
                _note_pending(lane, message)
            after = page.next
            # Nothing that came by this door is due later.
            if after is None or after.due_ms > latest_ms:
                return


def _repeated(topic: ServedTopic, shell: PartitionShell, before: Sent) -> Placed:
    """Answered as the first one was, and not before that one is durable."""
    if before.is_delayed:
        name = write_scheduled_id(MessageId(topic.topic_id, shell.index, before.offset))
        return Placed(Delayed(shell.index, before.offset, name, before.at_ms))
    return Placed(Published(shell.index, before.offset), shell.commitment_of(before.offset))


def _note_pending(lane: _Lane, message: PendingMessage) -> None:
    sent = Sent(message.origin, message.arrived_ms, is_delayed=True)
    if _note(lane.window, message.headers, message.key, sent):
        lane.note_delayed(message.origin, message.due_ms)


def _note(window: DeduplicationWindow, headers: Headers, key: bytes | None, sent: Sent) -> bool:
    """False: it did not come by this door."""
    token = dict(headers).get(DEDUPLICATION_HEADER)
    if token is None:
        return False
    text = token.decode(errors="replace")
    # Both ways of counting: which one the queue uses may have changed since.
    window.note(text, sent)
    window.note(text, sent, scope=(key or b"").decode(errors="replace"))
    return True


def _sent_of(record: StoredRecord) -> Sent:
    place = read_scheduled_id(header_text(record, MESSAGE_ID_HEADER) or "")
    sent_ms = header_text(record, SCHEDULED_AT_HEADER) or ""
    # Any Kafka producer can write these headers.
    if place is None or not (sent_ms.isascii() and sent_ms.isdigit() and len(sent_ms) <= _DIGITS_MAX):
        return Sent(record.offset, record.timestamp_ms)
    return Sent(place.offset, int(sent_ms), is_delayed=True)


def _token(record: Record) -> str:
    token = next((value for name, value in record.headers if name == DEDUPLICATION_HEADER), None)
    assert token is not None, "the door gives every message of a FIFO queue an id"
    return token.decode()


def _not_read(schedule: NotScheduled) -> SqsRefusal:
    is_damaged = schedule.refusal is Refusal.DAMAGED
    return SqsRefusal(SqsError.DAMAGED if is_damaged else SqsError.SERVICE_UNAVAILABLE, schedule.reason)


def _unreadable(reason: str) -> SqsRefusal:
    return SqsRefusal(SqsError.SERVICE_UNAVAILABLE, f"the log of the queue is {reason}")
