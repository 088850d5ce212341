"""Queues and leases when the lead of their partition goes, and when it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.base.clock import ManualClock
from penstock.broker.partition.role import Leading
from penstock.broker.queue.delivery import ReceivedMessages
from penstock.broker.queue.shell import QueueShell, QueueUnavailable
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.domain.queue.commands import Act, Outcome, Pause, Snapshot, TakeOver
from penstock.domain.queue.definition import QueueName, QueueOptions
from support.cluster.leaderships import PATIENCE_S, Gate, Leaderships, until
from support.queue.broker import QueueBroker
from support.queue.desk import QueueDesk, offsets, rebuilt

LEASE_MS = 30_000
OPTIONS = QueueOptions(lease_ms=LEASE_MS)


@pytest.fixture
async def world() -> AsyncIterator[QueueBroker]:
    made = QueueBroker(clock=ManualClock())
    await made.start()
    await made.topic("orders", 2)
    yield made
    await made.stop()


def lead_of(world: QueueBroker, index: int = 0) -> Leaderships:
    return Leaderships(world.catalog, "orders", index)


async def shell_of(world: QueueBroker, index: int = 0) -> QueueShell:
    served = world.broker.topic("orders")
    assert served is not None
    partition = served.shell(index)
    assert partition is not None
    async with asyncio.timeout(PATIENCE_S):
        return await world.queues.shell(partition)


async def has_waiting(shell: QueueShell, name: QueueName) -> bool:
    return len(shell.room(name.group)) > 0


async def is_ready(shell: QueueShell, name: QueueName) -> bool:
    return shell.is_ready(name.group)


# The shell


async def test_a_queue_is_not_here_without_the_lead_and_comes_back_with_it(world: QueueBroker) -> None:
    name = await world.queue("orders", options=OPTIONS)
    await world.send("orders", [b"a", b"b"])
    (first, *_rest) = await world.receive(name, 1)
    old = await shell_of(world)
    await lead_of(world).go()
    assert isinstance(await old.submit(name.group, Pause()), QueueUnavailable)
    with pytest.raises(StoreUnavailableError):
        await shell_of(world)
    away = await world.delivery.receive(name, consumer="c", count_max=1)
    assert isinstance(away, QueueUnavailable), "half of a queue is no answer"
    assert "orders-0 is led by node 2" in away.reason
    await lead_of(world).come()
    shell = await shell_of(world)
    assert shell is not old
    assert isinstance(await old.submit(name.group, Pause()), QueueUnavailable), "though this node leads again"
    assert [message.record.value for message in await world.receive(name)] == [b"b"], "the first is leased"
    assert first.record.value == b"a"


async def test_who_waits_for_messages_is_told_when_none_is_to_be_had_here(world: QueueBroker) -> None:
    name = await world.queue("orders", options=OPTIONS)
    waiting = asyncio.ensure_future(world.delivery.receive(name, consumer="c", count_max=1, wait_ms=60_000))
    old = await shell_of(world)
    await until(lambda: has_waiting(old, name))
    await lead_of(world).go()
    assert isinstance(await asyncio.wait_for(waiting, PATIENCE_S), QueueUnavailable)


async def test_queue_is_served_again_when_its_partition_comes_back(world: QueueBroker) -> None:
    name = await world.queue("orders", options=OPTIONS)
    await world.send("orders", [b"a"], partition=1)
    await lead_of(world, 1).go()
    assert isinstance(await world.delivery.receive(name, consumer="c", count_max=1, wait_ms=60_000), QueueUnavailable)
    await lead_of(world, 1).come()
    received = await asyncio.wait_for(
        world.delivery.receive(name, consumer="c", count_max=1, wait_ms=60_000), PATIENCE_S
    )
    assert isinstance(received, ReceivedMessages)
    assert [message.record.value for message in received.messages] == [b"a"]


async def test_nothing_is_handed_out_before_the_barrier(world: QueueBroker) -> None:
    name = await world.queue("orders", options=OPTIONS)
    await world.send("orders", [b"a"])
    await lead_of(world).go()
    gate = world.broker.barrier = Gate()
    await lead_of(world).come()
    served = world.broker.topic("orders")
    assert served is not None
    with pytest.raises(StoreUnavailableError):
        await world.queues.shell(served.shells[0], wait_ms=1)
    gate.open()
    await shell_of(world)
    assert [message.record.value for message in await world.receive(name)] == [b"a"]


async def test_a_queue_that_was_defined_elsewhere_is_opened_by_who_takes_over(world: QueueBroker) -> None:
    await world.send("orders", [b"a"])
    await lead_of(world).go()
    name = await world.queue("orders", options=OPTIONS)
    await lead_of(world).come()
    shell = await shell_of(world)
    await until(lambda: is_ready(shell, name))
    assert [message.record.value for message in await world.receive(name)] == [b"a"]


async def test_what_was_decided_and_is_not_written_when_the_lead_goes_is_neither_told_nor_written(
    world: QueueBroker,
) -> None:
    name = await world.queue("orders", options=OPTIONS)
    shell = await shell_of(world)
    journal = shell.journal_log
    end = journal.log.log_end
    under_way = asyncio.ensure_future(shell.submit(name.group, Pause()))
    await asyncio.sleep(0)
    shell.resign()
    journal.take_role(Leading(5))
    assert isinstance(await under_way, QueueUnavailable)
    assert journal.log.log_end == end


# Leases


async def leases_until_ms(world: QueueBroker, name: QueueName) -> set[int]:
    shell = await shell_of(world)
    queue = shell.queue(name.group)
    assert queue is not None
    return {view.until_ms for offset in range(10) if (view := queue.look_up(offset)) is not None}


async def test_leases_have_their_whole_length_after_a_takeover_and_not_after_a_restart(world: QueueBroker) -> None:
    clock = world.clock
    assert isinstance(clock, ManualClock)
    name = await world.queue("orders", options=OPTIONS)
    await world.send("orders", [b"a", b"b"])
    (message, *_rest) = await world.receive(name)
    given_ms = clock.now_ms()
    assert await leases_until_ms(world, name) == {given_ms + LEASE_MS}
    clock.advance_ms(LEASE_MS - 1_000)
    await world.restart()
    assert await leases_until_ms(world, name) == {given_ms + LEASE_MS}
    await lead_of(world).go()
    await lead_of(world).come()
    taken_ms = clock.now_ms()
    assert await leases_until_ms(world, name) == {taken_ms + LEASE_MS}
    # Written down, in the new leadership: a restart does not give them any more.
    clock.advance_ms(1_000)
    await world.restart()
    assert await leases_until_ms(world, name) == {taken_ms + LEASE_MS}
    clock.advance_ms(2_000)
    assert await world.receive(name, consumer="other") == [], "its consumer still has it"
    assert message.record.value == b"a"


def test_every_lease_gets_the_length_that_it_had() -> None:
    desk = QueueDesk(log_end=3)
    desk.receive(count=1)
    number = desk.receive(count=1).number
    assert desk.settle(Act.RENEW, 1, number=number, delay_ms=5_000) is Outcome.DONE
    desk.submit(Snapshot())
    desk.now_ms += 900
    desk.submit(TakeOver())
    queue = rebuilt(desk)
    views = [queue.look_up(offset) for offset in (0, 1)]
    assert [view.until_ms - desk.now_ms for view in views if view is not None] == [1_000, 5_000]
    desk.pass_time(999)
    assert offsets(desk.receive("bob", count=1)) == [2], "the first is not free before its time"


def test_a_takeover_without_leases_writes_nothing() -> None:
    desk = QueueDesk(log_end=3)
    desk.accept(desk.receive())
    assert desk.decide(TakeOver()).records == ()
