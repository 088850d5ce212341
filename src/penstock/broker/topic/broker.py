"""The broker: the topics this node serves.

Topics come and go by the catalog's changes alone, at the start and live alike: whoever creates a topic, here or on
another node, the logs are opened by `_on_change`. Doors look topics up here and speak to their partitions' shells.
Every topic of the cluster is served; logs are opened of those partitions alone that this node has a replica of, and
what it is to each of them, leader or follower, follows the catalog's states (`roles`).

    start: open every log (recovery, in threads) ─► serve ─► stop: wake who waits, leave the store to be closed
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.base.long_work import LongWork, Steps
from penstock.broker.machine.barrier import Barrier, LedBarrier
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.rehearsals import Rehearsals
from penstock.broker.machine.residents import Takeovers
from penstock.broker.partition.log_config import log_config
from penstock.broker.partition.role import Idle, Role
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.partition.waiting import WaitingRoom
from penstock.broker.site import Site
from penstock.broker.topic.companion import CompanionKind, companion_id, open_companion
from penstock.broker.topic.metrics import BrokerCollector
from penstock.broker.topic.not_here import NotHere, no_topic
from penstock.broker.topic.role_followers import RoleFollower, RoleFollowers, goes_on
from penstock.broker.topic.roles import has_replica, is_shared, role_of
from penstock.broker.topic.served_topic import ServedTopic
from penstock.broker.topic.strays import Place, Strays, find_strays, logs_of
from penstock.broker.topic.upkeep import CommittedOffset, Upkeep
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.partition_image import PartitionChanged
from penstock.cluster.catalog.topic_image import (
    Change,
    GroupConfigChanged,
    NodeConfigChanged,
    PartitionsGrown,
    Topic,
    TopicAdded,
    TopicConfigChanged,
    TopicRemoved,
)
from penstock.cluster.catalog.topics import CreateResult, TopicCatalog
from penstock.domain.config import node as node_config
from penstock.domain.config.topic import TopicConfig, make_topic_config
from penstock.domain.replication.state import NO_LIFE
from penstock.storage.errors import StorageError
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.repair.directory import TopicOnDisk
from penstock.storage.store import LogStore

log = get_logger("broker")

# Recovery waits for the disk more than for a core.
OPENING_THREADS: Final = 4
# A thread is given so many: with one each, the loop did nothing for seconds but hand out ten thousand.
OPENED_AT_ONCE: Final = 32
# On the health page; the metrics and the log name all of them.
DAMAGES_TOLD_MAX: Final = 10


# A partition that is to be opened, and its topic's settings.
_Wanted = tuple[Topic, int, TopicConfig]


class Space(msgspec.Struct, frozen=True):
    directory: str
    total_bytes: int
    usable_bytes: int


class Broker:
    def __init__(
        self,
        site: Site,
        *,
        catalog: TopicCatalog,
        store: LogStore,
        life: Callable[[], int] = lambda: NO_LIFE,
    ) -> None:
        """`life` is this node's broker epoch, as it is now."""
        self.config = site.config.broker
        self.node_id = site.node_id
        # What a topic's settings are unless it says otherwise: as configured, and as changed while running.
        self.topic_defaults: Mapping[str, str] = self.config.topic_defaults
        self._catalog = catalog
        self._life = life
        self._store = store
        self.clock = site.clock
        self._tasks = site.tasks
        self._topics: dict[str, ServedTopic] = {}
        self._topics_by_id: dict[bytes, ServedTopic] = {}
        # Beside partitions, opened when they are asked for.
        self._companions: dict[tuple[bytes, int, CompanionKind], PartitionShell] = {}
        # A log is opened once, however many want it at the same moment, and whether they wait for it or not.
        self._opening: dict[tuple[bytes, int, CompanionKind], asyncio.Future[PartitionShell]] = {}
        # Who hears of a companion that was opened, before anybody writes to it.
        self._on_companion: list[Callable[[PartitionShell, CompanionKind, PartitionShell], None]] = []
        self._on_replica: list[Callable[[PartitionShell], None]] = []
        # Topics found while starting: opened together, in threads, before anybody is served.
        self._found: list[Topic] | None = []
        # What was heard of partitions meanwhile, some of which were being opened by what was known before.
        self._heard: list[PartitionChanged] | None = []
        self._upkeep = Upkeep(
            self.all_shells, store, clock=site.clock, chance=site.chance, tasks=site.tasks, config=self.config
        )
        self._strays = Strays(store, site.tasks)
        site.metrics.register(BrokerCollector(self))
        # Grows whenever a topic comes, goes or changes: what was looked up before may no longer hold.
        self.generation = 0
        # What the machines of a new leadership wait for.
        self.led_barrier = LedBarrier()
        self.barrier: Barrier = self.led_barrier
        self.rehearsals = Rehearsals(site.clock)
        self.takeovers = Takeovers(site.clock)
        # Coordinators, queues and schedules, which come later than the broker.
        self._role_followers = RoleFollowers()
        # How their journals are.
        self._journals: list[Callable[[], Iterable[JournalDamage]]] = []
        self.is_stopping = False
        self.stopping = WaitingRoom()

    # Life

    def follow_archives(self, committed_offset: CommittedOffset) -> None:
        """How retention learns what is archived: from the positions of groups, which come later than the broker."""
        self._upkeep.committed_offset = committed_offset

    async def recover_offline(self) -> None:
        """Now, and not when it is due: every log that a failed write or sync took offline."""
        await self._upkeep.recover_offline()

    def follow_journals(self, damages: Callable[[], Iterable[JournalDamage]]) -> None:
        """How the node's health learns of journals that are damaged."""
        self._journals.append(damages)

    def follow_roles(self, follower: RoleFollower, part: Part) -> None:
        """Told of every partition whose leadership begins or ends here while the node runs."""
        self._role_followers.add(follower, part)

    def damaged_journals(self) -> list[JournalDamage]:
        return [each for damages in self._journals for each in damages() if each.seen is not None]

    def told_damages(self) -> list[str]:
        """Of journals, for the health page: what is damaged, and what to do. A restart does not help, so it is no
        reason for one."""
        return [each.seen or "" for each in self.damaged_journals()[:DAMAGES_TOLD_MAX]]

    async def start(self) -> None:
        self._catalog.on_change(self._on_change, Part.BROKER)
        self._catalog.on_partition_change(self._on_partition_change, Part.BROKER)
        await self._catalog.start()
        await self._open_found()
        self._upkeep.start()

    async def stop(self) -> None:
        self.wake_waiting()
        for shell in self.all_shells():
            shell.close()
        await self._catalog.stop()

    def wake_waiting(self) -> None:
        """Whoever waits for more to read is answered with what there is: the node is stopping."""
        self.is_stopping = True
        self.stopping.wake_all()

    async def _open_found(self) -> None:
        found, self._found = self._found or [], None
        configs = [(topic, self._config_of(topic)) for topic in found]
        wanted = [(topic, index, config) for topic, config in configs for index in self._indexes_here(topic)]
        logs = await self._open_logs(wanted)
        await LongWork(self.clock.monotonic_seconds).run(self._serve_found(found, wanted, logs))
        heard, self._heard = self._heard or [], None
        for change in heard:
            self._on_partition_change(change)

    async def _open_logs(self, wanted: list[_Wanted]) -> list[PartitionLog]:
        """In threads, and the loop turns meanwhile: by that others know that this node lives."""
        loop = asyncio.get_running_loop()
        portions = [wanted[start : start + OPENED_AT_ONCE] for start in range(0, len(wanted), OPENED_AT_ONCE)]
        with ThreadPoolExecutor(OPENING_THREADS, thread_name_prefix="opening") as threads:
            opened = await asyncio.gather(
                *(loop.run_in_executor(threads, self._open_portion, portion) for portion in portions)
            )
        return [each for portion in opened for each in portion]

    def _open_portion(self, portion: list[_Wanted]) -> list[PartitionLog]:
        return [self._open_log(topic, index, config) for topic, index, config in portion]

    def _serve_found(self, found: list[Topic], wanted: list[_Wanted], logs: list[PartitionLog]) -> Steps[None]:
        shells: dict[bytes, list[PartitionShell]] = {topic.topic_id: [] for topic in found}
        for (topic, index, config), opened in zip(wanted, logs, strict=True):
            shells[topic.topic_id].append(self._shell(topic, index, opened, config))
            yield
        for topic in found:
            self._serve(topic, self._config_of(topic), shells[topic.topic_id])
            yield

    # Looking up

    def topic(self, name: str) -> ServedTopic | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> ServedTopic | None:
        return self._topics_by_id.get(topic_id)

    def find(self, topic: str, index: int) -> PartitionShell | NotHere:
        """A partition that this node leads, or who else does."""
        served = self._topics.get(topic)
        return no_topic(topic) if served is None else served.find(index)

    def topics(self) -> list[ServedTopic]:
        return [self._topics[name] for name in sorted(self._topics)]

    def shells(self) -> Iterator[PartitionShell]:
        for topic in list(self._topics.values()):
            yield from topic.shells

    def all_shells(self) -> Iterator[PartitionShell]:
        """Those of companion logs too."""
        yield from self.shells()
        yield from list(self._companions.values())

    async def companion(self, partition: PartitionShell, kind: CompanionKind) -> PartitionShell:
        key = (partition.log.home.topic_id, partition.index, kind)
        if key in self._companions:
            return self._companions[key]
        opening = self._opening.get(key)
        if opening is None:
            traced_ms = self.config.trace_horizon_ms
            work = partial(open_companion, partition, kind, store=self._store, clock=self.clock, traced_ms=traced_ms)
            opening = self._opening[key] = asyncio.get_running_loop().run_in_executor(None, work)
            opening.add_done_callback(lambda opened: self._on_opened(partition, kind, opened))
        return await asyncio.shield(opening)

    def _on_opened(
        self, partition: PartitionShell, kind: CompanionKind, opened: asyncio.Future[PartitionShell]
    ) -> None:
        key = (partition.log.home.topic_id, partition.index, kind)
        del self._opening[key]
        if opened.cancelled() or opened.exception() is not None:
            return
        companion = self._companions[key] = opened.result()
        if companion.role != partition.role:
            # Another node was elected while it was opened.
            companion.take_role(partition.role)
        for listener in self._on_companion:
            listener(partition, kind, companion)
        if partition.is_closed:
            # Its topic was removed meanwhile, and took with it what was there then.
            self._close_companions(key[0], kind)
            self._upkeep.remove_topics([companion_id(key[0], kind)])

    def on_replica(self, listener: Callable[[PartitionShell], None]) -> None:
        """A partition that has moved here, now that its log is open: perhaps later than the catalog has told of it."""
        self._on_replica.append(listener)

    def on_companion(self, listener: Callable[[PartitionShell, CompanionKind, PartitionShell], None]) -> None:
        """The partition, the kind, and the companion that was opened beside it."""
        self._on_companion.append(listener)

    def open_companion_of(self, partition: PartitionShell, kind: CompanionKind) -> PartitionShell | None:
        """None: it has not been opened."""
        return self._companions.get((partition.log.home.topic_id, partition.index, kind))

    def has_companion(self, partition: PartitionShell, kind: CompanionKind) -> bool:
        """Whether there is anything in it, or ever was since the start."""
        topic_id = partition.log.home.topic_id
        key = (topic_id, partition.index, kind)
        return key in self._companions or self._store.has_log(companion_id(topic_id, kind), partition.index)

    @property
    def is_full(self) -> bool:
        """The disk takes no more."""
        return self._store.is_full

    @property
    def is_healthy(self) -> bool:
        return not self._store.is_full and not any(shell.is_offline for shell in self.shells())

    @property
    def damaged_partitions(self) -> list[PartitionShell]:
        """Those of which something is not served because it has rotted or is gone; companion logs among them."""
        return [shell for shell in self.all_shells() if shell.log.damage is not None]

    def space(self) -> Space:
        usable = self._store.free_bytes()
        return Space(self._store.root, usable + sum(shell.size_bytes for shell in self.shells()), usable)

    # Changing

    async def create_topic_by_default(self, name: str) -> CreateResult:
        """For a client that asked for a topic nobody created."""
        return await self._catalog.create_topic(name, self.config.default_partitions)

    def _on_change(self, change: Change) -> Steps[None]:
        self.generation += 1
        try:
            yield from self._follow(change)
        except (OSError, StorageError) as error:
            # The change is made and cannot be taken back, and the watch must live to bring the next one. What could not
            # be opened is not served before its next change or the next start.
            log.error("topic change not followed", change=type(change).__name__, error=str(error))

    def _follow(self, change: Change) -> Steps[None]:
        match change:
            case TopicAdded(topic) if self._found is not None:
                self._found.append(topic)
            case TopicAdded(topic):
                yield from self._add(topic)
            case TopicRemoved(topic):
                yield from self._remove(topic)
            case PartitionsGrown(_, topic) | TopicConfigChanged(_, topic):
                yield from self._alter(topic)
            case NodeConfigChanged():
                yield from self._settle_defaults()
            case GroupConfigChanged():
                pass  # asked for by whoever serves the group

    def _settle_defaults(self) -> Steps[None]:
        """A changed default reaches every topic that does not say otherwise."""
        stored = self._catalog.node_config(None), self._catalog.node_config(self.node_id)
        self.topic_defaults = node_config.topic_defaults(self.config.topic_defaults, *stored)
        # While starting nothing is open yet, and what will be is opened by these.
        for served in self.topics():
            yield from self._alter(served.description)
            yield

    def _add(self, topic: Topic) -> Steps[None]:
        """Served when all of it is open."""
        config = self._config_of(topic)
        self._serve(topic, config, (yield from self._open_here(topic, config, ())))

    def _alter(self, topic: Topic) -> Steps[None]:
        served = self._topics_by_id.get(topic.topic_id)
        if served is None:
            yield from self._add(topic)
            return
        config = self._config_of(topic)
        for shell in served.shells:
            shell.configure(config)
            yield
        self._serve(topic, config, (yield from self._open_here(topic, config, served.shells)))

    def _remove(self, topic: Topic) -> Steps[None]:
        served = self._topics_by_id.pop(topic.topic_id, None)
        if served is not None and self._topics.get(topic.name) is served:
            del self._topics[topic.name]
        for shell in served.shells if served is not None else ():
            shell.close()
            yield
        for kind in CompanionKind:
            self._close_companions(topic.topic_id, kind)
        companions = [companion_id(topic.topic_id, kind) for kind in CompanionKind]
        forget = partial(self._catalog.forget_removed, topic.topic_id)
        self._upkeep.remove_topics([topic.topic_id, *companions], done=forget)
        log.info("topic removed", topic=topic.name, partitions=topic.partition_count)

    def _close_companions(self, topic_id: bytes, kind: CompanionKind) -> None:
        for key in [key for key in self._companions if (key[0], key[2]) == (topic_id, kind)]:
            self._companions.pop(key).close()

    def _serve(self, topic: Topic, config: TopicConfig, shells: list[PartitionShell]) -> None:
        self.generation += 1
        served = ServedTopic(topic, config, shells, self._role)
        self._topics[topic.name] = served
        self._topics_by_id[topic.topic_id] = served

    def _open_here(
        self, topic: Topic, config: TopicConfig, open_already: Iterable[PartitionShell]
    ) -> Steps[list[PartitionShell]]:
        """The shells of all partitions that this node has a replica of, in their order."""
        shells = {shell.index: shell for shell in open_already}
        for index in self._indexes_here(topic):
            if index not in shells and not self._strays.is_leaving((topic.topic_id, index)):
                # On the loop: a new partition has nothing on disk, so there is nothing to read.
                shells[index] = self._shell(topic, index, self._open_log(topic, index, config), config)
                yield
        return [shells[index] for index in sorted(shells)]

    def _open_log(self, topic: Topic, index: int, config: TopicConfig) -> PartitionLog:
        stated = self._catalog.state(topic.topic_id, index)
        is_replicated = stated is not None and is_shared(stated.state)
        return self._store.open_log(topic.name, topic.topic_id, index, log_config(config), is_replicated=is_replicated)

    def _shell(self, topic: Topic, index: int, opened: PartitionLog, config: TopicConfig) -> PartitionShell:
        role = self._role(topic.topic_id, index)
        return PartitionShell(topic.name, index, opened, store=self._store, clock=self.clock, config=config, role=role)

    # Roles

    def take_roles(self) -> None:
        """All of them anew: this node has begun another life, and leads nothing by the word of an earlier one."""
        self.generation += 1
        for topic in self._topics.values():
            for shell in topic.shells:
                self._take_role(topic, shell)

    def _on_partition_change(self, change: PartitionChanged) -> None:
        if self._heard is not None:
            self._heard.append(change)
            return
        served = self._topics_by_id.get(change.topic_id)
        if served is None:
            return  # could not be opened
        self.generation += 1
        shell, is_here = served.shell(change.index), has_replica(change.stated.state, self.node_id)
        if shell is not None:
            self._take_role(served, shell)
            if not is_here:
                self._let_go(served, shell)
        elif is_here:
            self._open_moved(served, change.index)

    def set_strays_aside(self, on_disk: Iterable[TopicOnDisk]) -> None:
        """`on_disk`: what was found at the start."""
        topics = [each.description for each in self._topics.values()]
        # A topic that nobody has placed is its owner's, who has yet to say so.
        here = {topic.topic_id: self._indexes_here(topic) for topic in topics if topic.placed}
        strays = find_strays(on_disk, here)
        if strays:
            self._strays.let_go(strays, self._take_back)

    def _let_go(self, served: ServedTopic, shell: PartitionShell) -> None:
        """A partition that is to be here no longer."""
        place = (served.topic_id, shell.index)
        self._serve(served.description, served.config, [each for each in served.shells if each is not shell])
        shell.close()
        for kind in CompanionKind:
            companion = self._companions.pop((*place, kind), None)
            if companion is not None:
                companion.close()
        log.info("partition moved away", topic=served.name, partition=shell.index)
        self._strays.let_go({place: logs_of(place)}, self._take_back)

    def _take_back(self, place: Place) -> None:
        """Its log has been set aside; meanwhile the partition may have come back."""
        served, stated = self._topics_by_id.get(place[0]), self._catalog.state(*place)
        if served is not None and stated is not None and has_replica(stated.state, self.node_id):
            self._open_moved(served, place[1])

    def _open_moved(self, served: ServedTopic, index: int) -> None:
        if self._strays.is_leaving((served.topic_id, index)):
            return
        topic, config = served.description, served.config
        try:
            shell = self._shell(topic, index, self._open_log(topic, index, config), config)
        except (OSError, StorageError) as error:
            log.error("replica not opened", topic=topic.name, partition=index, error=str(error))
            return
        self._serve(topic, config, sorted([*served.shells, shell], key=lambda each: each.index))
        if shell.is_leading:
            self._role_followers.lead(shell)
        for listener in self._on_replica:
            listener(shell)

    def _take_role(self, topic: ServedTopic, shell: PartitionShell) -> None:
        """With its companions: one leader and one epoch for all logs of a partition. Without a pause: whatever was
        decided under the old role is over when the new one begins."""
        role = self._role(topic.topic_id, shell.index)
        is_other = not goes_on(shell.role, role) and shell.role != role
        if is_other:
            self._role_followers.resign(shell)
        companions = [self._companions.get((topic.topic_id, shell.index, kind)) for kind in CompanionKind]
        for each in (shell, *companions):
            if each is not None and each.role != role:
                each.take_role(role)
        if is_other and shell.is_leading:
            self._role_followers.lead(shell)

    def _role(self, topic_id: bytes, index: int) -> Role:
        stated = self._catalog.state(topic_id, index)
        if stated is None:
            return Idle("its topic is gone")
        return role_of(stated.state, self.node_id, self._life())

    def _indexes_here(self, topic: Topic) -> list[int]:
        """Of partitions that this node has a replica of, in order."""
        states = self._catalog.states(topic.topic_id)
        return [index for index, stated in states if has_replica(stated.state, self.node_id)]

    def _config_of(self, topic: Topic) -> TopicConfig:
        return make_topic_config(topic.overrides, self.topic_defaults)
