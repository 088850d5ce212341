from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.portions import JournalDamagedError, JournalLostError
from penstock.broker.machine.residents import RELOADING_AT_ONCE, Residents, ResidentState, place_of
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell
from penstock.storage.files import MemoryFiles
from support.partition import TOPIC_ID, PartitionDesk

ABSENT, LOADING, SERVING, LOST, RESIGNED = ResidentState


class Machine:
    """A shell whose loads wait at a gate and end as they are told."""

    def __init__(self, partition: PartitionShell, leadership: Leadership, house: House) -> None:
        self.partition = partition
        self.leadership = leadership
        self.house = house
        self.is_loaded = False
        self.is_lost = False
        self.load_count = 0
        self.is_resigned = False
        self.damage = JournalDamage(partition)

    async def load(self) -> None:
        self.load_count += 1
        self.house.loading_count += 1
        self.house.loading_count_max = max(self.house.loading_count_max, self.house.loading_count)
        try:
            with self.damage.noted():
                await self.house.gate.wait()
                if self.house.problem is not None:
                    raise self.house.problem
        finally:
            self.house.loading_count -= 1
        self.is_loaded = True

    async def unload(self) -> None:
        self.is_loaded = self.is_lost = False

    def resign(self) -> None:
        self.is_resigned = True

    async def leave(self) -> None:
        await self.house.way_out.wait()


class Gate:
    """A barrier that the test opens."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.opened.set()
        self.is_over = False

    def is_reached(self, _partition: PartitionShell, _leadership: Leadership, /) -> bool:
        return self.opened.is_set()

    async def reached(self, _partition: PartitionShell, _leadership: Leadership, /) -> bool:
        await self.opened.wait()
        return not self.is_over


class House:
    """The residents of some partitions, and what becomes of their loads."""

    def __init__(self) -> None:
        desk = PartitionDesk(MemoryFiles())
        self.partitions = [desk.shell, *map(desk.open, range(1, 10))]
        self.gate = asyncio.Event()
        self.gate.set()
        self.way_out = asyncio.Event()
        self.way_out.set()
        self.barrier = Gate()
        self.problem: Exception | None = None
        self.loading_count = self.loading_count_max = 0
        self.made: list[Machine] = []
        self.loaded: list[Machine] = []
        self.tasks = TaskSupervisor(get_logger("test"))
        self.residents = Residents[Machine](
            "machines", self.make, tasks=self.tasks, on_loaded=self.loaded.append, barrier=lambda: self.barrier
        )

    async def make(self, partition: PartitionShell, leadership: Leadership) -> Machine | None:
        if partition.is_closed:
            return None
        self.made.append(Machine(partition, leadership, self))
        return self.made[-1]

    def lead(self, index: int = 0, epoch: int = 0) -> None:
        self.residents.lead(self.partitions[index], epoch)

    def resign(self, index: int = 0) -> None:
        self.residents.resign((TOPIC_ID, index))

    def state(self, index: int = 0) -> ResidentState:
        return self.residents.state((TOPIC_ID, index))

    async def load(self, index: int = 0) -> Machine | None:
        return await self.residents.load((TOPIC_ID, index))

    async def serving(self, index: int = 0, epoch: int = 0) -> Machine:
        self.lead(index, epoch)
        machine = await self.load(index)
        assert machine is not None
        assert self.state(index) is SERVING
        return machine


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    await made.tasks.stop()


async def test_what_is_not_led_here_is_absent_and_not_loaded(house: House) -> None:
    assert await house.load() is None
    assert (house.state(), house.residents.get((TOPIC_ID, 0)), house.made) == (ABSENT, None, [])


async def test_it_is_made_by_the_first_who_asks_and_not_before(house: House) -> None:
    house.lead()
    assert (house.state(), house.made) == (ABSENT, [])
    machine = await house.load()
    assert machine is not None
    assert machine.leadership == Leadership("orders", 0, 0)
    assert house.residents.get(place_of(house.partitions[0])) is machine
    assert (house.state(), house.loaded, house.residents.shells()) == (SERVING, [machine], [machine])


async def test_eight_who_ask_wait_for_one_load(house: House) -> None:
    house.gate.clear()
    house.lead()
    asking = [asyncio.ensure_future(house.load()) for _ in range(8)]
    await turns()
    assert house.state() is LOADING
    house.gate.set()
    assert set(await asyncio.gather(*asking)) == {house.made[0]}
    assert house.made[0].load_count == 1


async def test_who_stops_waiting_does_not_stop_the_load(house: House) -> None:
    house.gate.clear()
    house.lead()
    impatient, patient = (asyncio.ensure_future(house.load()) for _ in range(2))
    await turns()
    impatient.cancel()
    await turns()
    assert house.state() is LOADING
    house.gate.set()
    assert await patient is house.made[0]


@pytest.mark.parametrize("problem", [JournalLostError("cut"), OSError("gone")])
async def test_a_load_that_fails_leaves_it_lost_until_it_is_tried_again(house: House, problem: Exception) -> None:
    house.problem = problem
    house.lead()
    machine = await house.load()
    assert machine is not None
    assert (house.state(), machine.is_loaded, house.loaded) == (LOST, False, [])
    assert await house.residents.reload_lost() == []
    house.problem = None
    assert await house.residents.reload_lost() == [machine]
    assert (house.state(), machine.load_count, house.loaded) == (SERVING, 3, [machine])


async def test_what_is_damaged_is_not_read_again_and_again(house: House) -> None:
    house.problem = JournalDamagedError("bad batch")
    house.lead()
    machine = await house.load()
    assert machine is not None
    assert await house.load() is machine
    assert await house.residents.reload_lost() == []
    assert (house.state(), machine.load_count, machine.damage.reason) == (LOST, 1, "bad batch")
    assert house.residents.damages() == [machine.damage]


async def test_a_lost_journal_is_unloaded_and_loaded_again(house: House) -> None:
    lost, well = await house.serving(0), await house.serving(1)
    lost.is_lost = True
    assert house.state(0) is LOST
    assert await house.residents.reload_lost() == [lost]
    assert (house.state(0), lost.load_count, well.load_count) == (SERVING, 2, 1)


async def test_not_all_that_are_lost_are_loaded_at_once(house: House) -> None:
    for index in range(len(house.partitions)):
        (await house.serving(index)).is_lost = True
    house.gate.clear()
    house.loading_count_max = 0
    reloading = asyncio.ensure_future(house.residents.reload_lost())
    await turns()
    house.gate.set()
    assert len(await reloading) == len(house.partitions)
    assert house.loading_count_max == RELOADING_AT_ONCE


async def test_what_could_not_be_made_is_made_for_the_next_who_asks(house: House) -> None:
    house.lead()
    house.partitions[0].is_closed = True
    assert await house.load() is None
    assert house.state() is ABSENT
    house.partitions[0].is_closed = False
    assert await house.load() is not None


async def test_who_resigns_is_told_at_once_and_loaded_no_more(house: House) -> None:
    machine = await house.serving()
    house.resign()
    assert machine.is_resigned
    assert (house.state(), await house.load(), house.residents.shells()) == (RESIGNED, None, [])
    # The same leadership does not begin twice.
    house.lead(0, 0)
    assert house.state() is RESIGNED
    house.lead(0, 1)
    assert (await house.serving(0, 1)) is not machine


async def test_a_load_that_ends_after_the_leadership_is_handed_to_nobody(house: House) -> None:
    house.gate.clear()
    house.lead()
    asking = asyncio.ensure_future(house.load())
    await turns()
    house.resign()
    assert house.made[0].is_resigned
    house.gate.set()
    assert await asking is None
    assert (house.loaded, house.residents.shells()) == ([], [])


async def test_a_higher_epoch_makes_another_shell_and_a_lower_one_changes_nothing(house: House) -> None:
    first = await house.serving(0, 3)
    house.lead(0, 2)
    house.lead(0, 3)
    assert house.residents.get((TOPIC_ID, 0)) is first
    house.lead(0, 4)
    assert first.is_resigned
    second = await house.serving(0, 4)
    assert second is not first
    assert (first.leadership.epoch, second.leadership.epoch) == (3, 4)


async def test_nothing_is_made_or_read_before_the_barrier(house: House) -> None:
    house.barrier.opened.clear()
    house.residents.begin(house.partitions[0])
    await turns()
    assert (house.state(), house.made) == (LOADING, [])
    assert house.residents.is_any_loading
    house.barrier.opened.set()
    await turns()
    assert (house.state(), house.loaded) == (SERVING, house.made)


async def test_nobody_waits_for_the_barrier_who_asks_for_a_resident(house: House) -> None:
    house.barrier.opened.clear()
    assert await house.residents.resident(house.partitions[0]) is None
    await house.residents.load_all(house.partitions[:2], at_once=1)
    house.barrier.opened.set()
    await turns()
    assert [house.state(index) for index in (0, 1)] == [SERVING, SERVING]
    assert await house.residents.resident(house.partitions[0]) is house.made[0]


async def test_a_barrier_that_is_never_reached_leaves_nothing(house: House) -> None:
    house.barrier.opened.clear()
    house.lead()
    asking = asyncio.ensure_future(house.load())
    await turns()
    house.barrier.is_over = True
    house.barrier.opened.set()
    assert await asking is None
    assert house.made == []


async def test_the_next_is_not_made_before_the_one_before_has_left(house: House) -> None:
    first = await house.serving(0, 1)
    house.way_out.clear()
    house.resign()
    house.lead(0, 3)
    asking = asyncio.ensure_future(house.load())
    await turns()
    assert house.made == [first]
    house.way_out.set()
    assert await asking is house.made[1]


async def test_a_topic_that_is_gone_leaves_nothing(house: House) -> None:
    first, second = await house.serving(0), await house.serving(1)
    assert house.residents.forget(b"another") == []
    assert house.residents.forget(TOPIC_ID) == [first, second]
    assert (house.state(0), house.residents.shells()) == (ABSENT, [])


async def test_what_is_closed_is_found_and_not_loaded_again(house: House) -> None:
    machine = await house.serving(0)
    house.gate.clear()
    house.lead(1)
    asking = asyncio.ensure_future(house.load(1))
    await turns()
    assert house.residents.close() == [machine, house.made[1]]
    assert await asking is house.made[1]
    machine.is_loaded = False
    assert await house.load(0) is machine
    assert await house.residents.reload_lost() == []
    assert machine.load_count == 1
