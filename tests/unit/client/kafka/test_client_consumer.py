from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, Fetched, OffsetOutOfRangeError
from penstock.client.kafka.offsets import OffsetRange, offset_ranges
from penstock.client.kafka.producer import PartitionBatch, Producer
from penstock.client.kafka.rows import UnreadableBatchError, rows_of
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from penstock.net.errors import BrokerError
from support.client.fake_broker import FETCH, FakeBroker

OUT_OF_RANGE, UNKNOWN_SERVER_ERROR, NOT_LEADER = 1, -1, 6


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"t": 2}).running() as running:
        yield running


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[ClusterClient]:
    async with ClusterClient([broker.address]) as connected:
        producer = Producer(connected)
        for number in range(4):
            for partition in (0, 1):
                records = [Record(b"%d.%d" % (number, place), timestamp_ms=5) for place in range(3)]
                data = build_batch(records, codec=Codec.GZIP)
                await producer.send([PartitionBatch("t", partition, data, 3)])
        yield connected


async def read_values(consumer: Consumer, end: int) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = {}
    while not consumer.is_done:
        for fetched in await consumer.poll():
            offsets.setdefault(fetched.partition, []).extend(row.offset for row in rows_of(fetched, end=end))
    consumer.close()
    return offsets


def failing(code: int) -> FetchResponse:
    partition = PartitionData(partition_index=0, error_code=code, records=b"")
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])


async def test_ranges_are_start_and_end_of_each_partition(client: ClusterClient) -> None:
    assert await offset_ranges(client, "t", [0, 1]) == {0: OffsetRange(0, 12), 1: OffsetRange(0, 12)}


async def test_every_offset_is_read_once_from_start_to_end(client: ClusterClient) -> None:
    consumer = Consumer(client, "t", {0: 0, 1: 0}, ends={0: 12, 1: 12})
    assert await read_values(consumer, 12) == {0: list(range(12)), 1: list(range(12))}


async def test_rows_are_trimmed_inside_batches(client: ClusterClient) -> None:
    consumer = Consumer(client, "t", {0: 4}, ends={0: 8})
    assert await read_values(consumer, 8) == {0: [4, 5, 6, 7]}


async def test_a_held_partition_is_not_asked_for_until_it_is_let_go(broker: FakeBroker, client: ClusterClient) -> None:
    consumer = Consumer(client, "t", {0: 0, 1: 0}, ends={0: 12, 1: 12})
    consumer.hold({1})
    while 0 in consumer.positions:
        assert {fetched.partition for fetched in await consumer.poll()} == {0}
    assert consumer.positions == {1: 0}
    assert await consumer.poll() == []
    consumer.hold(())
    assert await read_values(consumer, 12) == {1: list(range(12))}


async def test_nothing_is_asked_for_when_start_is_end(broker: FakeBroker, client: ClusterClient) -> None:
    assert Consumer(client, "t", {0: 12}, ends={0: 12}).is_done
    assert not any(request.api_key == FETCH for request in broker.requests)


async def test_trailing_holes_do_not_keep_the_reader_waiting(client: ClusterClient) -> None:
    # The broker's end is 12, and offsets 12 to 14 exist but hold nothing.
    consumer = Consumer(client, "t", {0: 12}, ends={0: 12, 1: 12})
    assert consumer.is_done
    consumer = Consumer(client, "t", {0: 12}, ends=None)
    assert await consumer.poll() == []
    assert not consumer.is_done
    consumer.close()


async def test_a_refused_fetch_is_an_error_with_its_place(broker: FakeBroker, client: ClusterClient) -> None:
    broker.replies[FETCH] = lambda _: failing(UNKNOWN_SERVER_ERROR)
    with pytest.raises(BrokerError, match="partition 0 of topic 't': unknown server error"):
        await Consumer(client, "t", {0: 0}).poll()


async def test_a_moved_leader_is_asked_for_again(broker: FakeBroker, client: ClusterClient) -> None:
    serve = broker.replies[FETCH]
    failures = [failing(NOT_LEADER)]
    broker.replies[FETCH] = lambda request: failures.pop() if failures else serve(request)
    consumer = Consumer(client, "t", {0: 0}, ends={0: 12})
    assert await read_values(consumer, 12) == {0: list(range(12))}


async def test_a_broker_that_was_away_is_read_on(broker: FakeBroker, client: ClusterClient) -> None:
    consumer = Consumer(client, "t", {0: 0}, ends={0: 12})
    await consumer.poll()
    broker.drop_connections()
    assert (await read_values(consumer, 12))[0][-1] == 11


async def test_an_offset_past_the_end_is_one_sentence(broker: FakeBroker, client: ClusterClient) -> None:
    broker.replies[FETCH] = lambda _: failing(OUT_OF_RANGE)
    with pytest.raises(OffsetOutOfRangeError, match="has no offset 99: it holds 0 to 12"):
        await Consumer(client, "t", {0: 99}).poll()


def test_a_flipped_bit_is_never_shown_as_a_message() -> None:
    data = build_batch([Record(b"value", timestamp_ms=1)])
    data[-3] ^= 1
    with pytest.raises(UnreadableBatchError, match="checksum"):
        list(rows_of(Fetched("t", 0, memoryview(data), 0, 1, 1)))


def test_markers_of_transactions_are_no_messages() -> None:
    control = build_batch([Record(b"\0\0\0\0\0\0", key=b"\0\0\0\1", timestamp_ms=1)], is_control=True)
    data = control + build_batch([Record(b"value", timestamp_ms=1)], base_offset=1)
    assert [row.value for row in rows_of(Fetched("t", 0, memoryview(data), 0, 2, 2))] == [b"value"]
