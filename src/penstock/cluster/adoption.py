"""Topics that a node alone has made with a version that knew no placement: their owner writes down where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from penstock.base.log_events import get_logger
from penstock.cluster.catalog.first_placement import Run
from penstock.cluster.catalog.topic_image import StoredTopic
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Entry, MetadataStore, ModRevisionIs
from penstock.cluster.store.values import decode, encode

# One transaction for many topics: far below the engines' limit of operations.
_TOPICS_PER_TXN: Final = 60

log = get_logger("metadata")


async def adopt_topics(store: MetadataStore, keys: KeySpace, topics: TopicCatalog, *, life: int) -> int:
    """How many. Whoever is not the owner of such topics adopts nothing. A topic that is changed meanwhile is found
    placed, or is adopted at the next start."""
    owner = topics.owner_of_unplaced
    unplaced = {topic.name for topic in topics.topics() if not topic.placed}
    if owner is None or not unplaced:
        return 0
    current = await store.range(keys.topics)
    entries = [entry for entry in current.entries if entry.key.removeprefix(keys.topics) in unplaced]
    adopted = 0
    for start in range(0, len(entries), _TOPICS_PER_TXN):
        chunk = entries[start : start + _TOPICS_PER_TXN]
        puts = _placed_on(owner, life, chunk)
        result = await store.txn([ModRevisionIs(entry.key, entry.mod_revision) for entry in chunk], puts)
        if result.ok:
            adopted += len(chunk)
            await topics.wait_for(result.revision)
    log.info("topics of a node alone adopted", node=owner, topics=adopted)
    return adopted


def _placed_on(owner: int, life: int, entries: list[Entry]) -> Mapping[str, bytes]:
    stored = {entry.key: decode(entry.key, entry.value, StoredTopic) for entry in entries}
    return {
        key: encode(replace(topic, placed=(Run((owner,), life, topic.partition_count),)))
        for key, topic in stored.items()
    }
