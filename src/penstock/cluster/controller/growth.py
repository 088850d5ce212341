"""Internal topics get replicas by themselves: three, or as many as there are nodes. Other topics on demand alone.

    a node serves that could have another replica ──► adding, a few at a time ──► in sync ──► one of the replicas
        ──► all partitions have grown ──► the topic says so, and with it how many must be in sync

Nothing is written here. What is under way stands in the partitions' states: a controller that takes over goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from penstock.cluster.catalog.nodes import NodeCatalog
from penstock.cluster.catalog.partition_image import Stated
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.controller.elections import Place, StateChange
from penstock.domain.replication.growth import INTERNAL_REPLICATION, add, added, give_up, next_replica
from penstock.domain.replication.placement import PlaceableNode
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import View


class Growth:
    def __init__(self, topics: TopicCatalog, nodes: NodeCatalog) -> None:
        self._topics = topics
        self._nodes = nodes
        # Something has changed that another replica could follow from.
        self.is_due = True

    def look(self) -> None:
        self.is_due = True

    def look_at(self, topic_id: bytes) -> None:
        topic = self._topics.by_id(topic_id)
        self.is_due = self.is_due or (topic is not None and topic.is_internal)

    def plan(self) -> list[StateChange]:
        """What is to be changed now. Nothing is due afterwards until something has changed."""
        self.is_due = False
        # Without an internal door it could neither fetch nor be fetched from.
        serving = [each for each in self._nodes.serving() if each.record.internal]
        nodes = [PlaceableNode(each.record.node_id, each.record.rack) for each in serving]
        # Also where nobody more is wanted: who has come into sync is to be electable, above all while others leave.
        wanted = min(INTERNAL_REPLICATION, len(nodes))
        return list(_Round(self._internal(), nodes, wanted, self._nodes.view()).changes())

    def grown(self) -> dict[str, int]:
        """Topics whose partitions all have more replicas than the topic says, and how many they have."""
        found = {}
        for topic in self._topics.topics():
            if topic.is_internal:
                states = [stated.state for _, stated in self._topics.states(topic.topic_id)]
                count = min(len(state.replicas) for state in states)
                if count > topic.replication and not any(state.adding for state in states):
                    found[topic.name] = count
        return found

    def _internal(self) -> list[tuple[Place, Stated]]:
        return [
            ((topic.topic_id, index), stated)
            for topic in self._topics.topics()
            if topic.is_internal
            for index, stated in self._topics.states(topic.topic_id)
        ]


class _Round:
    """One look at all internal partitions, with what it changes counted in."""

    def __init__(
        self, partitions: list[tuple[Place, Stated]], nodes: list[PlaceableNode], wanted: int, view: View
    ) -> None:
        self._partitions = partitions
        self._nodes = nodes
        self._wanted = wanted
        self._view = view
        states = [stated.state for _, stated in partitions]
        self._moving = Counter(node for state in states for node in state.adding)
        self._held = Counter(node for state in states for node in (*state.replicas, *state.adding))
        self._preferred = Counter(state.replicas[0] for state in states if state.replicas)

    def changes(self) -> Iterator[StateChange]:
        for place, stated in self._partitions:
            after = self._decide(stated.state)
            if after is not None:
                yield StateChange(place, stated, after)

    def _decide(self, state: PartitionState) -> PartitionState | None:
        joined = [node for node in state.adding if node in state.in_sync]
        if joined:
            return self._added(state, joined[0])
        if len(state.replicas) + len(state.adding) < self._wanted:
            return self._add(state)
        return give_up(state, self._view, [node.id for node in self._nodes])

    def _added(self, state: PartitionState, node: int) -> PartitionState | None:
        # Of those that came later some are to be led there: all coordinators would stay where they were made.
        is_first = self._preferred[node] + 1 < self._preferred[state.replicas[0]]
        if is_first:
            self._preferred[state.replicas[0]] -= 1
            self._preferred[node] += 1
        return added(state, first=is_first)

    def _add(self, state: PartitionState) -> PartitionState | None:
        node = next_replica(state, self._nodes, self._held, self._moving)
        after = None if node is None else add(state, node, self._view)
        if node is not None and after is not None:
            self._moving[node] += 1
            self._held[node] += 1
        return after
