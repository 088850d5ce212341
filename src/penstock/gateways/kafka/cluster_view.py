"""The cluster as this door tells it to its clients: who is there, where each node is found, who leads what.

Everything comes from the catalogs, so every node tells the same, a moment earlier or later. Two things it knows better
by itself: the address at which a client has just reached it (`node_address`), and whether it leads a partition, for
which its shell is asked; a client that is sent here is then served here.

A leader that does not live, or has no Kafka door, is none to a client: it is told that there is no leader and asks
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from penstock.broker.topic.broker import Broker
from penstock.broker.topic.served_topic import ServedTopic
from penstock.cluster.catalog.nodes import NodeCatalog
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.codec.kafka import ErrorCode
from penstock.domain.replication.state import NO_LEADER, PartitionState
from penstock.domain.replication.view import Duty
from penstock.gateways.node_address import NodeAddress

LocalAddress = tuple[str, int] | None


class Endpoint(msgspec.Struct, frozen=True):
    """Where Kafka clients find a node."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Placement(msgspec.Struct, frozen=True, gc=False):
    """A partition as clients are told of it."""

    index: int
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()

    @property
    def error_code(self) -> ErrorCode:
        return ErrorCode.LEADER_NOT_AVAILABLE if self.leader == NO_LEADER else ErrorCode.NONE


class ClusterView:
    def __init__(
        self, broker: Broker, topics: TopicCatalog, nodes: NodeCatalog, address: Callable[[], NodeAddress]
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._nodes = nodes
        # Asked for at every reply: with port 0 it is known only once the door listens.
        self._address = address
        self.node_id = address().node_id

    @property
    def cluster_id(self) -> str:
        return self._address().cluster_id

    @property
    def controller_id(self) -> int:
        """Who clients send to what changes topics; any node may do it, so this one until somebody has the seat."""
        key = self._nodes.controller
        is_found = key is not None and self._is_found(key.record.node_id)
        return key.record.node_id if key is not None and is_found else self.node_id

    @property
    def stamp(self) -> tuple[int, int]:
        """Another one as soon as anything told here has changed."""
        return self._broker.generation, self._nodes.generation

    # Nodes

    def endpoints(self, local: LocalAddress) -> list[Endpoint]:
        """Of all nodes that serve clients, by id, as a client is told whose connection ends at `local` here."""
        others = [endpoint for node in self._nodes.living() if (endpoint := self._other(node.record.node_id))]
        return sorted([*others, self._own(local)], key=lambda each: each.node_id)

    def endpoint(self, node_id: int, local: LocalAddress) -> Endpoint | None:
        """None: it does not live, or serves no clients."""
        return self._own(local) if node_id == self.node_id else self._other(node_id)

    def node_ids(self) -> list[int]:
        return [endpoint.node_id for endpoint in self.endpoints(None)]

    def _own(self, local: LocalAddress) -> Endpoint:
        address = self._address().told_to(local)
        own = self._nodes.node(self.node_id)
        return Endpoint(self.node_id, address.host, address.port, None if own is None else own.record.rack)

    def _other(self, node_id: int) -> Endpoint | None:
        """One that drains is told too: it leads until others do."""
        living = self._nodes.node(node_id)
        if node_id == self.node_id or living is None:
            return None
        record = living.record
        if record.status is Duty.STARTING or not record.port:
            return None
        return Endpoint(record.node_id, record.host, record.port, record.rack)

    def _is_found(self, node_id: int) -> bool:
        return node_id == self.node_id or self._other(node_id) is not None

    # Partitions

    def placements(self, topic: ServedTopic, first: int = 0, count: int | None = None) -> Iterator[Placement]:
        """Of its partitions from `first` on, in order."""
        end = topic.partition_count if count is None else min(topic.partition_count, first + count)
        away: dict[tuple[int, ...], tuple[int, ...]] = {}
        for index in range(first, end):
            stated = self._topics.state(topic.topic_id, index)
            if stated is None:
                return  # removed a moment ago
            state = stated.state
            if state.replicas not in away:
                away[state.replicas] = self._away(state.replicas)
            yield self._placement(topic, index, state, away[state.replicas])

    def leader(self, topic: ServedTopic, index: int) -> int:
        """NO_LEADER: nobody, or nobody whom a client would find."""
        stated = self._topics.state(topic.topic_id, index)
        return NO_LEADER if stated is None else self._leader(topic, index, stated.state)

    def _placement(self, topic: ServedTopic, index: int, state: PartitionState, offline: tuple[int, ...]) -> Placement:
        return Placement(
            index=index,
            leader=self._leader(topic, index, state),
            epoch=state.epoch,
            replicas=state.replicas,
            in_sync=state.in_sync,
            # As in Kafka: also where the node runs and its log is not to be counted on.
            offline=tuple(sorted({*offline, *state.mending})) if state.mending else offline,
            eligible=state.eligible,
        )

    def _leader(self, topic: ServedTopic, index: int, state: PartitionState) -> int:
        if state.leader == self.node_id:
            shell = topic.shell(index)
            return self.node_id if shell is not None and shell.is_leading else NO_LEADER
        living = self._nodes.node(state.leader) if self._is_found(state.leader) else None
        # In an earlier life it led, and waits to be elected anew.
        return state.leader if living is not None and state.is_led_by(state.leader, living.epoch) else NO_LEADER

    def _away(self, replicas: Sequence[int]) -> tuple[int, ...]:
        return tuple(node_id for node_id in replicas if not self._is_found(node_id))
