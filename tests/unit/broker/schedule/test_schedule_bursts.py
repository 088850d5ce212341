"""Much that is due at once: it goes out whole and in order, and neither memory nor others at the node suffer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.schedule import files as schedule_files
from penstock.broker.schedule import mover as schedule_mover
from penstock.broker.schedule.mover import ScheduleMover
from penstock.broker.schedule.pace import HEAVY_AT_ONCE_MAX, HEAVY_COUNT
from penstock.broker.schedule.values import DelayedMessage, Scheduled
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.records import Move
from support.schedule.broker import TOPIC, ScheduleBroker

PARTITIONS = 5


@pytest.fixture
async def desk() -> AsyncIterator[ScheduleBroker]:
    desk = ScheduleBroker()
    await desk.start()
    await desk.topic(TOPIC, PARTITIONS)
    yield desk
    await desk.stop()


async def test_large_intents_of_many_partitions_take_turns(
    desk: ScheduleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out = ScheduleMover._carry_out
    counts: list[int] = []
    busy = 0

    async def counted(mover: ScheduleMover, machine: PartitionSchedule, move: Move) -> bool:
        nonlocal busy
        busy += len(move.sources) >= HEAVY_COUNT
        counts.append(busy)
        try:
            return await carry_out(mover, machine, move)
        finally:
            busy -= len(move.sources) >= HEAVY_COUNT

    monkeypatch.setattr(ScheduleMover, "_carry_out", counted)
    for partition in range(PARTITIONS):
        await desk.delay(*((1_000, b"%d" % number) for number in range(2 * HEAVY_COUNT)), partition=partition)
    await desk.pass_time(1_000)
    for partition in range(PARTITIONS):
        shell = await desk.shell(partition=partition)
        while shell.pending_count:
            await desk.pass_time(10)
            await desk.settled(partition)
        assert await desk.values(partition=partition) == [b"%d" % number for number in range(2 * HEAVY_COUNT)]
    assert 1 <= max(counts) <= HEAVY_AT_ONCE_MAX


async def test_large_messages_among_many_small_ones_are_not_in_memory_together(
    desk: ScheduleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rows weigh on average says nothing about those of one intent."""
    large_bytes, bytes_max = 20_000, 100_000
    monkeypatch.setattr(schedule_mover, "PORTION_BYTES_MAX", bytes_max)
    build_released = schedule_mover.build_released
    sizes: list[int] = []

    def weighed(part: schedule_mover.IntentPart) -> schedule_mover.ReleasedPart:
        sizes.append(sum(len(row.value or b"") for row in part.rows.values()))
        return build_released(part)

    monkeypatch.setattr(schedule_mover, "build_released", weighed)
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


async def test_what_comes_from_a_large_file_is_written_and_sorted_little_by_little(
    desk: ScheduleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A week of downtime: everything is due, and lies in files of wide spans."""
    monkeypatch.setattr(schedule_files, "SPILL_BYTES", 8_000)
    monkeypatch.setattr(schedule_files, "SPILL_BYTES_AT_ONCE", 4_000)
    count = 6_000
    shell = await desk.shell()
    now_ms = desk.time.now_ms()
    messages = [DelayedMessage(now_ms + 50_000_000 + number * 1_000, None, b"%d" % number) for number in range(count)]
    assert isinstance(await shell.schedule(messages), Scheduled)
    await desk.restart()
    take_spill, taken = PartitionSchedule.take_spill, list[int]()

    def noted(machine: PartitionSchedule, bytes_max: int | None = None) -> object:
        before = machine.spill_bytes
        writes = take_spill(machine, bytes_max)
        taken.append(before - machine.spill_bytes)
        return writes

    monkeypatch.setattr(PartitionSchedule, "take_spill", noted)
    shell = await desk.shell()
    await desk.pass_time(7 * 86_400_000)
    while shell.pending_count:
        await desk.pass_time(10)
        await desk.settled()
    assert await desk.values() == [message.value for message in messages]
    await desk.checkpoint()
    assert max(taken) <= 4_000
