"""`penstock metadata adopt`: a cluster goes on with a store that is empty, or behind what a node has acted on.

    what the store has, what the directory has ──► topics that only the directory knows are added
        ──► every partition's epoch is raised, every replica of several is unsure ──► members are judged anew
        ──► last, the new generation: from then on nodes start

One node begins the generation. Another whose directory has topics that no store knows adds what it has; any other is
told that there is nothing to do. No node runs meanwhile: the command sees to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.broker.directory.agreement import stored_topics
from penstock.broker.directory.rebuild import RebuildPlan, fresh_producer_ids, make_plan
from penstock.broker.directory.sources import Sources
from penstock.cluster.catalog.first_placement import Run, first_states
from penstock.cluster.catalog.nodes import NodeRecord
from penstock.cluster.catalog.topic_image import Topic
from penstock.cluster.generation import Generation, generation_of
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Absent, Compare, MetadataStore, ModRevisionIs, Range, StoreUnavailableError
from penstock.cluster.store.values import decode, encode
from penstock.domain.replication.adoption import EPOCHS_RAISED, adopted, with_found
from penstock.domain.replication.membership import MemberRecord
from penstock.domain.replication.state import NO_LIFE, PartitionState, first_state
from penstock.storage.files.identity import DirectoryIdentity
from penstock.storage.repair.directory import TopicOnDisk

# Far below the engines' limit of operations in one transaction.
_PUTS_A_STEP: Final = 60


class AdoptionRefusedError(Exception):
    """A sentence: why this store cannot be adopted."""


class AdoptionPlan(msgspec.Struct, frozen=True):
    # The generation that begins; the one that is there where nothing is to be done but to add.
    generation: int
    store_revision: int
    acted_on: int
    topics: int
    partitions: int
    # Known from this directory alone.
    added: tuple[str, ...]
    # Sentences: what `--accept` accepts.
    losses: tuple[str, ...]
    is_needless: bool


class Adoption(msgspec.Struct, frozen=True):
    plan: AdoptionPlan
    puts: dict[str, bytes]
    # Written last, and compared: two nodes must not begin one generation.
    generation: bytes
    generation_revision: int


def plan_adoption(
    current: Range, on_disk: Sequence[TopicOnDisk], identity: DirectoryIdentity, *, keys: KeySpace, now_ms: int
) -> Adoption:
    """Raises AdoptionRefusedError."""
    values = {entry.key: entry.value for entry in current.entries}
    _refuse(values, identity, keys)
    before = generation_of(values, keys)
    rebuilt = _rebuilt(values, current.revision, on_disk, identity, keys, now_ms)
    begins = keys.cluster_id not in values or _is_behind(before, current.revision, identity)
    entries = dict(rebuilt.entries)
    added = tuple(each.name for each in rebuilt.plan.added)
    found = {bytes.fromhex(each) for each in before.found} | {
        bytes.fromhex(each.topic_id) for each in rebuilt.plan.added
    }
    number = max(before.number, identity.generation) + 1 if begins else before.number
    _place_found(entries, values, found, on_disk, identity.node_id, keys)
    if begins:
        _raise_epochs(entries, found, keys)
        _judge_anew(entries, keys)
        # Ids were taken since the copy was made, and the logs know them.
        entries[keys.producer_ids] = encode(fresh_producer_ids(values.get(keys.producer_ids), keys, now_ms))
    elif keys.producer_ids in values:
        entries[keys.producer_ids] = values[keys.producer_ids]
    puts = {key: value for key, value in entries.items() if values.get(key) != value}
    generation = Generation(number, now_ms if begins else before.began_ms, tuple(sorted(each.hex() for each in found)))
    topics = stored_topics(entries, keys).values()
    plan = AdoptionPlan(
        generation=number,
        store_revision=current.revision,
        acted_on=identity.metadata_revision,
        topics=len(topics),
        partitions=sum(topic.partition_count for topic in topics),
        added=added,
        losses=(*_losses(begins=begins), *rebuilt.plan.losses),
        is_needless=not begins and not puts,
    )
    entry = next((each for each in current.entries if each.key == keys.adopted), None)
    return Adoption(plan, puts, encode(generation), 0 if entry is None else entry.mod_revision)


async def adopt(store: MetadataStore, adoption: Adoption, keys: KeySpace) -> None:
    """Whoever is interrupted begins anew: until the generation is written, no node starts with it."""
    puts = list(adoption.puts.items())
    for start in range(0, len(puts), _PUTS_A_STEP):
        await store.txn((), dict(puts[start : start + _PUTS_A_STEP]))
    revision = adoption.generation_revision
    unchanged: Compare = ModRevisionIs(keys.adopted, revision) if revision else Absent(keys.adopted)
    if not (await store.txn([unchanged], {keys.adopted: adoption.generation})).ok:
        raise StoreUnavailableError("another node has adopted the metadata meanwhile: look again")


def _refuse(values: dict[str, bytes], identity: DirectoryIdentity, keys: KeySpace) -> None:
    living = [decode(key, value, NodeRecord) for key, value in values.items() if key.startswith(keys.nodes)]
    if living:
        held = living[0]
        raise AdoptionRefusedError(
            f"node {held.node_id} runs at {held.host}:{held.port}, or did so some seconds ago: stop all nodes first"
        )
    value = values.get(keys.cluster_id)
    cluster_id = None if value is None else decode(keys.cluster_id, value, str)
    if cluster_id not in (None, identity.cluster_id):
        raise AdoptionRefusedError(
            f"the metadata are of the cluster {cluster_id}, and the data directory of {identity.cluster_id}"
        )


def _is_behind(before: Generation, revision: int, identity: DirectoryIdentity) -> bool:
    if before.number != identity.generation:
        return before.number < identity.generation
    return identity.metadata_revision > revision


class _Rebuilt(msgspec.Struct, frozen=True):
    plan: RebuildPlan
    entries: dict[str, bytes]


def _rebuilt(
    values: dict[str, bytes],
    revision: int,
    on_disk: Sequence[TopicOnDisk],
    identity: DirectoryIdentity,
    keys: KeySpace,
    now_ms: int,
) -> _Rebuilt:
    is_used = keys.cluster_id in values
    sources = Sources(dict(values), revision, (), is_whole=is_used, is_complete=is_used)
    rebuild = make_plan(sources, on_disk, belongs_to=identity.cluster_id, keys=keys, now_ms=now_ms)
    if rebuild.plan.set_aside or rebuild.plan.renamed:
        named = ", ".join(
            f"{each.topic_id} ({each.name or 'unknown'}): {each.reason}"
            for each in (*rebuild.plan.set_aside, *rebuild.plan.renamed)
        )
        raise AdoptionRefusedError(f"directories that no topic can be made of have to be moved away first: {named}")
    return _Rebuilt(rebuild.plan, rebuild.entries)


def _place_found(
    entries: dict[str, bytes],
    values: dict[str, bytes],
    found: set[bytes],
    on_disk: Sequence[TopicOnDisk],
    node_id: int,
    keys: KeySpace,
) -> None:
    """Topics that are known from directories alone are where they were found."""
    here = {each.topic_id: each.partitions for each in on_disk}
    for topic in stored_topics(entries, keys).values():
        if topic.topic_id not in found:
            continue
        if not topic.placed:
            topic = replace(topic, placed=(Run((node_id,), NO_LIFE, topic.partition_count),))
        for index in here.get(topic.topic_id, ()):
            key = keys.partition(topic.topic_id, index)
            known = values.get(key)
            if known is None:
                # Alone, until another node says that it has it too.
                entries[key] = encode(replace(first_state((node_id,), NO_LIFE), epoch=EPOCHS_RAISED))
            elif node_id not in (before := decode(key, known, PartitionState)).replicas:
                entries[key] = encode(with_found(before, node_id))
        count = max((len(state.replicas) for state in _states(topic, entries, keys)), default=1)
        entries[keys.topic(topic.name)] = encode(replace(topic, replication=count).stored())


def _raise_epochs(entries: dict[str, bytes], found: set[bytes], keys: KeySpace) -> None:
    for topic in stored_topics(entries, keys).values():
        if topic.topic_id in found or not topic.placed:
            # Placed a moment ago, or made by a node alone that knew no epochs.
            continue
        for index, state in enumerate(_states(topic, entries, keys)):
            entries[keys.partition(topic.topic_id, index)] = encode(adopted(state))


def _states(topic: Topic, entries: dict[str, bytes], keys: KeySpace) -> list[PartitionState]:
    placed = first_states(topic.placed, topic.partition_count, None)
    stored = [entries.get(keys.partition(topic.topic_id, index)) for index in range(topic.partition_count)]
    return [
        first if value is None else decode(keys.partitions, value, PartitionState)
        for first, value in zip(placed, stored, strict=True)
    ]


def _judge_anew(entries: dict[str, bytes], keys: KeySpace) -> None:
    """Which life was admitted last the store does not know: each comes as one that nothing was promised of."""
    for key, value in list(entries.items()):
        if key.startswith(keys.members):
            entries[key] = encode(replace(decode(key, value, MemberRecord), admitted_epoch=NO_LIFE))


def _losses(*, begins: bool) -> list[str]:
    if not begins:
        return []
    return [
        "topics, settings, rules, users and queues are as the store has them: what was changed since is lost, but for "
        "topics that have records in this directory",
        "who was in sync last is not known: partitions of several replicas are led by the longest log when all of them "
        "are back",
    ]
