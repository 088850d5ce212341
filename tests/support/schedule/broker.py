"""A broker with schedules on a real store in memory, without any door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.base.clock import ManualClock
from penstock.broker.schedule.limits import ScheduleLimits
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.pace import MoverPace
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import DelayedMessage, Scheduled
from penstock.broker.site import SiteConfig
from penstock.broker.topic.served_topic import ServedTopic
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.keys import KeySpace
from penstock.codec.batch.records import StoredRecord
from penstock.domain.schedule.machine import ScheduleConfig
from penstock.domain.schedule.records import ProducerBatch
from penstock.storage.files import MemoryFiles
from support.queue.broker import QueueBroker

TOPIC: Final = "orders"
PATIENCE_SECONDS: Final = 10.0


class ScheduleBroker(QueueBroker):
    """Its clock stands still until `pass_time`. `restart` as for queues."""

    def __init__(
        self,
        files: MemoryFiles | None = None,
        config: ScheduleConfig | None = None,
        *,
        limits: ScheduleLimits | None = None,
        shell: type[ScheduleShell] = ScheduleShell,
    ) -> None:
        self.time = ManualClock()
        super().__init__(files, self.time)
        self.config = SiteConfig(schedules=config or ScheduleConfig())
        self._limits = limits or ScheduleLimits()
        # What the schedules of the next start are.
        self.shell_type = shell

    async def start(self) -> None:
        await super().start()
        assert self.metadata is not None
        self.schedules = NodeSchedules(
            self.site,
            self.broker,
            self.catalog,
            ProducerIds(self.metadata, KeySpace()),
            pace=self.make_pace(),
            limits=self._limits,
            shell=self.shell_type,
        )
        await self.schedules.start()

    def make_pace(self) -> MoverPace:
        return MoverPace()

    async def stop(self) -> None:
        await self.schedules.stop()
        await super().stop()

    # Phrases

    def served(self, topic: str = TOPIC) -> ServedTopic:
        served = self.broker.topic(topic)
        assert served is not None
        return served

    async def shell(self, topic: str = TOPIC, partition: int = 0) -> ScheduleShell:
        shell = await self.schedules.shell_of(self.served(topic).shells[partition])
        assert isinstance(shell, ScheduleShell), shell
        return shell

    async def delay(
        self,
        *messages: tuple[int, bytes],
        producer: ProducerBatch | None = None,
        is_transactional: bool = False,
        partition: int = 0,
    ) -> list[int]:
        """Delays in milliseconds and values; the origins, durable."""
        shell = await self.shell(partition=partition)
        now_ms = self.time.now_ms()
        delayed = [DelayedMessage(now_ms + delay_ms, None, value, (), now_ms) for delay_ms, value in messages]
        outcome = await shell.schedule(delayed, producer=producer, is_transactional=is_transactional)
        assert isinstance(outcome, Scheduled), outcome
        return outcome.origins

    async def checkpoint(self) -> None:
        for shell in self.schedules.loaded_shells():
            await shell.files.checkpoint(shell.machine, shell.journal)

    async def pass_time(self, milliseconds: int) -> None:
        self.time.advance_ms(milliseconds)
        for shell in self.schedules.loaded_shells():
            shell.mover.wake()
        await asyncio.sleep(0)

    async def values(self, topic: str = TOPIC, partition: int = 0) -> list[bytes]:
        return [record.value or b"" for record in await self.records(topic, partition)]

    async def records(self, topic: str = TOPIC, partition: int = 0) -> list[StoredRecord]:
        if self.served(topic).shells[partition].readable_end == 0:
            return []
        return await self.log_of(topic, partition)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():  # noqa: ASYNC110  what it waits for has no event
                await asyncio.sleep(0.001)

    async def settled(self, partition: int = 0) -> None:
        """When everything that is due is released."""
        shell = await self.shell(partition=partition)
        machine = shell.machine

        def is_at_rest() -> bool:
            deadline_ms = machine.next_deadline_ms(self.time.now_ms())
            is_idle = deadline_ms is None or deadline_ms > self.time.now_ms()
            return is_idle and machine.pending_move() is None and not shell.files.is_reading

        await self.until(is_at_rest)

    async def released(self, count: int, partition: int = 0) -> list[bytes]:
        """When so many are in the topic, and nothing is on its way."""
        shell = await self.shell(partition=partition)
        await self.until(lambda: shell.mover.counts.released >= count and shell.machine.pending_move() is None)
        await shell.journal.until_durable()
        return await self.values(partition=partition)
