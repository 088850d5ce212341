"""The named schedules of a node: a name is the topic's, and lies in one of its partitions.

Defining one again may put it into another partition: the new one is written, then the old one deleted. Where a node
dies in between, both are there. Each definition has a higher version than those it knew of, so at the next start the
highest wins. Until that is settled nobody fires: a time that two partitions fire comes twice.

    shell loaded ─► held ─► all of the topic are loaded, or have had their time ─► lower versions deleted ─► fires
"""

from __future__ import annotations

import asyncio
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
from penstock.domain.partitioner import partition_for_key
from penstock.domain.schedule.commands import Done, Refused, ScheduleProblem
from penstock.domain.schedule.records import Missed, StoredCron

log = get_logger("schedules")

# For other partitions of the topic, which may have the same name and a higher version. Half of the time after which a
# cron's time counts as missed.
HELD_MS_MAX: Final = 30_000

_NO_SUCH_CRON: Final = Refused(ScheduleProblem.NO_SUCH_CRON)


class Shells(Protocol):
    """What is needed of `NodeSchedules`."""

    async def shell_of(self, partition: PartitionShell) -> ScheduleShell | NotScheduled: ...

    async def existing_shell(self, partition: PartitionShell) -> ScheduleShell | NotScheduled | None: ...

    def open_shell(self, partition: PartitionShell) -> ScheduleShell | None: ...

    def damage_of(self, topic: ServedTopic) -> str | None: ...


class NodeCrons:
    def __init__(self, broker: Broker, shells: Shells, *, clock: Clock) -> None:
        self._broker = broker
        self._shells = shells
        self._clock = clock
        # Two definitions of one name at the same time would each delete the other.
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
            known = await self._shells_with(topic, name)
            others = [other for other in known if other is not shell]
            # The clock, for there may be one in a partition that nobody can look at now.
            version = max([self._clock.now_ms(), *(_version(each, name) + 1 for each in known)])
            for other in others:
                # A time that comes in between is the new one's.
                other.may_fire = False
            try:
                outcome = await shell.define_cron(
                    name, message, expression=expression, zone=zone, missed=missed, version=version
                )
            finally:
                await self._settle(topic)
        return outcome

    async def delete(self, topic: ServedTopic, name: str) -> ChangeOutcome:
        async with self._lock:
            shells = [await self._shells.existing_shell(partition) for partition in topic.led()]
            # Where nobody can look it may well be.
            unknown = next((shell for shell in shells if isinstance(shell, NotScheduled)), None)
            outcome: ChangeOutcome = _NO_SUCH_CRON if unknown is None else unknown
            for shell in shells:
                if isinstance(shell, ScheduleShell) and _find(shell, name) is not None:
                    outcome = await shell.delete_cron(name)
        return outcome

    async def all(self, topic: ServedTopic | None) -> list[CronFacts] | NotScheduled:
        """NotScheduled: some are in a partition whose schedule is damaged."""
        found: list[CronFacts] = []
        for each in self._broker.topics() if topic is None else [topic]:
            for shell in await self._existing(each):
                refused = shell.refuse_look()
                if refused is not None:
                    return refused
                found += shell.crons()
            damaged = self._damaged(each)
            if damaged is not None:
                return damaged
        return sorted(found, key=lambda cron: (cron.name, cron.topic, cron.partition))

    async def message(self, topic: ServedTopic, name: str) -> CronMessage | NotScheduled | None:
        for shell in await self._shells_with(topic, name):
            return await shell.cron_message(name)
        return self._damaged(topic)

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

    # Which one wins

    async def settle(self, topic_id: bytes) -> None:
        """After a load, and now and then while something is held."""
        topic = self._broker.topic_by_id(topic_id)
        if topic is None or all(shell.may_fire for shell in self._loaded(topic)):
            return
        async with self._lock:
            now_ms = self._clock.monotonic_ms()
            # Those that wait longest have waited for all others.
            waited_ms = max((now_ms - shell.loaded_ms for shell in self._loaded(topic)), default=0)
            if waited_ms >= HELD_MS_MAX or not self._is_any_missing(topic):
                await self._settle(topic)

    async def _settle(self, topic: ServedTopic) -> None:
        """The lock is ours."""
        shells = self._loaded(topic)
        names = {cron.name for shell in shells for cron in shell.machine.crons()}
        unsettled: set[ScheduleShell] = set()
        for name in sorted(names):
            of_name = [shell for shell in shells if _find(shell, name) is not None]
            winner = max(of_name, key=lambda shell: _rank(shell, name))
            for loser in of_name:
                if loser is winner:
                    continue
                log.info(
                    "cron is in another partition now", topic=topic.name, cron=name, partition=winner.partition.index
                )
                if not isinstance(await loser.delete_cron(name), Done):
                    # Tried again; until then it must not fire.
                    unsettled.add(loser)
        for shell in shells:
            shell.may_fire = shell not in unsettled
            shell.mover.wake()

    def _loaded(self, topic: ServedTopic) -> list[ScheduleShell]:
        shells = [self._shells.open_shell(partition) for partition in topic.led()]
        return [shell for shell in shells if shell is not None]

    def _is_any_missing(self, topic: ServedTopic) -> bool:
        return any(
            self._shells.open_shell(partition) is None and self._broker.has_companion(partition, CompanionKind.SCHEDULE)
            for partition in topic.led()
        )


def _find(shell: ScheduleShell, name: str) -> StoredCron | None:
    return shell.machine.cron(name)


def _version(shell: ScheduleShell, name: str) -> int:
    cron = _find(shell, name)
    return 0 if cron is None else cron.version


def _rank(shell: ScheduleShell, name: str) -> tuple[int, int, int]:
    """Definitions from before there were versions have none: the one that was used last is the likely one."""
    cron = _find(shell, name)
    return (-1, 0, 0) if cron is None else (cron.version, cron.fired_ms, -shell.partition.index)
