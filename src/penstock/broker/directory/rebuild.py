"""`penstock metadata rebuild`: the metadata of a stopped node, made anew from what is left of them. Blocking.

    plan:   sources (`sources`) + directories → entries to write, names to put right, directories to set aside
    apply:  a new store beside the old one → the old one is kept aside → the new one takes its place → its copy

Nothing is deleted: old files and directories that no topic can be made of go to `<root>/set-aside/<time>/`. If it is
interrupted, the start still refuses, and the command can be given again.
"""

from __future__ import annotations

import base64
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.chance import SYSTEM_CHANCE
from penstock.broker.directory.agreement import companion_ids, companions_of, compare, removed_topics, stored_topics
from penstock.broker.directory.sources import Sources
from penstock.broker.group import node as group_coordinator
from penstock.broker.transaction import node as transaction_coordinators
from penstock.cluster.catalog.topic_image import Topic
from penstock.cluster.store.copy import SUFFIX, write_copy
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite_salvage import SIDE_SUFFIXES
from penstock.cluster.store.sqlite_tables import SqliteTables
from penstock.cluster.store.values import decode, encode
from penstock.domain.topic_rules import CONSUMER_OFFSETS, TRANSACTION_STATE, check_name
from penstock.storage.files.protocols import Files
from penstock.storage.log.home import write_topic_facts
from penstock.storage.repair.directory import TopicOnDisk, write_cluster_id
from penstock.storage.store import LOGS_DIRECTORY

SET_ASIDE: Final = "set-aside"
_NEW_SUFFIX: Final = ".rebuilt"
_BUSY_MS: Final = 1000
# A node takes ids in blocks of a thousand and never twice. Whatever was taken and is not known lies below this many for
# each millisecond since 1970: nobody takes a thousand in a millisecond for years.
_PRODUCER_IDS_PER_MS: Final = 1000
# What is known of such a topic is its records. None of them goes before somebody has said how long they are kept.
_KEEP_EVERYTHING: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
_COORDINATORS: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {
    CONSUMER_OFFSETS: (group_coordinator.PARTITION_COUNT, group_coordinator.OVERRIDES),
    TRANSACTION_STATE: (transaction_coordinators.PARTITION_COUNT, transaction_coordinators.OVERRIDES),
}


class PlannedTopic(msgspec.Struct, frozen=True):
    name: str
    topic_id: str
    partition_count: int


class Directory(msgspec.Struct, frozen=True):
    topic_id: str
    name: str | None
    reason: str


class RebuildPlan(msgspec.Struct, frozen=True):
    notes: tuple[str, ...]
    # How many there will be of each kind.
    counts: dict[str, int]
    # Known from their directories alone.
    added: tuple[PlannedTopic, ...]
    # Partitions that the metadata did not know.
    grown: tuple[PlannedTopic, ...]
    renamed: tuple[Directory, ...]
    set_aside: tuple[Directory, ...]
    # Sentences: what `--accept` accepts.
    losses: tuple[str, ...]
    # There is nothing to do.
    is_needless: bool


class Rebuild(msgspec.Struct, frozen=True):
    plan: RebuildPlan
    entries: dict[str, bytes]
    revision: int


def make_plan(
    sources: Sources,
    on_disk: Iterable[TopicOnDisk],
    *,
    belongs_to: str | None,
    keys: KeySpace,
    now_ms: int,
    seen_revision: int = 0,
) -> Rebuild:
    """`seen_revision` is one that the directory knows the metadata had."""
    entries = dict(sources.entries)
    if not sources.is_whole:
        # Which life of this node was admitted last is told by an old copy wrongly, and its disk would not be believed.
        entries = {key: value for key, value in entries.items() if not key.startswith(keys.members)}
    topics = stored_topics(entries, keys)
    found = list(on_disk)
    misfits = compare(found, topics, removed_topics(entries, keys)).misfits
    unknown = [misfit.topic for misfit in misfits if misfit.topic.topic_id not in _with_companions(topics)]
    added, set_aside = _adopt(unknown, {topic.name for topic in topics.values()}, now_ms)
    grown = _grown(found, topics)
    named = {known.topic_id: known for known in topics.values()} | companions_of(topics.values())
    renamed = [
        Directory(each.topic_id.hex(), named[each.topic_id].name, f"its directory says {each.name}")
        for each in found
        if each.topic_id in named and each.name not in (None, named[each.topic_id].name)
    ]
    for topic in [*added, *grown]:
        entries[keys.topic(topic.name)] = encode(topic.stored())
    if not sources.is_whole:
        entries[keys.cluster_id] = entries.get(keys.cluster_id) or encode(belongs_to or _new_cluster_id())
    is_fitting = not (added or grown or renamed or set_aside)
    if not sources.is_whole or not is_fitting:
        # Also of a store that is whole and older than the directories: ids were taken since then, and the logs know
        # them.
        entries[keys.producer_ids] = encode(fresh_producer_ids(entries.get(keys.producer_ids), keys, now_ms))
    plan = RebuildPlan(
        notes=sources.notes,
        counts=_counts(entries, keys),
        added=tuple(_planned(topic) for topic in added),
        grown=tuple(_planned(topic) for topic in grown),
        renamed=tuple(renamed),
        set_aside=tuple(set_aside),
        losses=tuple(_losses(sources, added, set_aside)),
        is_needless=sources.is_whole and is_fitting,
    )
    return Rebuild(plan, entries, max(sources.revision, seen_revision + 1))


def apply_plan(rebuild: Rebuild, files: Files, *, root: str, path: str, aside: str, keys: KeySpace) -> None:
    """`aside` is the directory, below the root or not, for what is replaced."""
    make_store(path + _NEW_SUFFIX, rebuild)
    files.make_root(aside)
    logs_directory = f"{root}/{LOGS_DIRECTORY}"
    for directory in rebuild.plan.set_aside:
        files.rename(f"{logs_directory}/{directory.topic_id}", f"{aside}/{directory.topic_id}")
    for directory in rebuild.plan.renamed:
        assert directory.name is not None
        write_topic_facts(files, f"{logs_directory}/{directory.topic_id}", directory.name).sync()
    _keep_old(files, path, aside)
    for suffix in SIDE_SUFFIXES:
        # Gone before the new store is there: SQLite would bring the old one's last changes into it.
        files.remove(path + suffix)
    files.rename(path + _NEW_SUFFIX, path)
    files.sync_directory(str(Path(path).parent))
    files.sync_directory(logs_directory)
    tables = SqliteTables(path, busy_ms=_BUSY_MS, history_revisions=1)
    try:
        write_copy(path + SUFFIX, tables.copy())
    finally:
        tables.close()
    write_cluster_id(files, root, decode(keys.cluster_id, rebuild.entries[keys.cluster_id], str))


def _keep_old(files: Files, path: str, aside: str) -> None:
    for suffix in ("", *SIDE_SUFFIXES, SUFFIX):
        if Path(path + suffix).exists():
            kept = f"{aside}/{Path(path).name}{suffix}"
            shutil.copy2(path + suffix, kept)
            files.open(kept).sync()
    files.sync_directory(aside)


def make_store(path: str, rebuild: Rebuild) -> None:
    for suffix in ("", *SIDE_SUFFIXES):
        # Of a rebuild that was interrupted.
        Path(path + suffix).unlink(missing_ok=True)
    tables = SqliteTables(path, busy_ms=_BUSY_MS, history_revisions=1)
    try:
        tables.restore(rebuild.entries, rebuild.revision)
    finally:
        tables.close()


def _with_companions(topics: Mapping[bytes, Topic]) -> set[bytes]:
    return {*topics, *(companion for topic_id in topics for companion in companion_ids(topic_id))}


def _adopt(unknown: list[TopicOnDisk], taken: set[str], now_ms: int) -> tuple[list[Topic], list[Directory]]:
    """Topics that can be made of directories, and directories that none can be made of."""
    beside = {companion: each for each in unknown for companion in companion_ids(each.topic_id)}
    by_name: dict[str | None, list[TopicOnDisk]] = defaultdict(list)
    for each in unknown:
        if each.topic_id not in beside:
            by_name[each.name].append(each)
    added: list[Topic] = []
    left: dict[bytes, str] = {}
    for name, group in sorted(by_name.items(), key=lambda item: item[0] or ""):
        reason = _no_topic(name, len(group), taken)
        if reason is None and name is not None:
            added.append(_topic_of(group[0], name, now_ms))
        else:
            left |= {each.topic_id: reason or "" for each in group}
    # What belongs to a topic goes where it goes.
    left |= {each: left[owner.topic_id] for each, owner in beside.items() if owner.topic_id in left}
    names = {each.topic_id: each.name for each in unknown}
    return added, [Directory(each.hex(), names[each], reason) for each, reason in left.items() if each in names]


def _no_topic(name: str | None, count: int, taken: set[str]) -> str | None:
    if name is None:
        return "nothing tells the topic's name"
    if name in taken:
        return "the metadata know another topic of the name"
    if count > 1:
        return f"{count} directories are of a topic of this name"
    return check_name(name)


def _topic_of(found: TopicOnDisk, name: str, now_ms: int) -> Topic:
    count, overrides = _COORDINATORS.get(name, (1, _KEEP_EVERYTHING))
    return Topic(name, found.topic_id, max(count, found.partitions[-1] + 1), dict(overrides), now_ms)


def _grown(on_disk: Iterable[TopicOnDisk], topics: Mapping[bytes, Topic]) -> list[Topic]:
    highest: dict[bytes, int] = defaultdict(int)
    owners = {companion: topic_id for topic_id in topics for companion in companion_ids(topic_id)}
    for found in on_disk:
        topic_id = owners.get(found.topic_id, found.topic_id)
        highest[topic_id] = max(highest[topic_id], found.partitions[-1] + 1)
    return [
        msgspec.structs.replace(topic, partition_count=highest[topic.topic_id])
        for topic in topics.values()
        if highest[topic.topic_id] > topic.partition_count
    ]


def fresh_producer_ids(value: bytes | None, keys: KeySpace, now_ms: int) -> int:
    known = 0 if value is None else decode(keys.producer_ids, value, int)
    return max(known, now_ms * _PRODUCER_IDS_PER_MS)


def _new_cluster_id() -> str:
    return "r" + base64.urlsafe_b64encode(SYSTEM_CHANCE.uuid().bytes).decode()[:21]


def _losses(sources: Sources, added: list[Topic], set_aside: list[Directory]) -> list[str]:
    losses = []
    if not sources.is_complete:
        losses.append(
            "rules, users, queues' options, redrives and settings of groups and nodes are lost, as far as they are not "
            "counted here; topics without a record are lost"
        )
    losses += [
        f"topic {topic.name}: its settings are not known (its records stay until somebody sets retention.ms), and "
        f"partitions without a record are not: it gets {topic.partition_count}"
        for topic in added
        if topic.name not in _COORDINATORS
    ]
    losses += [f"{each.topic_id} ({each.name or 'unknown'}) is set aside: {each.reason}" for each in set_aside]
    return losses


def _counts(entries: Mapping[str, bytes], keys: KeySpace) -> dict[str, int]:
    prefixes = {
        "topics": keys.topics,
        "queues": keys.queues,
        "rules": keys.acls,
        "users": keys.users,
        "settings of nodes": keys.node_configs,
        "settings of groups": keys.group_configs,
        "redrives": keys.redrives,
    }
    return {name: sum(key.startswith(prefix) for key in entries) for name, prefix in prefixes.items()}


def _planned(topic: Topic) -> PlannedTopic:
    return PlannedTopic(topic.name, topic.topic_id.hex(), topic.partition_count)
