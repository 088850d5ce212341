"""Queues, for the doors of other nodes: of the partitions that they name, which are led here."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.forwarded.work import DoorWork, NotKnownYetError, Served
from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.waiting import Waiter
from penstock.broker.queue import bodies
from penstock.broker.queue.commanding import COMMANDS, Commanded, What, encode_commanded
from penstock.broker.queue.delivery import QueueDelivery
from penstock.broker.queue.messages import Message, QueueUnavailable, ReceivedMessages
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.receiving import give_back, may_have_some
from penstock.broker.queue.settling import NoSuchQueue, settle_by_receipts
from penstock.broker.queue.shell import QueueShell
from penstock.broker.relay.envelope import SENT_BYTES_MAX
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.values import NotScheduled
from penstock.domain.queue.commands import Close, MoveStart, Pause, QueueCommand, Resume
from penstock.domain.queue.definition import QueueDefinition, QueueName
from penstock.domain.queue.values import Limit
from penstock.domain.replication.exchange import ForwardKind

# Of a wait, before its time is up: the answer has to come in time, too.
_MARGIN_MS: Final = 100


class QueueWork:
    def __init__(self, queues: NodeQueues, delivery: QueueDelivery, schedules: NodeSchedules) -> None:
        self._queues = queues
        self._delivery = delivery
        self._schedules = schedules

    def join(self, work: DoorWork) -> None:
        work.serve(ForwardKind.TAKE, self._take)
        work.serve(ForwardKind.WAIT, self._wait)
        work.serve(ForwardKind.SETTLE, self._settle)
        work.serve(ForwardKind.COMMAND, self._command)
        work.serve(ForwardKind.PEEK, self._peek)
        work.serve(ForwardKind.TOTALS, self._totals)

    async def _take(self, served: Served) -> bytes:
        """From one partition after the other, until there is enough for one answer."""
        asked = bodies.TAKES.decode(served.body)
        definition = self._definition(served, asked.group)
        shells = await self._shells(served, definition)
        messages: list[Message] = []
        limit, has_more, size_bytes = Limit.NONE, False, 0
        problem: QueueUnavailable | None = None
        try:
            for shell in shells:
                left = asked.count_max - len(messages)
                if left <= 0 or size_bytes >= SENT_BYTES_MAX:
                    break
                taken = await self._delivery.take_here(definition, [shell], asked.consumer, left, asked.lease_ms)
                if isinstance(taken, QueueUnavailable):
                    problem = taken
                    continue
                messages += taken.messages
                size_bytes += sum(len(each.record.value or b"") for each in taken.messages)
                limit = limit if limit is not Limit.NONE else taken.limit
                has_more = has_more or taken.has_more
        except asyncio.CancelledError:
            give_back(shells, asked.group, messages)
            raise
        if served.is_gone:
            give_back(shells, asked.group, messages)
            messages = []
        if problem is not None and not messages:
            return bodies.encode_taken(problem)
        return bodies.encode_taken(ReceivedMessages(tuple(messages), limit, has_more))

    async def _wait(self, served: Served) -> bytes:
        """Also when what is asked for is no longer led here: whoever asks is told then."""
        asked = bodies.WAITS.decode(served.body)
        definition = self._definition(served, asked.group)
        broker = self._queues.broker
        deadline_ms = broker.clock.monotonic_ms() + served.timeout_ms - _MARGIN_MS
        waiter = Waiter()
        try:
            while (left_ms := deadline_ms - broker.clock.monotonic_ms()) > 0:
                shells = await self._shells(served, definition)
                waiter.watch(shell.room(asked.group) for shell in shells)
                waiter.watch(shell.partition.readers for shell in shells)
                waiter.watch((broker.stopping,))
                is_over = broker.is_stopping or self._queues.get(definition.name) is not definition
                if is_over or any(may_have_some(shell, definition, asked.consumer) for shell in shells):
                    return bodies.encode(bodies.Woken(may_have_some=True))
                await waiter.wait(left_ms)
                waiter.leave()
        finally:
            waiter.leave()
        return bodies.encode(bodies.Woken(may_have_some=False))

    async def _settle(self, served: Served) -> bytes:
        settlements = bodies.SETTLEMENTS.decode(served.body)
        definition = self._definition(served, settlements.group)
        items = bodies.items_of(settlements, served.topic.topic_id)
        outcomes = await settle_by_receipts(self._queues, definition.name, items)
        if isinstance(outcomes, NoSuchQueue):
            raise NotKnownYetError(f"there is no queue {definition.name}")
        return bodies.encode_settled(outcomes)

    async def _command(self, served: Served) -> bytes:
        asked = COMMANDS.decode(served.body)
        definition = self._definition(served, asked.group)
        if asked.what is What.MARK:
            return encode_commanded(await self._marks(served))
        for shell in await self._shells(served, definition):
            command = _command_of(asked.what, shell)
            reply = None if command is None else await shell.submit(asked.group, command)
            if isinstance(reply, QueueUnavailable):
                return encode_commanded(Commanded(reply))
        return encode_commanded(Commanded())

    async def _marks(self, served: Served) -> Commanded:
        marks: dict[int, int] = {}
        for partition in served.partitions:
            schedule = await self._schedules.existing_shell(partition)
            if isinstance(schedule, NotScheduled):
                is_damaged = schedule.refusal is Refusal.DAMAGED
                return Commanded(QueueUnavailable(schedule.reason, is_damaged=is_damaged))
            marks[partition.index] = 0 if schedule is None else schedule.journal.next_position
        return Commanded(marks=marks)

    async def _peek(self, served: Served) -> bytes:
        asked = bodies.PEEKS.decode(served.body)
        return bodies.encode_seen(
            await self._delivery.peek_here(self._definition(served, asked.group), asked.count_max)
        )

    async def _totals(self, served: Served) -> bytes:
        definition = self._definition(served, bodies.COUNTS.decode(served.body).group)
        totals = await self._delivery.totals_here(definition, served.topic)
        if isinstance(totals, QueueUnavailable):
            return bodies.encode(bodies.Counted(problem=totals))
        return bodies.encode(bodies.Counted(list(totals.partitions), totals.backlog_count, totals.delayed_count))

    def _definition(self, served: Served, group: str) -> QueueDefinition:
        definition = self._queues.get(QueueName(served.topic.name, group))
        if definition is None:
            raise NotKnownYetError(f"there is no queue {group!r} on topic {served.topic.name!r}")
        return definition

    async def _shells(self, served: Served, definition: QueueDefinition) -> list[QueueShell]:
        return [await self._queues.shell_for(definition, partition) for partition in served.partitions]


def _command_of(what: What, shell: QueueShell) -> QueueCommand | None:
    """None: it is done when the queue is open."""
    match what:
        case What.PAUSE:
            return Pause()
        case What.RESUME:
            return Resume()
        case What.CLOSE:
            return Close()
        case What.SKIP:
            return MoveStart(shell.partition.readable_end)
        case _:
            return None
