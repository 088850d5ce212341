"""Who leads each partition and who is in sync, at one revision of the metadata store. In memory, pure.

A partition that nobody has changed since it was made has no key, and stands where its topic was first placed. Keys of a
topic that is gone are orphans until the controller has swept them, and nobody hears of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from penstock.cluster.catalog.topic_image import TopicImage
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Event, Range
from penstock.cluster.store.values import decode
from penstock.domain.replication.state import PartitionState

# The state epoch of a partition that has no key.
UNCHANGED: Final = 0


class Stated(msgspec.Struct, frozen=True):
    """A partition's state, and the revision that a compare-and-set of it has to name."""

    state: PartitionState
    state_epoch: int = UNCHANGED


class PartitionChanged(msgspec.Struct, frozen=True):
    topic_id: bytes
    index: int
    stated: Stated


class PartitionImage:
    def __init__(self, keys: KeySpace, topics: TopicImage) -> None:
        self._keys = keys
        self._topics = topics
        self._stated: dict[bytes, dict[int, Stated]] = {}

    def get(self, topic_id: bytes, index: int) -> Stated | None:
        """None: there is no such partition."""
        first = self._topics.first_state(topic_id, index)
        if first is None:
            return None
        changed = self._stated.get(topic_id)
        return (changed.get(index) if changed else None) or Stated(first)

    def of_topic(self, topic_id: bytes) -> Iterator[tuple[int, Stated]]:
        """All of its partitions, in order."""
        changed = self._stated.get(topic_id, {})
        for index, first in enumerate(self._topics.first_states(topic_id)):
            yield index, changed.get(index) or Stated(first)

    def orphans(self) -> list[str]:
        """Keys of topics that are gone."""
        gone = sorted(topic_id for topic_id in self._stated if self._topics.by_id(topic_id) is None)
        return [self._keys.partition(topic_id, index) for topic_id in gone for index in sorted(self._stated[topic_id])]

    def apply(self, events: Iterable[Event]) -> list[PartitionChanged]:
        prefix = self._keys.partitions
        # Read before anything is changed: all or nothing.
        read = [
            (self._keys.partition_of(event.key), _stated(event)) for event in events if event.key.startswith(prefix)
        ]
        changes = [self._put(place, stated) for place, stated in read]
        return [change for change in changes if change is not None]

    def events_to(self, current: Range) -> list[Event]:
        present = {entry.key for entry in current.entries}
        known = [self._keys.partition(topic_id, index) for topic_id, each in self._stated.items() for index in each]
        gone = [Event(key, None, 0, current.revision) for key in known if key not in present]
        return gone + [
            Event(entry.key, entry.value, entry.create_revision, entry.mod_revision)
            for entry in current.entries
            if entry.key.startswith(self._keys.partitions)
        ]

    def _put(self, place: tuple[bytes, int], stated: Stated | None) -> PartitionChanged | None:
        topic_id, index = place
        of_topic = self._stated.setdefault(topic_id, {})
        before = of_topic.pop(index, None)
        if stated is not None:
            of_topic[index] = stated
        elif not of_topic:
            del self._stated[topic_id]
        now = self.get(topic_id, index)
        return None if now is None or before == stated else PartitionChanged(topic_id, index, now)


def _stated(event: Event) -> Stated | None:
    if event.value is None:
        return None
    return Stated(decode(event.key, event.value, PartitionState), event.mod_revision)
