"""The internal door: where other nodes of the cluster come in, and nobody else.

Kafka's frames, served by the Kafka door's own server with another table, other limits and a login of its own: SCRAM
with the secret of the cluster, then Hello. Its connections are not counted among the clients', and what nodes ask of
each other is asked nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.broker.parts import Parts
from penstock.codec.kafka import RequestHeader
from penstock.codec.kafka.messages.produce import ProduceRequest
from penstock.domain.replication.identity import NodeIdentity
from penstock.domain.security.access import AllowAll
from penstock.domain.security.scram import MECHANISMS
from penstock.gateways.admission import Admission
from penstock.gateways.caller import CLUSTER
from penstock.gateways.cluster.apis import make_handlers
from penstock.gateways.cluster.config import ClusterDoorConfig
from penstock.gateways.cluster.hello import HelloHandler
from penstock.gateways.cluster.login import NodeUsers, PeerLogin
from penstock.gateways.cluster.replicas import ReplicaHandlers, ReplicaServer
from penstock.gateways.door import listen_on
from penstock.gateways.kafka.sasl import SaslHandler, SaslSettings
from penstock.gateways.kafka.server import KafkaServer
from penstock.gateways.kafka.server_config import ServerLimits
from penstock.gateways.node_address import join_address

LIMITS: Final = ServerLimits(
    # A hundred nodes with a handful of lanes each; strangers that do not log in are gone after seconds.
    connections_max=1_024,
    # Nodes have the secret at hand and log in at once.
    login_ms_max=5_000,
)


class ClusterDoor:
    """`identity`: who this node is at present. `secret`: the cluster's, asked for when the door opens."""

    name: Final = CLUSTER

    def __init__(
        self,
        parts: Parts,
        config: ClusterDoorConfig,
        replicas: ReplicaServer,
        *,
        identity: Callable[[], NodeIdentity],
        secret: Callable[[], bytes],
        limits: ServerLimits = LIMITS,
    ) -> None:
        self._parts = parts
        self._config = config
        self._replicas = replicas
        self._identity = identity
        self._secret = secret
        self._limits = limits
        self.server: KafkaServer | None = None

    @property
    def address(self) -> str:
        return join_address(self.server.host, self.server.port) if self.server is not None and self.server.host else ""

    @property
    def advertised(self) -> str:
        """HOST:PORT that other nodes are told; whole once the door is open."""
        return self._config.advertised or self.address

    async def open(self) -> None:
        parts, site = self._parts, self._parts.site
        users = await asyncio.to_thread(NodeUsers, self._secret(), site.chance)
        settings = SaslSettings(tuple(MECHANISMS))
        sasl = SaslHandler(users, settings, site.clock, site.chance, door=self.name, make_login=PeerLogin)
        # Who has the secret of the cluster may do everything: it could read the disks as well.
        admission = Admission(AllowAll(), (self.name,))
        hello = HelloHandler(self._identity, site.clock)
        handlers = make_handlers(parts, admission, hello=hello, replicas=ReplicaHandlers(self._replicas), sasl=sasl)
        self.server = KafkaServer(self._limits, handlers, site, _no_route, sasl, admission, self.name)
        await listen_on(self.server.start, self._config.listen, self.name)

    async def stop_listening(self) -> None:
        if self.server is not None:
            await self.server.stop_listening()

    async def drain(self) -> None:
        if self.server is not None:
            await self.server.drain()


def _no_route(_request: ProduceRequest, _header: RequestHeader, _frame: memoryview) -> None:
    """Nodes write to each other now and then: they need no short way."""
