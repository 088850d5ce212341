"""`QueueShell.take`: the queue of one partition, without whoever goes round them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.queue.messages import QueueUnavailable, ReceivedMessages
from penstock.broker.queue.shell import QueueShell
from penstock.domain.queue.commands import Pause
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions
from penstock.domain.queue.values import Limit
from support.queue.broker import QueueBroker

WORKERS = QueueName("orders", "workers")


@pytest.fixture
async def desk() -> AsyncIterator[QueueBroker]:
    desk = QueueBroker()
    await desk.start()
    await desk.topic("orders", 2)
    await desk.send("orders", [b"a", b"b", b"c"], partition=0)
    await desk.send("orders", [b"z"], partition=1)
    yield desk
    await desk.stop()


async def open_queue(
    desk: QueueBroker, options: QueueOptions | None = None
) -> tuple[QueueDefinition, list[QueueShell]]:
    definition = await desk.queues.define(WORKERS, options or QueueOptions())
    return definition, await desk.queues.shells(WORKERS)


def values(taken: ReceivedMessages | QueueUnavailable) -> list[bytes | None]:
    assert isinstance(taken, ReceivedMessages), taken
    return [message.record.value for message in taken.messages]


async def test_take_gives_what_the_partition_has_and_nothing_of_another(desk: QueueBroker) -> None:
    definition, (first, second) = await open_queue(desk)
    assert values(await first.take(definition, "c", 2)) == [b"a", b"b"]
    assert values(await first.take(definition, "d", 10)) == [b"c"]
    assert values(await first.take(definition, "d", 10)) == []
    assert values(await second.take(definition, "c", 10)) == [b"z"]
    assert await first.is_durable()


async def test_what_was_taken_is_leased_for_as_long_as_asked(desk: QueueBroker) -> None:
    definition, (first, _) = await open_queue(desk)
    before_ms = first.now_ms()
    taken = await first.take(definition, "c", 1, lease_ms=5_000)
    assert isinstance(taken, ReceivedMessages)
    assert before_ms + 5_000 <= taken.messages[0].until_ms <= first.now_ms() + 5_000


async def test_consumer_who_holds_all_he_may_is_told_so(desk: QueueBroker) -> None:
    definition, (first, _) = await open_queue(desk, QueueOptions(in_flight_per_consumer_max=1))
    assert values(await first.take(definition, "c", 10)) == [b"a"]
    again = await first.take(definition, "c", 10)
    assert isinstance(again, ReceivedMessages)
    assert (again.messages, again.limit is not Limit.NONE) == ((), True)
    assert values(await first.take(definition, "d", 1)) == [b"b"]


async def test_paused_queue_gives_nothing(desk: QueueBroker) -> None:
    definition, (first, _) = await open_queue(desk)
    await first.submit("workers", Pause())
    assert values(await first.take(definition, "c", 10)) == []


async def test_shell_that_is_not_loaded_says_so(desk: QueueBroker) -> None:
    definition, (first, second) = await open_queue(desk)
    await first.unload()
    taken = await first.take(definition, "c", 10)
    assert isinstance(taken, QueueUnavailable)
    assert taken.is_loading
    # The other partitions are served all the same.
    assert values(await second.take(definition, "c", 10)) == [b"z"]
