"""The queues of this node: which there are, where their partitions' shells are, what becomes of them when topics come
and go.

A queue is (topic, group). Its definition stands in the metadata store; each partition of the topic has a shell with the
machines of all its queues. Doors define queues here and take messages by `delivery`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from penstock.base.clock import SteadyClock
from penstock.base.log_events import get_logger
from penstock.base.long_work import LongWork
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.portions import JournalDamagedError
from penstock.broker.machine.rehearsals import Rehearsal, Subject
from penstock.broker.machine.residents import Residents, place_of
from penstock.broker.partition.deletion import delete_before
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.ages import QueueAges
from penstock.broker.queue.batch import BatchCache
from penstock.broker.queue.commanding import What, tell_leaders
from penstock.broker.queue.landing import MoveLine
from penstock.broker.queue.lanes import LaneIndex, LaneScans
from penstock.broker.queue.mover import QueueMover
from penstock.broker.queue.reader import QueueReader
from penstock.broker.queue.replay import rehearse
from penstock.broker.queue.replay_start import Kept
from penstock.broker.queue.shell import QueueContext, QueueShell, QueueUnavailable
from penstock.broker.relay.asking import Relay
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind
from penstock.broker.topic.served_topic import ServedTopic
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.queues import QueueCatalog, QueueChange, QueueRemoved
from penstock.cluster.catalog.topic_image import Change, PartitionsGrown, TopicRemoved
from penstock.cluster.catalog.topics import AlreadyExists, Created, TopicCatalog
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.domain.queue.commands import Close, Open
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions, Start
from penstock.domain.queue.machine import Queue, deletable_below
from penstock.domain.security import access
from penstock.domain.security.access import Authorizer, Operation

log = get_logger("queues")

# Decoded messages that queues are working on, all queues together.
CACHE_BYTES_MAX: Final = 128 * 1024 * 1024
TIDY_MS: Final = 5_000
RELOAD_MS: Final = 2_000
DENIED_REPORT_MS: Final = 60_000
LOADING_AT_ONCE: Final = 8
# Whoever comes while a queue is being loaded or opened waits for it: a little less than the five seconds after which
# the most impatient clients give up (httpx).
LOADING_MS_MAX: Final = 4_000
# A queue that is this old and not open on a partition was open there once, unless nobody could write it down.
OPENED_MS_MAX: Final = 60_000
_DEFAULTS: Final = QueueOptions()


class NoSuchTopic(Exception):  # noqa: N818  says what is missing, not that something broke
    """A queue is defined on a topic that there is not."""


class NodeQueues:
    def __init__(
        self,
        site: Site,
        broker: Broker,
        topics: TopicCatalog,
        queues: QueueCatalog,
        producer_ids: ProducerIds,
        *,
        authorizer: Authorizer,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.broker = broker
        self._topics = topics
        self._queues = queues
        self._authorizer = authorizer
        # By which partitions that other nodes lead are reached; None: this node talks to no other.
        self.relay: Relay | None = None
        # When it was last told that letters of a queue may not go where they should.
        self._denied_ms: dict[QueueName, int] = {}
        self._readers = site.readers
        self._clock = site.clock
        self._tasks = site.tasks
        self._cache = BatchCache(CACHE_BYTES_MAX)
        self.lane_scans = LaneScans(site.readers, site.tasks)
        self._mover = QueueMover(
            broker,
            producer_ids,
            find_target=self._dead_letter_target,
            is_gone=topics.is_gone,
            copies=lambda topic, group: self._options_of(QueueName(topic, group)).copies_dead_letters,
            tasks=site.tasks,
        )
        self._context = QueueContext(
            # Leases are dated and waited for: an NTP step must not end all of them.
            SteadyClock(site.clock),
            config_of=lambda topic, group: self._options_of(QueueName(topic, group)).machine_config(topic),
            mover=self._mover.wake,
            chance=chance or site.chance.fraction,
            kept=Kept(broker.config.trace_horizon_ms, broker.config.trace_bytes_max),
        )
        self.ages = QueueAges(site.clock)
        self._work = LongWork(site.clock.monotonic_seconds)
        self._residents = Residents(
            Subject.QUEUES, self._make, tasks=site.tasks, barrier=lambda: broker.barrier, takeovers=broker.takeovers
        )
        broker.rehearsals.add(Subject.QUEUES, self._rehearse)
        # Queues that are being opened on their partitions: once, and everybody who wants one waits for the same.
        self._opening: dict[QueueName, asyncio.Task[None]] = {}
        queues.on_change(self._on_queue_change, Part.QUEUES)
        topics.on_change(self._on_topic_change, Part.QUEUES)
        broker.follow_roles(self, Part.QUEUES)
        broker.follow_journals(self.damages)

    # Life

    async def start(self) -> None:
        await self._queues.start()
        wanted = {definition.name.topic for definition in self._queues.all()}
        served = [topic for name in sorted(wanted) if (topic := self.broker.topic(name)) is not None]
        partitions = [partition for topic in served for partition in topic.led()]
        await self._residents.load_all(partitions, at_once=LOADING_AT_ONCE)
        lost: list[StoreUnavailableError] = []
        for definition in self._queues.all():
            try:
                if self._is_held(definition):
                    # When the barrier is reached: other nodes, who have to reach it, may wait for this one's doors.
                    self._tasks.start("queue opening", self._open_once(definition))
                else:
                    await self._open_once(definition)
            except StoreUnavailableError as error:
                lost.append(error)
        await self._forget_gone()
        for problem in lost:
            # The others are served; it is tried again when somebody asks for it.
            log.error("queues not opened", error=str(problem))
        self._tasks.every(TIDY_MS, "queue snapshots", self._tidy)
        self._tasks.every(RELOAD_MS, "queue reload", self._reload_lost)

    async def stop(self) -> None:
        for shell in self._residents.close():
            shell.close()
        await self._queues.stop()

    def _is_held(self, definition: QueueDefinition) -> bool:
        topic = self.broker.topic_by_id(definition.topic_id)
        return topic is not None and any(self._residents.is_held(partition) for partition in topic.led())

    # Roles

    def lead(self, partition: PartitionShell) -> None:
        """Its queues act by themselves: leases end, and dead letters wait to be moved."""
        if any(each.topic_id == partition.log.home.topic_id for each in self._queues.all()):
            self._residents.begin(partition)
            self._tasks.start("queues of a led partition", self._take_over(partition))

    def resign(self, partition: PartitionShell) -> None:
        self._residents.resign(place_of(partition))

    async def _take_over(self, partition: PartitionShell) -> None:
        """Opens what was defined and never opened there."""
        try:
            shell = await self._load_once(partition)
            for definition in self.all():
                if definition.topic_id == partition.log.home.topic_id:
                    await self._open_machine(definition, shell)
        except StoreUnavailableError as error:
            # Tried again when somebody asks for it, if it is still led here.
            log.info("queues not taken over", topic=partition.topic, partition=partition.index, why=str(error))
        for other in self._residents.shells():
            if other.partition.topic == partition.topic:
                # Who waits on the partitions that were led here learns of this one.
                other.wake_all()

    # Definitions

    def get(self, name: QueueName) -> QueueDefinition | None:
        definition = self._queues.get(name)
        topic = self.broker.topic(name.topic)
        # Left from a topic of the same name that is gone.
        if definition is None or topic is None or definition.topic_id != topic.topic_id:
            return None
        return definition

    def all(self) -> list[QueueDefinition]:
        return [found for each in self._queues.all() if (found := self.get(each.name)) is not None]

    async def define(self, name: QueueName, options: QueueOptions) -> QueueDefinition:
        """The queue as it is defined then, opened on every partition; one that is there already is not changed."""
        topic = self.broker.topic(name.topic)
        if topic is None:
            raise NoSuchTopic(name.topic)
        definition = self.get(name)
        if definition is None:
            definition = await self._queues.create(name, topic.topic_id, options, topic.partition_count)
            await self._tell_others(definition, What.OPEN)
        await self._open_once(definition)
        return definition

    async def _tell_others(self, definition: QueueDefinition, what: What) -> QueueUnavailable | None:
        """Who does not hear of it opens the queue when somebody asks for it there."""
        topic = self.broker.topic_by_id(definition.topic_id)
        if self.relay is None or topic is None or topic.is_whole:
            return None
        told = await tell_leaders(self.relay, definition, range(topic.partition_count), what)
        return told if isinstance(told, QueueUnavailable) else None

    async def change(self, name: QueueName, change: Callable[[QueueOptions], QueueOptions]) -> QueueDefinition | None:
        return None if self.get(name) is None else await self._queues.change(name, change)

    async def hide(self, name: QueueName, hidden_below: tuple[int, ...]) -> None:
        """What is pending in the topic's schedules below these places is not for this queue, by partition."""
        if self.get(name) is not None:
            await self._queues.hide(name, hidden_below)

    async def delete(self, name: QueueName) -> bool:
        """Its messages stay in the topic; what it knew of them is gone."""
        definition = self.get(name)
        if definition is None:
            return False
        problem = await self._tell_others(definition, What.CLOSE)
        if problem is not None:
            raise StoreUnavailableError(problem.reason)
        for shell in await self.shells(name):
            reply = await shell.submit(name.group, Close())
            if isinstance(reply, QueueUnavailable):
                # Or a queue made anew under this name would go on where this one was.
                raise (JournalDamagedError if reply.is_damaged else StoreUnavailableError)(reply.reason)
        return await self._queues.delete(name)

    async def _open_once(self, definition: QueueDefinition) -> None:
        """However many want it: eight first receives at once are one opening that all of them wait for."""
        name = definition.name
        task = self._opening.get(name)
        if task is None or task.done():
            task = self._opening[name] = self._tasks.start("queue opening", self._open_machines(definition))
        try:
            await asyncio.shield(task)
        finally:
            if task.done() and self._opening.get(name) is task:
                del self._opening[name]

    async def _open_machines(self, definition: QueueDefinition) -> None:
        topic = self.broker.topic_by_id(definition.topic_id)
        for partition in topic.led() if topic is not None else ():
            await self._open_machine(definition, await self._load_once(partition))

    async def _open_machine(self, definition: QueueDefinition, shell: QueueShell) -> None:
        queue = shell.queue(definition.name.group)
        if shell.is_loaded and (queue is None or not queue.is_open):
            await shell.submit(definition.name.group, Open(await self._start_offset(definition, shell.partition)))

    async def _start_offset(self, definition: QueueDefinition, partition: PartitionShell) -> int:
        if partition.index >= definition.partition_count:
            return 0  # added later: nobody has had a chance to read it
        ago_ms = definition.options.start_ago_ms
        if ago_ms is not None:
            since_ms = definition.created_ms - ago_ms
            found = await asyncio.to_thread(partition.offset_for_timestamp, since_ms)
            # What cannot be looked up is looked at from its beginning: too much is better than too little.
            if isinstance(found, ReadProblem):
                return partition.log_start
            return partition.readable_end if found is None else found.offset
        if definition.options.start is not Start.LATEST:
            return partition.log_start
        if self._clock.now_ms() - definition.created_ms < OPENED_MS_MAX:
            return partition.readable_end
        # What it knew was lost in a repair: from where it once began, for twice is better than never.
        found = await asyncio.to_thread(partition.offset_for_timestamp, definition.created_ms)
        if isinstance(found, ReadProblem):
            return partition.log_start
        return partition.readable_end if found is None else found.offset

    # Shells

    async def shell(self, partition: PartitionShell, *, wait_ms: int = LOADING_MS_MAX) -> QueueShell:
        """The queues of a partition; loaded, unless its journal cannot be read or takes longer than that.
        StoreUnavailableError: there is no journal to be had, or no partition any more."""
        shell = self._residents.get(place_of(partition))
        if shell is not None and (shell.is_loaded or shell.damage.reason is not None):
            return shell
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await self._load_once(partition)
        except TimeoutError:
            shell = self._residents.get(place_of(partition))
            if shell is None:
                raise self._no_shell(partition) from None
            return shell

    async def shell_for(
        self, definition: QueueDefinition, partition: PartitionShell, *, wait_ms: int = LOADING_MS_MAX
    ) -> QueueShell:
        """The same, with the queue opened there: whoever comes while it is being opened waits for that, too."""
        shell = await self.shell(partition, wait_ms=wait_ms)
        if not shell.is_ready(definition.name.group):
            await self._await_opening(definition, wait_ms)
        return shell

    async def shells(self, name: QueueName, *, wait_ms: int = LOADING_MS_MAX) -> list[QueueShell]:
        """Of all partitions, as `shell_for`."""
        topic, definition = self.broker.topic(name.topic), self.get(name)
        if topic is None:
            return []
        group, partitions = name.group, topic.led()
        known = [self._residents.get(place_of(partition)) for partition in partitions]
        ready = [shell for shell in known if shell is not None and shell.is_ready(group)]
        if len(ready) == len(partitions):
            return ready
        if definition is not None:
            await self._await_opening(definition, wait_ms)
        return [await self.shell(partition, wait_ms=wait_ms) for partition in partitions]

    async def _await_opening(self, definition: QueueDefinition, wait_ms: int) -> None:
        """Or until the time is up: who asks then is told that it is being loaded."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._open_once(definition)
        except TimeoutError:
            log.warning("queue is being opened for long", topic=definition.name.topic, group=definition.name.group)

    async def _load_once(self, partition: PartitionShell) -> QueueShell:
        """However long it takes, and however many wait for it."""
        if partition.is_leading and not partition.is_closed:
            self._residents.lead(partition, partition.leadership.epoch)
        shell = await self._residents.load(place_of(partition))
        if shell is None:
            raise self._no_shell(partition)
        return shell

    def _no_shell(self, partition: PartitionShell) -> StoreUnavailableError:
        return StoreUnavailableError(f"the queues of {partition.topic}-{partition.index} cannot be opened")

    def talk_by(self, line: MoveLine) -> None:
        """How targets of dead letters that other nodes lead are reached, as soon as this node can talk to them."""
        self._mover.line = line

    def move_waits_for(self, shell: QueueShell, group: str) -> str:
        """What keeps dead letters of a queue from where they go; empty: nothing that is known."""
        return self._mover.waits_for(shell, group)

    def buried_count(self, name: QueueName) -> int:
        """Dead letters since the start."""
        return self._mover.buried_counts.get((name.topic, name.group), 0)

    def returned_count(self, name: QueueName) -> int:
        """Messages since the start that were told to move, and are at the end of their own log now."""
        return self._mover.returned_counts.get((name.topic, name.group), 0)

    def loaded_shells(self) -> Iterator[QueueShell]:
        yield from self._residents.shells()

    async def _make(self, partition: PartitionShell, leadership: Leadership) -> QueueShell | None:
        companion = await self.broker.companion(partition, CompanionKind.QUEUES)
        if partition.is_closed:
            return None  # its topic was deleted meanwhile
        lanes = LaneIndex(partition, self.lane_scans)
        reader = QueueReader(partition, partition.log.home.topic_id, self._cache, self._readers, lanes=lanes)
        shell = QueueShell(self._context, leadership, partition, companion, reader)
        lanes.on_progress = shell.wake_all
        return shell

    async def _rehearse(self, rehearsal: Rehearsal) -> None:
        topic = rehearsal.partition.topic

        def make(group: str) -> Queue:
            return Queue(self._context.config_of(topic, group), chance=self._context.chance)

        async with self._residents.rehearsal(rehearsal.partition):
            await rehearse(rehearsal, make)

    def _options_of(self, name: QueueName) -> QueueOptions:
        definition = self._queues.get(name)
        return definition.options if definition is not None else _DEFAULTS

    # Dead letters

    async def _dead_letter_target(self, topic: str, group: str) -> ServedTopic | None:
        """Created when the first letter comes, with as many partitions as the topic it comes from. None: letters
        wait."""
        options = self._options_of(QueueName(topic, group))
        name = options.dead_letters_of(topic)
        origin = self.broker.topic(topic)
        if name is None or origin is None or not self._may_bury(QueueName(topic, group), name, options):
            return None
        found = self.broker.topic(name)
        if found is not None:
            return found
        outcome = await self._topics.create_topic(name, origin.partition_count)
        if not isinstance(outcome, Created | AlreadyExists):
            log.error("dead-letter topic not created", topic=name, why=str(outcome))
        return self.broker.topic(name)

    def _may_bury(self, queue: QueueName, target: str, options: QueueOptions) -> bool:
        """Whoever named the target must be allowed to write there, now: the right may have been taken back since.
        Nobody named the default, which is the topic's own."""
        author = options.dead_letter_author
        if options.dead_letter_topic is None or self._authorizer.authorize(
            author, Operation.WRITE, access.topic(target)
        ):
            return True
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._denied_ms.get(queue, -DENIED_REPORT_MS) >= DENIED_REPORT_MS:
            self._denied_ms[queue] = now_ms
            log.warning("dead letters wait", queue=str(queue), why=f"{author}, who named {target}, may not write there")
        return False

    # What changes elsewhere

    def _on_queue_change(self, change: QueueChange) -> None:
        """Of this topic only: what is removed may be left from an earlier one of the name."""
        topic = self.broker.topic_by_id(change.definition.topic_id)
        for partition in topic.led() if topic is not None else ():
            shell = self._residents.get(place_of(partition))
            if shell is None:
                continue
            if isinstance(change, QueueRemoved):
                shell.decide(change.definition.name.group, Close())
            shell.configure(change.definition.name.group)

    def _on_topic_change(self, change: Change) -> None:
        if isinstance(change, TopicRemoved):
            for shell in self._residents.forget(change.topic.topic_id):
                shell.close()
                shell.reader.forget()
            self._tasks.start("queues of a removed topic", self._forget_gone())
        elif isinstance(change, PartitionsGrown):
            self._tasks.start("queues of new partitions", self._open_on(change.topic.name))

    async def _forget_gone(self) -> None:
        """Queues of topics that were removed, now or while the node was down."""
        for definition in self._queues.all():
            # By the catalog: a topic that is not served, because its logs could not be opened, is there all the same.
            if self._topics.by_id(definition.topic_id) is None:
                await self._queues.delete(definition.name, topic_id=definition.topic_id)

    async def _open_on(self, topic: str) -> None:
        for definition in self.all():
            if definition.name.topic == topic:
                await self._open_once(definition)
                for shell in await self.shells(definition.name):
                    # Who waits on the partitions that were there learns of the new ones.
                    shell.wake_all()

    # Upkeep

    async def _tidy(self) -> None:
        # A node may have thousands of them: together they would keep everybody else waiting for a third of a second.
        pace = self._work.pace()
        for shell in self._residents.shells():
            shell.trim()
            await shell.tidy()
            await self._delete_acked(shell)
            await pace.rest_if_due()
        await self.ages.refresh(self._residents.shells(), pace)

    async def _delete_acked(self, shell: QueueShell) -> None:
        """With `queue.delete.acked`: what every queue has finished goes. Other readers of the topic do not count."""
        topic = self.broker.topic_by_id(shell.partition.log.home.topic_id)
        if topic is None or not topic.config.queue_delete_acked or not shell.is_loaded:
            return
        defined = [each.name.group for each in self._queues.all() if each.topic_id == topic.topic_id]
        queues = [shell.queue(group) for group in {*defined, *shell.groups()}]
        if any(queue is None or not queue.is_open for queue in queues):
            return  # one of them is about to be opened, perhaps at the start
        below = min(
            deletable_below([queue for queue in queues if queue is not None]) or 0, shell.partition.readable_end
        )
        # What was acked must be known to be so before what it was is gone.
        if below > shell.partition.log_start and await shell.is_durable():
            outcome = await delete_before(shell.partition, below)
            if isinstance(outcome, ReadProblem):
                log.warning("acked messages stay", topic=topic.name, partition=shell.partition.index, why=outcome.value)

    async def _reload_lost(self) -> None:
        for shell in [] if self.broker.is_stopping else await self._residents.reload_lost():
            try:
                # Those that were defined while it could not be used.
                await self._open_on(shell.partition.topic)
            except StoreUnavailableError as error:
                log.warning("queues still not available", topic=shell.partition.topic, error=str(error))

    def damages(self) -> list[JournalDamage]:
        return self._residents.damages()


__all__ = ["NoSuchTopic", "NodeQueues", "QueueUnavailable"]
