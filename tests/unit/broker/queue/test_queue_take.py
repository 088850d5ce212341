"""`QueueShell.take`: the queue of one partition, without whoever goes round them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.deletion import delete_before
from penstock.broker.queue.messages import QueueUnavailable, ReceivedMessages
from penstock.broker.queue.shell import QueueShell
from penstock.codec.batch.records import Record
from penstock.domain.queue.commands import Pause
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.values import Limit, Ordering
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


async def test_a_glance_sees_what_a_look_would(desk: QueueBroker) -> None:
    _, (first, _) = await open_queue(desk)
    reader, cursors = first.reader, ((DEFAULT_LANE, 1),)
    assert reader.glance(cursors, 1, is_committed_only=True) is None, "nothing is at hand yet"
    look = await reader.look(cursors, 1, ordering=Ordering.NONE, is_committed_only=True)
    assert reader.glance(cursors, 1, is_committed_only=True) == look
    assert reader.glance(cursors, 2, is_committed_only=True) == look


async def test_a_glance_is_not_enough_for_more_than_one_batch_or_lane(desk: QueueBroker) -> None:
    _, (first, _) = await open_queue(desk)
    reader = first.reader
    await reader.look(((DEFAULT_LANE, 0),), 1, ordering=Ordering.NONE, is_committed_only=True)
    assert reader.glance(((DEFAULT_LANE, 0),), 3, is_committed_only=True) is not None
    assert reader.glance(((DEFAULT_LANE, 0),), 4, is_committed_only=True) is None
    assert reader.glance(((DEFAULT_LANE, 0), (9, 0)), 1, is_committed_only=True) is None
    assert reader.glance(((9, 0),), 1, is_committed_only=True) is None


@pytest.mark.parametrize("header", [("penstock-priority", b"9"), ("penstock-ttl-ms", b"5000")])
async def test_a_glance_leaves_batches_with_special_messages_to_a_look(
    desk: QueueBroker, header: tuple[str, bytes]
) -> None:
    _, (_, second) = await open_queue(desk)
    await desk.send("orders", [b"a", Record(value=b"b", headers=(header,))], partition=1)
    cursors = ((DEFAULT_LANE, 1),)
    await second.reader.look(cursors, 1, ordering=Ordering.NONE, is_committed_only=True)
    assert second.reader.glance(cursors, 1, is_committed_only=True) is None


async def test_an_urgent_message_behind_the_batch_at_hand_overtakes_it(desk: QueueBroker) -> None:
    definition, (first, _) = await open_queue(desk)
    assert values(await first.take(definition, "c", 1)) == [b"a"]
    await desk.send("orders", [Record(value=b"urgent", headers=(("penstock-priority", b"9"),))], partition=0)
    assert values(await first.take(definition, "c", 1)) == [b"urgent"]
    assert values(await first.take(definition, "c", 1)) == [b"b"]


async def test_what_retention_has_taken_is_not_glanced_at(desk: QueueBroker) -> None:
    _, (first, _) = await open_queue(desk)
    cursors = ((DEFAULT_LANE, 0),)
    await first.reader.look(cursors, 1, ordering=Ordering.NONE, is_committed_only=True)
    await delete_before(first.partition, 1)
    assert first.reader.glance(cursors, 1, is_committed_only=True) is None
