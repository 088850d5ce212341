from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.client.errors import PartitionMissingError, TopicMissingError
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import Acknowledged, PartitionBatch, Producer, ProducerOptions, Refused
from penstock.codec.batch.header import BatchHeader, check_batch
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdResponse
from penstock.codec.kafka.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.codec.kafka.schema import Request, Response
from penstock.net.errors import ClientError, ConnectionLostError
from support.client.fake_broker import INIT_PRODUCER_ID, METADATA, PRODUCE, FakeBroker, header_of

NOT_LEADER, TOO_LARGE, REPLICAS_TOO_FEW_AFTER_APPEND, DUPLICATE = 6, 10, 20, 46


def batch(partition: int = 0, count: int = 1, topic: str = "t") -> PartitionBatch:
    records = [Record(b"v%d" % number, timestamp_ms=1) for number in range(count)]
    return PartitionBatch(topic, partition, build_batch(records), count)


def answer(code: int) -> ProduceResponse:
    partition = PartitionProduceResponse(index=0, error_code=code, error_message="because")
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[partition])])


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"t": 2}).running() as running:
        yield running


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[ClusterClient]:
    async with ClusterClient([broker.address]) as connected:
        yield connected


async def test_many_partitions_travel_in_one_request(broker: FakeBroker, client: ClusterClient) -> None:
    producer = Producer(client)
    outcomes = await producer.send([batch(0, 3), batch(1, 2)])
    assert [type(outcome) for outcome in outcomes] == [Acknowledged, Acknowledged]
    assert len([request for request in broker.requests if isinstance(request, ProduceRequest)]) == 1
    assert (await producer.send([batch(0)]))[0].base_offset == 3  # type: ignore[union-attr]


async def test_a_refusal_is_a_value_with_the_brokers_words(broker: FakeBroker, client: ClusterClient) -> None:
    broker.replies[PRODUCE] = lambda _: answer(TOO_LARGE)
    outcome = (await Producer(client).send([batch()]))[0]
    assert isinstance(outcome, Refused)
    assert outcome.sentence() == "partition 0 of 't': message too large (because)"


async def test_a_moved_leader_is_looked_up_again(broker: FakeBroker, client: ClusterClient) -> None:
    answers = [answer(NOT_LEADER), answer(0)]
    broker.replies[PRODUCE] = lambda _: answers.pop(0)
    await client.topic("t")
    asked = sum(1 for request in broker.requests if request.api_key == METADATA)
    outcome = (await Producer(client).send([batch()]))[0]
    assert isinstance(outcome, Acknowledged)
    assert sum(1 for request in broker.requests if request.api_key == METADATA) > asked


async def test_acks_0_waits_for_nothing(broker: FakeBroker, client: ClusterClient) -> None:
    outcome = (await Producer(client, ProducerOptions(acks=0)).send([batch()]))[0]
    assert isinstance(outcome, Acknowledged)
    assert outcome.base_offset == -1


async def test_idempotent_batches_carry_id_and_dense_sequences(broker: FakeBroker, client: ClusterClient) -> None:
    producer = Producer(client, ProducerOptions(is_idempotent=True))
    await producer.start()
    await asyncio.gather(producer.send([batch(0, 3), batch(1, 1)]), producer.send([batch(0, 2)]))
    headers = [check_batch(data) for data in broker.logs["t", 0]]
    assert all(isinstance(header, BatchHeader) for header in headers)
    assert [(header_of(data).producer_id, header_of(data).base_sequence) for data in broker.logs["t", 0]] == [
        (7, 0),
        (7, 3),
    ]
    assert header_of(broker.logs["t", 1][0]).base_sequence == 0


async def test_an_idempotent_producer_sends_again_after_a_lost_connection(
    broker: FakeBroker, client: ClusterClient
) -> None:
    append = broker.replies[PRODUCE]
    losses = [True]

    def lose_the_first(request: Request) -> Response | None:
        if losses.pop() if losses else False:
            broker.drop_connections()
            return None
        return append(request)

    broker.replies[PRODUCE] = lose_the_first
    producer = Producer(client, ProducerOptions(is_idempotent=True))
    await producer.start()
    assert isinstance((await producer.send([batch()]))[0], Acknowledged)


async def test_what_was_refused_takes_no_sequence(broker: FakeBroker, client: ClusterClient) -> None:
    """Or the broker waits for ever for the batch that it did not want."""
    append = broker.replies[PRODUCE]
    wanted: list[bool] = [True, False, False, True]
    broker.replies[PRODUCE] = lambda request: append(request) if wanted.pop(0) else answer(TOO_LARGE)
    producer = Producer(client, ProducerOptions(is_idempotent=True))
    await producer.start()
    await producer.send([batch(0, 3)])
    refused = await asyncio.gather(producer.send([batch(0, 2)]), producer.send([batch(0, 4)]))
    assert all(isinstance(outcome, Refused) for (outcome,) in refused)
    await producer.send([batch(0, 1)])
    assert [header_of(data).base_sequence for data in broker.logs["t", 0]] == [0, 3]


async def test_what_may_be_stored_after_a_refusal_is_not_taken_for_the_next_batch(
    broker: FakeBroker, client: ClusterClient
) -> None:
    """Its sequence may be used up: a batch that had the same would be acknowledged as its repetition, and lost."""
    append = broker.replies[PRODUCE]
    answers = [REPLICAS_TOO_FEW_AFTER_APPEND, TOO_LARGE]

    def store_and_refuse(request: Request) -> Response | None:
        stored = append(request)
        return answer(answers.pop(0)) if answers else stored

    ids = iter(range(7, 100))
    broker.replies[INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(producer_id=next(ids), producer_epoch=0)
    broker.replies[PRODUCE] = store_and_refuse
    producer = Producer(client, ProducerOptions(is_idempotent=True))
    await producer.start()
    (refused,) = await producer.send([batch(0, 3)])
    assert isinstance(refused, Refused)
    (taken,), (second,) = await asyncio.gather(producer.send([batch(0, 2)]), producer.send([batch(0, 1)]))
    assert isinstance(taken, Acknowledged)
    assert isinstance(second, Acknowledged)
    headers = [header_of(data) for data in broker.logs["t", 0]][-2:]
    assert [(header.producer_id, header.base_sequence) for header in headers] == [(8, 0), (8, 2)]


async def test_after_a_send_of_unknown_fate_the_producer_goes_on_under_another_id(
    broker: FakeBroker, client: ClusterClient
) -> None:
    append = broker.replies[PRODUCE]
    ids = iter(range(7, 100))

    def store_and_drop(request: Request) -> None:
        append(request)
        broker.drop_connections()

    broker.replies[INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(producer_id=next(ids), producer_epoch=0)
    broker.replies[PRODUCE] = store_and_drop
    producer = Producer(client, ProducerOptions(is_idempotent=True, delivery_timeout_ms=50))
    await producer.start()
    with pytest.raises(ClientError):
        await producer.send([batch(0, 3)])
    broker.replies[PRODUCE] = append
    await producer.send([batch(0, 2)])
    last = header_of(broker.logs["t", 0][-1])
    assert (last.producer_id, last.base_sequence) == (8, 0)


async def test_without_idempotence_a_lost_connection_is_told(broker: FakeBroker, client: ClusterClient) -> None:
    def drop(_: Request) -> None:
        broker.drop_connections()

    broker.replies[PRODUCE] = drop
    with pytest.raises(ConnectionLostError):
        await Producer(client).send([batch()])


async def test_a_duplicate_counts_as_written(broker: FakeBroker, client: ClusterClient) -> None:
    broker.replies[PRODUCE] = lambda _: answer(DUPLICATE)
    assert isinstance((await Producer(client).send([batch()]))[0], Acknowledged)


async def test_no_more_requests_are_under_way_than_allowed(broker: FakeBroker, client: ClusterClient) -> None:
    broker.replies[PRODUCE] = lambda _: None
    producer = Producer(client, ProducerOptions(requests_in_flight_max=2))
    await client.topic("t")
    sends = [asyncio.get_running_loop().create_task(producer.send([batch()])) for _ in range(5)]
    connection = await client.any_connection()
    for _ in range(20):
        await asyncio.sleep(0)
    assert connection.in_flight == 2
    for send in sends:
        send.cancel()
    await asyncio.gather(*sends, return_exceptions=True)


async def test_missing_topics_and_partitions_are_named(client: ClusterClient) -> None:
    with pytest.raises(TopicMissingError, match="topic 'nope' does not exist"):
        await Producer(client).send([batch(topic="nope")])
    with pytest.raises(PartitionMissingError, match="has no partition 5"):
        await Producer(client).send([batch(5)])
