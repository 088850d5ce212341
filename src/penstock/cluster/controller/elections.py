"""Which partitions are to be looked at, and what is to become of them: the rules of `domain.replication`, asked with
what the catalogs know. Nothing is written here.

A change of a node concerns all partitions, one of a partition that one alone. Partitions that were placed alike and
never changed share one state, which is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from penstock.base.long_work import Steps
from penstock.cluster.catalog.first_placement import Run
from penstock.cluster.catalog.nodes import NodeCatalog
from penstock.cluster.catalog.partition_image import UNCHANGED, Stated
from penstock.cluster.catalog.topic_image import Topic
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Absent, Compare, ModRevisionIs
from penstock.domain.config.topic import make_topic_config
from penstock.domain.replication.election import choose, is_lost_by_all
from penstock.domain.replication.membership import Trust, distrust
from penstock.domain.replication.sets import minimum_in_sync
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import Duty, View

_MINIMUM: Final = "min.insync.replicas"
# More of them are looked at in slices, with everything else that is due.
_RUNS_AT_A_GLANCE: Final = 100

# What is believed of nodes that ask to be admitted.
Doubts = Mapping[int, Trust]
# The topic's id and the partition's number.
Place = tuple[bytes, int]


class StateChange(msgspec.Struct, frozen=True):
    place: Place
    before: Stated
    after: PartitionState

    @property
    def is_urgent(self) -> bool:
        """Another leads, or nobody does: more than a follower is lost."""
        return self.after.epoch != self.before.state.epoch

    def compare(self, keys: KeySpace) -> Compare:
        key = keys.partition(*self.place)
        return Absent(key) if self.before.state_epoch == UNCHANGED else ModRevisionIs(key, self.before.state_epoch)


class Elections:
    def __init__(self, topics: TopicCatalog, nodes: NodeCatalog) -> None:
        self._topics = topics
        self._nodes = nodes
        # In the order in which they were named.
        self._due: dict[Place, None] = {}
        self._are_all_due = True
        # Those of which nobody is left who surely holds what is committed.
        self.lost: dict[Place, Stated] = {}

    def look_at_all(self) -> None:
        self._are_all_due = True

    def look_at(self, places: Iterable[Place]) -> None:
        if not self._are_all_due:
            self._due.update(dict.fromkeys(places))

    def look_at_topic(self, topic: Topic) -> bool:
        """Whether there is anything to look at. Nearly every new topic was placed a moment ago, on nodes that serve."""
        if len(topic.placed) <= _RUNS_AT_A_GLANCE and all(map(self._is_as_placed, topic.placed)):
            return False
        self.look_at((topic.topic_id, index) for index in range(topic.partition_count))
        return True

    def plan(self, doubts: Doubts) -> Steps[list[StateChange]]:
        """What is to be changed, the most urgent first. Nothing is due afterwards until it is named again."""
        due, are_all_due = self._due, self._are_all_due
        self._due, self._are_all_due = {}, False
        view = self._nodes.view()
        changes: list[StateChange] = []
        wanted = self._everything() if are_all_due else self._named(due)
        for topic, partitions in wanted:
            rules = _Rules(topic, minimum_of(topic, self._topics), view, doubts)
            for index, stated in partitions:
                after = rules.apply(stated.state)
                if after is not None:
                    changes.append(StateChange((topic.topic_id, index), stated, after))
                self._note_lost((topic.topic_id, index), stated)
                yield
        return sorted(changes, key=lambda change: not change.is_urgent)

    def shared(self) -> Steps[dict[Place, Stated]]:
        """All partitions that somebody else could lead."""
        found: dict[Place, Stated] = {}
        for topic, partitions in self._everything():
            for index, stated in partitions:
                if len(stated.state.replicas) > 1:
                    found[topic.topic_id, index] = stated
                yield
        return found

    def _note_lost(self, place: Place, stated: Stated) -> None:
        if stated.state.unsure and is_lost_by_all(stated.state):
            self.lost[place] = stated
        elif self.lost:
            self.lost.pop(place, None)

    def _is_as_placed(self, run: Run) -> bool:
        nodes = [self._nodes.node(node_id) for node_id in run.replicas]
        is_served = all(
            node is not None and node.record.status is Duty.SERVING and self._nodes.is_admitted(node.record.node_id)
            for node in nodes
        )
        return is_served and nodes[0] is not None and nodes[0].epoch == run.life

    def _everything(self) -> Iterator[tuple[Topic, Iterable[tuple[int, Stated]]]]:
        for topic in self._topics.topics():
            yield topic, self._topics.states(topic.topic_id)

    def _named(self, due: Iterable[Place]) -> Iterator[tuple[Topic, Iterable[tuple[int, Stated]]]]:
        for topic_id, index in due:
            topic, stated = self._topics.by_id(topic_id), self._topics.state(topic_id, index)
            if topic is not None and stated is not None:
                yield topic, [(index, stated)]


def minimum_of(topic: Topic, topics: TopicCatalog) -> int:
    """How many must be in sync, by its own setting or that of all nodes."""
    text = topic.overrides.get(_MINIMUM) or topics.node_config(None).get(_MINIMUM)
    return minimum_in_sync(None if text is None else int(text), topic.replication)


class _Rules:
    """For the partitions of one topic."""

    def __init__(self, topic: Topic, minimum: int, view: View, doubts: Doubts) -> None:
        self._minimum = minimum
        self._view = view
        self._doubts = doubts
        self._is_synced = not doubts or make_topic_config(topic.overrides, {}).is_synced
        # By identity, which is cheaper than equality: the image holds on to every state meanwhile.
        self._seen: dict[int, PartitionState | None] = {}

    def apply(self, state: PartitionState) -> PartitionState | None:
        """None: it stays as it is."""
        key = id(state)
        if key not in self._seen:
            self._seen[key] = self._decide(state)
        return self._seen[key]

    def _decide(self, state: PartitionState) -> PartitionState | None:
        trusted = state
        for node, trust in sorted(self._doubts.items()):
            trusted = distrust(trusted, node, trust, is_synced=self._is_synced) or trusted
        after = choose(trusted, self._view, minimum=self._minimum) or trusted
        return None if after == state else after
