"""The schedules of this node: which there are, where their shells are, what becomes of them when topics come and go.

A partition has a schedule since its first delayed message; those that are on disk are loaded at the start, in the
background, and whoever needs one before that waits for it. Doors delay messages, look at them and change them here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.rehearsals import Rehearsal, Subject
from penstock.broker.machine.residents import Residents, place_of
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.context import MoverIds, ScheduleContext
from penstock.broker.schedule.due_list import LISTED_BYTES_MAX
from penstock.broker.schedule.limits import ScheduleLimits
from penstock.broker.schedule.mover import known_producers
from penstock.broker.schedule.pace import MoverPace
from penstock.broker.schedule.reader import RowCache
from penstock.broker.schedule.refusals import LOADING, RESIGNED, not_scheduled
from penstock.broker.schedule.rehearsal import rehearse
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.topic_crons import NodeCrons
from penstock.broker.schedule.values import (
    ChangeOutcome,
    CronFacts,
    CronMessage,
    DelayedMessage,
    DueCursor,
    NotScheduled,
    PendingMessage,
    PendingPage,
    Scheduled,
)
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind
from penstock.broker.topic.not_here import NotHere
from penstock.broker.topic.served_topic import ServedTopic
from penstock.cluster.catalog.crons import CronMoved
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.topic_image import Change, TopicRemoved
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.domain.config.topic import TopicConfig
from penstock.domain.queue.receipt import read_scheduled_id
from penstock.domain.schedule.commands import Refused, ScheduleProblem
from penstock.domain.schedule.records import Missed
from penstock.domain.transaction.end import TransactionEnd

log = get_logger("schedules")

TIDY_MS: Final = 1_000
RELOAD_MS: Final = 2_000
CLOCK_CHECK_MS: Final = 1_000
# Further than this the wall clock and the monotonic one go apart only if somebody puts one of them.
CLOCK_STEP_MS: Final = 100
LOADING_AT_ONCE: Final = 4
# Each waits for the disk.
SAVING_AT_ONCE: Final = 8
# Looked at before others may use the loop: a few microseconds each, if there is nothing to do.
SHELLS_AT_ONCE: Final = 100
# Messages of one request that are written before others may use the loop: some milliseconds.
SCHEDULED_AT_ONCE: Final = 500
# Not because of the disk: others may be taken.
_OF_ONE_MESSAGE: Final = frozenset({Refusal.TOO_LARGE, Refusal.INVALID})

_NOT_PENDING: Final = Refused(ScheduleProblem.NOT_PENDING)
_LIMITS: Final = ScheduleLimits()


class Delayed(msgspec.Struct, frozen=True):
    """One message that waits now, durably."""

    message_id: str
    partition: int
    # Its place in the schedule, which its id is made of.
    origin: int


class NodeSchedules:
    def __init__(
        self,
        site: Site,
        broker: Broker,
        topics: TopicCatalog,
        producer_ids: MoverIds,
        *,
        pace: MoverPace | None = None,
        limits: ScheduleLimits = _LIMITS,
        shell: type[ScheduleShell] = ScheduleShell,
    ) -> None:
        clock = site.clock
        self._broker = broker
        self._clock = clock
        self._tasks = site.tasks
        self._context = ScheduleContext(
            site=site,
            producer_ids=producer_ids,
            cache=RowCache(),
            pace=pace or MoverPace(),
            limits=limits,
            config_of=self._config_of,
            place_of=topics.crons.get,
        )
        self._shell = shell
        self._crons = NodeCrons(broker, self, topics.crons, clock=clock)
        # Topics whose names are about to be settled.
        self._settling: set[bytes] = set()
        self._residents = Residents(
            Subject.SCHEDULE,
            self._make,
            tasks=site.tasks,
            on_loaded=self._on_loaded,
            barrier=lambda: broker.barrier,
            takeovers=broker.takeovers,
        )
        broker.rehearsals.add(Subject.SCHEDULE, self._rehearse)
        self._number = 0
        self._offset_ms = clock.now_ms() - clock.monotonic_ms()
        topics.on_change(self._on_topic_change, Part.SCHEDULES)
        topics.crons.on_change(self._on_cron_moved, Part.SCHEDULES)
        broker.follow_roles(self, Part.SCHEDULES)
        broker.follow_journals(self.damages)

    # Life

    async def start(self) -> None:
        """Loads what is on disk, in the background."""
        found = [
            partition
            for partition in self._broker.shells()
            if self._broker.has_companion(partition, CompanionKind.SCHEDULE)
        ]
        for partition in found:
            # One of them is the mover, and may have left something half done. It may take a while until it is known
            # which; a log that has forgotten it by then would take the same messages once more.
            partition.log.known_producers.is_pinned = known_producers(partition).__contains__
        self._tasks.start("schedules on disk", self._load_all(found))
        self._tasks.every(TIDY_MS, "schedule files", self._tidy)
        self._tasks.every(RELOAD_MS, "schedule reload", self.reload_lost)
        self._tasks.every(RELOAD_MS, "schedule crons", self._settle_crons)
        self._tasks.every(CLOCK_CHECK_MS, "wall clock", self.check_clock)

    async def stop(self) -> None:
        """What is released is released; the next start reads next to nothing."""
        shells = self._residents.close()
        limit = asyncio.Semaphore(SAVING_AT_ONCE)

        async def close(shell: ScheduleShell) -> None:
            async with limit:
                await shell.close(is_saved=True)

        await asyncio.gather(*map(close, shells))

    async def _load_all(self, partitions: Sequence[PartitionShell]) -> None:
        led = [partition for partition in partitions if partition.is_leading and not partition.is_closed]
        await self._residents.load_all(led, at_once=LOADING_AT_ONCE)

    # Roles

    def lead(self, partition: PartitionShell) -> None:
        """What is due is released by whoever leads, whether anybody asks or not."""
        if self._broker.has_companion(partition, CompanionKind.SCHEDULE):
            self._residents.begin(partition)

    def resign(self, partition: PartitionShell) -> None:
        self._residents.resign(place_of(partition))

    # Shells

    async def shell_of(self, partition: PartitionShell) -> ScheduleShell | NotScheduled:
        """The schedule of a partition, made if there is none, and loaded."""
        place = place_of(partition)
        shell = self._residents.get(place)
        if shell is not None and shell.is_loaded:
            return shell
        if shell is None or shell.damage.reason is None:
            if partition.is_closed or self._broker.is_stopping:
                return NotScheduled(Refusal.OFFLINE, f"{partition.topic}-{partition.index} is closed")
            if not partition.is_leading:
                return RESIGNED
            if self._residents.is_held(partition):
                return LOADING
            shell = await self._residents.load(place)
        if shell is not None and shell.damage.reason is not None:
            return shell.unavailable
        if shell is None or not shell.is_loaded:
            return NotScheduled(
                Refusal.OFFLINE, f"the schedule of {partition.topic}-{partition.index} is not available"
            )
        return shell

    def open_shell(self, partition: PartitionShell) -> ScheduleShell | None:
        shell = self._residents.get(place_of(partition))
        return shell if shell is not None and shell.is_loaded else None

    async def existing_shell(self, partition: PartitionShell) -> ScheduleShell | NotScheduled | None:
        """None: nothing was ever delayed there, or it is long over."""
        if self._residents.get(place_of(partition)) is None and not self._broker.has_companion(
            partition, CompanionKind.SCHEDULE
        ):
            return None
        return await self.shell_of(partition)

    def loaded_shells(self) -> Iterator[ScheduleShell]:
        yield from [shell for shell in self._residents.shells() if shell.is_loaded]

    def _on_loaded(self, shell: ScheduleShell) -> None:
        # Not waited for: who defines a schedule waits for a load, and this would wait for him.
        self._settle_soon(shell.partition.log.home.topic_id)

    def _on_cron_moved(self, change: CronMoved) -> None:
        topic = self._broker.topic_by_id(change.topic_id)
        if topic is not None and any(self.open_shell(partition) is not None for partition in topic.led()):
            self._settle_soon(change.topic_id)

    def _settle_soon(self, topic_id: bytes) -> None:
        if topic_id not in self._settling:
            self._settling.add(topic_id)
            self._tasks.start("crons of a topic", self._settle_topic(topic_id))

    async def _settle_topic(self, topic_id: bytes) -> None:
        # From now on a change is another one.
        self._settling.discard(topic_id)
        await self._crons.settle(topic_id)
        topic = self._broker.topic_by_id(topic_id)
        for partition in topic.led() if topic is not None else ():
            shell = self.open_shell(partition)
            if shell is not None:
                # One that waited for its name may fire now.
                shell.mover.wake()

    async def _make(self, partition: PartitionShell, leadership: Leadership) -> ScheduleShell | None:
        companion = await self._broker.companion(partition, CompanionKind.SCHEDULE)
        if partition.is_closed:
            return None  # its topic was deleted meanwhile
        self._number += 1
        return self._shell(self._context, leadership, partition, companion, number=self._number)

    async def _rehearse(self, rehearsal: Rehearsal) -> None:
        async with self._residents.rehearsal(rehearsal.partition):
            await rehearse(rehearsal, self._context)

    def _config_of(self, topic_id: bytes) -> TopicConfig | None:
        topic = self._broker.topic_by_id(topic_id)
        return None if topic is None else topic.config

    # Messages

    async def schedule(
        self, topic: ServedTopic, messages: Sequence[DelayedMessage], partitions: Sequence[int]
    ) -> list[Delayed | NotScheduled]:
        """Messages of a door, each with the partition that it goes to; one outcome for each, durable."""
        places: dict[int, list[int]] = {}
        for place, index in enumerate(partitions):
            places.setdefault(index, []).append(place)
        found = await asyncio.gather(
            *(self._schedule(topic.find(index), [messages[place] for place in own]) for index, own in places.items())
        )
        by_place = dict(zip(chain.from_iterable(places.values()), chain.from_iterable(found), strict=True))
        return [by_place[place] for place in range(len(messages))]

    async def _schedule(
        self, partition: PartitionShell | NotHere, messages: Sequence[DelayedMessage]
    ) -> list[Delayed | NotScheduled]:
        if isinstance(partition, NotHere):
            return [not_scheduled(partition)] * len(messages)
        shell = await self.shell_of(partition)
        outcomes: list[Delayed | NotScheduled] = []
        for first in range(0, len(messages), SCHEDULED_AT_ONCE):
            some = messages[first : first + SCHEDULED_AT_ONCE]
            outcome = shell if isinstance(shell, NotScheduled) else await shell.schedule(some)
            if isinstance(outcome, Scheduled):
                told = zip(outcome.message_ids, outcome.origins, strict=True)
                outcomes += [Delayed(name, partition.index, origin) for name, origin in told]
            elif len(some) > 1 and outcome.refusal in _OF_ONE_MESSAGE:
                # One that its topic does not take must not keep the others out.
                single = await asyncio.gather(*(self._schedule(partition, [one]) for one in some))
                outcomes += chain.from_iterable(single)
            else:
                outcomes += [outcome] * len(some)
        return outcomes

    async def end_transaction(self, partition: PartitionShell, end: TransactionEnd) -> bool:
        """True: durable in the schedule's log, or nothing of the transaction is there. Before the partition's own
        marker: a message of a transaction that is over must not be held for ever."""
        shell = await self.existing_shell(partition)
        if shell is None:
            return True
        if isinstance(shell, NotScheduled):
            return False
        return await shell.end_transaction(end)

    async def find(self, message_id: str) -> tuple[ScheduleShell, int] | NotScheduled | None:
        """Where a delayed message is or was, and its origin there. None: no such id, or its topic is gone."""
        found = read_scheduled_id(message_id)
        topic = None if found is None else self._broker.topic_by_id(found.topic_id)
        if topic is None or found is None:
            return None
        partition = topic.find(found.partition)
        if isinstance(partition, NotHere):
            return None if partition.is_unknown else not_scheduled(partition)
        shell = await self.existing_shell(partition)
        return (shell, found.offset) if isinstance(shell, ScheduleShell) else shell

    async def show(self, message_id: str) -> PendingMessage | NotScheduled | None:
        found = await self.find(message_id)
        return await found[0].pending.show(found[1]) if isinstance(found, tuple) else found

    async def cancel(self, message_id: str) -> ChangeOutcome:
        found = await self.find(message_id)
        if not isinstance(found, tuple):
            return found or _NOT_PENDING
        return await found[0].pending.cancel(found[1])

    async def reschedule(self, message_id: str, due_ms: int) -> ChangeOutcome:
        found = await self.find(message_id)
        if not isinstance(found, tuple):
            return found or _NOT_PENDING
        return await found[0].pending.reschedule(found[1], due_ms)

    async def list_due(self, topic: ServedTopic, after: DueCursor | None, limit: int) -> PendingPage | NotScheduled:
        """All partitions together, in the order of due times."""
        messages: list[PendingMessage] = []
        cursors: list[DueCursor] = []
        bytes_max = LISTED_BYTES_MAX // topic.partition_count
        for partition in topic.led():
            shell = await self.existing_shell(partition)
            page = (
                None
                if shell is None
                else shell
                if isinstance(shell, NotScheduled)
                else await shell.pending.list_due(after, limit, bytes_max=bytes_max)
            )
            if isinstance(page, NotScheduled):
                return page
            if page is not None:
                messages += page.messages
                cursors += [] if page.next is None else [page.next]
        messages.sort(key=_cursor_of)
        # What is behind the end of a page that goes on is not known yet.
        known_until = min(cursors, default=None)
        known = [each for each in messages if known_until is None or _cursor_of(each) <= known_until]
        if len(known) > limit:
            return PendingPage(known[:limit], _cursor_of(known[limit - 1]))
        return PendingPage(known, known_until)

    def pending_count(self, topic: ServedTopic, since: Sequence[int] = ()) -> int:
        """Of schedules that are loaded: all of them, soon after the start. `since`: only what has come from these
        places on, by partition."""
        count = 0
        for partition in topic.led():
            shell = self.open_shell(partition)
            mark = since[partition.index] if partition.index < len(since) else 0
            if shell is not None:
                count += shell.machine.pending_count_since(mark) if mark else shell.pending_count
        return count

    def damage_of(self, topic: ServedTopic) -> str | None:
        """Why nobody can say what is delayed in a topic; None: it is known."""
        shells = (self._residents.get(place_of(partition)) for partition in topic.led())
        refused = (shell.refusal() for shell in shells if shell is not None)
        return next((each.reason for each in refused if each is not None and each.refusal is Refusal.DAMAGED), None)

    async def purge_marker(self, topic: ServedTopic) -> tuple[int, ...] | NotScheduled:
        """By partition: a queue that is purged now does not see released messages whose origins are below."""
        marker: list[int] = []
        for partition in topic.led():
            shell = await self.existing_shell(partition)
            if isinstance(shell, NotScheduled):
                return shell
            marker.append(0 if shell is None else shell.journal.next_position)
        return tuple(marker)

    # Named schedules: see `topic_crons`

    async def define_cron(
        self,
        topic: ServedTopic,
        name: str,
        message: CronMessage,
        *,
        expression: str,
        zone: str = "UTC",
        missed: Missed = Missed.ONCE,
    ) -> ChangeOutcome:
        """In the partition of the message's key, or else of its own name; in place of the topic's one of that name."""
        return await self._crons.define(topic, name, message, expression=expression, zone=zone, missed=missed)

    async def delete_cron(self, topic: ServedTopic, name: str) -> ChangeOutcome:
        return await self._crons.delete(topic, name)

    async def crons(self, topic: ServedTopic | None = None) -> list[CronFacts] | NotScheduled:
        """Of a topic or of all, by name."""
        return await self._crons.all(topic)

    async def cron_message(self, topic: ServedTopic, name: str) -> CronMessage | NotScheduled | None:
        return await self._crons.message(topic, name)

    # What changes elsewhere

    def _on_topic_change(self, change: Change) -> None:
        if isinstance(change, TopicRemoved):
            for shell in self._residents.forget(change.topic.topic_id):
                # At once: nothing of it may be released or written any more.
                shell.is_closed = True
                self._tasks.start("schedule of a removed topic", shell.close())

    async def check_clock(self) -> None:
        """Schedules sleep until something is due. If the wall clock was put, that is another moment now."""
        offset_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        if abs(offset_ms - self._offset_ms) < CLOCK_STEP_MS:
            return
        log.warning("wall clock was put", step_ms=offset_ms - self._offset_ms)
        self._offset_ms = offset_ms
        for shell in self.loaded_shells():
            shell.mover.wake()

    # Upkeep

    async def _tidy(self) -> None:
        for count, shell in enumerate(self._residents.shells()):
            if count % SHELLS_AT_ONCE == 0:
                await asyncio.sleep(0)
            await shell.tidy()

    async def reload_lost(self) -> None:
        if not self._broker.is_stopping:
            await self._residents.reload_lost()

    def damages(self) -> list[JournalDamage]:
        return self._residents.damages()

    async def _settle_crons(self) -> None:
        for topic_id in sorted({shell.partition.log.home.topic_id for shell in self.loaded_shells()}):
            await self._crons.settle(topic_id)


def _cursor_of(message: PendingMessage) -> DueCursor:
    return DueCursor(message.due_ms, message.partition, message.position)
