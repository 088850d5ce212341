"""A node inside the test's own loop, and conversations with its Kafka door that read as dialogues.

    async with node_in_memory() as node:
        talk = await node.connect()
        await talk.send(produce("missing", batch(b"a")))
        await talk.expect(produced("missing", error=UNKNOWN_TOPIC_OR_PARTITION))

`send` does not wait, so requests are pipelined by sending several; replies are taken in the order of the requests, and
each must carry its request's correlation id. `send_bytes` sends anything, half a frame too.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypeVar

from penstock.assembly import Assembly
from penstock.base.clock import Clock
from penstock.broker.config import BrokerConfig
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.parts import Parts
from penstock.broker.share.node import ShareGroups
from penstock.broker.topic.broker import Broker
from penstock.broker.transaction.markers import MarkerWriter
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.cluster.catalog.topics import Created, TopicCatalog
from penstock.codec import kafka as wire
from penstock.config import Config, NodeConfig
from penstock.domain.security.access import Authorizer
from penstock.domain.security.acl import AccessSettings
from penstock.gateways.door import Door
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.kafka.door import KafkaDoor
from penstock.gateways.kafka.server import KafkaServer
from penstock.gateways.kafka.server_config import KafkaServerConfig
from penstock.node import Node
from penstock.storage.config import StorageConfig
from penstock.storage.files.protocols import Files

R = TypeVar("R", bound=wire.Response)
MakeDoors = Callable[[Config, Parts, str], Sequence[Door]]

ANY_PORT: Final = "127.0.0.1:0"
# Far above what anything here takes, far below the patience of whoever runs the tests.
PATIENCE_SECONDS: Final = 20
_LENGTH: Final = struct.Struct(">i")


class Conversation:
    """One connection, from the client's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str | None) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0
        self._asked: deque[tuple[type[wire.Response], int, int]] = deque()
        self.client_id = client_id

    async def send(self, request: wire.Request, version: int | None = None) -> None:
        """Sends and does not wait for the reply. Without a version: the highest that is served."""
        self.send_bytes(self.frame(request, version))
        await self._writer.drain()

    async def send_unanswered(self, request: wire.Request, version: int | None = None) -> None:
        """For what gets no reply (acks=0)."""
        await self.send(request, version)
        self._asked.pop()

    def frame(self, request: wire.Request, version: int | None = None) -> bytes:
        """The bytes of a request, of which the reply is expected in its turn."""
        api = wire.APIS[request.api_key]
        version = api.version_max if version is None else version
        self._correlation_id += 1
        self._asked.append((api.response, version, self._correlation_id))
        return wire.encode_request(request, version, self._correlation_id, self.client_id)

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def hear_frame(self) -> bytes:
        """The next reply's bytes, without their length."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            (size,) = _LENGTH.unpack(await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def hear(self, kind: type[R]) -> R:
        """The reply to the oldest request that has none yet."""
        response, version, correlation_id = self._asked.popleft()
        assert response is kind, f"the next reply is a {response.__name__}"
        decoded = wire.decode_response(kind, version, memoryview(await self.hear_frame()))
        assert not isinstance(decoded, wire.Malformed), decoded.reason
        answered, message = decoded
        assert answered == correlation_id, f"asked as {correlation_id}, answered as {answered}"
        return message

    async def ask(self, request: wire.Request, kind: type[R], version: int | None = None) -> R:
        await self.send(request, version)
        return await self.hear(kind)

    async def expect(self, expected: wire.Response) -> None:
        """The next reply says exactly this, as far as its version can say it."""
        _, version, _ = self._asked[0]
        heard = await self.hear(type(expected))
        # Compared as bytes: a list and a tuple, a view and bytes are the same to a client.
        assert wire.encode(heard, version) == wire.encode(expected, version), f"\n   heard {heard}\nexpected {expected}"

    async def expect_closed(self) -> None:
        """The node has nothing more to say on this connection and ends it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                rest = await self._reader.read()
            except ConnectionError:
                return
            assert rest == b"", f"{len(rest)} bytes more before the end"

    async def hang_up(self) -> None:
        """Says nothing more, and waits until the node has taken everything and ended the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            with contextlib.suppress(OSError):
                self._writer.write_eof()
                await self._reader.read()
        self._writer.close()

    @property
    def has_heard(self) -> bool:
        """Something has come that nobody has listened to yet."""
        return bool(self._reader._buffer)  # type: ignore[attr-defined]

    async def expect_open(self) -> None:
        """Asks something and is answered: whatever the node did meanwhile has reached the other connections too."""
        await self.ask(wire.ApiVersionsRequest(), wire.ApiVersionsResponse, 0)

    def close(self) -> None:
        self._writer.close()


class TalkingNode(Node):
    """A node whose inner parts a test may look at."""

    @property
    def broker(self) -> Broker:
        return self.parts.broker

    @property
    def catalog(self) -> TopicCatalog:
        return self.parts.topics

    @property
    def transactions(self) -> TransactionCoordinators:
        return self.parts.transactions

    @property
    def markers(self) -> MarkerWriter:
        return self.parts.markers

    @property
    def shares(self) -> ShareGroups:
        return self.parts.shares

    @property
    def server(self) -> KafkaServer:
        door = self.doors[KafkaDoor.name]
        assert isinstance(door, KafkaDoor)
        assert door.server is not None, "the door has not been opened"
        return door.server

    async def connect(self, *, client_id: str | None = "dialogue", door: str = "kafka") -> Conversation:
        host, _, port = self.addresses[door].rpartition(":")
        # A small limit: what the test does not read stays in the socket, so that the node feels a slow reader.
        reader, writer = await asyncio.open_connection(host, int(port), limit=16 * 1024)
        return Conversation(reader, writer, client_id)

    async def create_topic(self, name: str, partitions: int = 1, **settings: str) -> bytes:
        """Settings by Kafka's names with _ for the dots. The new topic's id."""
        overrides: dict[str, str | None] = {key.replace("_", "."): value for key, value in settings.items()}
        outcome = await self.catalog.create_topic(name, partitions, overrides)
        assert isinstance(outcome, Created), outcome
        return outcome.topic.topic_id

    def shell(self, topic: str, partition: int = 0) -> PartitionShell:
        served = self.broker.topic(topic)
        assert served is not None, f"{topic} is not served"
        (shell,) = [each for each in served.shells if each.index == partition]
        return shell


def assembly_with(
    *,
    files: Callable[[], Files] | None = None,
    authorizer: Authorizer | None = None,
    clock: Clock | None = None,
    doors: MakeDoors | None = None,
) -> Assembly:
    """What a node is made of, but for these."""
    assembly = Assembly()
    if files is not None:
        assembly = replace(assembly, files=lambda _node: files())
    if authorizer is not None:
        assembly = replace(assembly, authorizer=lambda _config, _access: authorizer)
    if doors is not None:
        assembly = replace(assembly, doors=doors)
    return assembly if clock is None else replace(assembly, clock=lambda: clock)


@asynccontextmanager
async def running_node(
    *,
    data_dir: str = "",
    files: Callable[[], Files] | None = None,
    authorizer: Authorizer | None = None,
    clock: Clock | None = None,
    doors: MakeDoors | None = None,
    kafka: KafkaServerConfig | None = None,
    http: HttpServerConfig | None = None,
    broker: BrokerConfig | None = None,
    storage: StorageConfig | None = None,
    access: AccessSettings | None = None,
) -> AsyncIterator[TalkingNode]:
    """In memory, unless given a directory; `files` stands in for either."""
    config = Config(
        node=NodeConfig(data_dir=data_dir or "memory", memory=not data_dir),
        kafka=kafka or KafkaServerConfig(listen=ANY_PORT),
        http=http or HttpServerConfig(listen="off"),
        broker=broker or BrokerConfig(),
        storage=storage or StorageConfig(),
        access=access or AccessSettings(),
    )
    node = TalkingNode(config, assembly_with(files=files, authorizer=authorizer, clock=clock, doors=doors))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
