"""A door's life at a schedule, the death of its node after so many turns of the loop, and what must hold then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any, Final, cast

from penstock.broker.schedule.pace import MoverPace
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import DelayedMessage, Scheduled
from penstock.domain.schedule.commands import Done
from penstock.domain.schedule.records import ProducerBatch
from penstock.domain.transaction.end import TransactionEnd
from penstock.storage.config import StorageConfig
from penstock.storage.store import LogStore
from support.schedule.broker import TOPIC, ScheduleBroker
from support.storage.faulty_files import CrashMode, FaultyFiles
from support.transaction.desk import JobsOnTheLoop

ROUNDS: Final = 30
# Now, soon, in the next bucket, in a higher one.
DELAYS_MS: Final = (0, 7, 25, 60, 400_000, 40_000_000)
LONG_MS: Final = 100_000_000


class OnTheLoop(ThreadPoolExecutor):
    """Works at once, so that a death comes between two turns of the loop, and never in the midst of one."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except OSError as error:
            future.set_exception(error)
        return future


class MortalSchedules(ScheduleBroker):
    """On a disk that can lose power."""

    def __init__(self, random: Random) -> None:
        super().__init__(cast(Any, FaultyFiles(random)))

    def open_store(self) -> LogStore:
        self._jobs = JobsOnTheLoop()
        config = StorageConfig(free_bytes_min=0, sync_threads=1)
        return LogStore.open(self.files, "/data", config, self.clock, syncs=self._jobs)

    async def start(self) -> None:
        # What a schedule does with its files.
        asyncio.get_running_loop().set_default_executor(OnTheLoop())
        await super().start()

    def make_readers(self) -> Executor:
        return OnTheLoop()

    def make_pace(self) -> MoverPace:
        # The loop's clock is not ours.
        return MoverPace(intent_ms_max=0)

    async def die(self, mode: CrashMode) -> None:
        self._jobs.is_dead = True
        for shell in self.schedules.loaded_shells():
            shell.is_loaded = False
        await self.tasks.stop()
        await self.queues.stop()
        self.broker.is_stopping = True
        await self.catalog.stop()
        self.readers.shutdown()
        for log in self.store.logs:
            log.close()
        cast(FaultyFiles, cast(object, self.files)).crash(mode)


class Life:
    """What a door did and what it was told."""

    def __init__(self, desk: MortalSchedules, random: Random) -> None:
        self._desk = desk
        self._random = random
        # By value: when it is due. Tried may be there, told must be.
        self.tried: dict[bytes, set[int]] = {}
        self.told: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.cancel_tried: set[bytes] = set()
        self.aborted: set[bytes] = set()
        # Transactions: their values, and whether the end was told.
        self.open: list[set[bytes]] = []
        self.seen: set[bytes] = set()
        self.is_over = False

    async def live(self, shell: ScheduleShell) -> None:
        origins: dict[bytes, int] = {}
        for number in range(ROUNDS):
            origins |= await self._schedule(shell, number)
            if origins and number % 3 == 0:
                await self._cancel(shell, origins)
            if origins and number % 4 == 1:
                await self._reschedule(shell, origins)
            if number % 5 == 2:
                await self._transaction(shell, number)
            if number % 6 == 5:
                await self._desk.checkpoint()
            await self._desk.pass_time(self._random.choice((1, 8, 30)))
            await self._look()
        self.is_over = True

    async def _schedule(self, shell: ScheduleShell, number: int) -> dict[bytes, int]:
        values = [b"%d.%d" % (number, place) for place in range(self._random.randint(1, 3))]
        messages = [self._message(value) for value in values]
        producer = ProducerBatch(1, 0, number * 10) if number % 2 else None
        outcome = await shell.schedule(messages, producer=producer)
        assert isinstance(outcome, Scheduled), outcome
        self.told.update(values)
        return dict(zip(values, outcome.origins, strict=True))

    def _message(self, value: bytes) -> DelayedMessage:
        now_ms = self._desk.time.now_ms()
        due_ms = now_ms + self._random.choice(DELAYS_MS)
        self.tried[value] = {due_ms}
        return DelayedMessage(due_ms, None, value, (), now_ms)

    async def _cancel(self, shell: ScheduleShell, origins: dict[bytes, int]) -> None:
        value = self._random.choice(sorted(origins))
        self.cancel_tried.add(value)
        if await shell.pending.cancel(origins.pop(value)) == Done():
            self.cancelled.add(value)
        else:
            self.cancel_tried.discard(value)

    async def _reschedule(self, shell: ScheduleShell, origins: dict[bytes, int]) -> None:
        value = self._random.choice(sorted(origins))
        due_ms = self._desk.time.now_ms() + self._random.choice(DELAYS_MS)
        before = set(self.tried[value])
        self.tried[value].add(due_ms)
        outcome = await shell.pending.reschedule(origins[value], due_ms)
        self.tried[value] = {due_ms} if outcome == Done() else before

    async def _transaction(self, shell: ScheduleShell, number: int) -> None:
        values = {b"t%d.%d" % (number, place) for place in range(2)}
        producer = ProducerBatch(2, number, 0)
        self.open.append(values)
        is_commit = number % 2 == 0
        messages = [self._message(value) for value in sorted(values)]
        assert isinstance(await shell.schedule(messages, producer=producer, is_transactional=True), Scheduled)
        await self._desk.pass_time(10)
        if not is_commit:
            self.aborted |= values
        end = TransactionEnd(producer_id=2, producer_epoch=number, coordinator_epoch=0, is_commit=is_commit)
        if await shell.end_transaction(end):
            self.open.remove(values)
            self.told |= values if is_commit else set()

    async def _look(self) -> None:
        records = await self._desk.records()
        for record in records:
            value = record.value or b""
            assert record.timestamp_ms <= self._desk.time.now_ms(), f"early: {value!r}"
            assert record.timestamp_ms in self.tried[value], f"{value!r} is dated {record.timestamp_ms}"
            self.seen.add(value)


async def die_after(steps: int, mode: CrashMode, durability: str) -> bool:
    """Whether the door was still busy when its node died."""
    random = Random(steps)
    desk = MortalSchedules(random)
    await desk.start()
    await desk.topic(TOPIC, durability=durability)
    life = Life(desk, random)
    living = asyncio.ensure_future(life.live(await desk.shell()))
    for _ in range(steps):
        await asyncio.sleep(0)
    if living.done():
        living.result()
    was_busy = not life.is_over
    living.cancel()
    with suppress(asyncio.CancelledError):
        await living
    await desk.die(mode)
    await desk.start()
    # A power cut may keep a later write and lose an earlier one. That counts as damage: nothing is served or taken
    # until an operator has repaired it, so there is nothing to check.
    await desk.schedules.shell_of(desk.served().shells[0])
    is_damaged = any(log.damage for log in desk.store.logs)
    assert not is_damaged or mode is CrashMode.SCATTERED, "nothing else tears a hole into a log"
    if not is_damaged:
        await check(desk, life, is_synced=durability == "fsync")
    await desk.die(CrashMode.KILL)
    return was_busy


async def check(desk: MortalSchedules, life: Life, *, is_synced: bool) -> None:
    shell = await desk.shell()
    end_transactions = [values for values in life.open if not values <= life.aborted]
    await desk.delay((3, b"new"))
    life.tried[b"new"] = {desk.time.now_ms() + 3}
    for delay_ms in (2, 1, 500_000, LONG_MS):
        await desk.pass_time(delay_ms)
        await desk.settled()
        await life._look()
    counts = Counter(record.value or b"" for record in await desk.records())
    twice = [value for value, count in counts.items() if count > 1]
    assert not twice, f"twice: {twice}"
    lost = {*life.told, b"new"} - life.cancelled - life.cancel_tried - set(counts)
    assert not lost, f"lost: {lost}"
    assert not life.cancelled & set(counts), f"cancelled and released: {life.cancelled & set(counts)}"
    assert not life.aborted & set(counts), f"aborted and released: {life.aborted & set(counts)}"
    for values in end_transactions:
        assert values & set(counts) in (set(), values), f"half a transaction: {values & set(counts)}"
    if is_synced:
        assert life.seen <= set(counts), f"seen and gone: {life.seen - set(counts)}"
    assert shell.pending_count == 0, f"{shell.pending_count} wait for ever"
