"""Sends to FIFO queues: a message whose deduplication id was sent within five minutes is not stored again, and no
message overtakes another.

    sent ─► known? ─► answered as the first one was
              │
              ├─► nothing before it is delayed ─► the log
              └─► delayed, or behind a delayed one ─► the schedule, due no earlier than the last one there

What is known is each partition's own (`FifoWindow`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.publisher import Delayed, NotPublished, Outgoing, Placed, Published, Publisher, PublishOutcome
from penstock.broker.queue.fifo_window import FifoLane, FifoWindow, not_read
from penstock.broker.queue.hidden import hidden_below
from penstock.broker.queue.node import NodeQueues
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.values import NotScheduled
from penstock.broker.sending import SendFifo, send_everywhere
from penstock.broker.topic.not_here import NotHere
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.batch.records import Record
from penstock.domain.queue.deduplication import DEDUPLICATION_HEADER, Sent
from penstock.domain.queue.definition import QueueDefinition
from penstock.domain.queue.receipt import MessageId, write_scheduled_id
from penstock.domain.replication.exchange import ForwardKind
from penstock.domain.security.caller import Caller

# Refusals after which something may be there all the same.
_UNSURE: Final = frozenset({Refusal.OFFLINE, Refusal.NOT_LEADER, Refusal.TIMED_OUT, Refusal.NOT_ENOUGH_REPLICAS})


class _Later(msgspec.Struct, frozen=True):
    """One that goes into the schedule."""

    message: Outgoing
    token: str
    scope: str
    # Among those of its request.
    number: int


class FifoSender:
    def __init__(self, queues: NodeQueues, schedules: NodeSchedules, publisher: Publisher, clock: Clock) -> None:
        self._queues = queues
        self._schedules = schedules
        self._publisher = publisher
        self._clock = clock

    async def send(
        self,
        definition: QueueDefinition,
        topic: ServedTopic,
        messages: Sequence[Outgoing],
        *,
        is_by_group: bool,
        by: Caller | None = None,
    ) -> list[PublishOutcome]:
        """`is_by_group`: an id counts within its message group, which is the key. Each is sent by whoever leads its
        partition, for there is what was sent before."""
        relay = self._publisher.relay
        if relay is None or topic.is_whole:
            return await self.send_here(definition, topic, messages, is_by_group=is_by_group)
        placed = [
            msgspec.structs.replace(each, partition=self._publisher.partition_of(topic, each.record, None))
            for each in messages
        ]
        here = partial(self.send_here, definition, topic, is_by_group=is_by_group)
        body_of = partial(SendFifo, definition.name.group, is_by_group)
        return await send_everywhere(relay, topic, placed, here, kind=ForwardKind.FIFO, body_of=body_of, by=by)

    async def send_here(
        self, definition: QueueDefinition, topic: ServedTopic, messages: Sequence[Outgoing], *, is_by_group: bool
    ) -> list[PublishOutcome]:
        placing = [self._publisher.partition_of(topic, message.record, None) for message in messages]
        windows: dict[int, FifoWindow] = {}
        for partition in sorted(set(placing)):
            found = topic.find(partition)
            # What is for a partition that is not led here is refused where it would be written.
            if not isinstance(found, NotHere):
                windows[partition] = (await self._queues.shell(found)).fifo
        # Nobody else's message comes between looking and writing. What goes into the log is only written here, and
        # waits for the disk outside; what is delayed waits here, because its place is known only then.
        async with AsyncExitStack() as held:
            lanes: dict[int, FifoLane] = {}
            # In the order of the partitions, as everybody does: no two wait for each other.
            for partition, window in windows.items():
                await held.enter_async_context(window.lock)
                lanes[partition] = await window.lane(self._schedules, self._clock.now_ms())
                lanes[partition].begin(hidden_below(definition, partition))
            placed = await self._write(topic, lanes, list(zip(messages, placing, strict=True)), is_by_group=is_by_group)
            for partition, lane in lanes.items():
                if lane.is_unsure:
                    windows[partition].forget()
        outcomes = await self._publisher.settle(placed)
        for partition, outcome, each in zip(placing, outcomes, placed, strict=True):
            if isinstance(outcome, NotPublished) and isinstance(each.outcome, Published):
                # The disk did not take what was noted. Whoever sends it again must not be told that it is there.
                windows[partition].forget()
        return outcomes

    async def _write(
        self,
        topic: ServedTopic,
        lanes: Mapping[int, FifoLane],
        messages: Sequence[tuple[Outgoing, int]],
        *,
        is_by_group: bool,
    ) -> list[Placed]:
        placed: list[Placed | _Later] = []
        # Those of this request that go into the schedule, by partition, scope and token: it may repeat itself.
        later: dict[tuple[int, str, str], _Later] = {}
        for message, partition in messages:
            token, key = _token(message.record), (message.record.key or b"").decode()
            scope = key if is_by_group else ""
            known = later.get((partition, scope, token))
            if known is None:
                sending = _Later(Outgoing(message.record, partition, message.due_ms), token, scope, len(later))
                found = await self._place(topic, lanes.get(partition), sending)
                if isinstance(found, _Later):
                    later[partition, scope, token] = found
                placed.append(found)
            else:
                placed.append(known)
        outcomes = await self._schedule(topic, lanes, list(later.values())) if later else []
        return [outcomes[each.number] if isinstance(each, _Later) else each for each in placed]

    async def _place(self, topic: ServedTopic, lane: FifoLane | None, sending: _Later) -> Placed | _Later:
        """In the log, if it goes there, or when it is due."""
        message, now_ms = sending.message, self._clock.now_ms()
        assert message.partition is not None
        shell = topic.find(message.partition)
        if isinstance(shell, NotHere):
            refused = shell.refusal()
            return Placed(NotPublished(refused.refusal, refused.reason))
        if lane is None:
            return Placed(NotPublished(Refusal.NOT_LEADER, "the partition was led by another node a moment ago"))
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

    async def _schedule(
        self, topic: ServedTopic, lanes: Mapping[int, FifoLane], later: Sequence[_Later]
    ) -> list[Placed]:
        now_ms = self._clock.now_ms()
        outcomes = await self._publisher.schedule(topic, [each.message for each in later])
        for each, outcome in zip(later, outcomes, strict=True):
            assert each.message.partition is not None
            lane = lanes[each.message.partition]
            if isinstance(outcome, NotPublished) and outcome.refusal in _UNSURE:
                # Whether it is kept is known when the disk is well again, or to whoever leads.
                lane.is_unsure = True
            if isinstance(outcome, Delayed):
                lane.note_delayed(outcome.origin, outcome.due_ms)
                lane.window.note(each.token, Sent(outcome.origin, now_ms, is_delayed=True), scope=each.scope)
        return [Placed(outcome) for outcome in outcomes]

    async def _due_ms(self, lane: FifoLane, shell: PartitionShell, due_ms: int | None, now_ms: int) -> int | None:
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
                raise not_read(schedule)
            return now_ms
        if schedule is not None and await schedule.pending.show(lane.last_origin) is not None:
            return now_ms
        lane.last_origin = -1
        return None


def _repeated(topic: ServedTopic, shell: PartitionShell, before: Sent) -> Placed:
    """Answered as the first one was, and not before that one is durable."""
    if before.is_delayed:
        name = write_scheduled_id(MessageId(topic.topic_id, shell.index, before.offset))
        return Placed(Delayed(shell.index, before.offset, name, before.at_ms))
    return Placed(Published(shell.index, before.offset), shell.commitment_of(before.offset))


def _token(record: Record) -> str:
    token = next((value for name, value in record.headers if name == DEDUPLICATION_HEADER), None)
    assert token is not None, "the door gives every message of a FIFO queue an id"
    return token.decode()
