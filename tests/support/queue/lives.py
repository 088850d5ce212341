"""A consumer's life at a queue, the death of its node after so many turns of the loop, and what must hold then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any, Final, cast

from penstock.base.clock import ManualClock
from penstock.broker.queue.delivery import Message, ReceiptSettlement, ReceivedMessages
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.storage.config import StorageConfig
from penstock.storage.store import LogStore
from support.queue.broker import QueueBroker
from support.storage.faulty_files import CrashMode, FaultyFiles
from support.transaction.desk import JobsOnTheLoop

TOPIC: Final = "orders"
GROUP: Final = "workers"
MESSAGES: Final = 24
PER_BATCH: Final = 4
LEASE_MS: Final = 30_000
# Of a drain: the mover waits for threads, nothing else takes time.
ROUNDS_MAX: Final = 1_000


class MortalBroker(QueueBroker):
    """On a disk that can lose power. Syncs happen on the loop, so that a death comes between two of its turns."""

    def __init__(self, random: Random) -> None:
        self._time = ManualClock()
        super().__init__(cast(Any, FaultyFiles(random)), self._time)

    def open_store(self) -> LogStore:
        self._jobs = JobsOnTheLoop()
        config = StorageConfig(free_bytes_min=0, sync_threads=1)
        return LogStore.open(self.files, "/data", config, self.clock, syncs=self._jobs)

    async def die(self, mode: CrashMode) -> None:
        self._jobs.is_dead = True
        await self.tasks.stop()
        await self.queues.stop()
        self.broker.is_stopping = True
        await self.catalog.stop()
        self.readers.shutdown()
        for log in self.store.logs:
            log.close()
        cast(FaultyFiles, cast(object, self.files)).crash(mode)

    def pass_time(self, milliseconds: int) -> None:
        """The loop's own clock stands on it: alarms are rung by hand."""
        self._time.advance_ms(milliseconds)
        for shell in self.queues.loaded_shells():
            shell._on_alarm()


class Life:
    """What a consumer got and what it was told."""

    def __init__(self, desk: MortalBroker, name: QueueName) -> None:
        self._desk = desk
        self._name = name
        self.acked: set[bytes] = set()
        self.tried: set[bytes] = set()
        self.rejected: set[bytes] = set()
        self.is_over = False

    async def live(self) -> None:
        while messages := await self._desk.receive(self._name, 5):
            for act in (Act.ACCEPT, Act.REJECT, Act.RELEASE):
                await self._settle([message for message in messages if act_of(message) is act], act)
        self.is_over = True

    async def _settle(self, messages: list[Message], act: Act) -> None:
        values = [message.record.value or b"" for message in messages]
        if act is Act.ACCEPT:
            self.tried.update(values)
        outcomes = await self._desk.delivery.settle(
            self._name, [ReceiptSettlement(message.receipt, act) for message in messages]
        )
        assert isinstance(outcomes, list)
        done = [value for value, outcome in zip(values, outcomes, strict=True) if outcome is Outcome.DONE]
        if act is Act.ACCEPT:
            self.acked.update(done)
        elif act is Act.REJECT:
            self.rejected.update(done)


def act_of(message: Message) -> Act:
    """Most are accepted at once, some are rejected, some need two attempts, and one never succeeds."""
    number = int(message.record.value or b"0")
    if number % 4 == 3:
        return Act.REJECT
    if number % 5 == 4 and (message.delivery_count == 1 or number == 4):
        return Act.RELEASE
    return Act.ACCEPT


async def die_after(steps: int, mode: CrashMode, durability: str) -> bool:
    """Whether the consumer was still busy when its node died."""
    desk = MortalBroker(Random(steps))
    await desk.start()
    await desk.topic(TOPIC, durability=durability)
    name = await desk.queue(TOPIC, GROUP, QueueOptions(lease_ms=LEASE_MS, deliveries_max=3))
    for first in range(0, MESSAGES, PER_BATCH):
        await desk.send(TOPIC, [b"%d" % number for number in range(first, first + PER_BATCH)])
    life = Life(desk, name)
    living = asyncio.ensure_future(life.live())
    for _ in range(steps):
        await asyncio.sleep(0)
    was_busy = not life.is_over
    living.cancel()
    with suppress(asyncio.CancelledError):
        await living
    await desk.die(mode)
    await desk.start()
    # A power cut may keep a later write and lose an earlier one. That counts as damage: nothing is served or taken
    # until an operator has repaired it, so there is nothing to check.
    is_damaged = any(log.damage for log in desk.store.logs)
    assert not is_damaged or mode is CrashMode.SCATTERED, "nothing else tears a hole into a log"
    if not is_damaged:
        await check(desk, name, life)
    await desk.die(CrashMode.KILL)
    return was_busy


async def check(desk: MortalBroker, name: QueueName, life: Life) -> None:
    kept = {record.value or b"" for record in await desk.log_of(TOPIC)}
    # Whatever the log lost with the power, what comes now is new, also where it lies.
    await desk.send(TOPIC, [b"100", b"101", b"102"])
    seen = await drain(desk, name)
    letters = [record.value or b"" for record in await desk.log_of(f"{TOPIC}-dlq")]
    assert not life.acked & seen, f"came back: {life.acked & seen}"
    assert {b"100", b"101", b"102"} <= seen, f"hidden: {sorted(seen)}"
    assert len(letters) == len(set(letters)), f"buried twice: {letters}"
    lost = kept - seen - life.acked - life.tried - set(letters)
    assert not lost, f"lost: {lost}"
    assert life.rejected & kept <= set(letters), f"not buried: {life.rejected - set(letters)}"
    assert not life.acked & set(letters), f"acked and buried: {life.acked & set(letters)}"


async def drain(desk: MortalBroker, name: QueueName) -> set[bytes]:
    """Accepts everything that comes; the values of it."""
    seen: set[bytes] = set()
    for _ in range(ROUNDS_MAX):
        desk.pass_time(LEASE_MS + 1)
        received = await desk.delivery.receive(name, consumer="drain", count_max=100)
        assert isinstance(received, ReceivedMessages), received
        seen |= {message.record.value or b"" for message in received.messages}
        items = [ReceiptSettlement(message.receipt, Act.ACCEPT) for message in received.messages]
        if items:
            await desk.delivery.settle(name, items)
        (shell,) = await desk.queues.shells(name)
        queue = shell.queue(GROUP)
        assert queue is not None
        if not items and not queue.in_flight_count and queue.finished_below == shell.partition.readable_end:
            return seen
        await asyncio.sleep(0.001)
    raise AssertionError("the queue never became empty")
