"""A queue whose partitions other nodes lead, as a door of this node sees it: the same as one that is here.

    receive: what is led here first ─► the other leaders in turn, each with what is left of the count
                  └─ nothing anywhere ─► one question to each leader for all who wait here (`waits`)
    settle:  by the partitions of the receipts, one request for each leader
    the rest: all leaders at once

Rules:
- What was taken for somebody who left is given back, at the node where it was taken.
- Half of a queue is no answer, but where somebody only looks: then the nodes that did not answer are named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Final

import msgspec

from penstock.broker.partition.role import NO_LEADER
from penstock.broker.partition.waiting import Waiter
from penstock.broker.queue import bodies
from penstock.broker.queue.messages import (
    Message,
    PeekedMessage,
    QueueTotals,
    QueueUnavailable,
    ReceivedMessages,
    Receiver,
)
from penstock.broker.queue.node import LOADING_MS_MAX, NodeQueues
from penstock.broker.queue.receiving import give_back, may_have_some
from penstock.broker.queue.settling import NoSuchQueue, ReceiptSettlement, SettleOutcome
from penstock.broker.queue.shell import QueueShell
from penstock.broker.queue.waits import WAIT_MS_MAX, QueueWait
from penstock.broker.relay.asking import ASK_MS_MAX, TRIES_MAX, Answer, Place, Relay, Unanswered
from penstock.broker.topic.served_topic import ServedTopic
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueDefinition, QueueName
from penstock.domain.queue.values import Limit
from penstock.domain.replication.exchange import ForwardKind
from penstock.domain.security.caller import Caller
from penstock.net.peers import Lane

# Nobody waits for it: what is not given back is free when its lease ends.
GIVING_BACK_MS_MAX: Final = 10_000


class Asked(msgspec.Struct, frozen=True):
    """What a receiver wants."""

    consumer: str
    count_max: int
    lease_ms: int
    wait_ms: int = 0
    # Whoever finds nothing comes back at once, and waits.
    is_first: bool = False
    receiver: Receiver | None = None
    by: Caller | None = None


TakeHere = Callable[
    [QueueDefinition, list[QueueShell], str, int, int], Coroutine[object, object, ReceivedMessages | QueueUnavailable]
]


class QueueSpread:
    """`take`: of partitions that are led here."""

    def __init__(self, queues: NodeQueues, take: TakeHere) -> None:
        self._queues = queues
        self._broker = queues.broker
        self._take_here = take
        # Those that somebody waits for.
        self._waits: dict[QueueName, QueueWait] = {}
        # Questions that are parked at other nodes, by node.
        self._parked: dict[int, int] = {}
        self._turn = 0

    # Receive

    async def receive(
        self, relay: Relay, name: QueueName, asked: Asked
    ) -> ReceivedMessages | NoSuchQueue | QueueUnavailable:
        clock = self._broker.clock
        deadline_ms = clock.monotonic_ms() + asked.wait_ms
        waiter, wait = Waiter(), self._wait_of(relay, name)
        try:
            while True:
                definition, topic = self._queues.get(name), self._broker.topic(name.topic)
                if definition is None or topic is None:
                    return NoSuchQueue(name)
                shells = await self._queues.shells(name, wait_ms=LOADING_MS_MAX)
                if asked.wait_ms:
                    waiter.watch(shell.room(name.group) for shell in shells)
                    waiter.watch(shell.partition.readers for shell in shells)
                    waiter.watch((self._broker.stopping,))
                    waiter.watch((asked.receiver.room,) if asked.receiver is not None else ())
                    wait.enter(waiter)
                leaders = _others(relay, topic)
                received = await self._round(relay, definition, shells, leaders, wait, asked)
                left_ms = deadline_ms - clock.monotonic_ms()
                if not isinstance(received, ReceivedMessages):
                    return received
                if asked.receiver is not None and asked.receiver.is_gone:
                    self._give_back(relay, definition, shells, received.messages)
                    return ReceivedMessages()
                if received.messages or left_ms <= 0 or self._broker.is_stopping:
                    return received
                if received.has_more:
                    await asyncio.sleep(0)
                else:
                    for node_id in leaders:
                        wait.ask(node_id)
                    await self._until_worth_it(waiter, wait, definition, shells, leaders, asked, deadline_ms)
                waiter.leave()
                wait.leave(waiter)
        finally:
            waiter.leave()
            wait.leave(waiter)
            self._forget_idle()

    async def _until_worth_it(
        self,
        waiter: Waiter,
        wait: QueueWait,
        definition: QueueDefinition,
        shells: list[QueueShell],
        leaders: Iterable[int],
        asked: Asked,
        deadline_ms: int,
    ) -> None:
        clock, receiver = self._broker.clock, asked.receiver
        while (left_ms := deadline_ms - clock.monotonic_ms()) > 0:
            await waiter.wait(left_ms)
            if self._broker.is_stopping or (receiver is not None and receiver.is_gone):
                return
            if self._queues.get(definition.name) is not definition or any(map(wait.is_open, leaders)):
                return
            if any(may_have_some(shell, definition, asked.consumer) for shell in shells):
                return
            waiter.rest()

    async def _round(
        self,
        relay: Relay,
        definition: QueueDefinition,
        shells: list[QueueShell],
        leaders: dict[int, list[Place]],
        wait: QueueWait,
        asked: Asked,
    ) -> ReceivedMessages | QueueUnavailable:
        found = _Found()
        try:
            if shells:
                found.add(await self._take_here(definition, shells, asked.consumer, asked.count_max, asked.lease_ms))
            for node_id in self._in_turn(leaders):
                left = asked.count_max - len(found.messages)
                if left <= 0:
                    break
                if not (asked.is_first or asked.wait_ms):
                    found.add(await self._take_from(relay, definition, leaders[node_id], asked, left, found))
                elif wait.claim(node_id):
                    before = len(found.messages)
                    try:
                        found.add(await self._take_from(relay, definition, leaders[node_id], asked, left, found))
                    finally:
                        taken_count = len(found.messages) - before
                        wait.release(node_id, taken_count=taken_count, is_drained=taken_count < left)
        except asyncio.CancelledError:
            self._give_back(relay, definition, shells, found.messages)
            raise
        return found.received

    def _in_turn(self, leaders: dict[int, list[Place]]) -> list[int]:
        """So that no node is always the last."""
        self._turn += 1
        nodes = sorted(leaders)
        first = self._turn % len(nodes) if nodes else 0
        return nodes[first:] + nodes[:first]

    async def _take_from(
        self,
        relay: Relay,
        definition: QueueDefinition,
        places: Sequence[Place],
        asked: Asked,
        count_max: int,
        found: _Found,
    ) -> ReceivedMessages | QueueUnavailable:
        """Whoever is cancelled meanwhile leaves nothing behind: what comes then is given back."""
        answered: asyncio.Future[ReceivedMessages | QueueUnavailable] = asyncio.get_running_loop().create_future()
        body = bodies.encode(bodies.Take(definition.name.group, asked.consumer, count_max, asked.lease_ms))
        # Somebody who has messages already does not wait for an election.
        tries = 1 if found.messages else TRIES_MAX

        async def take() -> None:
            answers = await relay.spread(
                ForwardKind.TAKE,
                definition.topic_id,
                [index for index, _ in places],
                lambda _indexes: body,
                by=asked.by,
                tries=tries,
            )
            taken = _Found()
            for answer in answers:
                taken.add(_problem(answer) or bodies.decode_taken(_body(answer)))
            if answered.cancelled():
                self._give_back(relay, definition, (), taken.messages)
            else:
                answered.set_result(taken.received)

        relay.tasks.start("take elsewhere", take())
        return await answered

    def _give_back(
        self, relay: Relay, definition: QueueDefinition, shells: Sequence[QueueShell], messages: Sequence[Message]
    ) -> None:
        here = {shell.partition.index for shell in shells}
        give_back(shells, definition.name.group, [each for each in messages if each.source.partition in here])
        away = [
            ReceiptSettlement(each.receipt, Act.RELEASE, 0) for each in messages if each.source.partition not in here
        ]
        if away:
            relay.tasks.start("messages given back", self._release(relay, definition, away))

    async def _release(self, relay: Relay, definition: QueueDefinition, items: list[ReceiptSettlement]) -> None:
        await self.settle(relay, definition, items, timeout_ms=GIVING_BACK_MS_MAX)

    def _wait_of(self, relay: Relay, name: QueueName) -> QueueWait:
        wait = self._waits.get(name)
        if wait is None:

            async def ask(node_id: int) -> bool:
                return await self._may_have_some(relay, name, node_id)

            wait = self._waits[name] = QueueWait(relay.tasks, self._parked, ask)
        return wait

    def _forget_idle(self) -> None:
        for name in [name for name, wait in self._waits.items() if wait.is_idle]:
            del self._waits[name]

    async def _may_have_some(self, relay: Relay, name: QueueName, node_id: int) -> bool:
        topic = self._broker.topic(name.topic)
        places = None if topic is None else _others(relay, topic).get(node_id)
        if topic is None or not places or node_id == NO_LEADER:
            return True  # whoever asks is told
        body = bodies.encode(bodies.Wait(name.group, ""))
        answer, _ = await relay.ask(
            ForwardKind.WAIT,
            topic.topic_id,
            node_id,
            places,
            lambda _indexes: body,
            deadline=asyncio.get_running_loop().time() + WAIT_MS_MAX / 1000,
            lane=Lane.WAITS,
        )
        return isinstance(answer, Unanswered) or bodies.WOKEN.decode(answer).may_have_some

    # Settle

    async def settle(
        self,
        relay: Relay,
        definition: QueueDefinition,
        items: Sequence[ReceiptSettlement],
        *,
        by: Caller | None = None,
        timeout_ms: int = ASK_MS_MAX,
    ) -> list[SettleOutcome]:
        """Of partitions that other nodes led a moment ago. Done twice it is done: who no longer holds a message that
        was settled is told so, and so is who asks again after an answer that was lost."""
        by_partition: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            by_partition.setdefault(item.receipt.partition, []).append(place)

        def places_of(indexes: Iterable[int]) -> list[int]:
            return [place for index in indexes for place in by_partition[index]]

        def body_of(indexes: Sequence[int]) -> bytes:
            return bodies.encode_settlements(definition.name.group, [items[place] for place in places_of(indexes)])

        answers = await relay.spread(
            ForwardKind.SETTLE, definition.topic_id, by_partition, body_of, by=by, timeout_ms=timeout_ms
        )
        outcomes: list[SettleOutcome] = [Outcome.NOT_HELD] * len(items)
        for answer in answers:
            places, problem = places_of(answer.partitions), _problem(answer)
            settled = bodies.decode_settled(_body(answer)) if problem is None else [problem] * len(places)
            for place, outcome in zip(places, settled, strict=True):
                outcomes[place] = outcome
        return outcomes

    # Looking

    async def peek(
        self, relay: Relay, definition: QueueDefinition, count_max: int, *, by: Caller | None = None
    ) -> list[PeekedMessage] | QueueUnavailable:
        body = bodies.encode(bodies.Peek(definition.name.group, count_max))
        found: list[PeekedMessage] = []
        for answer in await self._everywhere(relay, ForwardKind.PEEK, definition, body, by):
            seen = _problem(answer) or bodies.decode_seen(_body(answer))
            if isinstance(seen, QueueUnavailable):
                return seen
            found += seen
        found.sort(key=lambda each: (each.partition, each.record.offset))
        return found[:count_max]

    async def totals(
        self, relay: Relay, definition: QueueDefinition, *, by: Caller | None = None
    ) -> QueueTotals | QueueUnavailable:
        body = bodies.encode(bodies.Count(definition.name.group))
        found: list[bodies.Counted] = []
        missing: list[str] = []
        problem: QueueUnavailable | None = None
        for answer in await self._everywhere(relay, ForwardKind.TOTALS, definition, body, by):
            away = _problem(answer)
            if away is not None:
                problem = away
                missing.append(node_name(answer.node_id))
                continue
            counted = bodies.COUNTED.decode(_body(answer))
            if counted.problem is not None:
                return counted.problem
            found.append(counted)
        if not found and problem is not None:
            return problem
        partitions = sorted(pair for each in found for pair in each.partitions)
        stats = [each for _, each in partitions]
        return QueueTotals(
            tuple(partitions),
            backlog_count=sum(each.backlog_count for each in found),
            leased_count=sum(each.leased_count for each in stats),
            waiting_count=sum(each.waiting_count for each in stats),
            blocked_count=sum(each.blocked_count for each in stats),
            dying_count=sum(each.dying_count for each in stats),
            is_paused=any(each.is_paused for each in stats),
            delayed_count=sum(each.delayed_count for each in found),
            incomplete=tuple(sorted(set(missing))),
        )

    async def _everywhere(
        self, relay: Relay, kind: ForwardKind, definition: QueueDefinition, body: bytes, by: Caller | None
    ) -> list[Answer]:
        topic = self._broker.topic_by_id(definition.topic_id)
        indexes = range(0 if topic is None else topic.partition_count)
        return await relay.spread(kind, definition.topic_id, indexes, lambda _indexes: body, by=by)


class _Found:
    """What was taken so far, from one node after the other."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._limit = Limit.NONE
        self._has_more = False
        self._problem: QueueUnavailable | None = None

    def add(self, taken: ReceivedMessages | QueueUnavailable) -> None:
        if isinstance(taken, QueueUnavailable):
            # The others are served all the same.
            self._problem = taken
            return
        self.messages += taken.messages
        self._limit = self._limit if self._limit is not Limit.NONE else taken.limit
        self._has_more = self._has_more or taken.has_more

    @property
    def received(self) -> ReceivedMessages | QueueUnavailable:
        if self._problem is not None and not self.messages:
            return self._problem
        return ReceivedMessages(tuple(self.messages), self._limit, self._has_more)


def node_name(node_id: int) -> str:
    """As an answer names a node that is missing in it."""
    return "no leader" if node_id == NO_LEADER else f"node {node_id}"


def _others(relay: Relay, topic: ServedTopic) -> dict[int, list[Place]]:
    leaders = relay.leaders(topic.topic_id, range(topic.partition_count))
    leaders.pop(relay.broker.node_id, None)
    return leaders


def _problem(answer: Answer) -> QueueUnavailable | None:
    return QueueUnavailable(answer.body.reason) if isinstance(answer.body, Unanswered) else None


def _body(answer: Answer) -> bytes:
    assert isinstance(answer.body, bytes)
    return answer.body
