"""Replication on one node: the groups that it leads, the logs that it follows, and who is asked for them.

    the catalog: a role, a set, a node ─► settle this one partition
        leads it with others   ─► a group, in the feed
        follows                ─► three logs, each in a lane of a fetcher to the leader
        neither                ─► nothing

Shells have their role before this hears of it (`cluster/catalog/order`): whatever a shell takes meanwhile waits for a
watermark that nobody moves yet.

Rules:
- A companion that is on this disk is open before its log is led or followed: an empty one in its place would be a lie.
- A log whose end is being cut off is led when that is over: the epoch begins where it ends then.
- Nothing goes over all partitions by the clock: only those are looked at in which somebody may fall behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.machine.metrics import MachineCollector
from penstock.broker.partition.role import Following, Idle, Leading
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.replication.departures import Departures
from penstock.broker.replication.feed import LeaderFeed
from penstock.broker.replication.fetcher import Asking, Calls, Fetcher
from penstock.broker.replication.followed import Failure, FollowedLog
from penstock.broker.replication.group import KINDS, LedLog, ReplicaGroup, log_names
from penstock.broker.replication.in_sync import InSyncChanges, Place
from penstock.broker.replication.journals import follow_journal
from penstock.broker.replication.mending import Mending
from penstock.broker.replication.metrics import ReplicationCollector
from penstock.broker.replication.preparation import Preparation
from penstock.broker.replication.server import NodeReplicas
from penstock.broker.replication.settings import ReplicationSettings
from penstock.broker.replication.tallies import ElectionTally, Looks
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind
from penstock.broker.topic.roles import has_replica, is_shared
from penstock.cluster.catalog.nodes import NodeCatalog, NodesChanged
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.partition_image import PartitionChanged, Stated
from penstock.cluster.catalog.topic_image import (
    Change,
    NodeConfigChanged,
    PartitionsGrown,
    Topic,
    TopicAdded,
    TopicConfigChanged,
    TopicRemoved,
)
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore
from penstock.domain.replication.exchange import KnownLeader, LogName
from penstock.domain.replication.sets import minimum_in_sync
from penstock.domain.replication.truncation import BeginAnew, Cut
from penstock.domain.replication.view import View
from penstock.net.peers import Lane
from penstock.storage.store import LogStore

log_events = get_logger("replication")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What a node knows of the cluster, and where it is changed."""

    topics: TopicCatalog
    nodes: NodeCatalog
    store: MetadataStore
    keys: KeySpace
    # Whether nobody can have ended this node's session before then, by the monotonic clock.
    is_held_at: Callable[[int], bool]


class NodeReplication:
    def __init__(
        self,
        site: Site,
        broker: Broker,
        store: LogStore,
        metadata: Metadata,
        *,
        calls: Calls,
        life: Callable[[], int],
        settings: ReplicationSettings | None = None,
    ) -> None:
        self._broker = broker
        self._store = store
        self._topics = metadata.topics
        self._nodes = metadata.nodes
        self._calls = calls
        self._clock = site.clock
        self._metrics = site.metrics
        self._node_id = site.node_id
        self._settings = settings or ReplicationSettings()
        self._tasks = TaskSupervisor(log_events)
        self._asking = Asking(
            node_id=site.node_id,
            life=life,
            clock=site.clock,
            tasks=self._tasks,
            catch_up_bytes_per_second=self._settings.catch_up_bytes_per_second,
        )
        self._readers = ThreadPoolExecutor(self._settings.reader_threads, thread_name_prefix="replica reader")
        self._view: View = {}
        self.groups: dict[Place, ReplicaGroup] = {}
        # Those in which somebody may fall behind, and those in which somebody may join.
        self._restless: dict[ReplicaGroup, None] = {}
        self._short: dict[ReplicaGroup, None] = {}
        self._led: dict[LogName, LedLog] = {}
        self._followed: dict[Place, list[tuple[FollowedLog, Fetcher]]] = {}
        self._fetchers: dict[tuple[int, Lane], Fetcher] = {}
        self.elections, self.looks = ElectionTally(), Looks(site.clock, lambda: self._view, metadata.is_held_at)
        self._preparation = Preparation(broker, self._tasks, self._settle)
        self.feed = LeaderFeed(self._led, lambda: self._view, self._who_leads, readers=self._readers, clock=site.clock)
        self.replicas = NodeReplicas(self.feed, self._find, self._who_leads, self._readers)
        self.changes = InSyncChanges(
            metadata.store,
            metadata.keys,
            lambda: self._view,
            lambda place: metadata.topics.state(*place),
            clock=site.clock,
            tasks=self._tasks,
            settings=self._settings,
        )
        self._departures = Departures(self.changes, self._tasks, self._minimum_at, lambda: self._view, self._node_id)
        self.mending = Mending(
            store,
            self._departures,
            self._tasks,
            self._logs_of,
            lambda place: metadata.topics.state(*place),
            on_mended=self._ask_again,
            node_id=site.node_id,
        )

    # Life

    def start(self) -> None:
        """When the broker serves, and this node is registered."""
        self._metrics.register(ReplicationCollector(self))
        self._metrics.register(MachineCollector(self._broker.rehearsals, self._broker.takeovers))
        self._view = self._nodes.view()
        self._nodes.on_change(self._on_nodes, Part.REPLICATION)
        self._topics.on_change(self._on_topic, Part.REPLICATION)
        self._topics.on_partition_change(self._on_partition, Part.REPLICATION)
        self._broker.on_companion(self._on_companion)
        self._broker.on_replica(lambda shell: self._settle((shell.log.home.topic_id, shell.index)))
        self._broker.led_barrier.count_by(self._has_barrier)
        self._broker.rehearsals.start(self._settings.rehearsal, self._tasks, self._is_behind)
        self.begin_life()
        self._tasks.every(self._settings.tick_ms, "lagging replicas", self._tick)

    def begin_life(self) -> None:
        """This node is registered anew, and its shells have the roles of this life."""
        for topic in self._broker.topics():
            self._settle_topic(topic.description)

    async def stop(self) -> None:
        self.feed.stop()
        for fetcher in self._fetchers.values():
            fetcher.stop()
        await self._tasks.stop()
        for group in list(self.groups.values()):
            self._end(group)
        self._readers.shutdown(wait=False)

    # What the catalog tells

    def _on_partition(self, change: PartitionChanged) -> None:
        self._settle((change.topic_id, change.index))

    def _on_topic(self, change: Change) -> None:
        match change:
            case TopicAdded(topic) | PartitionsGrown(_, topic):
                self._settle_topic(topic)
            case TopicConfigChanged(_, topic):
                self._configure(topic)
            case NodeConfigChanged():
                for served in self._broker.topics():
                    self._configure(served.description)
            case TopicRemoved(topic):
                for index in range(topic.partition_count):
                    self._drop((topic.topic_id, index))
                    self._broker.rehearsals.forget(topic.topic_id, index)
            case _:
                pass

    def _on_nodes(self, change: NodesChanged) -> None:
        self._view = self._nodes.view()
        if change.node_id is not None and change.node_id in self._view:
            self.feed.forget_node(change.node_id, self._view[change.node_id].life)
        for group in list(self._short):
            self.changes.note(group)

    def _on_companion(self, partition: PartitionShell, kind: CompanionKind, companion: PartitionShell) -> None:
        place = (partition.log.home.topic_id, partition.index)
        group = self.groups.get(place)
        if group is not None and companion.replicated is not None:
            group.attach(kind, companion)
        for log, _ in self._followed.get(place, ()):
            if log.kind is kind:
                log.shell = companion
                follow_journal(self._broker.rehearsals, log)
        self.mending.watch(place, self._logs_of(place))

    def _settle_topic(self, topic: Topic) -> None:
        for index in range(topic.partition_count):
            self._settle((topic.topic_id, index))

    def _configure(self, topic: Topic) -> None:
        minimum = self._minimum(topic)
        for index in range(topic.partition_count):
            place = (topic.topic_id, index)
            group = self.groups.get(place)
            if group is not None:
                group.on_minimum(minimum)
            # What a replica must have done before it counts may be another thing by now, and so the lane.
            for log, fetcher in self._followed.get(place, ()):
                if fetcher.lane is not Lane.CATCH_UP:
                    self._move(place, log, _lane_of(log))

    # One partition

    def _settle(self, place: Place) -> None:
        """What it is now, by the role of its shell and what the catalog says."""
        served, stated = self._broker.topic_by_id(place[0]), self._topics.state(*place)
        shell = None if served is None else served.shell(place[1])
        is_here = stated is not None and has_replica(stated.state, self._node_id)
        if shell is not None:
            # It looks again when this is done.
            self._broker.led_barrier.wake(shell)
        if shell is None or stated is None or not is_here or shell.is_closed or shell.role.epoch != stated.state.epoch:
            self._drop(place)
        elif isinstance(shell.role, Leading) and shell.role.is_replicated:
            self._lead(place, shell, stated)
        elif isinstance(shell.role, Following):
            self._follow(place, shell, shell.role, stated)
        else:
            self._drop(place)
        self.mending.watch(place, self._logs_of(place))

    def _lead(self, place: Place, shell: PartitionShell, stated: Stated) -> None:
        group = self.groups.get(place)
        if group is not None and group.epoch == stated.state.epoch and group.partition is shell:
            group.on_stored(stated)
            self._note_short(group)
            if group.is_short:
                # Somebody may be whole again, or have been let in as a replica, who has caught up long ago.
                self.changes.note(group)
            return
        led_before = next((fetcher.leader for _, fetcher in self._followed.get(place, ())), None)
        self.elections.note(place, stated.state, led_before, self._view)
        self._drop(place)
        if not self._preparation.is_done(shell):
            self._preparation.begin(place, shell)
            return
        group = ReplicaGroup(
            shell,
            self._preparation.companions_of(shell),
            stated,
            node_id=self._node_id,
            minimum=self._minimum_at(place),
            now_ms=self._clock.monotonic_ms(),
            listener=self,
        )
        self.groups[place] = group
        self._led.update({log.name: log for log in group.logs})
        self._restless[group] = None
        self._note_short(group)
        group.when_barrier(partial(self._broker.led_barrier.wake, shell))
        log_events.info("leading", topic=shell.topic, partition=shell.index, epoch=group.epoch)

    def _follow(self, place: Place, shell: PartitionShell, role: Following, stated: Stated) -> None:
        followed = self._followed.get(place)
        if followed is not None and all(log.is_current for log, _ in followed):
            for log, _ in followed:
                log.unclean_epoch = stated.state.unclean_epoch
            return
        self._drop(place)
        if not self._preparation.is_done(shell):
            self._preparation.begin(place, shell)
            return
        companions = self._preparation.companions_of(shell)
        self._followed[place] = []
        for name, kind in zip(log_names(*place), (None, *KINDS.values()), strict=True):
            log = FollowedLog(
                name,
                shell,
                role,
                kind=kind,
                shell=shell if kind is None else companions.get(kind),
                unclean_epoch=stated.state.unclean_epoch,
            )
            follow_journal(self._broker.rehearsals, log)
            fetcher = self._fetcher(role.leader, _lane_of(log))
            self._followed[place].append((log, fetcher))
            fetcher.add(log)

    def _drop(self, place: Place) -> None:
        group = self.groups.get(place)
        if group is not None:
            self._end(group)
        for log, fetcher in self._followed.pop(place, ()):
            fetcher.remove(log)

    def _end(self, group: ReplicaGroup) -> None:
        self.groups.pop((group.topic_id, group.index), None)
        self._restless.pop(group, None)
        self._short.pop(group, None)
        for log in group.logs:
            self._led.pop(log.name, None)
        group.close()
        # Whoever waits for the barrier learns that the lead is over.
        self._broker.led_barrier.wake(group.partition)

    def _has_barrier(self, shell: PartitionShell, epoch: int) -> bool:
        group = self.groups.get((shell.log.home.topic_id, shell.index))
        return group is not None and group.partition is shell and group.epoch == epoch and group.has_barrier

    # What groups tell

    def on_restless(self, group: ReplicaGroup) -> None:
        self._restless[group] = None

    def on_change_wanted(self, group: ReplicaGroup) -> None:
        self.changes.note(group)

    def on_failed(self, source: ReplicaGroup | FollowedLog, failure: Failure = Failure.DISK_FAILED) -> None:
        """A leader hands over, a follower takes itself out: before anything else."""
        if isinstance(source, ReplicaGroup):
            place, is_leader = (source.topic_id, source.index), True
        else:
            home = source.partition.log.home
            place, is_leader = (home.topic_id, source.partition.index), False
            if failure is Failure.DIVERGED and source.shell is not None:
                source.shell.log.flaws.note_other(failure.value)
        self._departures.go(place, failure, is_leader=is_leader)

    def on_full(self, group: ReplicaGroup) -> None:
        """Who has room leads. Where nobody has, this node keeps the seat and refuses."""
        place, state = (group.topic_id, group.index), group.progress.state
        if self._departures.may_hand_over(place, state, Failure.DISK_FULL):
            self._departures.go(place, Failure.DISK_FULL, is_leader=True)

    def may_look(self, group: ReplicaGroup) -> bool:
        may = self.looks.may(group)
        if not may:
            # Who stays silent leaves the set, also where nothing is written.
            self.on_restless(group)
        return may

    def _note_short(self, group: ReplicaGroup) -> None:
        if group.is_short:
            self._short[group] = None
        else:
            self._short.pop(group, None)

    async def _tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for group in list(self._restless):
            group.progress.on_time(now_ms, group.log_ends)
            silent = group.silent_since(now_ms - self._settings.replica_lag_ms)
            group.progress.on_silence(silent)
            if group.progress.behind(now_ms, self._settings.replica_lag_ms):
                self.changes.note(group)
            if group.is_even and not silent:
                del self._restless[group]
        self.mending.look_at_all()

    # What fetchers tell

    async def cut(self, log: FollowedLog, plan: Cut | BeginAnew) -> None:
        shell = log.shell
        if shell is None:
            # Nothing was ever here, and the leader's log begins later.
            assert log.kind is not None
            shell = await self._broker.companion(log.partition, log.kind)
        planned = log.asked()

        def is_due() -> bool:
            return log.is_current and log.asked() == planned

        if isinstance(plan, Cut):
            is_unclean = plan.offset < shell.log.readable_end
            await self._store.cut_log(shell.log, plan.offset, is_unclean=is_unclean, is_due=is_due)
        else:
            await self._store.begin_log_at(shell.log, plan.offset, is_due=is_due)
        # It may lead by now: its epoch begins where the log ends now.
        shell.begin_epoch()

    async def open(self, log: FollowedLog) -> None:
        assert log.kind is not None, "the data log is open"
        await self._broker.companion(log.partition, log.kind)

    def on_behind(self, log: FollowedLog) -> None:
        place = (log.partition.log.home.topic_id, log.partition.index)
        stated = self._topics.state(*place)
        if stated is not None and self._node_id not in stated.state.in_sync:
            self._move(place, log, Lane.CATCH_UP)

    def on_caught_up(self, log: FollowedLog) -> None:
        place = (log.partition.log.home.topic_id, log.partition.index)
        stated = self._topics.state(*place)
        is_mending = stated is not None and self._node_id in stated.state.mending
        if is_mending and self._is_whole(place):
            self._departures.come_back(place, partial(self._is_whole, place))
        if any(each is log and fetcher.lane is Lane.CATCH_UP for each, fetcher in self._followed.get(place, ())):
            self._move(place, log, _lane_of(log))

    def _is_whole(self, place: Place) -> bool:
        followed = self._followed.get(place, ())
        return bool(followed) and all(log.is_current and log.is_whole for log, _ in followed)

    def _is_behind(self, partition: PartitionShell) -> bool:
        """Something is far behind, or this replica is not in sync: what there is to do is to fetch."""
        stated = self._topics.state(partition.log.home.topic_id, partition.index)
        is_in_sync = stated is not None and self._node_id in stated.state.in_sync
        return not is_in_sync or any(len(each) for (_, lane), each in self._fetchers.items() if lane is Lane.CATCH_UP)

    def _move(self, place: Place, log: FollowedLog, lane: Lane) -> None:
        followed = self._followed.get(place, [])
        for number, (each, fetcher) in enumerate(followed):
            if each is log and fetcher.lane is not lane:
                fetcher.remove(log)
                other = self._fetcher(fetcher.leader, lane)
                followed[number] = (log, other)
                other.add(log)

    def _ask_again(self, place: Place) -> None:
        for log, fetcher in self._followed.get(place, ()):
            fetcher.ask_again(log)

    def _fetcher(self, leader: int, lane: Lane) -> Fetcher:
        fetcher = self._fetchers.get((leader, lane))
        if fetcher is None:
            fetcher = Fetcher(leader, lane, self._calls, self, self._asking)
            self._fetchers[leader, lane] = fetcher
            fetcher.start()
        return fetcher

    # Facts

    def _who_leads(self, name: LogName) -> KnownLeader | None:
        # A companion's name leads to no topic: whoever asks for it asks for its partition's data log too.
        stated = self._topics.state(name.topic_id, name.partition)
        return None if stated is None else KnownLeader(stated.state.leader, stated.state.epoch)

    def _find(self, name: LogName) -> PartitionShell | None:
        served = self._broker.topic_by_id(name.topic_id)
        if served is not None:
            return served.shell(name.partition)
        led = self._led.get(name)
        if led is not None:
            return led.shell
        return next((log.shell for log in self.followed_logs() if log.name == name), None)

    def _logs_of(self, place: Place) -> list[PartitionShell]:
        """Those that are open, of a partition that others have too."""
        served, stated = self._broker.topic_by_id(place[0]), self._topics.state(*place)
        shell = None if served is None else served.shell(place[1])
        if shell is None or shell.is_closed or stated is None or not is_shared(stated.state):
            return []
        return [shell, *self._preparation.companions_of(shell).values()]

    def _minimum_at(self, place: Place) -> int:
        topic = self._topics.by_id(place[0])
        return 1 if topic is None else self._minimum(topic)

    def _minimum(self, topic: Topic) -> int:
        served = self._broker.topic_by_id(topic.topic_id)
        configured = None if served is None else served.config.min_insync_replicas
        return minimum_in_sync(configured, topic.replication)

    @property
    def followed_count(self) -> int:
        return len(self._followed)

    def leaderless_count(self) -> int:
        return sum(isinstance(shell.role, Idle) for shell in self._broker.shells())

    @property
    def fetchers(self) -> Iterable[Fetcher]:
        return list(self._fetchers.values())

    def followed_logs(self) -> Iterable[FollowedLog]:
        return [log for each in self._followed.values() for log, _ in each]


def _lane_of(log: FollowedLog) -> Lane:
    return Lane.SYNCED if log.is_synced else Lane.FAST
