"""Messages out of a queue and back: receive over all partitions, settle by receipts, look without taking.

    receive: partition after partition (`QueueShell.take`) ─► durable ─► messages

A consumer that finds nothing waits until one of the partitions has more, a message comes back, or its time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.waiting import Waiter
from penstock.broker.queue.commanding import What, tell_leaders
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
from penstock.broker.queue.receiving import give_back, may_have_some
from penstock.broker.queue.settling import NoSuchQueue, ReceiptSettlement, settle_by_receipts
from penstock.broker.queue.shell import QueueShell, QueueUnavailable
from penstock.broker.queue.spread import Asked, QueueSpread
from penstock.broker.relay.asking import Relay
from penstock.broker.schedule.values import NotScheduled
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.batch.records import StoredRecord
from penstock.domain.queue.commands import (
    MoveStart,
    Outcome,
    Pause,
    Resume,
)
from penstock.domain.queue.definition import QueueDefinition, QueueName
from penstock.domain.queue.lanes import DEFAULT_LANE, PRIORITY_HEADER, lane_of
from penstock.domain.queue.machine import QueueStats
from penstock.domain.queue.values import Limit, Ordering
from penstock.domain.security.caller import Caller

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

_NOT_LED: Final = QueueUnavailable("other nodes look after the queue's partitions")


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
        self._spread = QueueSpread(queues, self.take_here)

    async def receive(
        self,
        name: QueueName,
        *,
        consumer: str,
        count_max: int,
        wait_ms: int = 0,
        lease_ms: int = 0,
        caller: Receiver | None = None,
        is_first: bool = False,
        by: Caller | None = None,
    ) -> ReceivedMessages | NoSuchQueue | QueueUnavailable:
        """`is_first`: whoever finds nothing comes back at once, and waits."""
        definition = self._queues.get(name)
        if definition is None:
            self._turns.pop(name, None)
            return NoSuchQueue(name)
        if not wait_ms and caller is None:
            elsewhere = self._elsewhere(name)
            if elsewhere is not None:
                asked = Asked(consumer, count_max, lease_ms, is_first=is_first, by=by)
                return await self._receive_elsewhere(name, asked, elsewhere)
            shells = await self._queues.shells(name, wait_ms=LOADING_MS_MAX)
            return await self.take_here(definition, shells, consumer, count_max, lease_ms)
        clock = self._broker.clock
        deadline_ms = clock.monotonic_ms() + wait_ms
        waiter = Waiter()
        try:
            while True:
                # Also of a lead that was lost while it waited.
                elsewhere = self._elsewhere(name)
                if elsewhere is not None:
                    waiter.leave()
                    left_ms = max(deadline_ms - clock.monotonic_ms(), 0)
                    asked = Asked(consumer, count_max, lease_ms, left_ms, receiver=caller, by=by)
                    return await self._receive_elsewhere(name, asked, elsewhere)
                loading_ms = max(deadline_ms - clock.monotonic_ms(), self._loading_ms_max)
                shells = await self._queues.shells(name, wait_ms=loading_ms)
                waiter.watch(shell.room(name.group) for shell in shells)
                waiter.watch(shell.partition.readers for shell in shells)
                waiter.watch((self._broker.stopping,) if caller is None else (self._broker.stopping, caller.room))
                received = await self.take_here(definition, shells, consumer, count_max, lease_ms)
                if not isinstance(received, ReceivedMessages):
                    return received
                if caller is not None and caller.is_gone:
                    give_back(shells, name.group, received.messages)
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

    async def _receive_elsewhere(
        self, name: QueueName, asked: Asked, elsewhere: QueueUnavailable
    ) -> ReceivedMessages | NoSuchQueue | QueueUnavailable:
        relay = self._queues.relay
        return elsewhere if relay is None else await self._spread.receive(relay, name, asked)

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
            if any(may_have_some(shell, definition, consumer) for shell in shells):
                return
            waiter.rest()

    async def take_here(
        self, definition: QueueDefinition, shells: list[QueueShell], consumer: str, count_max: int, lease_ms: int
    ) -> ReceivedMessages | QueueUnavailable:
        name = definition.name
        turn = self._turns.get(name, 0)
        self._turns[name] = turn + 1
        messages: list[Message] = []
        limit = Limit.NONE
        has_more = False
        problem = None if shells else _NOT_LED
        touched: list[QueueShell] = []
        try:
            for index in range(len(shells)):
                shell = shells[(turn + index) % len(shells)]
                taken = await shell.take(definition, consumer, count_max - len(messages), lease_ms=lease_ms)
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
                if not await shell.is_durable() or not shell.is_loaded:
                    return QueueUnavailable("the queue's journal did not take what was decided")
        except asyncio.CancelledError:
            give_back(shells, name.group, messages)
            raise
        if not messages:
            problem = problem or _refuse_looks(shells)
            if problem is not None:
                return problem
        return ReceivedMessages(tuple(messages), limit, has_more)

    async def settle(
        self, name: QueueName, items: Sequence[ReceiptSettlement], *, by: Caller | None = None
    ) -> list[Outcome | QueueUnavailable] | NoSuchQueue:
        """One outcome for each, durable."""
        relay = self._queues.relay
        if relay is None:
            return await settle_by_receipts(self._queues, name, items)
        away: list[int] = []
        outcomes = await settle_by_receipts(self._queues, name, items, away)
        definition = self._queues.get(name)
        if away and definition is not None and not isinstance(outcomes, NoSuchQueue):
            settled = await self._spread.settle(relay, definition, [items[place] for place in away], by=by)
            for place, outcome in zip(away, settled, strict=True):
                outcomes[place] = outcome
        return outcomes

    # Looking

    async def peek(
        self, name: QueueName, count_max: int, *, by: Caller | None = None
    ) -> list[PeekedMessage] | NoSuchQueue | QueueUnavailable:
        """The first messages that are not finished, delivered or not; nothing changes by it."""
        definition = self._queues.get(name)
        if definition is None:
            return NoSuchQueue(name)
        elsewhere, relay = self._elsewhere(name), self._queues.relay
        if elsewhere is not None:
            return elsewhere if relay is None else await self._spread.peek(relay, definition, count_max, by=by)
        return await self.peek_here(definition, count_max)

    async def peek_here(self, definition: QueueDefinition, count_max: int) -> list[PeekedMessage] | QueueUnavailable:
        """Of the partitions that this node leads."""
        name = definition.name
        seen: list[PeekedMessage] = []
        shells = await self._queues.shells(name)
        for shell in shells:
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
        return _refuse_looks(shells) or seen

    async def totals(
        self, name: QueueName, *, by: Caller | None = None
    ) -> QueueTotals | NoSuchQueue | QueueUnavailable:
        definition, topic = self._queues.get(name), self._broker.topic(name.topic)
        if definition is None or topic is None:
            return NoSuchQueue(name)
        elsewhere, relay = self._elsewhere(name), self._queues.relay
        if elsewhere is not None:
            return elsewhere if relay is None else await self._spread.totals(relay, definition, by=by)
        return await self.totals_here(definition, topic)

    async def totals_here(self, definition: QueueDefinition, topic: ServedTopic) -> QueueTotals | QueueUnavailable:
        """Of the partitions that this node leads."""
        name = definition.name
        partitions: list[tuple[int, QueueStats]] = []
        backlog_count = 0
        shells = await self._queues.shells(name)
        for shell in shells:
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
        return _refuse_looks(shells) or QueueTotals(
            tuple(partitions),
            backlog_count=backlog_count,
            leased_count=sum(each.leased_count for each in stats),
            waiting_count=sum(each.waiting_count for each in stats),
            blocked_count=sum(each.blocked_count for each in stats),
            dying_count=sum(each.dying_count for each in stats),
            is_paused=any(each.is_paused for each in stats),
            delayed_count=0 if self._delays is None else self._delays.pending_count(topic, definition.hidden_below),
        )

    def _elsewhere(self, name: QueueName) -> QueueUnavailable | None:
        """Half of a queue would look like the whole: it is served where all of it is, and nowhere else."""
        topic = self._broker.topic(name.topic)
        reason = None if topic is None else topic.why_not_whole()
        return None if reason is None else QueueUnavailable(reason)

    # For the owner

    async def purge(self, name: QueueName, *, by: Caller | None = None) -> NoSuchQueue | QueueUnavailable | None:
        """Everything that is in the queue now is skipped. The log keeps it: others read it, and it can be replayed."""
        definition, topic = self._queues.get(name), self._broker.topic(name.topic)
        if definition is None or topic is None:
            return NoSuchQueue(name)
        elsewhere, relay = self._elsewhere(name), self._queues.relay
        if elsewhere is not None:
            return elsewhere if relay is None else await self._purge_elsewhere(relay, definition, by)
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

    async def _purge_elsewhere(
        self, relay: Relay, definition: QueueDefinition, by: Caller | None
    ) -> QueueUnavailable | None:
        marks = await self._command(relay, definition, What.MARK, by=by)
        if isinstance(marks, QueueUnavailable):
            return marks
        if any(marks.values()):
            found = [marks.get(index, 0) for index in range(max(marks) + 1)]
            await self._queues.hide(definition.name, marks_after(definition.hidden_below, found))
        done = await self._command(relay, definition, What.SKIP, by=by)
        return done if isinstance(done, QueueUnavailable) else None

    async def _command(
        self, relay: Relay, definition: QueueDefinition, what: What, *, by: Caller | None
    ) -> QueueUnavailable | dict[int, int]:
        topic = self._broker.topic_by_id(definition.topic_id)
        indexes = range(0 if topic is None else topic.partition_count)
        return await tell_leaders(relay, definition, indexes, what, by=by)

    async def pause(
        self, name: QueueName, *, is_paused: bool, by: Caller | None = None
    ) -> NoSuchQueue | QueueUnavailable | None:
        definition = self._queues.get(name)
        if definition is None:
            return NoSuchQueue(name)
        elsewhere, relay = self._elsewhere(name), self._queues.relay
        if elsewhere is not None and relay is None:
            return elsewhere
        if elsewhere is not None and relay is not None:
            done = await self._command(relay, definition, What.PAUSE if is_paused else What.RESUME, by=by)
            return done if isinstance(done, QueueUnavailable) else None
        for shell in await self._queues.shells(name):
            reply = await shell.submit(name.group, Pause() if is_paused else Resume())
            if isinstance(reply, QueueUnavailable):
                return reply
        return None


def _refuse_looks(shells: Iterable[QueueShell]) -> QueueUnavailable | None:
    """When an answer is ready that rests on no write: of half of them nobody would know."""
    return next((refused for shell in shells if (refused := shell.refuse_look()) is not None), None)


def is_worth_waiting(received: ReceivedMessages | NoSuchQueue | QueueUnavailable) -> bool:
    """Of a receive that did not wait: whether one that does may bring more."""
    if isinstance(received, ReceivedMessages):
        return not received.messages
    return isinstance(received, QueueUnavailable) and received.is_loading


def _lane_of(record: StoredRecord) -> int:
    return lane_of(dict(record.headers).get(PRIORITY_HEADER))
