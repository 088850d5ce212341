"""What a node has to do with the others: where they are, the secret that they share, its door for them, replication.

    the secret is in the store ──► replication follows the catalogs ──► the internal door opens ──► the node serves

A node whose `[cluster] listen` is off has none of this: it is and stays alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from penstock.assembly import Logs
from penstock.base.log_events import get_logger
from penstock.broker.forwarded.kinds import door_work
from penstock.broker.machine.rehearsals import RehearsalSettings
from penstock.broker.parts import Parts
from penstock.broker.queue.landing import land_for_another
from penstock.broker.relay.asking import Relay
from penstock.broker.replication.node import Metadata, NodeReplication
from penstock.broker.replication.settings import ReplicationSettings
from penstock.cluster.controller.elections import Place
from penstock.cluster.identity import ensure_cluster_secret
from penstock.cluster.store.keys import KeySpace
from penstock.config import Config
from penstock.domain.replication.exchange import DescribeReplica, ForwardKind, LogName
from penstock.domain.replication.identity import NodeIdentity
from penstock.domain.replication.state import NO_EPOCH
from penstock.gateways.cluster.config import ClusterDoorConfig
from penstock.gateways.cluster.door import ClusterDoor
from penstock.membership import Membership
from penstock.net.address import Address, parse_address
from penstock.net.errors import PeerError
from penstock.net.peers import Peers
from penstock.net.replica.calls import ReplicaCalls
from penstock.net.replica.moves import MoveCalls
from penstock.net.replica.transactions import TransactionCalls
from penstock.storage.store import LogStore

# By which nodes of this version act; raised by the cluster as a whole when all of them can do more.
FEATURE_LEVEL: Final = 1
SECRET_BYTES: Final = 32
# What another node has to say how far a log of its reaches.
DESCRIBE_MS: Final = 2_000

log = get_logger("replication")


class Peering:
    def __init__(
        self, config: Config, logs: Logs, store: LogStore, membership: Membership, *, cluster_id: str, secret: bytes
    ) -> None:
        self._config = config.cluster
        self._logs = logs
        self._cluster_id = cluster_id
        self._membership = membership
        self._registry = registry = membership.registry
        self._secret = secret
        site = logs.site
        self.peers = Peers(
            self.identity,
            lambda: secret,
            self.address_of,
            clock=site.clock,
            jitter=site.chance.fraction,
            on_refused=membership.report_refused,
        )
        self._calls = ReplicaCalls(self.peers)
        self.replication = NodeReplication(
            site,
            logs.broker,
            store,
            Metadata(
                topics=logs.topics,
                nodes=logs.nodes,
                store=logs.metadata,
                keys=KeySpace(),
                is_held_at=registry.is_held_at,
            ),
            calls=self._calls,
            life=lambda: registry.epoch,
            settings=ReplicationSettings(
                replica_lag_ms=config.cluster.replica_lag_ms,
                catch_up_bytes_per_second=config.cluster.catch_up_bytes_per_second,
                rehearsal=RehearsalSettings(config.cluster.rehearsal_rows, config.cluster.rehearsal_bytes),
            ),
        )

    def identity(self) -> NodeIdentity:
        return NodeIdentity(self._cluster_id, self._logs.site.node_id, self._registry.epoch, FEATURE_LEVEL)

    def address_of(self, node_id: int) -> Address | None:
        """Of its internal door; None: it is not there, or has none."""
        living = self._logs.nodes.node(node_id)
        return parse_address(living.record.internal) if living is not None and living.record.internal else None

    def door(self, parts: Parts) -> ClusterDoor:
        self.replication.replicas.serve(ForwardKind.LANDING, land_for_another)
        parts.queues.talk_by(MoveCalls(self.peers))
        self._forward(parts)
        config = ClusterDoorConfig(self._config.listen, self._config.advertised)
        secret: Callable[[], bytes] = lambda: self._secret  # noqa: E731
        return ClusterDoor(parts, config, self.replication.replicas, identity=self.identity, secret=secret)

    def _forward(self, parts: Parts) -> None:
        """What doors are asked for goes to whoever leads; and what others are asked for and this node leads is done."""
        topics, work = self._logs.topics, door_work(parts)
        self.replication.replicas.serve_doors(work.kinds, work.do)
        tasks = self._logs.site.tasks
        relay = Relay(parts.broker, self._calls, work.do, tasks=tasks, revision=lambda: topics.revision)
        parts.queues.relay = relay
        parts.publisher.relay = relay

    def start(self) -> None:
        self._registry.on_life(self.replication.begin_life)
        self.replication.start()
        self._logs.transactions.talk_by(TransactionCalls(self.peers))
        self._logs.verifier.talk_by(self.replication.replicas, ReplicaCalls(self.peers))
        self._membership.watch_others(self.peers.until_lost)
        self._membership.ask_ends_by(self._end_of)

    async def _end_of(self, node_id: int, place: Place) -> tuple[int, int] | None:
        """The last epoch in that node's log of the partition, and its end."""
        asked = DescribeReplica(log=LogName(*place))
        try:
            if node_id == self._logs.site.node_id:
                found = await self.replication.replicas.describe(asked)
            else:
                found = await self._calls.describe(node_id, asked, timeout_ms=DESCRIBE_MS)
        except PeerError as error:
            log.warning("end of a log is not known", node=node_id, error=str(error))
            return None
        if found.problem is not None:
            return None
        return (found.epochs[-1].epoch if found.epochs else NO_EPOCH, found.log_end)

    async def stop(self) -> None:
        await self.replication.stop()
        self.peers.close()


async def open_peering(
    config: Config, logs: Logs, store: LogStore, membership: Membership, undo: AsyncExitStack, *, cluster_id: str
) -> Peering:
    """When this life is admitted, and the broker serves."""
    secret = await ensure_cluster_secret(logs.metadata, KeySpace(), lambda: logs.site.chance.bytes(SECRET_BYTES))
    peering = Peering(config, logs, store, membership, cluster_id=cluster_id, secret=secret)
    undo.push_async_callback(peering.stop)
    peering.start()
    return peering
