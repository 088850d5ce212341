"""Messages out of a queue and back: receive over all partitions, settle by receipts, look without taking.

    receive: look from the cursors ─► machine ─► journal ─► read what was delivered ─► durable ─► messages

A consumer that finds nothing waits until one of the partitions has more, a message comes back, or its time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.waiting import Waiter
from penstock.broker.queue.hidden import Delays, marks_after, visible
from penstock.broker.queue.messages import (
    Message,
    PeekedMessage,
    QueueTotals,
    ReceivedMessages,
    Receiver,
    Source,
)
from penstock.broker.queue.node import LOADING_MS_MAX, NodeQueues
from penstock.broker.queue.settling import NoSuchQueue, ReceiptSettlement, settle_by_receipts
from penstock.broker.queue.shell import QueueShell, QueueUnavailable
from penstock.broker.queue.unreadable import rejections, without_unreadable
from penstock.broker.schedule.values import NotScheduled
from penstock.codec.batch.records import StoredRecord
from penstock.domain.queue.commands import (
    Act,
    Delivery,
    Found,
    MoveStart,
    Outcome,
    Pause,
    Receive,
    Received,
    Resume,
    Settle,
    Settlement,
)
from penstock.domain.queue.definition import QueueDefinition, QueueName
from penstock.domain.queue.lanes import DEFAULT_LANE, PRIORITY_HEADER, lane_of
from penstock.domain.queue.machine import QueueStats
from penstock.domain.queue.values import Limit, Ordering

__all__ = [
    "Receiver",
    "Message",
    "NoSuchQueue",
    "PeekedMessage",
    "QueueDelivery",
    "QueueTotals",
    "ReceiptSettlement",
    "ReceivedMessages",
    "Source",
    "is_worth_waiting",
]

# A look may find only messages that are too old, or must wait for others. Then it looks further, each time at twice as
# many; a receive that may wait goes on for as long as that brings it forward.
LOOKS_MAX: Final = 20
LOOK_COUNT_MAX: Final = 10_000
# Of one receive, about: ten thousand messages of a megabyte each would be more than a node has.
RECEIVE_BYTES_MAX: Final = 64 * 1024 * 1024


class QueueDelivery:
    def __init__(
        self, queues: NodeQueues, delays: Delays | None = None, *, loading_ms_max: int = LOADING_MS_MAX
    ) -> None:
        self._queues = queues
        self._loading_ms_max = loading_ms_max
        self._delays = delays
        self._broker = queues.broker
        # Where the next receive of a queue begins, so that no partition is always the last.
        self._turns: dict[QueueName, int] = {}

    async def receive(
        self,
        name: QueueName,
        *,
        consumer: str,
        count_max: int,
        wait_ms: int = 0,
        lease_ms: int = 0,
        caller: Receiver | None = None,
    ) -> ReceivedMessages | NoSuchQueue | QueueUnavailable:
        definition = self._queues.get(name)
        if definition is None:
            self._turns.pop(name, None)
            return NoSuchQueue(name)
        clock = self._broker.clock
        deadline_ms = clock.monotonic_ms() + wait_ms
        waiter = Waiter()
        try:
            while True:
                loading_ms = max(deadline_ms - clock.monotonic_ms(), self._loading_ms_max)
                shells = await self._queues.shells(name, wait_ms=loading_ms)
                waiter.watch(shell.room(name.group) for shell in shells)
                waiter.watch(shell.partition.readers for shell in shells)
                waiter.watch((self._broker.stopping,) if caller is None else (self._broker.stopping, caller.room))
                received = await self._take(definition, shells, consumer, count_max, lease_ms)
                if not isinstance(received, ReceivedMessages):
                    return received
                if caller is not None and caller.is_gone:
                    _give_back(shells, name.group, received.messages)
                    return ReceivedMessages()
                left_ms = deadline_ms - clock.monotonic_ms()
                if received.messages or left_ms <= 0 or self._broker.is_stopping or self._queues.get(name) is None:
                    return received
                if received.has_more:
                    await asyncio.sleep(0)
                else:
                    await self._wait(waiter, definition, shells, consumer, deadline_ms, caller)
                waiter.leave()
                # It may have been changed meanwhile.
                definition = self._queues.get(name) or definition
        finally:
            waiter.leave()

    async def _wait(
        self,
        waiter: Waiter,
        definition: QueueDefinition,
        shells: list[QueueShell],
        consumer: str,
        deadline_ms: int,
        caller: Receiver | None,
    ) -> None:
        """Until there may be something to take, or it is over. All who wait are woken by one message, and the first of
        them takes it: the others see that at a glance, or a thousand of them would hold the node for a second."""
        name, clock = definition.name, self._broker.clock
        while (left_ms := deadline_ms - clock.monotonic_ms()) > 0:
            await waiter.wait(left_ms)
            topic = self._broker.topic(name.topic)
            if topic is None or len(topic.led()) != len(shells) or self._queues.get(name) is not definition:
                return
            if self._broker.is_stopping or (caller is not None and caller.is_gone):
                return
            if any(_may_have_some(shell, definition, consumer) for shell in shells):
                return
            waiter.rest()

    async def _take(
        self, definition: QueueDefinition, shells: list[QueueShell], consumer: str, count_max: int, lease_ms: int
    ) -> ReceivedMessages | QueueUnavailable:
        name = definition.name
        turn = self._turns.get(name, 0)
        self._turns[name] = turn + 1
        messages: list[Message] = []
        limit = Limit.NONE
        has_more = False
        problem: QueueUnavailable | None = None
        touched: list[QueueShell] = []
        try:
            for index in range(len(shells)):
                shell = shells[(turn + index) % len(shells)]
                taken = await self.take_from(
                    shell, definition, consumer=consumer, count_max=count_max - len(messages), lease_ms=lease_ms
                )
                if isinstance(taken, QueueUnavailable):
                    # The other partitions are served all the same.
                    problem = taken
                    continue
                if taken.messages:
                    touched.append(shell)
                    messages += taken.messages
                limit = limit if limit is not Limit.NONE else taken.limit
                has_more = has_more or taken.has_more
                if len(messages) >= count_max:
                    break
            for shell in touched:
                if not await shell.is_durable():
                    return QueueUnavailable("the disk did not take the queue's journal")
        except asyncio.CancelledError:
            _give_back(shells, name.group, messages)
            raise
        if problem is not None and not messages:
            return problem
        return ReceivedMessages(tuple(messages), limit, has_more)

    async def take_from(
        self, shell: QueueShell, definition: QueueDefinition, *, consumer: str, count_max: int, lease_ms: int
    ) -> ReceivedMessages | QueueUnavailable:
        """From one partition. The messages must not leave before the shell `is_durable`."""
        group, options = definition.name.group, definition.options
        count_max = min(count_max, _count_that_fits(shell))
        for look in range(LOOKS_MAX):
            queue = shell.queue(group)
            if queue is None or not shell.is_loaded:
                return shell.unavailable
            wanted = queue.wanted(consumer, count_max, shell.now_ms())
            if not wanted.count:
                reply = shell.decide(group, Receive(consumer, count_max, ()))
                return ReceivedMessages(limit=reply.limit) if isinstance(reply, Received) else ReceivedMessages()
            found: tuple[Found, ...] = ()
            # Also when enough come back: something more urgent may be among those that nobody has seen.
            if wanted.ready_count < wanted.count or options.ordering is Ordering.NONE:
                missing = max(wanted.count - wanted.ready_count, 1)
                count = min(missing << look, max(wanted.count, LOOK_COUNT_MAX))
                sight = await self._look(shell, definition, wanted.cursors, count)
                if queue.has_gone_back(wanted.cursors):
                    continue
                if not isinstance(sight, QueueUnavailable):
                    found = sight
                elif not wanted.ready_count:
                    return sight
            if not found and not wanted.ready_count:
                return ReceivedMessages()
            reply = shell.decide(group, Receive(consumer, count_max, found, lease_ms))
            if not isinstance(reply, Received):
                return reply if isinstance(reply, QueueUnavailable) else ReceivedMessages()
            if reply.deliveries:
                messages = await self._load(shell, definition, reply)
                if messages:
                    return ReceivedMessages(tuple(messages), reply.limit)
            elif reply.limit is not Limit.NONE or queue.wanted(consumer, count_max, 0).cursors == wanted.cursors:
                return ReceivedMessages(limit=reply.limit)
        return ReceivedMessages(has_more=True)

    async def _look(
        self, shell: QueueShell, definition: QueueDefinition, cursors: Sequence[tuple[int, int]], count: int
    ) -> tuple[Found, ...] | QueueUnavailable:
        options = definition.options
        sight = await shell.reader.look(
            cursors, count, ordering=options.ordering, is_committed_only=options.is_committed_only
        )
        if isinstance(sight, ReadProblem):
            return QueueUnavailable(f"the partition's log is {sight.value}")
        # A topic may promise less than the journal does. But a cursor must not come to lie behind the end of a log that
        # has lost its last messages with the power: whatever is written there later would count as delivered.
        commitment = shell.partition.commit_if_unsynced() if sight.found else None
        if commitment is not None and not await commitment.kept():
            return QueueUnavailable("the disk did not take the messages")
        return sight.found

    async def _load(self, shell: QueueShell, definition: QueueDefinition, received: Received) -> list[Message]:
        """What was delivered. What is no longer there, or hidden, is settled at once, and never comes back; what nobody
        can read goes to the dead letters."""
        group, is_committed_only = definition.name.group, definition.options.is_committed_only
        topic_id, partition = shell.partition.log.home.topic_id, shell.partition.index
        source = Source(group, topic_id, partition, received.number, received.until_ms)
        messages: list[Message] = []
        gaps: list[Settlement] = []
        now_ms = shell.now_ms()
        try:
            for delivery in received.deliveries:
                first, last, count, lane = delivery.first, delivery.last, delivery.count, delivery.lane
                found = await shell.reader.messages(first, last, is_committed_only=is_committed_only)
                if isinstance(found, ReadProblem):
                    # Not settled: the lease runs out, and whoever comes then may find the log well again.
                    continue
                found = visible(found, definition, partition)
                if len(found) <= last - first:
                    unreadable = await shell.reader.unreadable(first, last, is_committed_only=is_committed_only)
                    gaps += _gaps(delivery, found, received.number)
                    gaps = [piece for gap in gaps for piece in without_unreadable(gap, unreadable)]
                    gaps += rejections(unreadable, received.number)
                if count == 1:
                    messages += [Message(source, record, 1, lane, now_ms) for record in found]
                    continue
                for record in found:
                    first_ms = _first_delivery_ms(shell, group, record.offset, now_ms)
                    messages.append(Message(source, record, count, lane, first_ms))
        except asyncio.CancelledError:
            ranges = [(delivery.first, delivery.last) for delivery in received.deliveries]
            shell.decide(group, Settle(tuple(_release(first, last, received.number) for first, last in ranges)))
            raise
        if gaps:
            shell.decide(group, Settle(tuple(gaps)))
        return messages

    async def settle(
        self, name: QueueName, items: Sequence[ReceiptSettlement]
    ) -> list[Outcome | QueueUnavailable] | NoSuchQueue:
        """One outcome for each, durable."""
        return await settle_by_receipts(self._queues, name, items)

    # Looking

    async def peek(self, name: QueueName, count_max: int) -> list[PeekedMessage] | NoSuchQueue | QueueUnavailable:
        """The first messages that are not finished, delivered or not; nothing changes by it."""
        definition = self._queues.get(name)
        if definition is None:
            return NoSuchQueue(name)
        seen: list[PeekedMessage] = []
        for shell in await self._queues.shells(name):
            queue = shell.queue(name.group)
            if queue is None or not shell.is_loaded:
                return shell.unavailable
            offset = queue.finished_below
            is_in_lanes = definition.options.ordering is Ordering.NONE
            while len(seen) < count_max:
                batch = await shell.reader.batch_at(
                    max(offset, shell.partition.log_start), is_committed_only=definition.options.is_committed_only
                )
                if isinstance(batch, ReadProblem):
                    return QueueUnavailable(f"the partition's log is {batch.value}")
                if batch is None:
                    break
                records = list(batch.between(offset, batch.next_offset - 1))
                for record in visible(records, definition, shell.partition.index):
                    if len(seen) >= count_max:
                        break
                    view = queue.look_up(record.offset)
                    if view is not None:
                        seen.append(
                            PeekedMessage(
                                shell.partition.index,
                                record,
                                view.kind,
                                view.delivery_count,
                                view.consumer,
                                view.until_ms,
                            )
                        )
                    elif record.offset >= queue.cursor(_lane_of(record) if is_in_lanes else DEFAULT_LANE):
                        seen.append(PeekedMessage(shell.partition.index, record, None))
                offset = batch.next_offset
        return seen

    async def totals(self, name: QueueName) -> QueueTotals | NoSuchQueue | QueueUnavailable:
        definition, topic = self._queues.get(name), self._broker.topic(name.topic)
        if definition is None or topic is None:
            return NoSuchQueue(name)
        partitions: list[tuple[int, QueueStats]] = []
        backlog_count = 0
        for shell in await self._queues.shells(name):
            queue = shell.queue(name.group)
            if queue is None or not shell.is_loaded:
                # Sums without it would look whole.
                return shell.unavailable
            partitions.append((shell.partition.index, queue.stats()))
            cursor = max(queue.cursor(), shell.partition.log_start)
            backlog_count += max(0, shell.partition.readable_end - cursor)
        damage = None if self._delays is None else self._delays.damage_of(topic)
        if damage is not None:
            return QueueUnavailable(damage, is_damaged=True)
        stats = [each for _, each in partitions]
        return QueueTotals(
            tuple(partitions),
            backlog_count=backlog_count,
            leased_count=sum(each.leased_count for each in stats),
            waiting_count=sum(each.waiting_count for each in stats),
            blocked_count=sum(each.blocked_count for each in stats),
            dying_count=sum(each.dying_count for each in stats),
            is_paused=any(each.is_paused for each in stats),
            delayed_count=0 if self._delays is None else self._delays.pending_count(topic, definition.hidden_below),
        )

    # For the owner

    async def purge(self, name: QueueName) -> NoSuchQueue | QueueUnavailable | None:
        """Everything that is in the queue now is skipped. The log keeps it: others read it, and it can be replayed."""
        definition, topic = self._queues.get(name), self._broker.topic(name.topic)
        if definition is None or topic is None:
            return NoSuchQueue(name)
        if self._delays is not None:
            marks = await self._delays.purge_marker(topic)
            if isinstance(marks, NotScheduled):
                return QueueUnavailable(marks.reason, is_damaged=marks.refusal is Refusal.DAMAGED)
            if any(marks):
                await self._queues.hide(name, marks_after(definition.hidden_below, marks))
        for shell in await self._queues.shells(name):
            reply = await shell.submit(name.group, MoveStart(shell.partition.readable_end))
            if isinstance(reply, QueueUnavailable):
                return reply
        return None

    async def pause(self, name: QueueName, *, is_paused: bool) -> NoSuchQueue | QueueUnavailable | None:
        if self._queues.get(name) is None:
            return NoSuchQueue(name)
        for shell in await self._queues.shells(name):
            reply = await shell.submit(name.group, Pause() if is_paused else Resume())
            if isinstance(reply, QueueUnavailable):
                return reply
        return None


def is_worth_waiting(received: ReceivedMessages | NoSuchQueue | QueueUnavailable) -> bool:
    """Of a receive that did not wait: whether one that does may bring more."""
    if isinstance(received, ReceivedMessages):
        return not received.messages
    return isinstance(received, QueueUnavailable) and received.is_loading


def _lane_of(record: StoredRecord) -> int:
    return lane_of(dict(record.headers).get(PRIORITY_HEADER))


def _may_have_some(shell: QueueShell, definition: QueueDefinition, consumer: str) -> bool:
    queue = shell.queue(definition.name.group)
    if queue is None or not shell.is_loaded:
        return True  # whoever asks is told
    partition = shell.partition
    end = partition.last_stable_offset if definition.options.is_committed_only else partition.readable_end
    wanted = queue.wanted(consumer, 1, shell.now_ms())
    return wanted.count > 0 and (wanted.ready_count > 0 or any(cursor < end for _, cursor in wanted.cursors))


def _count_that_fits(shell: QueueShell) -> int:
    """Judged by what a message of the partition takes on average: which ones it will be is not known yet."""
    partition = shell.partition
    message_bytes = partition.size_bytes // max(partition.readable_end - partition.log_start, 1)
    return max(RECEIVE_BYTES_MAX // max(message_bytes, 1), 1)


def _first_delivery_ms(shell: QueueShell, group: str, offset: int, now_ms: int) -> int:
    queue = shell.queue(group)
    view = queue.look_up(offset) if queue is not None else None
    return now_ms if view is None or view.failure is None else view.failure.first_ms


def _give_back(shells: Iterable[QueueShell], group: str, messages: Sequence[Message]) -> None:
    """Nobody is there to take them. They count as delivered, as if their lease had run out, but are free at once."""
    for shell in shells:
        index = shell.partition.index
        items = [
            _release(message.record.offset, message.record.offset, message.source.number)
            for message in messages
            if message.source.partition == index
        ]
        if items:
            shell.decide(group, Settle(tuple(items)))


def _release(first: int, last: int, number: int) -> Settlement:
    return Settlement(first, last, Act.RELEASE, number, 0)


def _gaps(delivery: Delivery, found: Sequence[StoredRecord], number: int) -> list[Settlement]:
    """The offsets of a delivery where there is no message."""
    gaps: list[Settlement] = []
    expected = delivery.first
    for record in found:
        if record.offset > expected:
            gaps.append(Settlement(expected, record.offset - 1, Act.GAP, number))
        expected = record.offset + 1
    if expected <= delivery.last:
        gaps.append(Settlement(expected, delivery.last, Act.GAP, number))
    return gaps
