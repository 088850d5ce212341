"""Queues over a real log and journal: what is received, settled, found again, and laid to rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.base.clock import ManualClock
from penstock.broker.queue.delivery import Message, NoSuchQueue, ReceiptSettlement
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Record
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueName, QueueOptions, Start
from penstock.domain.queue.values import Ordering
from support.queue.broker import QueueBroker


@pytest.fixture
async def desk() -> AsyncIterator[QueueBroker]:
    made = QueueBroker()
    await made.start()
    yield made
    await made.stop()


async def settle(desk: QueueBroker, name: QueueName, messages: list[Message], act: Act, **more: object) -> list[object]:
    items = [ReceiptSettlement(message.receipt, act, **more) for message in messages]  # type: ignore[arg-type]
    outcomes = await desk.delivery.settle(name, items)
    assert isinstance(outcomes, list)
    return list(outcomes)


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.record.value for message in messages]


async def test_what_is_accepted_never_comes_back(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b", b"c"])
    first = await desk.receive(name, 2)
    assert values(first) == [b"a", b"b"]
    assert await settle(desk, name, first, Act.ACCEPT) == [Outcome.DONE] * 2
    await desk.restart()
    assert values(await desk.receive(name)) == [b"c"]
    assert await desk.receive(name) == []


async def test_leases_survive_a_restart(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    (held,) = await desk.receive(name, 1)
    await desk.restart()
    assert values(await desk.receive(name)) == [b"b"]
    assert await settle(desk, name, [held], Act.ACCEPT) == [Outcome.DONE]


async def test_a_released_message_is_delivered_again_with_its_count(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a"])
    (first,) = await desk.receive(name)
    assert first.delivery_count == 1
    await settle(desk, name, [first], Act.RELEASE)
    (second,) = await desk.receive(name)
    assert second.delivery_count == 2
    assert await settle(desk, name, [first], Act.ACCEPT) == [Outcome.NOT_HELD]


async def test_every_partition_is_served(desk: QueueBroker) -> None:
    await desk.topic("orders", 4)
    name = await desk.queue("orders")
    for partition in range(4):
        await desk.send("orders", [b"%d" % partition], partition)
    assert sorted(values(await desk.receive(name))) == [b"0", b"1", b"2", b"3"]  # type: ignore[type-var]


async def test_who_waits_gets_what_arrives(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    waiting = asyncio.ensure_future(desk.receive(name, wait_ms=10_000))
    await asyncio.sleep(0)
    await desk.send("orders", [b"late"])
    assert values(await asyncio.wait_for(waiting, 5)) == [b"late"]


async def test_a_rejected_message_becomes_one_dead_letter_that_says_why(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [Record(value=b"bad", key=b"k", timestamp_ms=1, headers=(("trace", b"1"),))])
    await settle(desk, name, await desk.receive(name), Act.REJECT, text="no such customer")
    letters = await dead_letters(desk, 1)
    headers = dict(letters[0].headers)
    assert (letters[0].key, letters[0].value) == (b"k", b"bad")
    assert headers["trace"] == b"1"
    assert headers["penstock-dead-letter-reason"] == b"rejected"
    assert headers["penstock-dead-letter-text"] == b"no such customer"
    assert headers["penstock-origin-topic"] == b"orders"
    assert headers["penstock-origin-offset"] == b"0"
    await desk.restart()
    assert await desk.receive(name) == []
    assert len(await desk.log_of("orders-dlq")) == 1


async def dead_letters(desk: QueueBroker, count: int, topic: str = "orders-dlq") -> list[object]:
    for _ in range(500):
        letters = await desk.log_of(topic)
        if len(letters) >= count:
            return letters  # type: ignore[return-value]
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(letters)} of {count} dead letters came")


async def test_a_message_that_always_fails_is_laid_to_rest() -> None:
    clock = ManualClock()
    desk = QueueBroker(clock=clock)
    await desk.start()
    await desk.topic("orders")
    name = await desk.queue("orders", options=QueueOptions(deliveries_max=3))
    await desk.send("orders", [b"poison"])
    for _ in range(3):
        assert values(await desk.receive(name)) == [b"poison"]
        await settle(desk, name, await desk.receive(name), Act.RELEASE)
        held = desk.queues.loaded_shells()
        for shell in held:
            clock.advance_ms(31_000)
            shell._on_alarm()
    assert await desk.receive(name) == []
    (letter,) = await dead_letters(desk, 1)
    assert dict(letter.headers)["penstock-dead-letter-reason"] == b"deliveries-exhausted"  # type: ignore[attr-defined]
    await desk.stop()


async def test_a_large_compressed_batch_is_given_out_in_small_portions(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"%d" % number for number in range(3_000)], codec=Codec.ZSTD)
    seen: list[bytes | None] = []
    while messages := await desk.receive(name, 500):
        seen += values(messages)
        await settle(desk, name, messages, Act.ACCEPT)
    assert seen == [b"%d" % number for number in range(3_000)]


async def test_urgent_messages_overtake(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"1", b"2"])
    urgent = (("penstock-priority", b"9"),)
    await desk.send("orders", [Record(value=b"now", timestamp_ms=1, headers=urgent)])
    assert values(await desk.receive(name, 3))[0] == b"now"


async def test_messages_of_lower_lanes_come_too(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    now_ms = desk.clock.now_ms()
    low = (("penstock-priority", b"0"),)
    records = [
        Record(value=b"%d" % number, timestamp_ms=now_ms, headers=low if number % 2 else ()) for number in range(100)
    ]
    await desk.send("orders", records)
    seen: list[bytes | None] = []
    while messages := await desk.receive(name, 10):
        seen += values(messages)
        await settle(desk, name, messages, Act.ACCEPT)
    assert sorted(int(value or b"-1") for value in seen) == list(range(100))


async def test_expired_messages_are_not_delivered(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    old = Record(value=b"old", timestamp_ms=desk.clock.now_ms() - 10_000, headers=(("penstock-ttl-ms", b"500"),))
    await desk.send("orders", [old, Record(value=b"new", timestamp_ms=desk.clock.now_ms())])
    assert values(await desk.receive(name)) == [b"new"]


async def test_messages_of_one_key_come_one_after_the_other(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders", options=QueueOptions(ordering=Ordering.KEY))
    now_ms = desk.clock.now_ms()
    await desk.send(
        "orders", [Record(value=b"%d" % n, key=b"ab"[n % 2 : n % 2 + 1], timestamp_ms=now_ms) for n in range(6)]
    )
    first = await desk.receive(name)
    assert values(first) == [b"0", b"1"]
    await settle(desk, name, first[:1], Act.ACCEPT)
    assert values(await desk.receive(name)) == [b"2"]


async def test_a_queue_that_starts_at_the_end_sees_only_what_comes(desk: QueueBroker) -> None:
    await desk.topic("orders")
    await desk.send("orders", [b"before"])
    name = await desk.queue("orders", options=QueueOptions(start=Start.LATEST))
    await desk.send("orders", [b"after"])
    assert values(await desk.receive(name)) == [b"after"]


async def test_a_queue_may_begin_with_what_is_young_enough(desk: QueueBroker) -> None:
    await desk.topic("orders")
    now_ms = desk.clock.now_ms()
    for age_ms in (7_200_000, 1_800_000, 0):
        await desk.send("orders", [Record(value=b"%d" % age_ms, timestamp_ms=now_ms - age_ms)])
    name = await desk.queue("orders", options=QueueOptions(start_ago_ms=3_600_000))
    assert values(await desk.receive(name)) == [b"1800000", b"0"]


async def test_a_bare_dead_letter_says_where_its_message_lies(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders", options=QueueOptions(copies_dead_letters=False))
    await desk.send("orders", [Record(value=b"bad", key=b"k", timestamp_ms=1, headers=(("trace", b"1"),))])
    await settle(desk, name, await desk.receive(name), Act.REJECT)
    (letter,) = await dead_letters(desk, 1)
    headers = dict(letter.headers)  # type: ignore[attr-defined]
    assert (letter.key, letter.value) == (None, None)  # type: ignore[attr-defined]
    assert "trace" not in headers
    assert (headers["penstock-origin-topic"], headers["penstock-origin-offset"]) == (b"orders", b"0")


async def test_purge_skips_what_is_there_and_keeps_it_in_the_log(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a"])
    assert await desk.delivery.purge(name) is None
    await desk.send("orders", [b"b"])
    assert values(await desk.receive(name)) == [b"b"]
    assert len(await desk.log_of("orders")) == 2


async def test_a_deleted_topic_takes_its_queues_along(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a"])
    await desk.receive(name)
    await desk.catalog.delete_topic("orders")
    await desk.topic("orders")
    assert isinstance(await desk.delivery.receive(name, consumer="c", count_max=1), NoSuchQueue)
    await desk.queue("orders")
    await desk.send("orders", [b"new"])
    assert values(await desk.receive(name)) == [b"new"]


async def test_a_pause_holds_deliveries_and_not_settlements(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    held = await desk.receive(name, 1)
    await desk.delivery.pause(name, is_paused=True)
    assert await desk.receive(name) == []
    assert await settle(desk, name, held, Act.ACCEPT) == [Outcome.DONE]
    await desk.delivery.pause(name, is_paused=False)
    assert values(await desk.receive(name)) == [b"b"]
