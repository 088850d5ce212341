"""The topics of a cluster: looked up in memory, changed by compare-and-set in the metadata store.

    change:  check the rules → transaction → wait until the watch has brought it into the image → answer
    watch:   batch of events → image.apply → tell the listeners

Whoever got an answer sees its effect at the next look-up on this node; other nodes see it when their watch
does. Nothing is put into the image in any other way, so a change made elsewhere and one made here arrive
alike.

While the store is out of reach look-ups go on with the last image and changes raise `StoreUnavailableError`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.long_work import LongWork
from penstock.cluster.catalog.crons import CronCatalog
from penstock.cluster.catalog.first_placement import Runs, fill_runs, join_runs, nodes_of
from penstock.cluster.catalog.order import Kind, Part
from penstock.cluster.catalog.partition_image import UNCHANGED, PartitionChanged, PartitionImage, Stated
from penstock.cluster.catalog.placing import (
    BY_DEFAULT,
    ON_NODE_1,
    Assignment,
    InvalidAssignment,
    InvalidReplication,
    Placing,
)
from penstock.cluster.catalog.topic_image import Change, RemovedTopic, StoredTopic, Topic, TopicImage
from penstock.cluster.catalog.watch import Listener, MetadataWatch
from penstock.cluster.store.protocol import (
    Absent,
    Compare,
    ModRevisionIs,
    StoreUnavailableError,
)
from penstock.cluster.store.values import decode, encode
from penstock.domain import topic_rules
from penstock.domain.config import topic as topic_config
from penstock.domain.config.change import ConfigChange, SettingsChange, apply_changes
from penstock.domain.config.definition import ConfigProblem

# Two writers meet by chance, not as a habit: who loses ten times in a row should hear about it.
_ATTEMPTS_MAX: Final = 10
# One transaction for many new topics: far below the engines' limit of operations.
_TOPICS_PER_TXN: Final = 60
_NOT_ADOPTED: Final = "a node alone made the topic, and has not been started since there are several"

R = TypeVar("R")

log = get_logger("metadata")


class NewTopic(msgspec.Struct, frozen=True):
    name: str
    partition_count: int
    overrides: dict[str, str | None] = {}
    replication: int = BY_DEFAULT
    # Of each partition, where the caller chooses; then the number of replicas follows from it.
    assignment: Assignment | None = None


class Created(msgspec.Struct, frozen=True):
    topic: Topic


class AlreadyExists(msgspec.Struct, frozen=True):
    topic: Topic


class InvalidName(msgspec.Struct, frozen=True):
    reason: str


class InvalidPartitions(msgspec.Struct, frozen=True):
    reason: str


class InvalidConfig(msgspec.Struct, frozen=True):
    problems: tuple[ConfigProblem, ...]

    @property
    def reason(self) -> str:
        return "; ".join(problem.reason for problem in self.problems)


class UnknownTopic(msgspec.Struct, frozen=True):
    name: str


class Deleted(msgspec.Struct, frozen=True):
    topic: Topic


class Grown(msgspec.Struct, frozen=True):
    topic: Topic


class Altered(msgspec.Struct, frozen=True):
    topic: Topic


class Settled(msgspec.Struct, frozen=True):
    """What is stored of a node's or a group's settings now."""

    overrides: dict[str, str]


CreateRefusal = AlreadyExists | InvalidName | InvalidPartitions | InvalidConfig | InvalidReplication | InvalidAssignment
CreateResult = Created | CreateRefusal
DeleteResult = Deleted | UnknownTopic
GrowRefusal = InvalidPartitions | InvalidReplication | InvalidAssignment
GrowResult = Grown | UnknownTopic | GrowRefusal
AlterResult = Altered | UnknownTopic | InvalidConfig


class TopicCatalog:
    def __init__(
        self,
        watch: MetadataWatch,
        *,
        clock: Clock,
        new_topic_id: Callable[[], bytes],
        placing: Placing = ON_NODE_1,
    ) -> None:
        self._store = watch.store
        self._keys = watch.keys
        self._clock = clock
        self._new_topic_id = new_topic_id
        self._placing = placing
        self._image = TopicImage(watch.keys, owner_of_unplaced=placing.owner_of_unplaced)
        self._partitions = PartitionImage(watch.keys, self._image)
        self._work = LongWork(clock.monotonic_seconds)
        self._source = watch
        self._watch = watch.follow(Kind.TOPICS, self._image)
        self._partition_watch = watch.follow(Kind.PARTITIONS, self._partitions)
        # Which partitions of the topics fire named schedules.
        self.crons = CronCatalog(watch)

    def on_change(self, listener: Listener[Change], part: Part | None = None) -> None:
        """Called on the loop when the image has changed. Added before `start`, it hears of every topic. What takes long
        is given back as steps, which are done before the next change is told.

        It must not raise: the image has changed already, and nobody could take that back.
        """
        self._watch.on_change(listener, part)

    def on_partition_change(self, listener: Listener[PartitionChanged], part: Part | None = None) -> None:
        """The same of who leads a partition and who is in sync."""
        self._partition_watch.on_change(listener, part)

    async def start(self) -> None:
        # Together: whoever hears of a topic may ask who leads it.
        await self._source.join(self._watch, self._partition_watch, self.crons.followed)

    async def stop(self) -> None:
        await self._watch.stop()
        await self._partition_watch.stop()
        await self.crons.followed.stop()

    def __len__(self) -> int:
        return len(self._image)

    @property
    def revision(self) -> int:
        """Of the store, as far as the image follows it: how many changes there were."""
        return self._watch.revision

    @property
    def owner_of_unplaced(self) -> int | None:
        """Whose those topics are that an older version made, without a placement; None: another node's."""
        return self._placing.owner_of_unplaced

    async def wait_for(self, revision: int) -> None:
        """Returns when the images include `revision`, which must have changed something, and everybody has heard."""
        await self._watch.wait_for(revision)

    def by_name(self, name: str) -> Topic | None:
        return self._image.by_name(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._image.by_id(topic_id)

    def is_gone(self, topic_id: bytes) -> bool:
        """There is no such topic, at a moment not before that at which the states of partitions were read: whoever
        leads a partition may believe it of any topic that leaders before it knew. Else the image lags."""
        return self._image.by_id(topic_id) is None and not self._watch.is_behind

    def state(self, topic_id: bytes, index: int) -> Stated | None:
        """Who leads the partition and who is in sync; None: there is none."""
        return self._partitions.get(topic_id, index)

    def states(self, topic_id: bytes) -> Iterator[tuple[int, Stated]]:
        """Of all partitions of a topic, in order."""
        return self._partitions.of_topic(topic_id)

    def orphaned_keys(self) -> list[str]:
        """Of partitions and named schedules whose topics are gone."""
        return self._partitions.orphans() + self.crons.orphans(self.is_gone)

    def names(self) -> list[str]:
        return self._image.names()

    def topics(self) -> list[Topic]:
        return self._image.topics()

    def node_config(self, node_id: int | None) -> Mapping[str, str]:
        """The settings of one node, or with None those of all nodes, as stored."""
        return self._image.node_config(node_id)

    def group_config(self, group: str) -> Mapping[str, str]:
        """The settings of a group, as stored; it need not have members."""
        return self._image.group_config(group)

    def configured_groups(self) -> list[str]:
        """Those with settings of their own."""
        return self._image.configured_groups()

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        overrides: Mapping[str, str | None] | None = None,
        *,
        validate_only: bool = False,
    ) -> CreateResult:
        wanted = NewTopic(name, partition_count, dict(overrides or {}))
        (result,) = await self.create_topics([wanted], validate_only=validate_only)
        if isinstance(result, AlreadyExists) and not validate_only:
            # The image knows of it a moment before everybody has heard; whoever asked goes on to use it.
            return await self._existing(result.topic)
        return result

    async def create_topics(self, wanted: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreateResult]:
        """One result for each, in order. Many topics take few transactions."""
        counts = Counter(new.name for new in wanted)
        checked: list[Topic | CreateRefusal] = []
        pace = self._work.pace()
        for new in wanted:
            named_twice = InvalidName(f"{new.name!r} is named twice")
            checked.append(self._check_new(new) if counts[new.name] == 1 else named_twice)
            await pace.rest_if_due()
        if validate_only:
            return [Created(each) if isinstance(each, Topic) else each for each in checked]
        to_create = [each for each in checked if isinstance(each, Topic)]
        outcomes: dict[str, CreateResult] = {}
        for start in range(0, len(to_create), _TOPICS_PER_TXN):
            chunk = to_create[start : start + _TOPICS_PER_TXN]
            for topic, outcome in zip(chunk, await self._create_chunk(chunk), strict=True):
                outcomes[topic.name] = outcome
        return [outcomes[each.name] if isinstance(each, Topic) else each for each in checked]

    async def delete_topic(self, name: str) -> DeleteResult:
        key = self._keys.topic(name)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            if entry is None:
                return UnknownTopic(name)
            topic = decode(key, entry.value, StoredTopic).named(name)
            # Said in the same transaction: what is on the disk and unknown was deleted, and not lost.
            note = RemovedTopic(name, self._clock.now_ms(), tuple(sorted(self._nodes_of(topic))))
            removed = {self._keys.removed_topic(topic.topic_id): encode(note)}
            result = await self._store.txn([ModRevisionIs(key, entry.mod_revision)], removed, [key])
            if result.ok:
                await self._watch.wait_for(result.revision)
                return Deleted(topic)
        raise self._contended(key)

    async def forget_removed(self, topic_id: bytes) -> None:
        """This node's files of it are gone, durably. The last who says so takes the note away."""
        key = self._keys.removed_topic(topic_id)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            if entry is None:
                return
            note = decode(key, entry.value, RemovedTopic)
            left = tuple(node_id for node_id in note.nodes if node_id != self._placing.node_id)
            puts = {key: encode(msgspec.structs.replace(note, nodes=left))} if left else {}
            result = await self._store.txn([ModRevisionIs(key, entry.mod_revision)], puts, () if left else (key,))
            if result.ok:
                return
        raise self._contended(key)

    async def forget_all_removed(self) -> None:
        """The same of every topic whose removal this node has still to report: at a start none of its files is left."""
        current = await self._store.range(self._keys.removed_topics)
        for entry in current.entries:
            if self._placing.node_id in decode(entry.key, entry.value, RemovedTopic).nodes:
                await self.forget_removed(self._keys.removed_topic_of(entry.key))

    def _nodes_of(self, topic: Topic) -> set[int]:
        """Those that have or had files of it."""
        changed = {
            node_id
            for _, stated in self._partitions.of_topic(topic.topic_id)
            if stated.state_epoch != UNCHANGED
            for node_id in (*stated.state.replicas, *stated.state.adding)
        }
        return changed | nodes_of(topic.placed)

    async def create_partitions(
        self, name: str, partition_count: int, *, assignment: Assignment | None = None, validate_only: bool = False
    ) -> GrowResult:
        """`assignment` is that of the new ones."""

        def grow(topic: StoredTopic) -> StoredTopic | GrowRefusal:
            reason = topic_rules.check_partition_growth(topic.partition_count, partition_count)
            if reason is not None:
                return InvalidPartitions(reason)
            before = fill_runs(topic.placed, topic.partition_count, self._placing.owner_of_unplaced)
            if before is None:
                return InvalidReplication(_NOT_ADOPTED)
            added = partition_count - topic.partition_count
            runs = self._placing.place(added, topic.replication, assignment, existing=before)
            if not isinstance(runs, tuple):
                return runs
            return msgspec.structs.replace(topic, partition_count=partition_count, placed=join_runs(before, runs))

        outcome: Topic | UnknownTopic | GrowRefusal
        outcome = await self._change_topic(name, grow, validate_only=validate_only)
        return Grown(outcome) if isinstance(outcome, Topic) else outcome

    async def raise_replication(self, name: str, replication: int) -> None:
        """Its partitions have so many replicas by now."""

        def raised(topic: StoredTopic) -> StoredTopic:
            return msgspec.structs.replace(topic, replication=max(replication, topic.replication))

        await self._change_topic(name, raised, validate_only=False)

    async def replace_config(
        self, name: str, overrides: Mapping[str, str | None], *, validate_only: bool = False
    ) -> AlterResult:
        """What is not named falls back to its default."""
        problems = topic_config.validate(overrides)
        if problems:
            return InvalidConfig(tuple(problems))
        kept = {setting: text for setting, text in overrides.items() if text is not None}

        def replace(topic: StoredTopic) -> StoredTopic | InvalidConfig:
            return msgspec.structs.replace(topic, overrides=kept)

        return await self._alter(name, replace, validate_only=validate_only)

    async def change_config(
        self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> AlterResult:
        """What is not named stays as it is."""

        def change(topic: StoredTopic) -> StoredTopic | InvalidConfig:
            changed = apply_changes(topic_config.DEFINITIONS, topic.overrides, changes)
            if isinstance(changed, list):
                return InvalidConfig(tuple(changed))
            # Only what was touched: an override that a newer version stored must not block every change.
            touched = {each.name for each in changes}
            problems = topic_config.validate({k: v for k, v in changed.items() if k in touched})
            problems = problems or topic_config.contradictions(changed)
            if problems:
                return InvalidConfig(tuple(problems))
            return msgspec.structs.replace(topic, overrides=changed)

        return await self._alter(name, change, validate_only=validate_only)

    async def alter_node(
        self, node_id: int | None, change: SettingsChange, *, validate_only: bool = False
    ) -> Settled | InvalidConfig:
        return await self._alter_settings(self._keys.node_config(node_id), change, validate_only=validate_only)

    async def alter_group(
        self, group: str, change: SettingsChange, *, validate_only: bool = False
    ) -> Settled | InvalidConfig:
        return await self._alter_settings(self._keys.group_config(group), change, validate_only=validate_only)

    async def _alter_settings(
        self, key: str, change: SettingsChange, *, validate_only: bool
    ) -> Settled | InvalidConfig:
        """Starts from what the store has now: the image may lag behind another node."""
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            before = {} if entry is None else decode(key, entry.value, dict[str, str])
            after = change(before)
            if isinstance(after, list):
                return InvalidConfig(tuple(after))
            if validate_only or after == before:
                return Settled(after)
            unchanged: Compare = Absent(key) if entry is None else ModRevisionIs(key, entry.mod_revision)
            result = await self._store.txn([unchanged], {key: encode(after)} if after else {}, () if after else (key,))
            if result.ok:
                await self._watch.wait_for(result.revision)
                return Settled(after)
        raise self._contended(key)

    def _check_new(self, new: NewTopic) -> Topic | CreateRefusal:
        reason = topic_rules.check_name(new.name)
        if reason is not None:
            return InvalidName(reason)
        existing = self.by_name(new.name)
        if existing is not None:
            return AlreadyExists(existing)
        reason = topic_rules.check_partition_count(new.partition_count)
        if reason is not None:
            return InvalidPartitions(reason)
        problems = topic_config.validate(new.overrides)
        if problems:
            return InvalidConfig(tuple(problems))
        placed = self._place_new(new)
        if not isinstance(placed, tuple):
            return placed
        overrides = {setting: text for setting, text in new.overrides.items() if text is not None}
        topic_id, now_ms = self._unused_id(), self._clock.now_ms()
        return Topic(new.name, topic_id, new.partition_count, overrides, now_ms, *placed)

    def _place_new(self, new: NewTopic) -> tuple[int, Runs] | InvalidReplication | InvalidAssignment:
        if new.assignment is None:
            replication = self._placing.replication(new.replication)
            if isinstance(replication, InvalidReplication):
                return replication
        else:
            replication = len(new.assignment[0]) if new.assignment else 0
        runs = self._placing.place(new.partition_count, replication, new.assignment)
        return (replication, runs) if isinstance(runs, tuple) else runs

    def _unused_id(self) -> bytes:
        while True:
            topic_id = self._new_topic_id()
            assert len(topic_id) == 16
            if topic_id not in topic_rules.RESERVED_TOPIC_IDS and self.by_id(topic_id) is None:
                return topic_id

    async def _create_chunk(self, topics: Sequence[Topic]) -> list[CreateResult]:
        compares: list[Compare] = [Absent(self._keys.topic(topic.name)) for topic in topics]
        puts = {self._keys.topic(topic.name): encode(topic.stored()) for topic in topics}
        result = await self._store.txn(compares, puts)
        if result.ok:
            await self._watch.wait_for(result.revision)
            _warn(topics)
            return [Created(topic) for topic in topics]
        if len(topics) > 1:
            # Another node made one of them at this moment: find out which, one by one.
            return [(await self._create_chunk([topic]))[0] for topic in topics]
        return [await self._existing(topics[0])]

    async def _existing(self, topic: Topic) -> CreateResult:
        key = self._keys.topic(topic.name)
        entry = await self._store.get(key)
        if entry is None:
            # Made and deleted by others in between.
            raise self._contended(key)
        await self._watch.wait_for(entry.mod_revision)
        return AlreadyExists(decode(key, entry.value, StoredTopic).named(topic.name))

    async def _change_topic(
        self, name: str, change: Callable[[StoredTopic], StoredTopic | R], *, validate_only: bool
    ) -> Topic | UnknownTopic | R:
        """Starts from the topic as the store has it now: the image may lag behind another node."""
        key = self._keys.topic(name)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            if entry is None:
                return UnknownTopic(name)
            changed = change(decode(key, entry.value, StoredTopic))
            if not isinstance(changed, StoredTopic):
                return changed
            if validate_only:
                return changed.named(name)
            result = await self._store.txn([ModRevisionIs(key, entry.mod_revision)], {key: encode(changed)})
            if result.ok:
                await self._watch.wait_for(result.revision)
                return changed.named(name)
        raise self._contended(key)

    async def _alter(
        self,
        name: str,
        change: Callable[[StoredTopic], StoredTopic | InvalidConfig],
        *,
        validate_only: bool,
    ) -> AlterResult:
        outcome = await self._change_topic(name, change, validate_only=validate_only)
        if isinstance(outcome, Topic):
            _warn([outcome])
            return Altered(outcome)
        return outcome

    def _contended(self, key: str) -> StoreUnavailableError:
        return StoreUnavailableError(f"metadata key {key} is changed by others all the time, try again")


def _warn(topics: Sequence[Topic]) -> None:
    for topic in topics:
        reason = topic_config.warn_of_minimum(topic.overrides, topic.replication)
        if reason is not None:
            log.warning("topic takes no writes with acks=all", topic=topic.name, reason=reason)
