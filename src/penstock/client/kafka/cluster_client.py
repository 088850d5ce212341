"""A cluster as seen by a client: brokers, topics, who leads what, and one connection to each broker in use.

Metadata is asked for when it is first needed and again when somebody says that it is stale; it is never
refreshed by a timer, because this client serves commands, not long-lived applications.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import Final, Self, TypeVar

import msgspec

from penstock.client.environment import LOGIN_HINT, credentials_from
from penstock.client.errors import PartitionMissingError, TopicMissingError
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.codec.kafka.schema import Request, Response
from penstock.net.address import Address
from penstock.net.connection import Connection, ConnectionOptions
from penstock.net.errors import BrokerError, BrokerUnreachableError, ClientError, ConnectionLostError

R = TypeVar("R", bound=Response)

# A topic that was just created has no leader for a moment: 20 times 50 ms is far more than an election takes.
LEADER_ATTEMPTS_MAX: Final = 20
LEADER_RETRY_MS: Final = 50
CLOSE_MS_MAX: Final = 5_000

_NOT_YET = frozenset({ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class Broker(msgspec.Struct, frozen=True):
    node_id: int
    address: Address
    rack: str | None = None


class PartitionInfo(msgspec.Struct, frozen=True):
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    # Replicas on nodes that are away, or whose log is.
    offline: tuple[int, ...] = ()


class TopicInfo(msgspec.Struct, frozen=True):
    name: str
    topic_id: bytes
    is_internal: bool
    # By partition number, dense from 0.
    partitions: tuple[PartitionInfo, ...]


class ClusterClient:
    """Caller's duties: `await connect`, and `close` at the end (or `async with`).

    Without options of its own it logs in as whom the environment names (PENSTOCK_USER), if anybody.
    """

    def __init__(self, bootstrap: Sequence[Address], options: ConnectionOptions | None = None) -> None:
        assert bootstrap
        self._bootstrap = tuple(bootstrap)
        self._options = options or ConnectionOptions(credentials=credentials_from(os.environ), login_hint=LOGIN_HINT)
        self._connections: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Lock] = {}
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, TopicInfo] = {}
        self.cluster_id: str | None = None
        self.controller_id: int = -1

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        closing = [connection.wait_closed() for connection in self._connections.values()]
        self.close()
        # A peer that does not read cannot keep us: what it has not taken by then is lost.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_MS_MAX / 1000):
                await asyncio.gather(*closing)

    async def connect(self) -> None:
        """Reaches the first bootstrap broker that answers, and learns who else is there."""
        await self._refresh(topics=())

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def brokers(self) -> tuple[Broker, ...]:
        return tuple(self._brokers[node_id] for node_id in sorted(self._brokers))

    # -- whom to talk to

    async def any_connection(self) -> Connection:
        for connection in self._connections.values():
            if not connection.is_closed:
                return connection
        known = [broker.address for broker in self.brokers]
        candidates = list(dict.fromkeys([*known, *self._bootstrap]))
        failures: list[ClientError] = []
        for address in candidates:
            try:
                return await self._connection(address)
            except ClientError as error:
                failures.append(error)
        if len(failures) == 1 or not self._bootstrap[1:]:
            raise failures[-1]
        raise BrokerUnreachableError("; ".join(map(str, failures)))

    async def connection_to(self, node_id: int) -> Connection:
        if node_id not in self._brokers:
            await self._refresh(topics=())
        broker = self._brokers.get(node_id)
        if broker is None:
            raise BrokerUnreachableError(f"broker {node_id} is not in the cluster's metadata")
        return await self._connection(broker.address)

    async def controller(self) -> Connection:
        """The broker that creates and deletes topics; any broker, where the cluster names none, or one that is away:
        it sends on what is not its own to do."""
        if self.controller_id < 0:
            return await self.any_connection()
        try:
            return await self.connection_to(self.controller_id)
        except BrokerUnreachableError:
            return await self.any_connection()

    async def leader(self, topic: str, partition: int) -> Connection:
        return await self.connection_to(await self.leader_id(topic, partition))

    def known_leader_id(self, topic: str, partition: int) -> int | None:
        """What the last metadata said, without asking anybody: for those who look up many partitions often."""
        info = self._topics.get(topic)
        if info is None or not 0 <= partition < len(info.partitions):
            return None
        leader = info.partitions[partition].leader
        return leader if leader >= 0 else None

    async def leader_id(self, topic: str, partition: int) -> int:
        for attempt in range(LEADER_ATTEMPTS_MAX):
            info = await self.topic(topic, is_fresh=attempt > 0)
            if not 0 <= partition < len(info.partitions):
                raise PartitionMissingError(topic, partition, len(info.partitions))
            if info.partitions[partition].leader >= 0:
                return info.partitions[partition].leader
            await asyncio.sleep(LEADER_RETRY_MS / 1000)
        raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition} of topic {topic!r}")

    # -- metadata

    async def topic(self, name: str, *, is_fresh: bool = False, auto_create: bool = False) -> TopicInfo:
        """What is known of a topic, asked for if need be; raises `TopicMissingError`."""
        if name in self._topics and not is_fresh:
            return self._topics[name]
        attempts = LEADER_ATTEMPTS_MAX if auto_create else 1
        for attempt in range(attempts):
            reply = await self._refresh(topics=(name,), auto_create=auto_create)
            code = next((topic.error_code for topic in reply.topics if topic.name == name), 0)
            if name in self._topics:
                return self._topics[name]
            if code not in _NOT_YET:
                raise BrokerError(code, f"topic {name!r}")
            if attempt + 1 < attempts:
                await asyncio.sleep(LEADER_RETRY_MS / 1000)
        raise TopicMissingError(name)

    async def topics(self) -> list[TopicInfo]:
        """All topics of the cluster, by name."""
        await self._refresh(topics=None)
        return [self._topics[name] for name in sorted(self._topics)]

    def forget(self, topic: str) -> None:
        """What is known of it has proved wrong: ask again when it is next needed."""
        self._topics.pop(topic, None)

    async def call(self, request: Request, response: type[R], *, timeout_ms: int | None = None) -> R:
        """Asks any broker."""
        connection = await self.any_connection()
        return await connection.call(request, response, timeout_ms=timeout_ms)

    async def _refresh(self, *, topics: Sequence[str] | None, auto_create: bool = False) -> MetadataResponse:
        request = MetadataRequest(
            topics=None if topics is None else tuple(MetadataRequestTopic(name=name) for name in topics),
            allow_auto_topic_creation=auto_create,
        )
        # A connection that was idle for long may have been closed by its broker, and a broker that has just died is
        # found out by each connection to it: one try more than there are.
        for _ in range(len(self._connections)):
            with contextlib.suppress(ConnectionLostError):
                return self._learn(await self.call(request, MetadataResponse), is_complete=topics is None)
        return self._learn(await self.call(request, MetadataResponse), is_complete=topics is None)

    def _learn(self, reply: MetadataResponse, *, is_complete: bool) -> MetadataResponse:
        self.cluster_id = reply.cluster_id
        self.controller_id = reply.controller_id
        self._brokers = {
            broker.node_id: Broker(broker.node_id, Address(broker.host, broker.port), broker.rack)
            for broker in reply.brokers
        }
        if is_complete:
            self._topics.clear()
        for topic in reply.topics:
            if topic.name is None:
                continue
            if topic.error_code == 0:
                self._topics[topic.name] = _topic_info(topic.name, topic)
            else:
                self._topics.pop(topic.name, None)
        return reply

    async def _connection(self, address: Address) -> Connection:
        # One at a time for each address: two callers at once must not open two connections, or order is lost.
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or connection.is_closed:
                connection = await Connection.open(address, self._options)
                self._connections[address] = connection
            return connection


def _topic_info(name: str, topic: MetadataResponseTopic) -> TopicInfo:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        name=name,
        topic_id=bytes(topic.topic_id),
        is_internal=topic.is_internal,
        partitions=tuple(
            PartitionInfo(
                partition=partition.partition_index,
                leader=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                replicas=tuple(partition.replica_nodes),
                in_sync=tuple(partition.isr_nodes),
                offline=tuple(partition.offline_replicas),
            )
            for partition in partitions
        ),
    )
