"""Which partition fires each named schedule: looked up in memory, changed by compare-and-set in the metadata store.

The rules are in `domain/schedule/cron_place`. A change is in the image, with all that was stored before it, when its
call returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.cluster.catalog.order import Kind, Part
from penstock.cluster.catalog.watch import Followed, Listener, MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Absent, Compare, Event, ModRevisionIs, Range, StoreUnavailableError
from penstock.cluster.store.values import decode, encode
from penstock.domain.schedule.cron_place import CronPlace

# Two writers meet by chance, not as a habit.
_ATTEMPTS_MAX: Final = 10
# Of one transaction: far below the engines' limit of operations.
_NAMES_PER_TXN: Final = 60


class CronMoved(msgspec.Struct, frozen=True):
    """Named, named anew, or named no longer."""

    topic_id: bytes
    name: str


class CronImage:
    def __init__(self, keys: KeySpace) -> None:
        self._keys = keys
        self._places: dict[bytes, dict[str, tuple[CronPlace, int]]] = {}

    def get(self, topic_id: bytes, name: str) -> CronPlace | None:
        found = self._places.get(topic_id, {}).get(name)
        return None if found is None else found[0]

    def of_topic(self, topic_id: bytes) -> dict[str, CronPlace]:
        found = self._places.get(topic_id)
        return {name: found[name][0] for name in sorted(found)} if found else {}

    def topic_ids(self) -> list[bytes]:
        return sorted(self._places)

    def apply(self, events: Iterable[Event]) -> list[CronMoved]:
        """All or nothing: a value that cannot be read raises before anything has changed."""
        read = [
            (self._keys.cron_of(event.key), _read(event)) for event in events if event.key.startswith(self._keys.crons)
        ]
        for (topic_id, name), found in read:
            of_topic = self._places.setdefault(topic_id, {})
            of_topic.pop(name, None)
            if found is not None:
                of_topic[name] = found
            elif not of_topic:
                del self._places[topic_id]
        return [CronMoved(topic_id, name) for (topic_id, name), _ in read]

    def events_to(self, current: Range) -> list[Event]:
        entries = {entry.key: entry for entry in current.entries if entry.key.startswith(self._keys.crons)}
        known = {
            self._keys.cron(topic_id, name): revision
            for topic_id, of_topic in self._places.items()
            for name, (_, revision) in of_topic.items()
        }
        gone = [Event(key, None, 0, current.revision) for key in known if key not in entries]
        return gone + [
            Event(entry.key, entry.value, entry.create_revision, entry.mod_revision)
            for entry in entries.values()
            if known.get(entry.key) != entry.mod_revision
        ]


class CronCatalog:
    def __init__(self, watch: MetadataWatch) -> None:
        self._store = watch.store
        self._keys = watch.keys
        self._image = CronImage(watch.keys)
        # Started and stopped with the topics.
        self.followed: Followed[CronMoved] = watch.follow(Kind.CRONS, self._image)

    def on_change(self, listener: Listener[CronMoved], part: Part | None = None) -> None:
        """Called on the loop; it must not raise."""
        self.followed.on_change(listener, part)

    def get(self, topic_id: bytes, name: str) -> CronPlace | None:
        return self._image.get(topic_id, name)

    def of_topic(self, topic_id: bytes) -> dict[str, CronPlace]:
        return self._image.of_topic(topic_id)

    def orphans(self, is_gone: Callable[[bytes], bool]) -> list[str]:
        """Keys of topics that are gone."""
        gone = [topic_id for topic_id in self._image.topic_ids() if is_gone(topic_id)]
        return [self._keys.cron(topic_id, name) for topic_id in gone for name in self._image.of_topic(topic_id)]

    async def read(self, topic_id: bytes, name: str) -> CronPlace | None:
        """As it stands in the store, and in the image when this returns."""
        place, revision = await self._read(self._keys.cron(topic_id, name))
        if revision:
            await self.followed.wait_for(revision)
        return place

    async def change(
        self, topic_id: bytes, name: str, change: Callable[[CronPlace | None], CronPlace | None]
    ) -> CronPlace | None:
        """What it makes of what is stored is stored; None: nothing is changed. As it stands then."""
        key = self._keys.cron(topic_id, name)
        for _ in range(_ATTEMPTS_MAX):
            place, revision = await self._read(key)
            wanted = change(place)
            if wanted is None or wanted == place:
                if revision:
                    await self.followed.wait_for(revision)
                return place
            result = await self._store.txn([_compare(key, revision)], puts={key: encode(wanted)})
            if result.ok:
                await self.followed.wait_for(result.revision)
                return wanted
        raise StoreUnavailableError(f"{key} was changed by others {_ATTEMPTS_MAX} times in a row")

    async def remove(self, topic_id: bytes, name: str, place: CronPlace) -> None:
        """If it is still there, and still says this."""
        key = self._keys.cron(topic_id, name)
        stored, revision = await self._read(key)
        if stored == place:
            result = await self._store.txn([_compare(key, revision)], deletes=[key])
            if result.ok:
                await self.followed.wait_for(result.revision)

    async def adopt(self, topic_id: bytes, places: Sequence[tuple[str, CronPlace]]) -> None:
        """Names from before there were keys. What others were faster with stays as they have it."""
        for start in range(0, len(places), _NAMES_PER_TXN):
            some = {self._keys.cron(topic_id, name): place for name, place in places[start : start + _NAMES_PER_TXN]}
            result = await self._store.txn(
                [Absent(key) for key in some], puts={key: encode(place) for key, place in some.items()}
            )
            if result.ok:
                await self.followed.wait_for(result.revision)
                continue
            for name, place in places[start : start + _NAMES_PER_TXN]:
                await self.change(topic_id, name, partial(_if_absent, place))

    async def _read(self, key: str) -> tuple[CronPlace | None, int]:
        entry = await self._store.get(key)
        return (None, 0) if entry is None else (decode(key, entry.value, CronPlace), entry.mod_revision)


def _if_absent(place: CronPlace, stored: CronPlace | None) -> CronPlace | None:
    return place if stored is None else None


def _compare(key: str, revision: int) -> Compare:
    return ModRevisionIs(key, revision) if revision else Absent(key)


def _read(event: Event) -> tuple[CronPlace, int] | None:
    if event.value is None:
        return None
    return decode(event.key, event.value, CronPlace), event.mod_revision
