"""Before anything is served: do the metadata and the directories tell of the same topics?

    fits                        → go on
    deleted, files still here   → the deletion is finished: a node was killed in the middle of it
    anything else               → the start is refused, with what does not fit and the way out

Metadata that have lost a topic look as if nobody had ever made it. A node that believed them would make it anew, at
offset 0, and forget what its groups have read. So whatever lies on the disk must be known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.topic.companion import CompanionKind, companion_id
from penstock.cluster.catalog.topic_image import RemovedTopic, StoredTopic, Topic
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore, StoreDamagedError, StoreFullError
from penstock.cluster.store.values import decode
from penstock.storage.repair.directory import TopicOnDisk, read_cluster_id, survey_topics, write_cluster_id
from penstock.storage.store import LogStore

log = get_logger("broker")

# A sentence names so many; the command that it names shows all.
_NAMED_MAX: Final = 3


class MetadataMisfitError(StoreDamagedError):
    """The metadata and the data directory do not belong together."""


class Misfit(msgspec.Struct, frozen=True):
    topic: TopicOnDisk
    reason: str


class Comparison(msgspec.Struct, frozen=True):
    misfits: tuple[Misfit, ...]
    # Deleted topics whose files, or those of their companions, are still here.
    leftovers: tuple[bytes, ...]


def compare(on_disk: Iterable[TopicOnDisk], topics: Mapping[bytes, Topic], removed: Iterable[bytes]) -> Comparison:
    expected = {**topics, **companions_of(topics.values())}
    gone = {topic_id for removed_id in removed for topic_id in (removed_id, *companion_ids(removed_id))}
    misfits: list[Misfit] = []
    leftovers: list[bytes] = []
    for found in on_disk:
        known = expected.get(found.topic_id)
        if known is None and found.topic_id in gone:
            leftovers.append(found.topic_id)
            continue
        reason = "the metadata do not know it" if known is None else _difference(found, known)
        if reason is not None:
            misfits.append(Misfit(found, reason))
    return Comparison(tuple(misfits), tuple(leftovers))


def companions_of(topics: Iterable[Topic]) -> dict[bytes, Topic]:
    """What lies beside topics, as if it were topics."""
    return {
        companion_id(topic.topic_id, kind): msgspec.structs.replace(topic, name=f"{topic.name}.{kind}")
        for topic in topics
        for kind in CompanionKind
    }


def companion_ids(topic_id: bytes) -> list[bytes]:
    return [companion_id(topic_id, kind) for kind in CompanionKind]


def _difference(found: TopicOnDisk, known: Topic) -> str | None:
    if found.name is not None and found.name != known.name:
        return f"the metadata call it {known.name!r}"
    highest = found.partitions[-1]
    if highest >= known.partition_count:
        return f"it has a partition {highest}, and by the metadata {known.partition_count} partitions"
    return None


class DataDirectory:
    def __init__(self, store: LogStore, metadata: MetadataStore, keys: KeySpace) -> None:
        self._store = store
        self._files = store.context.files
        self._metadata = metadata
        self._keys = keys

    async def check(self) -> None:
        """Raises MetadataMisfitError; the store has not been changed then."""
        on_disk = await asyncio.to_thread(survey_topics, self._files, self._store.root)
        belongs_to = await asyncio.to_thread(read_cluster_id, self._files, self._store.root)
        current = await self._metadata.range(self._keys.root)
        values = {entry.key: entry.value for entry in current.entries}
        self._check_cluster(belongs_to, values.get(self._keys.cluster_id))
        topics = stored_topics(values, self._keys)
        removed = removed_topics(values, self._keys)
        comparison = compare(on_disk, topics, removed)
        if comparison.misfits:
            raise MetadataMisfitError(self._sentence(comparison.misfits, len(on_disk)))
        await self._finish_removals(comparison.leftovers, _notes_without_nodes(values, self._keys))

    async def claim(self, cluster_id: str) -> None:
        """From now on it is of this cluster. Another's metadata, or none, are refused."""
        if await asyncio.to_thread(read_cluster_id, self._files, self._store.root) == cluster_id:
            return
        try:
            await asyncio.to_thread(write_cluster_id, self._files, self._store.root, cluster_id)
        except OSError as error:
            # A full disk is no reason not to serve what is on it; the next start tries again.
            log.warning("the cluster's id is not in the data directory", root=self._store.root, error=str(error))

    def _check_cluster(self, belongs_to: str | None, value: bytes | None) -> None:
        cluster_id = None if value is None else decode(self._keys.cluster_id, value, str)
        if belongs_to not in (None, cluster_id):
            raise MetadataMisfitError(
                f"the data directory {self._store.root} belongs to the cluster {belongs_to}, and the metadata "
                + ("are of none: they are new" if cluster_id is None else f"are of the cluster {cluster_id}")
            )

    def _sentence(self, misfits: Sequence[Misfit], total: int) -> str:
        named = "; ".join(
            f"{misfit.topic.topic_id.hex()} (topic {misfit.topic.name or 'unknown'}): {misfit.reason}"
            for misfit in misfits[:_NAMED_MAX]
        )
        more = len(misfits) - _NAMED_MAX
        rest = f"; and {more} more" if more > 0 else ""
        return (
            f"{len(misfits)} of {total} directories in {self._store.logs_directory} "
            f"do not fit the metadata: {named}{rest}"
        )

    async def _finish_removals(self, leftovers: Iterable[bytes], notes: Sequence[str]) -> None:
        """`notes` are those that nobody else has to answer for; the others are answered by each node that they name,
        once it knows who it is."""
        for topic_id in leftovers:
            log.info("files of a deleted topic removed", topic_id=topic_id.hex())
            await asyncio.to_thread(self._store.remove_topic(topic_id).run)
        try:
            if notes:
                await self._metadata.txn(deletes=notes)
        except StoreFullError as error:
            # A full disk is no reason not to serve what is on it; the next start tries again.
            log.warning("deletions of topics are still noted", topics=len(notes), error=str(error))


def stored_topics(values: Mapping[str, bytes], keys: KeySpace) -> dict[bytes, Topic]:
    found = [
        decode(key, value, StoredTopic).named(key.removeprefix(keys.topics))
        for key, value in values.items()
        if key.startswith(keys.topics)
    ]
    return {topic.topic_id: topic for topic in found}


def _notes_without_nodes(values: Mapping[str, bytes], keys: KeySpace) -> list[str]:
    return [
        key
        for key, value in values.items()
        if key.startswith(keys.removed_topics) and not decode(key, value, RemovedTopic).nodes
    ]


def removed_topics(values: Mapping[str, bytes], keys: KeySpace) -> list[bytes]:
    return [keys.removed_topic_of(key) for key in values if key.startswith(keys.removed_topics)]
