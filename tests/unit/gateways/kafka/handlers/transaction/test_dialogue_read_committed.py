"""Readers of committed records at the Kafka door: how far they read, and what they are told to leave out."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from penstock.codec.kafka.messages.fetch import FetchRequest, FetchResponse, PartitionData
from penstock.codec.kafka.messages.list_offsets import ListOffsetsResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import (
    DAY_MS,
    batch,
    by_partition,
    fetch,
    fetch_many,
    list_offsets,
    only_offset,
    only_partition,
    produce,
    records_in,
    wanted,
)
from support.storage.faulty_files import FaultyFiles
from support.transaction.phrases import NONE, TransactionalProducer, until_committed, until_state

LATEST, NEWEST = -1, -3
LONG_MS = 15_000


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node() as running:
        await running.create_topic("orders", 2)
        yield running


@pytest.fixture
async def producer(node: TalkingNode) -> TransactionalProducer:
    return await TransactionalProducer(await node.connect()).ready()


def committed(request: FetchRequest) -> FetchRequest:
    return msgspec.structs.replace(request, isolation_level=1)


async def read(talk: Conversation, request: FetchRequest) -> PartitionData:
    return only_partition(await talk.ask(request, FetchResponse, 12))


def aborted_in(data: PartitionData) -> list[tuple[int, int]]:
    assert data.aborted_transactions is not None
    return [(aborted.producer_id, aborted.first_offset) for aborted in data.aborted_transactions]


def ends_of(data: PartitionData) -> tuple[int, int]:
    return data.last_stable_offset, data.high_watermark


async def write(talk: Conversation, *values: bytes) -> None:
    reply = await talk.ask(produce("orders", batch(*values)), ProduceResponse, 9)
    assert reply.responses[0].partition_responses[0].error_code == NONE


async def test_both_kinds_of_reader_are_told_how_far_it_is_stable(
    talk: Conversation, producer: TransactionalProducer
) -> None:
    await write(talk, b"before")
    await producer.send("orders", b"open")
    for request in (fetch("orders"), committed(fetch("orders"))):
        assert ends_of(await read(talk, request)) == (1, 2)
    await producer.commit()
    await until_committed(talk, "orders", b"before", b"open")
    for request in (fetch("orders"), committed(fetch("orders"))):
        assert ends_of(await read(talk, request)) == (3, 3)


async def test_only_readers_of_committed_records_hear_of_aborts(
    talk: Conversation, producer: TransactionalProducer
) -> None:
    await producer.send("orders", b"lost")
    first_epoch = producer.producer_id
    await producer.abort()
    await until_state(talk, "CompleteAbort")
    assert (await read(talk, fetch("orders"))).aborted_transactions is None
    assert aborted_in(await read(talk, committed(fetch("orders")))) == [(first_epoch, 0)]
    assert aborted_in(await read(talk, committed(fetch("orders", partition=1)))) == []


@pytest.mark.parametrize("is_cached", [True, False])
async def test_reader_is_told_of_the_aborts_in_what_it_was_given_and_of_no_other(is_cached: bool) -> None:
    files = FaultyFiles()
    async with running_node(files=lambda: files) as node:
        await node.create_topic("orders")
        talk = await node.connect()
        producer = await TransactionalProducer(talk).ready()
        for number in range(4):
            await producer.send("orders", b"x" * 200)
            await (producer.abort() if number % 2 == 0 else producer.commit())
            await until_state(talk, "CompleteAbort" if number % 2 == 0 else "CompleteCommit")
        files.uncached_chance = 0.0 if is_cached else 1.0
        # Batches at 0, 2, 4 and 6, each with its marker after it; the transactions at 0 and at 4 were aborted.
        told = {}
        for offset in range(8):
            data = await read(talk, committed(fetch("orders", offset, partition_bytes_max=1)))
            assert len(records_in(data.records)) == 1
            told[offset] = [first for _, first in aborted_in(data)]
        assert told == {0: [0], 1: [0], 2: [], 3: [], 4: [4], 5: [4], 6: [], 7: []}
        everything = await read(talk, committed(fetch("orders")))
        assert [first for _, first in aborted_in(everything)] == [0, 4]


async def test_waiting_reader_is_woken_when_the_transaction_ends(
    node: TalkingNode, talk: Conversation, producer: TransactionalProducer
) -> None:
    await producer.send("orders", b"open")
    reader = await node.connect()
    await reader.send(committed(fetch("orders", wait_ms=LONG_MS)), 12)
    await write(talk, b"after")
    await talk.expect_open()
    assert not reader.has_heard, "what lies behind an open transaction is nothing to read yet"
    await producer.commit()
    data = only_partition(await reader.hear(FetchResponse))
    assert records_in(data.records)[0].value == b"open"


async def test_only_stable_bytes_count_for_the_least_that_is_wanted(
    talk: Conversation, producer: TransactionalProducer
) -> None:
    await write(talk, b"before")
    await producer.send("orders", b"x" * 5000)
    data = await read(talk, committed(fetch("orders", wait_ms=30, bytes_min=1000)))
    assert [record.value for record in records_in(data.records)] == [b"before"]
    data = await read(talk, committed(fetch("orders", 1, wait_ms=30)))
    assert (data.error_code, data.records) == (NONE, b"")


async def test_reader_beyond_the_stable_offset_waits_and_is_not_out_of_range(
    talk: Conversation, producer: TransactionalProducer
) -> None:
    await producer.send("orders", b"a", b"b", b"c")
    data = await read(talk, committed(fetch("orders", 2)))
    assert (data.error_code, data.records, ends_of(data)) == (NONE, b"", (0, 3))


async def test_partitions_of_one_fetch_are_stable_each_for_itself(
    talk: Conversation, producer: TransactionalProducer
) -> None:
    await producer.send("orders", b"open", partition=0)
    reply = await talk.ask(produce("orders", batch(b"plain"), 1), ProduceResponse, 9)
    assert reply.responses[0].partition_responses[0].error_code == NONE
    request = committed(fetch_many([wanted("orders", {0: 0, 1: 0})]))
    found = by_partition(await talk.ask(request, FetchResponse, 12))
    assert {index: len(records_in(data.records)) for index, data in found.items()} == {0: 0, 1: 1}


async def test_session_goes_on_when_the_transaction_has_ended(
    node: TalkingNode, talk: Conversation, producer: TransactionalProducer
) -> None:
    await producer.send("orders", b"open")
    reader = await node.connect()
    begun = await reader.ask(committed(fetch("orders", session=(0, 0))), FetchResponse, 12)
    await producer.commit()
    await until_committed(talk, "orders", b"open")
    request = committed(fetch_many([], session=(begun.session_id, 1)))
    data = only_partition(await reader.ask(request, FetchResponse, 12))
    assert len(records_in(data.records)) == 2


@pytest.mark.parametrize(("timestamp", "expected"), [(LATEST, [2, 1]), (NEWEST, [1, -1]), (DAY_MS + 1, [1, -1])])
async def test_offsets_are_looked_up_as_far_as_the_asker_may_read(
    talk: Conversation, producer: TransactionalProducer, timestamp: int, expected: list[int]
) -> None:
    await write(talk, b"before")
    sequence = batch(
        b"open",
        timestamp_ms=DAY_MS + 5,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        sequence=0,
        is_transactional=True,
    )
    await talk.ask(produce("orders", sequence, transactional_id="payments"), ProduceResponse, 12)
    found = []
    for isolation_level in (0, 1):
        request = msgspec.structs.replace(list_offsets("orders", timestamp), isolation_level=isolation_level)
        found.append(only_offset(await talk.ask(request, ListOffsetsResponse)).offset)
    assert found == expected
