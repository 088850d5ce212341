"""What a node knows about topics and settings, at one revision of the metadata store. In memory, pure.

The image changes by `apply` alone, at start and live alike, and `apply` tells what has changed: from that the
broker opens and closes logs. A range is applied as the events that lead from the image to it (`events_to`),
so a node that starts, and one whose watch fell behind, take the same path as one that followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from penstock.cluster.catalog.first_placement import Runs, first_states
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Event, Range
from penstock.cluster.store.values import decode
from penstock.domain import topic_rules
from penstock.domain.replication.state import PartitionState

_NO_OVERRIDES: Final[Mapping[str, str]] = MappingProxyType({})


class Topic(msgspec.Struct, frozen=True):
    name: str
    topic_id: bytes
    partition_count: int
    overrides: dict[str, str]
    created_ms: int
    # How many replicas each partition is meant to have.
    replication: int = 1
    # Where its partitions were placed when they were made.
    placed: Runs = ()

    @property
    def is_internal(self) -> bool:
        return topic_rules.is_internal(self.name)

    def stored(self) -> StoredTopic:
        return StoredTopic(
            self.topic_id, self.partition_count, self.overrides, self.created_ms, self.replication, self.placed
        )


class StoredTopic(msgspec.Struct, frozen=True):
    """The value of `topics/{name}`. Fields are only ever added, each with a default."""

    topic_id: bytes
    partition_count: int
    overrides: dict[str, str] = {}
    created_ms: int = 0
    replication: int = 1
    # None of versions that knew one node alone: what they made belongs to that one.
    placed: Runs = ()

    def named(self, name: str) -> Topic:
        return Topic(
            name,
            self.topic_id,
            self.partition_count,
            self.overrides,
            self.created_ms,
            self.replication,
            self.placed,
        )


class RemovedTopic(msgspec.Struct, frozen=True):
    """The value of `removed-topics/{id}`."""

    name: str
    removed_ms: int = 0
    # Those that have not removed its files yet. None are named by versions that knew one node alone.
    nodes: tuple[int, ...] = ()


class TopicAdded(msgspec.Struct, frozen=True):
    topic: Topic


class TopicRemoved(msgspec.Struct, frozen=True):
    topic: Topic


class PartitionsGrown(msgspec.Struct, frozen=True):
    before: Topic
    topic: Topic


class TopicConfigChanged(msgspec.Struct, frozen=True):
    before: Topic
    topic: Topic


class NodeConfigChanged(msgspec.Struct, frozen=True):
    """`node_id` is None for the settings of all nodes."""

    node_id: int | None
    overrides: dict[str, str]


class GroupConfigChanged(msgspec.Struct, frozen=True):
    group: str
    overrides: dict[str, str]


Change = TopicAdded | TopicRemoved | PartitionsGrown | TopicConfigChanged | NodeConfigChanged | GroupConfigChanged


class TopicImage:
    def __init__(self, keys: KeySpace, *, owner_of_unplaced: int | None = None) -> None:
        self._keys = keys
        self._owner_of_unplaced = owner_of_unplaced
        # Of each topic that anybody has asked about.
        self._first_states: dict[bytes, list[PartitionState]] = {}
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._node_configs: dict[int | None, dict[str, str]] = {}
        self._group_configs: dict[str, dict[str, str]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def by_name(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def names(self) -> list[str]:
        return sorted(self._by_name)

    def topics(self) -> list[Topic]:
        return [self._by_name[name] for name in self.names()]

    def first_state(self, topic_id: bytes, index: int) -> PartitionState | None:
        """As its partition was placed; None: there is none."""
        states = self.first_states(topic_id)
        return states[index] if 0 <= index < len(states) else None

    def first_states(self, topic_id: bytes) -> list[PartitionState]:
        topic = self._by_id.get(topic_id)
        if topic is None:
            return []
        states = self._first_states.get(topic_id)
        if states is None:
            states = first_states(topic.placed, topic.partition_count, self._owner_of_unplaced)
            self._first_states[topic_id] = states
        return states

    def node_config(self, node_id: int | None) -> Mapping[str, str]:
        return self._node_configs.get(node_id, _NO_OVERRIDES)

    def group_config(self, group: str) -> Mapping[str, str]:
        return self._group_configs.get(group, _NO_OVERRIDES)

    def configured_groups(self) -> list[str]:
        return sorted(self._group_configs)

    def apply(self, events: Iterable[Event]) -> list[Change]:
        """Events of other keys are passed over: one watch serves everything under the root.

        All or nothing: a value that cannot be read raises before anything has changed, or the listeners
        would never hear of the changes that came before it.
        """
        steps = [step for event in events if (step := self._step(event)) is not None]
        return [change for step in steps for change in step()]

    def events_to(self, current: Range) -> list[Event]:
        """What leads from this image to `current`: vanished keys first, then all that is there."""
        present = {entry.key for entry in current.entries}
        known = [self._keys.topic(name) for name in self.names()]
        known += [self._keys.node_config(node_id) for node_id in self._node_configs]
        known += [self._keys.group_config(group) for group in self._group_configs]
        gone = [Event(key, None, 0, current.revision) for key in known if key not in present]
        return gone + [
            Event(entry.key, entry.value, entry.create_revision, entry.mod_revision) for entry in current.entries
        ]

    def _step(self, event: Event) -> Callable[[], list[Change]] | None:
        if event.key.startswith(self._keys.topics):
            name = event.key.removeprefix(self._keys.topics)
            topic = None if event.value is None else decode(event.key, event.value, StoredTopic).named(name)
            return partial(self._put_topic, name, topic)
        if event.key.startswith(self._keys.node_configs):
            node_id = self._keys.node_of_config(event.key)
            overrides = {} if event.value is None else decode(event.key, event.value, dict[str, str])
            return partial(self._put_node_config, node_id, overrides)
        if event.key.startswith(self._keys.group_configs):
            group = self._keys.group_of_config(event.key)
            overrides = {} if event.value is None else decode(event.key, event.value, dict[str, str])
            return partial(self._put_group_config, group, overrides)
        return None

    def _put_topic(self, name: str, after: Topic | None) -> list[Change]:
        before = self._by_name.get(name)
        if before is not None:
            del self._by_name[name], self._by_id[before.topic_id]
            self._first_states.pop(before.topic_id, None)
        if after is not None:
            self._by_name[name] = self._by_id[after.topic_id] = after
        return _changes(before, after)

    def _put_node_config(self, node_id: int | None, after: dict[str, str]) -> list[Change]:
        before = self._node_configs.pop(node_id, {})
        if after:
            self._node_configs[node_id] = after
        return [] if before == after else [NodeConfigChanged(node_id, after)]

    def _put_group_config(self, group: str, after: dict[str, str]) -> list[Change]:
        before = self._group_configs.pop(group, {})
        if after:
            self._group_configs[group] = after
        return [] if before == after else [GroupConfigChanged(group, after)]


def _changes(before: Topic | None, after: Topic | None) -> list[Change]:
    if before is None or after is None or before.topic_id != after.topic_id:
        # Another id under the same name is another topic: it inherits nothing.
        removed: list[Change] = [] if before is None else [TopicRemoved(before)]
        return removed if after is None else [*removed, TopicAdded(after)]
    changes: list[Change] = []
    if after.partition_count > before.partition_count:
        changes.append(PartitionsGrown(before, after))
    # How many replicas must be in sync follows from how many there are.
    if (after.overrides, after.replication) != (before.overrides, before.replication):
        changes.append(TopicConfigChanged(before, after))
    return changes
