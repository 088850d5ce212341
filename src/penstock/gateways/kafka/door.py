"""The Kafka door, wired: logins, handlers, the server and its metrics, made of the parts behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import msgspec

from penstock.broker.parts import Parts
from penstock.broker.topic.node_settings import follow_setting
from penstock.domain.config.change import ConfigEntry
from penstock.domain.config.node import CONNECTIONS_MAX
from penstock.gateways.admission import Admission
from penstock.gateways.caller import KAFKA
from penstock.gateways.door import listen_on
from penstock.gateways.kafka.apis import make_handlers
from penstock.gateways.kafka.cluster_view import ClusterView
from penstock.gateways.kafka.context import Handler
from penstock.gateways.kafka.handlers.produce_route import learn_route
from penstock.gateways.kafka.leader_hints import LeaderHints
from penstock.gateways.kafka.metrics import KafkaDoorCollector
from penstock.gateways.kafka.sasl import SaslHandler, SaslSettings
from penstock.gateways.kafka.sasl_users import SaslUsers
from penstock.gateways.kafka.server import KafkaServer
from penstock.gateways.kafka.server_config import KafkaServerConfig
from penstock.gateways.node_address import NodeAddress, advertised_address, host_to_tell, join_address

# Half of the machine at the most: strangers that try passwords must leave something for everybody else.
HASHER_THREADS: Final = max(1, (os.cpu_count() or 1) // 2)
LOGIN_SECRET_BYTES: Final = 32


class KafkaDoor:
    """`node_entries`: what DescribeConfigs tells of a node that clients are told to find at this address."""

    name: Final = KAFKA

    def __init__(
        self,
        parts: Parts,
        admission: Admission,
        config: KafkaServerConfig,
        *,
        cluster_id: str,
        node_entries: Callable[[NodeAddress], Sequence[ConfigEntry]],
    ) -> None:
        self._parts = parts
        self._admission = admission
        self._config = config
        self._node_entries = node_entries
        self._hashers: ThreadPoolExecutor | None = None
        self.server: KafkaServer | None = None
        # Whole once the door listens, and nobody can ask before.
        self.node_address = NodeAddress(parts.site.node_id, "", 0, cluster_id)
        self._cluster = ClusterView(parts.broker, parts.topics, parts.nodes, lambda: self.node_address)
        self._hints = LeaderHints(parts.broker, self._cluster)

    @property
    def address(self) -> str:
        return join_address(self.server.host, self.server.port) if self.server is not None and self.server.host else ""

    async def open(self) -> None:
        parts, config, site = self._parts, self._config, self._parts.site
        await parts.shares.start()
        sasl = await self._open_sasl()
        handlers = self.handlers(sasl)
        learn = partial(learn_route, parts.broker, self._hints)
        server = self.server = KafkaServer(config, handlers, site, learn, sasl, self._admission)
        follow_setting(parts.topics, site.node_id, CONNECTIONS_MAX, server.limit_connections, config.connections_max)
        site.metrics.register(KafkaDoorCollector(server))
        await listen_on(server.start, config.listen, self.name)
        host, port = advertised_address(config.advertised) or (None, server.port)
        told = host_to_tell(server.host, host)
        self.node_address = msgspec.structs.replace(self.node_address, host=told, port=port)

    def handlers(self, sasl: SaslHandler) -> dict[int, Handler]:
        """Who answers what, by the key of the request."""
        return make_handlers(
            self._parts,
            self._admission,
            cluster=self._cluster,
            hints=self._hints,
            node_entries=lambda: self._node_entries(self.node_address),
            node_settings={CONNECTIONS_MAX: str(self._config.connections_max)},
            sasl=sasl,
        )

    async def _open_sasl(self) -> SaslHandler:
        config, site = self._config, self._parts.site
        settings = SaslSettings(config.sasl_mechanisms, config.reauthentication_ms_max, config.failed_login_delay_ms)
        if not config.sasl_mechanisms:
            return SaslHandler(None, settings, site.clock, site.chance)
        access = self._parts.access
        hashers = self._hashers = ThreadPoolExecutor(HASHER_THREADS, thread_name_prefix="hasher")
        secret = await access.ensure_login_secret(partial(site.chance.bytes, LOGIN_SECRET_BYTES))
        users = SaslUsers(
            access,
            site.chance,
            secret=secret,
            configured=config.users,
            hashers=hashers,
            hasher_count=HASHER_THREADS,
        )
        await users.start()
        return SaslHandler(users, settings, site.clock, site.chance)

    async def stop_listening(self) -> None:
        if self.server is not None:
            await self.server.stop_listening()

    async def drain(self) -> None:
        # In reverse: wake the parked readers, send waiting members away, answer, close. Each whatever became of the
        # one before: a journal that cannot be written must not leave connections open.
        async with AsyncExitStack() as ending:
            if self._hashers is not None:
                ending.callback(self._hashers.shutdown, wait=False, cancel_futures=True)
            if self.server is not None:
                ending.push_async_callback(self.server.drain)
                ending.push_async_callback(self._parts.groups.stop)
                ending.push_async_callback(self._parts.transactions.stop)
                ending.callback(self._parts.broker.wake_waiting)
