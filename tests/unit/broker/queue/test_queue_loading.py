"""Queues that are being loaded or opened: whoever comes meanwhile waits, for one load, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.queue.delivery import QueueDelivery, ReceivedMessages, is_worth_waiting
from penstock.broker.queue.messages import QueueTotals
from penstock.broker.queue.shell import QueueUnavailable
from penstock.broker.share.delivery import ShareTaken, take
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions
from support.queue.broker import QueueBroker
from support.storage.gated_loads import GatedLoads

NAME = QueueName("orders", "workers")


@pytest.fixture
def gate() -> GatedLoads:
    """Loads stand before it, once it is closed, until it is opened."""
    return GatedLoads()


@pytest.fixture
async def desk(gate: GatedLoads) -> AsyncIterator[QueueBroker]:
    made = QueueBroker(gate)
    await made.start()
    await made.topic("orders")
    await made.send("orders", [b"%d" % number for number in range(12)])
    gate.close_gate()
    yield made
    gate.open_gate()
    await made.stop()


async def receive_first(desk: QueueBroker, wait_ms: int = 0) -> object:
    """As a door does that makes queues at their first use."""
    if desk.queues.get(NAME) is None:
        await desk.queues.define(NAME, QueueOptions())
    return await desk.delivery.receive(NAME, consumer="c", count_max=1, wait_ms=wait_ms)


async def defined(desk: QueueBroker) -> QueueDefinition:
    async with asyncio.timeout(10):
        while (found := desk.queues.get(NAME)) is None:  # noqa: ASYNC110  what it waits for has no event
            await asyncio.sleep(0.001)
    return found


async def turns() -> None:
    """Everything that does not wait for the gate or a thread goes as far as it can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_eight_first_receives_at_once_share_one_load_and_are_all_served(
    desk: QueueBroker, gate: GatedLoads
) -> None:
    receiving = [asyncio.ensure_future(receive_first(desk)) for _ in range(8)]
    # Now, and not open anywhere.
    await defined(desk)
    late = [asyncio.ensure_future(receive_first(desk)) for _ in range(4)]
    totals = asyncio.ensure_future(desk.delivery.totals(NAME))
    await turns()
    assert not any(each.done() for each in (*receiving, *late, totals))
    gate.open_gate()
    received = await asyncio.gather(*receiving, *late)
    assert all(isinstance(each, ReceivedMessages) and len(each.messages) == 1 for each in received), received
    assert isinstance(await totals, QueueTotals)
    assert gate.load_count == 1


async def test_members_of_a_share_group_wait_for_the_load_too(desk: QueueBroker, gate: GatedLoads) -> None:
    defining = asyncio.ensure_future(desk.queues.define(NAME, QueueOptions()))
    definition = await defined(desk)
    served = desk.broker.topic("orders")
    assert served is not None
    finding = [
        asyncio.ensure_future(desk.queues.shell_for(definition, served.shells[0], wait_ms=60_000)) for _ in range(3)
    ]
    await turns()
    gate.open_gate()
    for shell in await asyncio.gather(*finding):
        how = {"count_max": 1, "bytes_max": 1 << 20, "takes_whole_batches": False}
        taken = await take(shell, definition, member_id="ann", **how)  # type: ignore[arg-type]
        assert isinstance(taken, ShareTaken)
        assert taken.count == 1
    await defining
    assert gate.load_count == 1


async def test_who_has_waited_long_enough_is_told_that_it_is_being_loaded(desk: QueueBroker, gate: GatedLoads) -> None:
    defining = asyncio.ensure_future(desk.queues.define(NAME, QueueOptions()))
    await defined(desk)
    delivery = QueueDelivery(desk.queues, loading_ms_max=20)
    reply = await delivery.receive(NAME, consumer="c", count_max=1)
    assert isinstance(reply, QueueUnavailable)
    assert (reply.is_loading, reply.is_damaged) == (True, False)
    assert is_worth_waiting(reply)
    # One that may wait longer uses its time.
    waiting = asyncio.ensure_future(delivery.receive(NAME, consumer="c", count_max=1, wait_ms=60_000))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    gate.open_gate()
    assert isinstance(await waiting, ReceivedMessages)
    await defining
