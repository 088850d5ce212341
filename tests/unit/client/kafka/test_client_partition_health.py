"""Partition health, from answers of a broker that says whatever the test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.cli.work.topic_describe import cells, health_text
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.offsets import DAMAGED
from penstock.client.kafka.partition_health import OpenTransactions, PartitionHealth, partition_health
from penstock.client.kafka.producer import PartitionBatch, Producer
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka import APIS
from penstock.codec.kafka.messages.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from penstock.codec.kafka.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from penstock.codec.kafka.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.codec.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.codec.kafka.schema import Request
from support.client.fake_broker import FETCH, LIST_OFFSETS, METADATA, FakeBroker

DESCRIBE_PRODUCERS = 61
CORRUPT_MESSAGE, STORAGE_ERROR = 2, 56


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"t": 1}).running() as running:
        yield running


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[ClusterClient]:
    async with ClusterClient([broker.address]) as connected:
        data = build_batch([Record(b"v", timestamp_ms=5)] * 3)
        await Producer(connected).send([PartitionBatch("t", 0, data, 3)])
        yield connected


async def health(client: ClusterClient) -> PartitionHealth:
    (found,) = await partition_health(client, await client.topic("t", is_fresh=True))
    return found


async def test_a_partition_without_problems(client: ClusterClient) -> None:
    found = await health(client)
    assert (found.start, found.end, found.last_stable, found.problems) == (0, 3, 3, ())
    assert cells(found)[5:] == (0, 3, 3, None, "ok")


async def test_open_transactions_hold_the_stable_end_back(broker: FakeBroker, client: ClusterClient) -> None:
    serve = broker.replies[LIST_OFFSETS]

    def list_offsets(request: Request) -> ListOffsetsResponse:
        assert isinstance(request, ListOffsetsRequest)
        reply = serve(request)
        assert isinstance(reply, ListOffsetsResponse)
        if request.isolation_level == 0:
            return reply
        answer = ListOffsetsPartitionResponse(partition_index=0, offset=1)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[answer])])

    broker.replies[LIST_OFFSETS] = list_offsets
    assert health_text(await health(client)) == "ok, 2 offsets not stable"

    states = [
        ProducerState(producer_id=1, current_txn_start_offset=2, last_timestamp=9),
        ProducerState(producer_id=2, current_txn_start_offset=1, last_timestamp=8),
        ProducerState(producer_id=3, current_txn_start_offset=-1),
    ]
    answer = PartitionResponse(partition_index=0, active_producers=states)
    broker.versions[DESCRIBE_PRODUCERS] = (0, APIS[DESCRIBE_PRODUCERS].version_max)
    broker.replies[DESCRIBE_PRODUCERS] = lambda _: DescribeProducersResponse(
        topics=[TopicResponse(name="t", partitions=[answer])]
    )
    async with ClusterClient([broker.address]) as another:
        found = await health(another)
    assert found.open_transactions == OpenTransactions(count=2, oldest_start=1, oldest_last_write_ms=8)
    assert health_text(found) == "ok, 2 offsets not stable: 2 open transactions since offset 1"


@pytest.mark.parametrize(("code", "words"), [(CORRUPT_MESSAGE, "log damaged"), (STORAGE_ERROR, "log offline")])
async def test_a_log_that_cannot_be_read_is_told(
    broker: FakeBroker, client: ClusterClient, code: int, words: str
) -> None:
    answer = PartitionData(partition_index=0, error_code=code, records=b"")
    broker.replies[FETCH] = lambda _: FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[answer])])
    assert (await health(client)).problems == (words,)


async def test_replicas_that_lag_or_are_away_are_named(broker: FakeBroker, client: ClusterClient) -> None:
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=-1, replica_nodes=(1, 2, 3), isr_nodes=(1,), offline_replicas=(3,)
    )
    topic = MetadataResponseTopic(name="t", partitions=[partition])
    node = MetadataResponseBroker(node_id=1, host=broker.address.host, port=broker.address.port)
    broker.replies[METADATA] = lambda _: MetadataResponse(brokers=[node], topics=[topic])
    found = await health(client)
    assert found.problems == ("no leader", "offline on 3", "not in sync on 2")
    assert (found.start, found.end, found.last_stable) == (None, None, None)


@pytest.mark.parametrize(
    ("end", "words"), [(8, ("offset 7 is damaged",)), (10, ("offsets 7 to 9 are damaged",))], ids=["one", "some"]
)
async def test_damage_is_told_with_its_offsets(
    broker: FakeBroker, client: ClusterClient, end: int, words: tuple[str, ...]
) -> None:
    serve = broker.replies[LIST_OFFSETS]

    def list_offsets(request: Request) -> Request | ListOffsetsResponse:
        assert isinstance(request, ListOffsetsRequest)
        if request.topics[0].partitions[0].timestamp != DAMAGED:
            return serve(request)  # type: ignore[return-value]
        answer = ListOffsetsPartitionResponse(0, 0, end, 7, DAMAGED)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[answer])])

    broker.replies[LIST_OFFSETS] = list_offsets  # type: ignore[assignment]
    assert (await health(client)).problems == words
