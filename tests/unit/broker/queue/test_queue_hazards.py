"""What can happen to a queue between two of its steps: callers go, topics change, logs lose their beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from penstock.broker.partition.deletion import delete_before
from penstock.broker.partition.outcome import Appended
from penstock.broker.queue.delivery import Message, ReceiptSettlement, ReceivedMessages, Receiver
from penstock.broker.queue.shell import QueueShell
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore, StoreUnavailableError
from penstock.codec.batch.header import read_header
from penstock.codec.batch.records import Record, build_batch, seal_batch
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.values import HoldKind
from support.queue.broker import QueueBroker
from support.queue.watched_reader import WatchedReader


@pytest.fixture
async def desk() -> AsyncIterator[QueueBroker]:
    made = QueueBroker()
    await made.start()
    yield made
    await made.stop()


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.record.value for message in messages]


def shell_of(desk: QueueBroker) -> QueueShell:
    (shell,) = desk.queues.loaded_shells()
    return shell


async def accept(desk: QueueBroker, name: QueueName, messages: list[Message]) -> None:
    await desk.delivery.settle(name, [ReceiptSettlement(message.receipt, Act.ACCEPT) for message in messages])


async def until(condition: Callable[[], bool]) -> None:
    """Looks at every turn of the loop: what is waited for may last for one only."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  nothing is told of it that could be waited for
            await asyncio.sleep(0)


async def test_a_batch_of_nonsense_does_not_stop_the_queue(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    header = read_header(build_batch([Record(b"x", timestamp_ms=desk.clock.now_ms())] * 3))
    partition = desk.broker.topic("orders").shells[0]  # type: ignore[union-attr]
    outcome = partition.append(memoryview(seal_batch(header, b"\x7f" * 40)))  # type: ignore[arg-type]
    assert isinstance(outcome, Appended)
    await desk.send("orders", [b"good"])
    assert values(await desk.receive(name)) == [b"good"]
    assert await desk.receive(name) == []


async def test_who_waits_is_not_held_up_by_what_is_too_old(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    old = Record(b"old", timestamp_ms=desk.clock.now_ms() - 10_000, headers=(("penstock-ttl-ms", b"1"),))
    for _ in range(300):
        await desk.send("orders", [old])
    await desk.send("orders", [b"new"])
    assert values(await asyncio.wait_for(desk.receive(name, 1, wait_ms=30_000), 10)) == [b"new"]


async def test_a_caller_that_is_gone_gets_nothing(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    caller = Receiver()
    waiting = asyncio.ensure_future(
        desk.delivery.receive(name, consumer="gone", count_max=1, wait_ms=30_000, caller=caller)
    )
    await until(lambda: len(caller.room) == 1)
    caller.leave()
    assert await asyncio.wait_for(waiting, 5) == ReceivedMessages()
    await desk.send("orders", [b"a"])
    (message,) = await desk.receive(name)
    assert message.delivery_count == 1


async def test_what_a_caller_left_behind_is_free_at_once(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    caller = Receiver()
    taking = asyncio.ensure_future(desk.delivery.receive(name, consumer="gone", count_max=2, caller=caller))
    await until(lambda: shell_of(desk).queue("workers").in_flight_count == 2)  # type: ignore[union-attr]
    caller.leave()
    assert await taking == ReceivedMessages()
    assert [message.delivery_count for message in await desk.receive(name)] == [2, 2]


async def test_what_a_cancelled_receive_took_is_free_at_once(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    taking = asyncio.ensure_future(desk.receive(name))
    await until(lambda: shell_of(desk).queue("workers").in_flight_count == 2)  # type: ignore[union-attr]
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert values(await desk.receive(name)) == [b"a", b"b"]


async def test_who_waits_on_a_deleted_queue_is_told_at_once(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    room = shell_of(desk).room(name.group)
    waiting = asyncio.ensure_future(desk.delivery.receive(name, consumer="c", count_max=1, wait_ms=30_000))
    await until(lambda: len(room) == 1)
    await desk.queues.delete(name)
    assert not isinstance(await asyncio.wait_for(waiting, 5), ReceivedMessages)


async def test_a_queue_made_again_begins_anew_and_knows_no_old_receipt(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    old = await desk.receive(name)
    await accept(desk, name, old[:1])
    await desk.queues.delete(name)
    await desk.queue("orders")
    assert values(await desk.receive(name)) == [b"a", b"b"]
    await accept(desk, name, old)
    assert shell_of(desk).queue("workers").in_flight_count == 2  # type: ignore[union-attr]


async def test_what_is_left_of_an_old_topic_takes_no_new_queue_along(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    old_id = desk.broker.topic("orders").topic_id  # type: ignore[union-attr]
    await desk.catalog.delete_topic("orders")
    await desk.topic("orders")
    await desk.queue("orders")
    assert not await desk.queues._queues.delete(name, topic_id=old_id)
    await desk.send("orders", [b"new"])
    assert values(await desk.receive(name)) == [b"new"]


async def test_a_peek_looks_past_what_is_finished(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"%d" % number for number in range(50)])
    messages = await desk.receive(name, 40)
    await accept(desk, name, messages[1:])
    seen = await desk.delivery.peek(name, 3)
    assert isinstance(seen, list)
    assert [(each.record.value, each.state) for each in seen] == [(b"0", HoldKind.LEASED), (b"40", None), (b"41", None)]


async def test_retention_past_the_cursor_moves_it(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"%d" % number for number in range(10)])
    leased = await desk.receive(name, 2)
    assert await delete_before(shell_of(desk).partition, 6) == 6
    shell_of(desk).trim()
    assert values(await desk.receive(name)) == [b"6", b"7", b"8", b"9"]
    # What is with a consumer may still be settled.
    await accept(desk, name, leased)
    assert shell_of(desk).queue("workers").finished_below == 6  # type: ignore[union-attr]


async def test_a_message_that_the_log_lost_while_it_was_delivered_is_finished(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    await desk.delivery.settle(
        name, [ReceiptSettlement(message.receipt, Act.RELEASE, 0) for message in await desk.receive(name)]
    )
    assert await delete_before(shell_of(desk).partition, 1) == 1
    assert values(await desk.receive(name)) == [b"b"]
    assert shell_of(desk).queue("workers").in_flight_count == 1  # type: ignore[union-attr]


async def test_a_cursor_never_lies_behind_what_the_disk_has(desk: QueueBroker) -> None:
    await desk.topic("orders", durability="interval")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    partition = desk.broker.topic("orders").shells[0]  # type: ignore[union-attr]
    assert values(await desk.receive(name)) == [b"a", b"b"]
    assert partition.log.durable_end == 2


async def test_the_earliest_of_many_deadlines_is_kept(desk: QueueBroker) -> None:
    await desk.topic("orders")
    slow = await desk.queue("orders", "slow", QueueOptions(lease_ms=600_000))
    quick = await desk.queue("orders", "quick", QueueOptions(lease_ms=20))
    await desk.send("orders", [b"a"])
    await desk.receive(slow)
    await desk.receive(quick)
    (again,) = await desk.receive(quick, wait_ms=5_000)
    assert again.delivery_count == 2


async def test_a_changed_definition_reaches_the_machine(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.queues.change(name, lambda options: msgspec.structs.replace(options, lease_ms=1_234))
    assert shell_of(desk).queue("workers").config.lease_ms == 1_234  # type: ignore[union-attr]


async def test_neighbours_are_settled_together_and_judged_each(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"%d" % number for number in range(6)])
    first = await desk.receive(name, 6)
    await accept(desk, name, [first[1], first[4]])
    items = [ReceiptSettlement(message.receipt, Act.ACCEPT) for message in first]
    finished, done = Outcome.FINISHED, Outcome.DONE
    assert await desk.delivery.settle(name, items) == [done, finished, done, done, finished, done]
    assert await desk.delivery.settle(name, items) == [finished] * 6
    assert shell_of(desk).queue("workers").finished_below == 6  # type: ignore[union-attr]


async def test_one_message_does_not_make_all_who_wait_look_for_it(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    room = shell_of(desk).room(name.group)
    waiting = [asyncio.ensure_future(desk.receive(name, 1, consumer=f"{n}", wait_ms=30_000)) for n in range(50)]
    await until(lambda: len(room) == 50)
    shell = shell_of(desk)
    shell.reader = reader = WatchedReader(shell.reader)
    for _ in range(10):
        await desk.send("orders", [b"one"])
    await until(lambda: sum(each.done() for each in waiting) == 10)
    assert reader.look_count < 30, f"{reader.look_count} looks for ten messages"
    await desk.send("orders", [b"more"] * 40)
    assert sum(len(each) for each in await asyncio.wait_for(asyncio.gather(*waiting), 5)) == 50


class SometimesNoIds(ProducerIds):
    """The first request finds the metadata store away."""

    is_away = True

    async def take(self) -> int:
        if self.is_away:
            self.is_away = False
            raise StoreUnavailableError("the metadata store is out of reach")
        return await super().take()


class UnluckyBroker(QueueBroker):
    def make_producer_ids(self, metadata: MetadataStore, keys: KeySpace) -> ProducerIds:
        return SometimesNoIds(metadata, keys)


async def test_dead_letters_leave_although_the_metadata_store_was_away_at_first() -> None:
    desk = UnluckyBroker()
    await desk.start()
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"bad"])
    (message,) = await desk.receive(name)
    await desk.delivery.settle(name, [ReceiptSettlement(message.receipt, Act.REJECT)])
    await until(lambda: shell_of(desk).queue("workers").in_flight_count == 0)  # type: ignore[union-attr]
    assert [letter.value for letter in await desk.log_of("orders-dlq")] == [b"bad"]
    await desk.stop()
