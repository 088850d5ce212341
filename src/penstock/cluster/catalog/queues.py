"""The queues of a cluster: looked up in memory, changed by compare-and-set in the metadata store, as topics are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.cluster.catalog.order import Kind, Part
from penstock.cluster.catalog.watch import Listener, MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import (
    Absent,
    Event,
    ModRevisionIs,
    Range,
    StoreUnavailableError,
)
from penstock.cluster.store.values import decode, encode
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions

_ATTEMPTS_MAX: Final = 10


class StoredQueue(msgspec.Struct, frozen=True):
    """The value of `queues/{topic}/{group}`. Fields are only ever added, each with a default."""

    topic_id: bytes
    options: QueueOptions = QueueOptions()
    created_ms: int = 0
    changed_ms: int = 0
    partition_count: int = 0
    hidden_below: tuple[int, ...] = ()


class QueueChanged(msgspec.Struct, frozen=True):
    """Defined anew, or differently."""

    definition: QueueDefinition


class QueueRemoved(msgspec.Struct, frozen=True):
    definition: QueueDefinition


QueueChange = QueueChanged | QueueRemoved


class QueueImage:
    def __init__(self, keys: KeySpace) -> None:
        self._keys = keys
        self._by_name: dict[QueueName, QueueDefinition] = {}
        self._revisions: dict[str, int] = {}

    def get(self, name: QueueName) -> QueueDefinition | None:
        return self._by_name.get(name)

    def all(self) -> list[QueueDefinition]:
        return [self._by_name[name] for name in sorted(self._by_name)]

    def apply(self, events: Iterable[Event]) -> list[QueueChange]:
        """All or nothing: a value that cannot be read raises before anything has changed."""
        read = [(event, self._read(event)) for event in events if event.key.startswith(self._keys.queues)]
        changes: list[QueueChange] = []
        for event, definition in read:
            if definition is None:
                self._revisions.pop(event.key, None)
                removed = self._by_name.pop(self._keys.queue_of(event.key), None)
                if removed is not None:
                    changes.append(QueueRemoved(removed))
                continue
            self._revisions[event.key] = event.mod_revision
            self._by_name[definition.name] = definition
            changes.append(QueueChanged(definition))
        return changes

    def _read(self, event: Event) -> QueueDefinition | None:
        if event.value is None:
            return None
        return _defined(self._keys.queue_of(event.key), decode(event.key, event.value, StoredQueue))

    def events_to(self, current: Range) -> list[Event]:
        entries = {entry.key: entry for entry in current.entries if entry.key.startswith(self._keys.queues)}
        gone = [Event(key, None, 0, current.revision) for key in self._revisions if key not in entries]
        changed = [
            Event(entry.key, entry.value, entry.create_revision, entry.mod_revision)
            for entry in entries.values()
            if self._revisions.get(entry.key) != entry.mod_revision
        ]
        return gone + changed


class QueueCatalog:
    def __init__(self, watch: MetadataWatch, *, clock: Clock) -> None:
        self._store = watch.store
        self._keys = watch.keys
        self._clock = clock
        self._image = QueueImage(watch.keys)
        self._watch = watch.follow(Kind.QUEUES, self._image)

    def on_change(self, listener: Listener[QueueChange], part: Part | None = None) -> None:
        """Called on the loop; it must not raise."""
        self._watch.on_change(listener, part)

    async def start(self) -> None:
        await self._watch.start()

    async def stop(self) -> None:
        await self._watch.stop()

    def get(self, name: QueueName) -> QueueDefinition | None:
        return self._image.get(name)

    def all(self) -> list[QueueDefinition]:
        return self._image.all()

    async def create(
        self, name: QueueName, topic_id: bytes, options: QueueOptions, partition_count: int
    ) -> QueueDefinition:
        """The queue as it is defined then: by this call, or by somebody who was faster. A definition that is left
        from an earlier topic of the name is replaced."""
        key = self._keys.queue(name)
        now_ms = self._clock.now_ms()
        wanted = StoredQueue(topic_id, options, now_ms, now_ms, partition_count)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            if entry is not None and decode(key, entry.value, StoredQueue).topic_id == topic_id:
                await self._watch.wait_for(entry.mod_revision)
                return self._known(name)
            compare = Absent(key) if entry is None else ModRevisionIs(key, entry.mod_revision)
            result = await self._store.txn([compare], puts={key: encode(wanted)})
            if result.ok:
                await self._watch.wait_for(result.revision)
                return self._known(name)
        raise _contended(key)

    async def change(self, name: QueueName, change: Callable[[QueueOptions], QueueOptions]) -> QueueDefinition | None:
        """None: there is no such queue."""

        def changed(stored: StoredQueue) -> StoredQueue:
            return msgspec.structs.replace(stored, options=change(stored.options), changed_ms=self._clock.now_ms())

        return await self._rewrite(name, changed)

    async def hide(self, name: QueueName, hidden_below: tuple[int, ...]) -> QueueDefinition | None:
        """Delayed messages from before these places are not for this queue. None: there is no such queue."""
        return await self._rewrite(name, lambda stored: msgspec.structs.replace(stored, hidden_below=hidden_below))

    async def _rewrite(self, name: QueueName, rewrite: Callable[[StoredQueue], StoredQueue]) -> QueueDefinition | None:
        key = self._keys.queue(name)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            if entry is None:
                return None
            wanted = rewrite(decode(key, entry.value, StoredQueue))
            result = await self._store.txn([ModRevisionIs(key, entry.mod_revision)], puts={key: encode(wanted)})
            if result.ok:
                await self._watch.wait_for(result.revision)
                return self._known(name)
        raise _contended(key)

    async def delete(self, name: QueueName, *, topic_id: bytes | None = None) -> bool:
        """False: there was none, or not on the topic that is meant: it was made anew on another of the name."""
        key = self._keys.queue(name)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            if entry is None or topic_id not in (None, decode(key, entry.value, StoredQueue).topic_id):
                return False
            result = await self._store.txn([ModRevisionIs(key, entry.mod_revision)], deletes=[key])
            if result.ok:
                await self._watch.wait_for(result.revision)
                return True
        raise _contended(key)

    def _known(self, name: QueueName) -> QueueDefinition:
        found = self._image.get(name)
        if found is None:
            raise StoreUnavailableError(f"the queue {name} was removed a moment ago")
        return found


def _contended(key: str) -> StoreUnavailableError:
    return StoreUnavailableError(f"{key} was changed by others {_ATTEMPTS_MAX} times in a row")


def _defined(name: QueueName, stored: StoredQueue) -> QueueDefinition:
    return QueueDefinition(
        name,
        stored.topic_id,
        stored.options,
        stored.created_ms,
        stored.changed_ms,
        stored.partition_count,
        stored.hidden_below,
    )
