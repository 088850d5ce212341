"""A disk that fails any operation of a schedule's life, or is full for a while, and comes back: what a door was told is
released once and in time, and what it was not told comes once at the most."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from random import Random
from typing import Final, cast

import pytest

from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import DelayedMessage, NotScheduled, Scheduled
from penstock.domain.schedule.commands import Done, Refused
from support.schedule.broker import TOPIC
from support.schedule.lives import DELAYS_MS, LONG_MS, MortalSchedules
from support.storage.faulty_files import UNLIMITED_BYTES, CrashMode, FaultyFiles

pytestmark = pytest.mark.heavy

ROUNDS: Final = 40
SEEDS: Final = 16
KINDS: Final = ("write", "write", "sync", "sync_all", "sync_directory", "open", "rename")


class FaultyLife:
    def __init__(self, desk: MortalSchedules, random: Random) -> None:
        self._desk = desk
        self._random = random
        self._files = cast(FaultyFiles, cast(object, desk.files))
        self.dues: dict[bytes, set[int]] = {}
        self.told: dict[bytes, int] = {}
        self.cancelled: set[bytes] = set()
        # Whoever was told that it did not work knows nothing.
        self.doubtful: set[bytes] = set()
        self.refused_count = 0
        self._number = 0

    async def live(self) -> None:
        for number in range(self._number, self._number + ROUNDS):
            if number % 3 == 1:
                self._break_something()
            await self._schedule(number)
            if self.told and number % 4 == 0:
                await self._change()
            shell = self.shell()
            if shell is not None and number % 5 == 3:
                await shell.files.spill(shell.machine, bytes_min=1)
            if number % 6 == 5:
                await self._desk.checkpoint()
            await self._desk.pass_time(self._random.choice((1, 8, 30, 300_000)))
            for _ in range(self._random.randrange(6)):
                await asyncio.sleep(0)
            if self._random.random() < 0.6:
                await self.heal()
        self._number += ROUNDS

    async def die(self) -> None:
        """With the disk as it is."""
        self._files.forget_failures()
        self._files.bytes_max = UNLIMITED_BYTES
        await self._desk.die(CrashMode.KILL)
        await self._desk.start()
        await self._desk.shell()

    def shell(self) -> ScheduleShell | None:
        return self._desk.schedules.open_shell(self._desk.served().shells[0])

    def _break_something(self) -> None:
        if self._random.random() < 0.3:
            self._files.bytes_max = UNLIMITED_BYTES - 1 - self._files.free_bytes("") + self._random.randrange(3_000)
        for _ in range(self._random.choice((1, 1, 2))):
            self._files.fail_next(self._random.choice(KINDS), self._random.choice((errno.EIO, errno.ENOSPC)))

    async def heal(self) -> None:
        """As the node does every few seconds."""
        self._files.bytes_max = UNLIMITED_BYTES
        await self._desk.broker._upkeep._check_free_space()
        await self._desk.broker._upkeep.recover_offline()
        await self._desk.schedules.reload_lost()

    async def _schedule(self, number: int) -> None:
        values = [b"%d.%d" % (number, place) for place in range(self._random.randint(1, 3))]
        now_ms = self._desk.time.now_ms()
        messages = [DelayedMessage(now_ms + self._random.choice(DELAYS_MS), None, value) for value in values]
        self.dues |= {message.value or b"": {message.due_ms} for message in messages}
        shell = self.shell()
        outcome = None if shell is None else await shell.schedule(messages)
        if isinstance(outcome, Scheduled):
            self.told |= dict(zip(values, outcome.origins, strict=True))
        else:
            self.refused_count += 1

    async def _change(self) -> None:
        value = self._random.choice(sorted(self.told))
        shell = self.shell()
        if shell is None:
            return
        if self._random.random() < 0.5:
            outcome = await shell.pending.cancel(self.told[value])
            if outcome == Done():
                self.cancelled.add(value)
            elif isinstance(outcome, NotScheduled):
                self.doubtful.add(value)
            return
        due_ms = self._desk.time.now_ms() + self._random.choice(DELAYS_MS)
        outcome = await shell.pending.reschedule(self.told[value], due_ms)
        if outcome == Done() and value not in self.doubtful:
            self.dues[value] = {due_ms}
        elif not isinstance(outcome, Refused):
            self.dues[value].add(due_ms)

    async def check(self) -> None:
        desk = self._desk
        self._files.forget_failures()
        await self.heal()
        for delay_ms in (0, 500_000, LONG_MS):
            await desk.pass_time(delay_ms)
            await desk.settled()
        records = await desk.records()
        for record in records:
            value = record.value or b""
            assert record.timestamp_ms in self.dues[value], f"{value!r} is dated {record.timestamp_ms}"
        counts = Counter(record.value or b"" for record in records)
        assert max(counts.values(), default=1) == 1, f"twice: {[each for each in counts if counts[each] > 1]}"
        lost = set(self.told) - set(counts) - self.cancelled - self.doubtful
        assert not lost, f"lost: {lost}"
        assert not self.cancelled & set(counts), "cancelled and released"
        assert (await desk.shell()).pending_count == 0


@pytest.mark.parametrize("is_killed", [False, True])
async def test_disk_that_fails_now_and_then_loses_and_doubles_nothing(is_killed: bool) -> None:
    refused_count = told_count = 0
    for seed in range(SEEDS):
        random = Random(seed)
        desk = MortalSchedules(random)
        await desk.start()
        await desk.topic(TOPIC, durability="fsync")
        await desk.shell()
        life = FaultyLife(desk, random)
        try:
            await life.live()
            if is_killed:
                await life.die()
                await life.live()
            await life.check()
        except AssertionError as broken:
            pytest.fail(f"seed {seed}: {broken}")
        refused_count += life.refused_count
        told_count += len(life.told)
        await desk.die(CrashMode.KILL)
    assert refused_count > SEEDS, "the disk was too kind for this to prove anything"
    assert told_count > 10 * SEEDS
