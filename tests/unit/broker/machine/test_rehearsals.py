"""When a followed journal is rehearsed, and when not: by counts, one at a time, never in the way of what matters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.portions import JournalLostError
from penstock.broker.machine.rehearsals import (
    DisturbedError,
    Rehearsal,
    Rehearsals,
    RehearsalSettings,
    Subject,
    Tail,
)
from penstock.broker.machine.residents import Residents, place_of
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.outcome import Appended
from penstock.broker.partition.shell import PartitionShell
from penstock.storage.files import MemoryFiles
from penstock.storage.log.journal_snapshot import JournalSnapshot, write_snapshot
from support.partition import PartitionDesk

SETTINGS = RehearsalSettings(rows=10, size_bytes=1_000)
FEW, MANY = 9, 10


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Stage:
    """A node that follows two partitions, and whose machines take as long as the test likes."""

    def __init__(self) -> None:
        self.desk = PartitionDesk(MemoryFiles())
        self.partitions = [self.desk.shell, self.desk.open(1)]
        self.tasks = TaskSupervisor(get_logger("test"))
        self.rehearsals = Rehearsals(self.desk.clock)
        self.is_behind = False
        self.problem: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.rehearsals.add(Subject.GROUPS, self.rehearse)
        self.rehearsals.start(SETTINGS, self.tasks, lambda _: self.is_behind)

    async def rehearse(self, rehearsal: Rehearsal) -> None:
        self.begun.append(rehearsal.partition.index)
        await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        await rehearsal.rest()
        self.ended.append(rehearsal.partition.index)

    def follow(self, index: int = 0) -> Tail:
        partition = self.partitions[index]
        return self.rehearsals.follow(Subject.GROUPS, partition, partition, lambda: True)

    async def write(self, count: int, index: int = 0) -> None:
        for _ in range(count):
            self.desk.append(self.partitions[index])
        await self.desk.turn(self.partitions[index])

    async def bring(self, tail: Tail, rows: int, size_bytes: int = 0) -> None:
        """As a fetch does."""
        await self.write(rows, tail.partition.index)
        tail.note(rows, size_bytes)

    async def until_ended(self, count: int) -> None:
        await self.until(lambda: len(self.ended) >= count)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():  # noqa: ASYNC110  what is waited for comes by a thread
                await asyncio.sleep(0)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    await made.tasks.stop()
    for partition in made.partitions:
        await made.desk.turn(partition)
    made.desk.store.close(clean=False)


async def test_a_journal_is_rehearsed_when_many_rows_have_come_and_not_before(stage: Stage) -> None:
    tail = stage.follow()
    await stage.bring(tail, FEW)
    await turns()
    assert stage.begun == []
    await stage.bring(tail, 1)
    await stage.until_ended(1)
    await stage.bring(tail, FEW)
    await turns()
    assert stage.ended == [0], "it is counted from the saved start on"
    assert stage.rehearsals.done.by_subject[Subject.GROUPS].count == 1


async def test_many_bytes_are_as_much_as_many_rows(stage: Stage) -> None:
    tail, partition = stage.follow(), stage.partitions[0]
    assert isinstance(partition.append(stage.desk.batch(bytes(SETTINGS.size_bytes))), Appended)
    await stage.desk.turn()
    tail.note(1, SETTINGS.size_bytes)
    await stage.until_ended(1)


async def test_one_at_a_time(stage: Stage) -> None:
    stage.gate.clear()
    first, second = stage.follow(0), stage.follow(1)
    await stage.bring(first, MANY)
    await stage.bring(second, MANY)
    await stage.until(lambda: bool(stage.begun))
    await turns()
    assert stage.begun == [0]
    stage.gate.set()
    await stage.until_ended(2)
    assert stage.ended == [0, 1]


async def test_what_lay_there_before_the_start_counts_unless_a_file_says_otherwise(stage: Stage) -> None:
    await stage.write(MANY, 0)
    await stage.write(MANY, 1)
    log = stage.partitions[1].log
    write_snapshot(log.context.files, log.home.directory, JournalSnapshot(FEW, [], []))
    stage.follow(0)
    stage.follow(1)
    await stage.until_ended(1)
    await turns()
    assert stage.begun == [0]


async def test_nothing_is_rehearsed_while_the_node_is_behind(stage: Stage) -> None:
    stage.is_behind = True
    await stage.bring(stage.follow(), MANY)
    await turns()
    assert stage.begun == []
    stage.is_behind = False
    await stage.until_ended(1)


async def test_one_that_is_disturbed_is_taken_up_with_the_next_rows(stage: Stage) -> None:
    stage.gate.clear()
    tail = stage.follow()
    await stage.bring(tail, MANY)
    await stage.until(lambda: bool(stage.begun))
    async with asyncio.timeout(10):
        cutting = asyncio.ensure_future(_alone(stage.partitions[0]))
        await turns(5)
        assert not cutting.done(), "whoever cuts waits for the rehearsal"
        stage.gate.set()
        await cutting
    assert (stage.ended, stage.rehearsals.failed_count) == ([], 0)
    await stage.bring(tail, 1)
    await stage.until_ended(1)


async def _alone(partition: PartitionShell) -> None:
    async with partition.log.maintenance.alone():
        pass


async def test_one_that_failed_is_told_and_not_tried_again_at_once(stage: Stage) -> None:
    stage.problem = JournalLostError("it cannot be read")
    tail = stage.follow()
    await stage.bring(tail, MANY)
    await stage.until(lambda: bool(stage.rehearsals.failed_count))
    stage.problem = None
    await stage.bring(tail, FEW)
    await turns()
    assert (stage.begun, stage.ended) == ([0], [])
    await stage.bring(tail, 1)
    await stage.until_ended(1)


# Beside the machines that live here


class Machine:
    def __init__(self, partition: PartitionShell) -> None:
        self.is_loaded = self.is_lost = False
        self.damage = JournalDamage(partition)

    async def load(self) -> None:
        self.is_loaded = True

    async def unload(self) -> None:
        self.is_loaded = False

    def resign(self) -> None: ...

    async def leave(self) -> None: ...


async def test_a_new_lead_ends_the_rehearsal_before_anything_is_loaded(stage: Stage) -> None:
    partition, order = stage.partitions[0], list[str]()
    started, finishing = asyncio.Event(), asyncio.Event()

    async def make(partition: PartitionShell, _leadership: Leadership) -> Machine:
        order.append("made")
        return Machine(partition)

    residents = Residents("machines", make, tasks=stage.tasks)

    async def rehearse() -> None:
        async with residents.rehearsal(partition):
            try:
                started.set()
                await asyncio.Event().wait()
            finally:
                await finishing.wait()
                order.append("rehearsal is over")

    task = stage.tasks.start("rehearsal", rehearse())
    await started.wait()
    residents.lead(partition, 1)
    loading = asyncio.ensure_future(residents.load(place_of(partition)))
    await turns()
    assert order == [], "a thread of it may still write"
    finishing.set()
    await loading
    assert order == ["rehearsal is over", "made"]
    assert task.cancelled()


async def test_what_lives_here_is_not_rehearsed(stage: Stage) -> None:
    async def make(partition: PartitionShell, _leadership: Leadership) -> Machine:
        return Machine(partition)

    residents = Residents("machines", make, tasks=stage.tasks)
    residents.lead(stage.partitions[0], 0)
    with pytest.raises(DisturbedError):
        async with residents.rehearsal(stage.partitions[0]):
            pass
