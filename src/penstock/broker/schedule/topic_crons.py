"""The named schedules of a node: a name is the topic's, and lies in one of its partitions, whoever leads that.

Which one fires says the metadata store (`domain/schedule/cron_place`). Defining a name again may put it into another
partition, perhaps of another node:

    row in the new partition ─► key: new, held by old ─► old: fired so far noted, row deleted ─► key: new ─► it fires
                                                     └─ by whoever leads the old one, now or later

Whoever loads a schedule, hears of a key or is asked next goes on from where somebody died. Rows from before there were
keys are named when all partitions of their topic that are led here are loaded, or have had their time.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, Protocol

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.refusals import not_scheduled
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import ChangeOutcome, CronFacts, CronMessage, NotScheduled
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind
from penstock.broker.topic.not_here import NotHere
from penstock.broker.topic.served_topic import ServedTopic
from penstock.cluster.catalog.crons import CronCatalog
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.domain.partitioner import partition_for_key
from penstock.domain.schedule.commands import Done, Refused, ScheduleProblem
from penstock.domain.schedule.cron_place import CronPlace, Standing, claimed, let_go, standing_of, told
from penstock.domain.schedule.records import Missed, StoredCron

log = get_logger("schedules")

# For other partitions of the topic, which may have the same name and a higher version, where no key says so. Half of
# the time after which a cron's time counts as missed.
HELD_MS_MAX: Final = 30_000

_NO_SUCH_CRON: Final = Refused(ScheduleProblem.NO_SUCH_CRON)


class Shells(Protocol):
    """What is needed of `NodeSchedules`."""

    async def shell_of(self, partition: PartitionShell) -> ScheduleShell | NotScheduled: ...

    async def existing_shell(self, partition: PartitionShell) -> ScheduleShell | NotScheduled | None: ...

    def open_shell(self, partition: PartitionShell) -> ScheduleShell | None: ...

    def damage_of(self, topic: ServedTopic) -> str | None: ...


class NodeCrons:
    def __init__(self, broker: Broker, shells: Shells, places: CronCatalog, *, clock: Clock) -> None:
        self._broker = broker
        self._shells = shells
        self._places = places
        self._clock = clock
        # On one node one change at a time: a row that is being named must not look as if nobody had named it.
        self._lock = asyncio.Lock()

    async def define(
        self, topic: ServedTopic, name: str, message: CronMessage, *, expression: str, zone: str, missed: Missed
    ) -> ChangeOutcome:
        """In the partition of the message's key, or else of its own name; in place of the topic's one of that name."""
        key = message.key if message.key is not None else name.encode()
        index = partition_for_key(key, topic.partition_count)
        partition = topic.find(index)
        if isinstance(partition, NotHere):
            return not_scheduled(partition)
        async with self._lock:
            shell = await self._shells.shell_of(partition)
            if isinstance(shell, NotScheduled):
                return shell
            # In the image when this returns: this node does not fire by what was so before its partition let go.
            place = await self._places.read(topic.topic_id, name)
            known = 0 if place is None else place.version
            rows = [_version(each, name) for each in await self._existing(topic)]
            # The clock, for there may be one in a partition that nobody can look at now.
            version = max(self._clock.now_ms(), known + 1, *(row + 1 for row in rows))
            outcome = await shell.define_cron(
                name, message, expression=expression, zone=zone, missed=missed, version=version
            )
            if isinstance(outcome, Done):
                await self._claim(shell, name, version)
                await self._settle(topic)
        return outcome

    async def delete(self, topic: ServedTopic, name: str) -> ChangeOutcome:
        async with self._lock:
            place = await self._places.read(topic.topic_id, name)
            if place is None:
                return await self._delete_unnamed(topic, name)
            partition = topic.find(place.partition)
            if isinstance(partition, NotHere):
                return not_scheduled(partition)
            shell = await self._shells.existing_shell(partition)
            if isinstance(shell, NotScheduled):
                return shell
            outcome: ChangeOutcome = _NO_SUCH_CRON if shell is None else await shell.delete_cron(name)
            # The key goes with its row, when nobody holds the name any more.
            await self._settle(topic)
        return outcome

    async def _delete_unnamed(self, topic: ServedTopic, name: str) -> ChangeOutcome:
        shells = [await self._shells.existing_shell(partition) for partition in topic.led()]
        # Where nobody can look it may well be.
        unknown = next((shell for shell in shells if isinstance(shell, NotScheduled)), None)
        outcome: ChangeOutcome = _NO_SUCH_CRON if unknown is None else unknown
        for shell in shells:
            if isinstance(shell, ScheduleShell) and _find(shell, name) is not None:
                outcome = await shell.delete_cron(name)
        return outcome

    async def all(self, topic: ServedTopic | None) -> list[CronFacts] | NotScheduled:
        """NotScheduled: some are in a partition that another node leads, or whose schedule is damaged."""
        found: list[CronFacts] = []
        for each in self._broker.topics() if topic is None else [topic]:
            for shell in await self._existing(each):
                refused = shell.refuse_look()
                if refused is not None:
                    return refused
                found += shell.crons()
            problem = self._elsewhere(each) or self._damaged(each)
            if problem is not None:
                return problem
        return sorted(found, key=lambda cron: (cron.name, cron.topic, cron.partition))

    async def message(self, topic: ServedTopic, name: str) -> CronMessage | NotScheduled | None:
        for shell in await self._shells_with(topic, name):
            return await shell.cron_message(name)
        return self._elsewhere(topic, name) or self._damaged(topic)

    def _elsewhere(self, topic: ServedTopic, name: str | None = None) -> NotScheduled | None:
        for each, place in self._places.of_topic(topic.topic_id).items():
            found = topic.find(place.partition)
            if name in (None, each) and isinstance(found, NotHere):
                return not_scheduled(found)
        return None

    def _damaged(self, topic: ServedTopic) -> NotScheduled | None:
        why = self._shells.damage_of(topic)
        return None if why is None else NotScheduled(Refusal.DAMAGED, why)

    async def _shells_with(self, topic: ServedTopic, name: str) -> list[ScheduleShell]:
        """The one that counts first."""
        shells = [shell for shell in await self._existing(topic) if _find(shell, name) is not None]
        return sorted(shells, key=lambda shell: _rank(shell, name), reverse=True)

    async def _existing(self, topic: ServedTopic) -> list[ScheduleShell]:
        shells = [await self._shells.existing_shell(partition) for partition in topic.led()]
        return [shell for shell in shells if isinstance(shell, ScheduleShell)]

    # Who fires

    def is_settled(self, topic: ServedTopic) -> bool:
        """There is nothing to do about any name of the topic here, or it is somebody else's to do."""
        loaded = {shell.partition.index: shell for shell in self._loaded(topic)}
        if not all(shell.may_fire for shell in loaded.values()):
            return False
        places = self._places.of_topic(topic.topic_id)
        return not any(_is_left_over(place, loaded, name) for name, place in places.items())

    async def settle(self, topic_id: bytes) -> None:
        """After a load, when a key has changed, and now and then while something is left to do."""
        topic = self._broker.topic_by_id(topic_id)
        if topic is None or self.is_settled(topic):
            return
        async with self._lock:
            try:
                await self._settle(topic)
            except StoreUnavailableError as error:
                # Tried again; until then nobody fires who did not before.
                log.warning("crons not settled", topic=topic.name, error=str(error))

    async def _settle(self, topic: ServedTopic) -> None:
        """The lock is ours."""
        await self._adopt(topic)
        # Whoever lets go first lets the other begin.
        shells = self._loaded(topic)
        for shell in shells:
            for cron in shell.machine.crons():
                await self._settle_row(shell, cron)
        await self._settle_keys(topic)
        for shell in self._loaded(topic):
            shell.mover.wake()

    async def _settle_row(self, shell: ScheduleShell, cron: StoredCron) -> None:
        place = shell.place_of(cron.name)
        match standing_of(place, shell.partition.index, cron):
            case Standing.STALE:
                assert place is not None
                await self._drop(shell, cron, place)
            case Standing.NEWER | Standing.BEHIND:
                # Written by somebody who died before the key was.
                await self._claim(shell, cron.name, cron.version)
            case Standing.LEARNS:
                assert place is not None
                await shell.note_fired(cron.name, place.fired_ms)
            case Standing.FIRES | Standing.WAITS | Standing.UNNAMED:
                pass

    async def _claim(self, shell: ScheduleShell, name: str, version: int) -> None:
        index = shell.partition.index
        change = partial(claimed, partition=index, version=version)
        await self._places.change(shell.partition.log.home.topic_id, name, change)

    async def _drop(self, shell: ScheduleShell, cron: StoredCron, place: CronPlace) -> None:
        """A row that was replaced. If it fired until now: how far, before nobody knows it any more."""
        topic_id, index = shell.partition.log.home.topic_id, shell.partition.index
        log.info("cron is in another partition now", topic=shell.partition.topic, cron=cron.name, at=place.partition)
        if place.held == index:
            # What was fired may still be lost with this leadership. Nothing more is: this node has heard of the key.
            if not await shell.journal.until_durable():
                return
            fired_ms = max(cron.fired_ms, _fired_ms(shell, cron.name))
            await self._places.change(topic_id, cron.name, partial(_if_held, index, fired_ms))
        # Refused: tried again, and until then nobody fires.
        await shell.delete_cron(cron.name)

    async def _settle_keys(self, topic: ServedTopic) -> None:
        """Of rows that are gone: who held a name lets go of it, and a name without a row is none."""
        loaded = {shell.partition.index: shell for shell in self._loaded(topic)}
        for name, place in self._places.of_topic(topic.topic_id).items():
            if not _is_left_over(place, loaded, name):
                continue
            shell = loaded[place.partition if place.held is None else place.held]
            if not await shell.journal.until_durable():
                continue
            if place.held is None:
                await self._places.remove(topic.topic_id, name, place)
            else:
                await self._places.change(topic.topic_id, name, partial(_if_let_go, place.held))
        # Who was waited for has let go: what it fired is noted before the other fires.
        for shell in loaded.values():
            for cron in shell.machine.crons():
                if standing_of(shell.place_of(cron.name), shell.partition.index, cron) is Standing.LEARNS:
                    await self._settle_row(shell, cron)

    async def _adopt(self, topic: ServedTopic) -> None:
        """Rows that nobody has named, when all of them are known: of two the one that counts is named."""
        shells = self._loaded(topic)
        rows = [(shell, cron) for shell in shells for cron in shell.machine.crons()]
        unnamed = sorted({cron.name for shell, cron in rows if shell.place_of(cron.name) is None})
        # Those that wait longest have waited for all others.
        waited_ms = max((self._clock.monotonic_ms() - shell.loaded_ms for shell in shells), default=0)
        if not unnamed or (self._is_any_missing(topic) and waited_ms < HELD_MS_MAX):
            return
        places: list[tuple[str, CronPlace]] = []
        for name in unnamed:
            of_name = [shell for shell in shells if _find(shell, name) is not None]
            winner = max(of_name, key=lambda shell: _rank(shell, name))
            fired_ms = max(_fired_ms(shell, name) for shell in of_name)
            places.append((name, CronPlace(winner.partition.index, _version(winner, name), fired_ms=fired_ms)))
        await self._places.adopt(topic.topic_id, places)

    def _loaded(self, topic: ServedTopic) -> list[ScheduleShell]:
        shells = [self._shells.open_shell(partition) for partition in topic.led()]
        return [shell for shell in shells if shell is not None]

    def _is_any_missing(self, topic: ServedTopic) -> bool:
        return any(
            self._shells.open_shell(partition) is None and self._broker.has_companion(partition, CompanionKind.SCHEDULE)
            for partition in topic.led()
        )


def _is_left_over(place: CronPlace, loaded: dict[int, ScheduleShell], name: str) -> bool:
    """Of a partition that is loaded here, and has no row of the name (any more)."""
    shell = loaded.get(place.partition if place.held is None else place.held)
    return shell is not None and _find(shell, name) is None


def _if_held(partition: int, fired_ms: int, stored: CronPlace | None) -> CronPlace | None:
    return told(stored, fired_ms) if stored is not None and stored.held == partition else None


def _if_let_go(partition: int, stored: CronPlace | None) -> CronPlace | None:
    return let_go(stored) if stored is not None and stored.held == partition else None


def _find(shell: ScheduleShell, name: str) -> StoredCron | None:
    return shell.machine.cron(name)


def _version(shell: ScheduleShell, name: str) -> int:
    cron = _find(shell, name)
    return 0 if cron is None else cron.version


def _fired_ms(shell: ScheduleShell, name: str) -> int:
    cron = _find(shell, name)
    return 0 if cron is None else cron.fired_ms


def _rank(shell: ScheduleShell, name: str) -> tuple[int, int, int]:
    """Definitions from before there were versions have none: the one that was used last is the likely one."""
    cron = _find(shell, name)
    return (-1, 0, 0) if cron is None else (cron.version, cron.fired_ms, -shell.partition.index)
