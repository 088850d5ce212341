"""Much that is due at once: it goes out whole and in order, and neither memory nor others at the node suffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from penstock.broker.schedule.limits import ScheduleLimits
from penstock.broker.schedule.pace import HEAVY_AT_ONCE_MAX, HEAVY_COUNT, MoverPace
from penstock.broker.schedule.reader import RowReader
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import DelayedMessage, Scheduled
from penstock.domain.schedule.commands import BucketWrite, Decision, FinishMove, ScheduleCommand
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.rows import Row
from support.schedule.broker import TOPIC, ScheduleBroker

PARTITIONS = 5


@asynccontextmanager
async def started(desk: ScheduleBroker, partitions: int = 1) -> AsyncIterator[ScheduleBroker]:
    await desk.start()
    await desk.topic(TOPIC, partitions)
    yield desk
    await desk.stop()


class WatchedPace(MoverPace):
    """Knows which movers have a turn with a large intent."""

    __slots__ = ("holders", "most")

    def __init__(self) -> None:
        super().__init__()
        self.holders: set[asyncio.Task[Any] | None] = set()
        self.most = 0

    def turn(self, count: int) -> AbstractAsyncContextManager[None]:
        return self._watched(super().turn(count)) if count >= HEAVY_COUNT else super().turn(count)

    @asynccontextmanager
    async def _watched(self, turn: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        async with turn:
            mover = asyncio.current_task()
            self.holders.add(mover)
            self.most = max(self.most, len(self.holders))
            try:
                yield
            finally:
                self.holders.remove(mover)


class PacedBroker(ScheduleBroker):
    def __init__(self, pace: MoverPace, shell: type[ScheduleShell]) -> None:
        super().__init__(shell=shell)
        self._pace = pace

    def make_pace(self) -> MoverPace:
        return self._pace


async def test_large_intents_of_many_partitions_take_turns() -> None:
    pace = WatchedPace()
    had_turns: list[bool] = []

    class WatchedShell(ScheduleShell):
        def decide(self, command: ScheduleCommand) -> Decision:
            move = self.machine.pending_move()
            if isinstance(command, FinishMove) and move is not None and len(move.sources) >= HEAVY_COUNT:
                had_turns.append(asyncio.current_task() in pace.holders)
            return super().decide(command)

    async with started(PacedBroker(pace, WatchedShell), PARTITIONS) as desk:
        await release_large_intents(desk)
    assert 1 <= pace.most <= HEAVY_AT_ONCE_MAX
    assert had_turns, "nothing was large"
    assert all(had_turns), "a turn lasts until its intent is done"


async def release_large_intents(desk: ScheduleBroker) -> None:
    for partition in range(PARTITIONS):
        await desk.delay(*((1_000, b"%d" % number) for number in range(2 * HEAVY_COUNT)), partition=partition)
    await desk.pass_time(1_000)
    for partition in range(PARTITIONS):
        shell = await desk.shell(partition=partition)
        while shell.pending_count:
            await desk.pass_time(10)
            await desk.settled(partition)
        assert await desk.values(partition=partition) == [b"%d" % number for number in range(2 * HEAVY_COUNT)]


async def test_large_messages_among_many_small_ones_are_not_in_memory_together() -> None:
    """What rows weigh on average says nothing about those of one intent."""
    large_bytes, bytes_max = 20_000, 100_000
    sizes: list[int] = []

    class WeighingReader(RowReader):
        async def some_rows(self, positions: Sequence[int], *, bytes_max: int) -> dict[int, Row] | None:
            rows = await super().some_rows(positions, bytes_max=bytes_max)
            if rows is not None:
                sizes.append(sum(len(row.value or b"") for row in rows.values()))
            return rows

    class WeighingShell(ScheduleShell):
        reader_type = WeighingReader

    async with started(ScheduleBroker(limits=ScheduleLimits(portion_bytes_max=bytes_max), shell=WeighingShell)) as desk:
        shell = await desk.shell()
        now_ms = desk.time.now_ms()
        large = [DelayedMessage(now_ms + 1_000, None, b"%2d" % number * (large_bytes // 2)) for number in range(30)]
        others = [DelayedMessage(now_ms + 10_000_000, None, b"x") for _ in range(2_000)]
        huge = DelayedMessage(now_ms + 1_000, None, b"h" * (2 * bytes_max))
        assert isinstance(await shell.schedule([*large, *others, huge]), Scheduled)
        shell.reader.forget()
        await desk.pass_time(1_000)
        values = await desk.released(31)
    assert values == [message.value for message in (*large, huge)]
    assert sum(sizes) >= 30 * large_bytes
    assert max(size for size in sizes if size < 2 * bytes_max) <= bytes_max + large_bytes
    assert [size for size in sizes if size >= 2 * bytes_max + 1_000] == []


async def test_what_comes_from_a_large_file_is_written_and_sorted_little_by_little() -> None:
    """A week of downtime: everything is due, and lies in files of wide spans."""
    taken: list[int] = []

    class NotedSchedule(PartitionSchedule):
        def take_spill(self, bytes_max: int | None = None) -> tuple[BucketWrite, ...]:
            before = self.spill_bytes
            writes = super().take_spill(bytes_max)
            taken.append(before - self.spill_bytes)
            return writes

    class NotedShell(ScheduleShell):
        machine_type = NotedSchedule

    limits = ScheduleLimits(spill_bytes=8_000, spill_bytes_at_once=4_000)
    async with started(ScheduleBroker(limits=limits, shell=NotedShell)) as desk:
        await release_after_a_week(desk, 6_000)
    assert taken
    assert max(taken) <= 4_000


async def release_after_a_week(desk: ScheduleBroker, count: int) -> None:
    shell = await desk.shell()
    now_ms = desk.time.now_ms()
    messages = [DelayedMessage(now_ms + 50_000_000 + number * 1_000, None, b"%d" % number) for number in range(count)]
    assert isinstance(await shell.schedule(messages), Scheduled)
    await desk.restart()
    shell = await desk.shell()
    await desk.pass_time(7 * 86_400_000)
    while shell.pending_count:
        await desk.pass_time(10)
        await desk.settled()
    assert await desk.values() == [message.value for message in messages]
    await desk.checkpoint()
