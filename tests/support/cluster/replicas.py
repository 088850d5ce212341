"""A node with an internal door, whose replicas say what a test has told them to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from penstock.base.clock import Clock
from penstock.broker.parts import Parts
from penstock.codec.kafka.internal.hello import HelloRequest, HelloResponse
from penstock.config import Config
from penstock.domain.replication.exchange import (
    Barrier,
    DescribeReplica,
    Forward,
    Forwarded,
    LogPassed,
    ReplicaDescription,
    ReplicaFetch,
    ReplicaFetched,
)
from penstock.domain.replication.identity import NODE_USER, NodeIdentity, login_password
from penstock.domain.security.access import AllowAll
from penstock.gateways.admission import Admission
from penstock.gateways.cluster.config import ClusterDoorConfig
from penstock.gateways.cluster.door import LIMITS, ClusterDoor
from penstock.gateways.cluster.replicas import AskingNode
from penstock.gateways.door import Door
from penstock.gateways.kafka.door import KafkaDoor
from penstock.gateways.kafka.server_config import KafkaServerConfig, ServerLimits
from penstock.net.address import Address, parse_address
from support.cluster import exchanges as said
from support.door.conversation import ANY_PORT, PATIENCE_SECONDS, Conversation, TalkingNode, running_node
from support.door.sasl_phrases import log_in

SECRET: Final = b"thirty-two bytes of chance, a few"
HERE: Final = NodeIdentity("orchard", 2, 70, 1)
THERE: Final = NodeIdentity("orchard", 3, 77, 1)
SCRAM: Final = "SCRAM-SHA-512"
# Work that waits until the test lets it, and work that fails.
HELD_KIND: Final = 1_001
FAULTY_KIND: Final = 1_002


class ScriptedReplicas:
    """`held`: barriers and forwarded work wait until it is set."""

    def __init__(self) -> None:
        self.fetches: list[tuple[ReplicaFetch, NodeIdentity]] = []
        self.barriers: list[Barrier] = []
        self.described: list[DescribeReplica] = []
        self.forwards: list[Forward] = []
        self.gone: list[int] = []
        self.held = asyncio.Event()
        self.held.set()
        self.fetched = said.FETCHED
        self.is_fetch_parked = False
        self.cancelled_count = 0

    async def fetch(self, fetch: ReplicaFetch, asking: AskingNode) -> ReplicaFetched:
        self.fetches.append((fetch, asking.identity))
        if self.is_fetch_parked:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled_count += 1
                raise
        return self.fetched

    async def barrier(self, barrier: Barrier) -> Sequence[LogPassed]:
        self.barriers.append(barrier)
        await self.held.wait()
        return said.PASSED

    async def describe(self, asked: DescribeReplica) -> ReplicaDescription:
        self.described.append(asked)
        return said.DESCRIPTION

    async def forward(self, forward: Forward, asking: AskingNode) -> Forwarded:
        self.forwards.append(forward)
        asking.when_gone(lambda: self.gone.append(forward.kind))
        if forward.kind == FAULTY_KIND:
            raise ValueError("a fault of the replicas")
        if forward.kind == HELD_KIND:
            await self.held.wait()
        return Forwarded(body=forward.body[::-1])


@asynccontextmanager
async def node_with_internal_door(
    replicas: ScriptedReplicas,
    *,
    identity: Callable[[], NodeIdentity] = lambda: HERE,
    secret: bytes = SECRET,
    listen: str = ANY_PORT,
    limits: ServerLimits = LIMITS,
    kafka: KafkaServerConfig | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[TalkingNode]:
    def doors(config: Config, parts: Parts, cluster_id: str) -> list[Door]:
        settings = ClusterDoorConfig(listen=listen)
        from_nodes = ClusterDoor(parts, settings, replicas, identity=identity, secret=lambda: secret, limits=limits)

        public = KafkaDoor(parts, Admission(AllowAll()), config.kafka, cluster_id=cluster_id, node_entries=lambda _: ())
        return [from_nodes, public]

    async with running_node(doors=doors, kafka=kafka, clock=clock) as node:
        yield node


async def until(condition: Callable[[], bool]) -> None:
    """What goes through a socket takes turns of the loop, nobody can say how many."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def internal_address(node: TalkingNode) -> Address:
    return parse_address(node.addresses[ClusterDoor.name])


def internal_door(node: TalkingNode) -> ClusterDoor:
    door = node.doors[ClusterDoor.name]
    assert isinstance(door, ClusterDoor)
    return door


async def come_in(node: TalkingNode, *, secret: bytes = SECRET, mechanism: str = SCRAM) -> Conversation:
    """Logged in, not greeted."""
    talk = await node.connect(door=ClusterDoor.name)
    answer = await log_in(talk, mechanism, NODE_USER, login_password(secret))
    assert answer.error_code == 0, answer
    return talk


async def say_hello(talk: Conversation, identity: NodeIdentity = THERE) -> HelloResponse:
    request = HelloRequest(identity.cluster_id, identity.node_id, identity.life, identity.feature_level)
    return await talk.ask(request, HelloResponse)
