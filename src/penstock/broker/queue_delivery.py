"""Messages out of a queue and back: receive over all partitions, settle by receipts, look without taking.

    receive: look from the cursors ─► machine ─► journal ─► read what was delivered ─► durable ─► messages

A consumer that finds nothing waits until one of the partitions has more, a message comes back, or its time is up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.broker.node_queues import NodeQueues
from penstock.broker.partition_read import ReadProblem
from penstock.broker.queue_shell import QueueShell, QueueUnavailable
from penstock.broker.waiting import Waiter
from penstock.codec.records import StoredRecord
from penstock.domain.queue import QueueStats
from penstock.domain.queue_commands import (
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
    Settled,
    Settlement,
)
from penstock.domain.queue_definition import QueueDefinition, QueueName
from penstock.domain.queue_receipt import Receipt
from penstock.domain.queue_values import HoldKind, Limit

# A look may find only messages that must wait for others; then it looks further, but lets go in between.
LOOKS_MAX: Final = 20


class Message(msgspec.Struct, frozen=True):
    """One message, delivered."""

    receipt: Receipt
    record: StoredRecord
    # With this one.
    delivery_count: int
    lane: int
    until_ms: int
    # About: of a message that has failed before it is when it first did.
    first_delivery_ms: int


class PeekedMessage(msgspec.Struct, frozen=True):
    """One message that somebody has looked at."""

    partition: int
    record: StoredRecord
    # None: never delivered.
    state: HoldKind | None
    delivery_count: int = 0
    consumer: str = ""
    until_ms: int = 0


class NoSuchQueue(msgspec.Struct, frozen=True):
    name: QueueName


class ReceiptSettlement(msgspec.Struct, frozen=True):
    receipt: Receipt
    act: Act
    delay_ms: int | None = None
    text: str = ""


class ReceivedMessages(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...] = ()
    # Why there are not more.
    limit: Limit = Limit.NONE


class QueueTotals(msgspec.Struct, frozen=True):
    """A queue over all its partitions."""

    partitions: tuple[tuple[int, QueueStats], ...]
    # Not looked at yet. Holes of compaction and transactions count too: nobody has looked.
    backlog_count: int
    leased_count: int
    waiting_count: int
    blocked_count: int
    dying_count: int
    is_paused: bool


class QueueDelivery:
    def __init__(self, queues: NodeQueues) -> None:
        self._queues = queues
        self._broker = queues.broker
        # Where the next receive of a queue begins, so that no partition is always the last.
        self._turns: dict[QueueName, int] = {}

    async def receive(
        self, name: QueueName, *, consumer: str, count_max: int, wait_ms: int = 0, lease_ms: int = 0
    ) -> ReceivedMessages | NoSuchQueue | QueueUnavailable:
        definition = self._queues.get(name)
        if definition is None:
            return NoSuchQueue(name)
        clock = self._broker.clock
        deadline_ms = clock.monotonic_ms() + wait_ms
        waiter = Waiter()
        try:
            while True:
                shells = await self._queues.shells(name)
                waiter.watch(shell.room(name.group) for shell in shells)
                waiter.watch(shell.partition.readers for shell in shells)
                waiter.watch((self._broker.stopping,))
                received = await self._take(definition, shells, consumer, count_max, lease_ms)
                left_ms = deadline_ms - clock.monotonic_ms()
                if not isinstance(received, ReceivedMessages) or received.messages or left_ms <= 0:
                    return received
                if self._broker.is_stopping or self._queues.get(name) is None:
                    return received
                await waiter.wait(left_ms)
                waiter.leave()
        finally:
            waiter.leave()

    async def _take(
        self, definition: QueueDefinition, shells: list[QueueShell], consumer: str, count_max: int, lease_ms: int
    ) -> ReceivedMessages | QueueUnavailable:
        name = definition.name
        turn = self._turns.get(name, 0)
        self._turns[name] = turn + 1
        messages: list[Message] = []
        limit = Limit.NONE
        problem: QueueUnavailable | None = None
        touched: list[QueueShell] = []
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
            if len(messages) >= count_max:
                break
        for shell in touched:
            if not await shell.is_durable():
                return QueueUnavailable("the disk did not take the queue's journal")
        if problem is not None and not messages:
            return problem
        return ReceivedMessages(tuple(messages), limit)

    async def take_from(
        self, shell: QueueShell, definition: QueueDefinition, *, consumer: str, count_max: int, lease_ms: int
    ) -> ReceivedMessages | QueueUnavailable:
        """From one partition. The messages must not leave before the shell `is_durable`."""
        group, options = definition.name.group, definition.options
        for _ in range(LOOKS_MAX):
            queue = shell.queue(group)
            if queue is None or not shell.is_loaded:
                return QueueUnavailable("the queues of this partition are being loaded")
            wanted = queue.wanted(consumer, count_max, shell.now_ms())
            if not wanted.count:
                reply = shell.decide(group, Receive(consumer, count_max, ()))
                return ReceivedMessages(limit=reply.limit) if isinstance(reply, Received) else ReceivedMessages()
            found: tuple[Found, ...] = ()
            if wanted.ready_count < wanted.count:
                sight = await shell.reader.look(
                    wanted.cursors,
                    wanted.count - wanted.ready_count,
                    ordering=options.ordering,
                    is_committed_only=options.is_committed_only,
                )
                if isinstance(sight, ReadProblem):
                    return QueueUnavailable(f"the partition's log is {sight.value}")
                found = sight.found
            if not found and not wanted.ready_count:
                return ReceivedMessages()
            reply = shell.decide(group, Receive(consumer, count_max, found, lease_ms))
            if not isinstance(reply, Received):
                return reply if isinstance(reply, QueueUnavailable) else ReceivedMessages()
            if reply.deliveries:
                messages = await self._load(shell, group, reply, is_committed_only=options.is_committed_only)
                if messages:
                    return ReceivedMessages(tuple(messages), reply.limit)
            elif reply.limit is not Limit.NONE or queue.wanted(consumer, count_max, 0).cursors == wanted.cursors:
                return ReceivedMessages(limit=reply.limit)
        return ReceivedMessages()

    async def _load(
        self, shell: QueueShell, group: str, received: Received, *, is_committed_only: bool
    ) -> list[Message]:
        """What was delivered. What is no longer there is settled at once, and never comes back."""
        topic_id, partition = shell.partition.log.home.topic_id, shell.partition.index
        messages: list[Message] = []
        gaps: list[Settlement] = []
        for delivery in received.deliveries:
            found = await shell.reader.messages(delivery.first, delivery.last, is_committed_only=is_committed_only)
            if isinstance(found, ReadProblem):
                # Not settled: the lease runs out, and whoever comes then may find the log well again.
                continue
            gaps += _gaps(delivery, found, received.number)
            for record in found:
                receipt = Receipt(group, topic_id, partition, record.offset, received.number)
                first_ms = _first_delivery_ms(shell, group, record.offset, delivery.count)
                messages.append(Message(receipt, record, delivery.count, delivery.lane, received.until_ms, first_ms))
        if gaps:
            shell.decide(group, Settle(tuple(gaps)))
        return messages

    async def settle(
        self, name: QueueName, items: Sequence[ReceiptSettlement]
    ) -> list[Outcome | QueueUnavailable] | NoSuchQueue:
        """One outcome for each, durable. Receipts of another topic, or of one that was deleted, are NOT_HELD."""
        topic = self._broker.topic(name.topic)
        if self._queues.get(name) is None or topic is None:
            return NoSuchQueue(name)
        outcomes: list[Outcome | QueueUnavailable] = [Outcome.NOT_HELD] * len(items)
        by_partition: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            if item.receipt.topic_id == topic.topic_id and topic.partition(item.receipt.partition) is not None:
                by_partition.setdefault(item.receipt.partition, []).append(place)
        decided: list[tuple[QueueShell, list[int]]] = []
        for index, places in by_partition.items():
            shell = await self._queues.shell(topic.partitions[index])
            reply = shell.decide(name.group, Settle(tuple(_settlement(items[place]) for place in places)))
            if isinstance(reply, Settled):
                decided.append((shell, places))
                for place, outcome in zip(places, reply.outcomes, strict=True):
                    outcomes[place] = outcome
            else:
                refused = reply if isinstance(reply, QueueUnavailable) else QueueUnavailable(str(reply))
                for place in places:
                    outcomes[place] = refused
        for shell, places in decided:
            if not await shell.is_durable():
                for place in places:
                    outcomes[place] = QueueUnavailable("the disk did not take the queue's journal")
        return outcomes

    # Looking

    async def peek(self, name: QueueName, count_max: int) -> list[PeekedMessage] | NoSuchQueue | QueueUnavailable:
        """The first messages that are not finished, delivered or not; nothing changes by it."""
        definition = self._queues.get(name)
        if definition is None:
            return NoSuchQueue(name)
        seen: list[PeekedMessage] = []
        for shell in await self._queues.shells(name):
            queue = shell.queue(name.group)
            if queue is None:
                continue
            offset, cursor = queue.finished_below, queue.cursor()
            while len(seen) < count_max:
                batch = await shell.reader.batch_at(
                    max(offset, shell.partition.log_start), is_committed_only=definition.options.is_committed_only
                )
                if isinstance(batch, ReadProblem):
                    return QueueUnavailable(f"the partition's log is {batch.value}")
                if batch is None:
                    break
                for record in batch.between(offset, batch.next_offset - 1)[: count_max - len(seen)]:
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
                    elif record.offset >= cursor:
                        seen.append(PeekedMessage(shell.partition.index, record, None))
                offset = batch.next_offset
        return seen

    async def totals(self, name: QueueName) -> QueueTotals | NoSuchQueue:
        if self._queues.get(name) is None:
            return NoSuchQueue(name)
        partitions: list[tuple[int, QueueStats]] = []
        backlog_count = 0
        for shell in await self._queues.shells(name):
            queue = shell.queue(name.group)
            if queue is None:
                continue
            partitions.append((shell.partition.index, queue.stats()))
            cursor = max(queue.cursor(), shell.partition.log_start)
            backlog_count += max(0, shell.partition.readable_end - cursor)
        stats = [each for _, each in partitions]
        return QueueTotals(
            tuple(partitions),
            backlog_count=backlog_count,
            leased_count=sum(each.leased_count for each in stats),
            waiting_count=sum(each.waiting_count for each in stats),
            blocked_count=sum(each.blocked_count for each in stats),
            dying_count=sum(each.dying_count for each in stats),
            is_paused=any(each.is_paused for each in stats),
        )

    # For the owner

    async def purge(self, name: QueueName) -> NoSuchQueue | QueueUnavailable | None:
        """Everything that is in the queue now is skipped. The log keeps it: others read it, and it can be replayed."""
        if self._queues.get(name) is None:
            return NoSuchQueue(name)
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


def _first_delivery_ms(shell: QueueShell, group: str, offset: int, count: int) -> int:
    queue = shell.queue(group) if count > 1 else None
    view = queue.look_up(offset) if queue is not None else None
    return shell.now_ms() if view is None or view.failure is None else view.failure.first_ms


def _settlement(item: ReceiptSettlement) -> Settlement:
    receipt = item.receipt
    return Settlement(receipt.offset, receipt.offset, item.act, receipt.number, item.delay_ms, item.text)


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
