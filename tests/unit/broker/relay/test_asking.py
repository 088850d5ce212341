"""Work of a door for partitions that other nodes lead, with nodes that answer whatever a test wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.forwarded.work import SECOND_HOP, DoorWork, Served
from penstock.broker.partition.role import Following
from penstock.broker.relay.asking import TRIES_MAX, Relay, Unanswered
from penstock.broker.relay.envelope import Envelope, read_envelope, write_envelope
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere, not_led
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.domain.replication.exchange import Forward, Forwarded, ForwardKind, KnownLeader, LogName, ReplicaProblem
from penstock.domain.security.access import Principal
from penstock.domain.security.caller import Caller
from penstock.net.errors import PeerLostError, PeerUnreachableError
from penstock.net.peers import Lane

TOPIC_ID = bytes(range(16))
CALLER = Caller(Principal("User", "alice", "shop"), "10.0.0.1:5000", "http")


class Partition:
    """Led here."""

    def __init__(self, epoch: int) -> None:
        self.role = Following(epoch, 1)


class Topic:
    """Who leads each partition, and in which epoch. Node 1 is here."""

    name = "orders"

    def __init__(self, *leaders: tuple[int, int]) -> None:
        self.leaders = list(leaders)

    def find(self, index: int) -> Partition | NotHere:
        leader, epoch = self.leaders[index]
        return Partition(epoch) if leader == 1 else not_led(self.name, index, Following(epoch, leader))


class World:
    """A broker, its line to others and what it does itself."""

    node_id = 1
    revision = 7

    def __init__(self, topic: Topic, answer: Callable[[int, Envelope], Forwarded]) -> None:
        self._topic = topic
        self._answer = answer
        self.asked: list[tuple[int, Envelope]] = []
        self.relay = Relay(
            cast(Broker, self),
            self,
            self.work,
            tasks=TaskSupervisor(get_logger("test")),
            revision=lambda: self.revision,
        )

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return self._topic if topic_id == TOPIC_ID else None

    async def forward(self, node_id: int, forward: Forward, _lane: Lane) -> Forwarded:
        envelope = read_envelope(forward.body)
        self.asked.append((node_id, envelope))
        return self._answer(node_id, envelope)

    async def work(self, forward: Forward, _asking: object) -> Forwarded:
        return await self.forward(1, forward, Lane.DOORS)

    async def spread(self, *partitions: int, is_repeatable: bool = True) -> dict[int, bytes | Unanswered]:
        answers = await self.relay.spread(
            ForwardKind.SETTLE,
            TOPIC_ID,
            partitions,
            bytes,
            by=CALLER,
            is_repeatable=is_repeatable,
            timeout_ms=300,
        )
        return {index: answer.body for answer in answers for index in answer.partitions}


def echo(_node_id: int, envelope: Envelope) -> Forwarded:
    return Forwarded(body=envelope.body)


async def test_each_leader_is_asked_once_with_its_partitions_epochs_and_the_caller() -> None:
    world = World(Topic((2, 4), (3, 5), (2, 6), (1, 7)), echo)
    found = await world.spread(0, 1, 2, 3)
    assert found == {0: b"\0\2", 2: b"\0\2", 1: b"\1", 3: b"\3"}
    asked = {node_id: envelope.places for node_id, envelope in world.asked}
    assert asked == {2: ((0, 4), (2, 6)), 3: ((1, 5),), 1: ((3, 7),)}
    assert all((each.caller, each.hop, each.revision) == (CALLER, 1, 7) for _, each in world.asked)


async def test_the_leader_that_is_named_is_asked_next() -> None:
    def answer(node_id: int, envelope: Envelope) -> Forwarded:
        if node_id == 2:
            return Forwarded(problem=ReplicaProblem.NOT_LEADER, leader=KnownLeader(3, 5))
        return echo(node_id, envelope)

    world = World(Topic((2, 4)), answer)
    assert await world.spread(0) == {0: b"\0"}
    assert [(node_id, each.places) for node_id, each in world.asked] == [(2, ((0, 4),)), (3, ((0, 5),))]


async def test_a_partition_that_has_come_here_is_served_here() -> None:
    topic = Topic((2, 4))

    def answer(node_id: int, envelope: Envelope) -> Forwarded:
        if node_id == 2:
            topic.leaders[0] = (1, 5)
            raise PeerUnreachableError("node 2 is not there")
        return echo(node_id, envelope)

    world = World(topic, answer)
    assert await world.spread(0) == {0: b"\0"}
    assert [node_id for node_id, _ in world.asked] == [2, 1]


async def test_nobody_is_asked_more_than_three_times() -> None:
    world = World(Topic((2, 4)), lambda _node_id, _envelope: Forwarded(problem=ReplicaProblem.UNKNOWN_EPOCH))
    (body,) = (await world.spread(0)).values()
    assert isinstance(body, Unanswered)
    assert not body.is_unsure
    assert 1 <= len(world.asked) <= TRIES_MAX


@pytest.mark.parametrize(("is_repeatable", "times"), [(True, TRIES_MAX), (False, 1)])
async def test_what_may_have_been_done_is_repeated_only_where_that_is_harmless(
    *, is_repeatable: bool, times: int
) -> None:
    topic = Topic((2, 4))

    def answer(_node_id: int, _envelope: Envelope) -> Forwarded:
        # Elected anew each time, so that there is something new to try.
        topic.leaders[0] = (2, topic.leaders[0][1] + 1)
        raise PeerLostError("it hung up")

    world = World(topic, answer)
    (body,) = (await world.spread(0, is_repeatable=is_repeatable)).values()
    assert isinstance(body, Unanswered)
    assert body.is_unsure
    assert len(world.asked) == times


class Catalog:
    revision = 7


def work_of(topic: Topic) -> tuple[DoorWork, list[Served]]:
    served: list[Served] = []

    async def job(each: Served) -> bytes:
        served.append(each)
        return b"done"

    work = DoorWork(cast(Broker, World(topic, echo)), cast(TopicCatalog, Catalog()))
    work.serve(ForwardKind.SETTLE, job)
    return work, served


def forward_of(*places: tuple[int, int], hop: int = 1) -> Forward:
    envelope = Envelope(hop, CALLER, 7, places, b"")
    log = LogName(TOPIC_ID, places[0][0])
    return Forward(kind=ForwardKind.SETTLE, log=log, timeout_ms=1_000, body=write_envelope(envelope))


async def test_what_was_forwarded_before_is_refused() -> None:
    work, served = work_of(Topic((1, 4)))
    refused = await work.do(forward_of((0, 4), hop=2), None)
    assert (refused.problem, refused.detail) == (ReplicaProblem.INVALID, SECOND_HOP)
    assert served == []


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        (((0, 3),), ReplicaProblem.FENCED_EPOCH),
        (((0, 5),), ReplicaProblem.UNKNOWN_EPOCH),
        (((0, 4), (1, 9)), ReplicaProblem.NOT_LEADER),
    ],
)
async def test_nothing_is_done_where_one_leadership_is_another(
    places: tuple[tuple[int, int], ...], problem: ReplicaProblem
) -> None:
    work, served = work_of(Topic((1, 4), (2, 9)))
    assert (await work.do(forward_of(*places), None)).problem is problem
    assert served == []


async def test_work_for_partitions_that_are_led_here_is_done_for_the_caller() -> None:
    work, served = work_of(Topic((1, 4), (1, 9)))
    assert (await work.do(forward_of((0, 4), (1, 9)), None)).body == b"done"
    assert [each.caller for each in served] == [CALLER]


async def test_a_body_that_is_none_is_refused() -> None:
    work, _ = work_of(Topic((1, 4)))
    forward = Forward(kind=ForwardKind.SETTLE, log=LogName(TOPIC_ID, 0), timeout_ms=1_000, body=b"\xc1")
    assert (await work.do(forward, None)).problem is ReplicaProblem.INVALID
