"""What is done for queues from time to time, and what they tell: deletion of what is acked, ages, metrics, letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.base.metrics import CollectorRegistry, page
from penstock.broker.queue.delivery import Message, ReceiptSettlement
from penstock.broker.queue.metrics import QueueCollector
from penstock.broker.queue.mover import LEFT_OUT_HEADER
from penstock.codec.batch.records import Record, StoredRecord
from penstock.domain.queue.commands import Act
from penstock.domain.queue.definition import QueueName, QueueOptions
from support.queue.broker import QueueBroker


@pytest.fixture
async def desk() -> AsyncIterator[QueueBroker]:
    made = QueueBroker()
    await made.start()
    yield made
    await made.stop()


async def settle(desk: QueueBroker, name: QueueName, messages: list[Message], act: Act = Act.ACCEPT) -> None:
    await desk.delivery.settle(name, [ReceiptSettlement(message.receipt, act) for message in messages])


async def letters(desk: QueueBroker, count: int, topic: str = "orders-dlq") -> list[StoredRecord]:
    async with asyncio.timeout(5):
        while len(found := await desk.log_of(topic)) < count:  # noqa: ASYNC110  the mover tells nobody
            await asyncio.sleep(0.01)
    return found


def log_start(desk: QueueBroker) -> int:
    return desk.broker.topic("orders").shells[0].log_start  # type: ignore[union-attr]


def told(desk: QueueBroker) -> str:
    registry = CollectorRegistry()
    registry.register(QueueCollector(desk.queues))
    return page(registry).decode()


async def test_what_every_queue_has_finished_is_deleted(desk: QueueBroker) -> None:
    await desk.topic("orders", queue_delete_acked="true")
    quick, slow = await desk.queue("orders", "quick"), await desk.queue("orders", "slow")
    await desk.send("orders", [b"%d" % number for number in range(10)])
    await settle(desk, quick, await desk.receive(quick))
    await desk.queues._tidy()
    assert log_start(desk) == 0
    await settle(desk, slow, await desk.receive(slow, 4))
    await desk.queues._tidy()
    assert log_start(desk) == 4
    assert [message.record.value for message in await desk.receive(slow)] == [b"%d" % number for number in range(4, 10)]


async def test_upkeep_of_very_many_queues_leaves_everybody_a_turn(desk: QueueBroker) -> None:
    """Every partition with a queue has a shell to look after."""
    await desk.topic("orders", partitions=3_000)
    await desk.queue("orders")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    await desk.queues._tidy()
    counting.cancel()
    assert turns >= 3, "a slice is 2 ms, and this takes many of them"


async def test_without_the_setting_what_is_acked_stays(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a"])
    await settle(desk, name, await desk.receive(name))
    await desk.queues._tidy()
    assert log_start(desk) == 0


async def test_a_topic_without_queues_loses_nothing(desk: QueueBroker) -> None:
    await desk.topic("orders", queue_delete_acked="true")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a"])
    await settle(desk, name, await desk.receive(name))
    await desk.queues.delete(name)
    await desk.queues._tidy()
    assert log_start(desk) == 0


async def test_the_page_tells_depth_flight_and_age(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    old = desk.clock.now_ms() - 60_000
    await desk.send("orders", [Record(b"%d" % number, timestamp_ms=old) for number in range(5)])
    messages = await desk.receive(name, 2)
    await desk.queues._tidy()
    text = told(desk)
    assert 'penstock_queue_depth{group="workers",topic="orders"} 3.0' in text
    assert 'penstock_queue_in_flight{group="workers",topic="orders"} 2.0' in text
    (age,) = [line for line in text.splitlines() if line.startswith("penstock_queue_oldest_seconds{")]
    assert 60 <= float(age.rpartition(" ")[2]) < 90
    await settle(desk, name, messages)
    await settle(desk, name, await desk.receive(name))
    await desk.queues._tidy()
    assert 'penstock_queue_oldest_seconds{group="workers",topic="orders"} 0.0' in told(desk)


async def test_the_page_counts_dead_letters(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    await settle(desk, name, await desk.receive(name), Act.REJECT)
    await letters(desk, 2)
    async with asyncio.timeout(5):
        while 'dead_letters_total{group="workers",topic="orders"} 2.0' not in told(desk):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_letter_too_large_for_its_target_goes_without_its_value(desk: QueueBroker) -> None:
    await desk.topic("orders")
    await desk.topic("small", max_message_bytes="1500")
    name = await desk.queue("orders", options=QueueOptions(dead_letter_topic="small"))
    await desk.send("orders", [b"x" * 5_000])
    await desk.send("orders", [b"after"])
    await settle(desk, name, await desk.receive(name), Act.REJECT)
    large, small = await letters(desk, 2, "small")
    assert (large.value, dict(large.headers)[LEFT_OUT_HEADER]) == (None, b"5000")
    assert dict(large.headers)["penstock-origin-offset"] == b"0"
    assert small.value == b"after"


async def test_a_letter_is_durable_before_its_source_is_forgotten(desk: QueueBroker) -> None:
    await desk.topic("orders")
    await desk.topic("dead", durability="interval", durability_interval_ms="3600000")
    name = await desk.queue("orders", options=QueueOptions(dead_letter_topic="dead"))
    await desk.send("orders", [b"a"])
    await settle(desk, name, await desk.receive(name), Act.REJECT)
    (shell,) = await desk.queues.shells(name)
    async with asyncio.timeout(5):
        while shell.queue("workers").in_flight_count:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert desk.broker.topic("dead").shells[0].log.durable_end == 1  # type: ignore[union-attr]
