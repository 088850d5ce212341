"""Batches of an old log that nobody can read: dead-lettered with the reason, and what lies behind them flows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.outcome import Appended
from penstock.broker.queue.batch import QueueBatch
from penstock.broker.queue.reader import LOOP_BYTES_MAX
from penstock.broker.queue.unreadable import without_unreadable
from penstock.broker.share.delivery import ShareTaken, take
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import read_header
from penstock.codec.batch.records import Record, StoredRecord, build_batch
from penstock.domain.queue.commands import Act, Settlement
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.values import Ordering
from support.codec.unreadable_batches import with_checksum
from support.queue.broker import QueueBroker

LETTERS_LOOKS_MAX = 500


@pytest.fixture
async def desk() -> AsyncIterator[QueueBroker]:
    running = QueueBroker()
    await running.start()
    yield running
    await running.stop()


async def send_broken(desk: QueueBroker, topic: str, count: int = 3) -> None:
    """As clients could before such batches were refused."""
    batch = build_batch([Record(b"good", timestamp_ms=1) for _ in range(count)])
    batch[-1:] = b"\x05"
    served = desk.broker.topic(topic)
    assert served is not None
    outcome = served.shells[0].append(memoryview(with_checksum(batch)))
    assert isinstance(outcome, Appended)
    if outcome.commitment is not None:
        await outcome.commitment.kept()


async def letters_of(desk: QueueBroker, count: int) -> list[StoredRecord]:
    for _ in range(LETTERS_LOOKS_MAX):
        letters = await desk.log_of("orders-dlq")
        if len(letters) >= count:
            return letters
        await asyncio.sleep(0.01)
    raise AssertionError("no dead letter came")


@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.KEY])
async def test_queue_dead_letters_a_batch_that_nobody_can_read(desk: QueueBroker, ordering: Ordering) -> None:
    await desk.topic("orders")
    name: QueueName = await desk.queue("orders", options=QueueOptions(ordering=ordering))
    await desk.send("orders", [b"before"])
    await send_broken(desk, "orders")
    await desk.send("orders", [b"after"])
    received = []
    for _ in range(3):
        received += [message.record.value for message in await desk.receive(name)]
    assert received == [b"before", b"after"]
    (letter,) = await letters_of(desk, 1)
    headers = dict(letter.headers)
    assert letter.value is None
    text = headers["penstock-dead-letter-text"]
    assert text is not None
    assert text.startswith(b"offsets 1 to 3 cannot be read: ")
    assert headers["penstock-origin-offset"] == b"1"


async def test_share_group_member_is_not_given_a_batch_that_it_could_not_read(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"before"])
    await send_broken(desk, "orders")
    await desk.send("orders", [b"after"])
    (shell,) = await desk.queues.shells(name)
    definition = desk.queues.get(name)
    assert definition is not None
    acquired: list[int] = []
    for _ in range(3):
        taken = await take(shell, definition, member_id="m", count_max=10, bytes_max=1 << 20, takes_whole_batches=False)
        assert isinstance(taken, ShareTaken)
        acquired += [offset for each in taken.acquired for offset in range(each.first, each.last + 1)]
        assert all(b"good" not in bytes(batch) for batch in taken.batches)
    assert acquired == [0, 4]
    assert len(await letters_of(desk, 1)) == 1


def test_settlement_is_cut_where_something_is_unreadable() -> None:
    whole = Settlement(0, 9, Act.GAP)
    pieces = without_unreadable(whole, [(0, "why"), (5, "why"), (20, "why")])
    assert [(piece.first, piece.last) for piece in pieces] == [(1, 4), (6, 9)]


async def test_small_batch_that_unpacks_to_very_much_is_opened_off_the_loop(desk: QueueBroker) -> None:
    """By its compressed size it was taken for a small one, and the loop unpacked it at the first receive."""
    await desk.topic("orders")
    name = await desk.queue("orders")
    batch = build_batch([Record(bytes(64 << 20), timestamp_ms=1)], codec=Codec.ZSTD)
    assert len(batch) < LOOP_BYTES_MAX
    header = read_header(batch)
    began = time.thread_time()
    assert QueueBatch(header, memoryview(batch), is_left_out=False).records
    alone = time.thread_time() - began
    served = desk.broker.topic("orders")
    assert served is not None
    outcome = served.shells[0].append(memoryview(batch))
    assert isinstance(outcome, Appended)
    if outcome.commitment is not None:
        await outcome.commitment.kept()
    began = time.thread_time()
    (message,) = await desk.receive(name)
    assert time.thread_time() - began < alone / 2, "the loop's own thread has unpacked it"
    assert len(message.record.value or b"") == 64 << 20
