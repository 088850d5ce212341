"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where things are in a partition, and where it begins."""

from __future__ import annotations

import pytest

from penstock.codec.batch.compression import Codec
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic
from penstock.codec.kafka.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.gateways.kafka.handlers.offsets import SPECIAL_FROM
from support.door.conversation import Conversation, TalkingNode
from support.door.kafka_phrases import (
    DAY_MS,
    batch,
    fetch,
    list_offsets,
    only_offset,
    only_partition,
    produce,
    values_in,
)

EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -2, -1, -3, -4, -5
VERSIONS = pytest.mark.parametrize("version", [1, 5, 6, 11])


@pytest.fixture
async def orders(node: TalkingNode, talk: Conversation) -> None:
    """Offsets 0 to 2 at 0, 1, 2 ms; 3 and 4 at 100 and 101 ms, compressed; 5 at 50 ms, late."""
    await node.create_topic("orders")
    for sent in (
        batch(b"a", b"b", b"c", timestamp_ms=DAY_MS),
        batch(b"d", b"e", timestamp_ms=DAY_MS + 100, codec=Codec.GZIP),
        batch(b"f", timestamp_ms=DAY_MS + 50),
    ):
        await talk.ask(produce("orders", sent), ProduceResponse, 9)


async def locate(talk: Conversation, timestamp: int, version: int) -> tuple[int, int]:
    """Offset and timestamp."""
    found = only_offset(await talk.ask(list_offsets("orders", timestamp), ListOffsetsResponse, version))
    assert found.error_code == ErrorCode.NONE
    return found.offset, found.timestamp


@VERSIONS
@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        (EARLIEST, (0, -1)),
        (EARLIEST_LOCAL, (0, -1)),
        (LATEST, (6, -1)),
        (LATEST_TIERED, (-1, -1)),
        (MAX_TIMESTAMP, (4, DAY_MS + 101)),
        (0, (0, DAY_MS)),
        (DAY_MS, (0, DAY_MS)),
        (DAY_MS + 2, (2, DAY_MS + 2)),
        (DAY_MS + 3, (3, DAY_MS + 100)),
        (DAY_MS + 101, (4, DAY_MS + 101)),
        (DAY_MS + 102, (-1, -1)),
        (2**63 - 1, (-1, -1)),
    ],
)
async def test_offsets_are_found_by_time(
    talk: Conversation, version: int, timestamp: int, found: tuple[int, int]
) -> None:
    assert await locate(talk, timestamp, max(version, SPECIAL_FROM.get(timestamp, 0))) == found


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(("timestamp", "version"), list(SPECIAL_FROM.items()))
async def test_special_timestamp_means_nothing_before_its_version(
    talk: Conversation, timestamp: int, version: int
) -> None:
    reply = await talk.ask(list_offsets("orders", timestamp), ListOffsetsResponse, version - 1)
    assert only_offset(reply).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.usefixtures("orders")
@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("moment", [-1_000, -1_001, -2_000])
async def test_what_librdkafka_says_for_no_offset_means_nothing_here(talk: Conversation, moment: int) -> None:
    found = only_offset(await talk.ask(list_offsets("orders", moment), ListOffsetsResponse, 5))
    assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


async def test_partition_that_is_named_twice_is_refused_once(talk: Conversation) -> None:
    (wanted,) = list_offsets("orders", LATEST).topics
    twice = ListOffsetsTopic(name="orders", partitions=(*wanted.partitions, *wanted.partitions))
    reply = await talk.ask(ListOffsetsRequest(replica_id=-1, topics=(twice,)), ListOffsetsResponse)
    assert only_offset(reply).error_code == ErrorCode.INVALID_REQUEST


@VERSIONS
async def test_empty_log_begins_and_ends_at_zero(node: TalkingNode, talk: Conversation, version: int) -> None:
    await node.create_topic("orders")
    assert await locate(talk, EARLIEST, version) == (0, -1)
    assert await locate(talk, LATEST, version) == (0, -1)
    assert await locate(talk, MAX_TIMESTAMP, max(version, SPECIAL_FROM[MAX_TIMESTAMP])) == (-1, -1)
    assert await locate(talk, DAY_MS, version) == (-1, -1)


@VERSIONS
@pytest.mark.usefixtures("orders")
async def test_unknown_places_are_refused(talk: Conversation, version: int) -> None:
    for topic, partition in (("missing", 0), ("orders", 1), ("orders", -1)):
        reply = await talk.ask(list_offsets(topic, LATEST, partition), ListOffsetsResponse, version)
        assert only_offset(reply).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    reply = await talk.ask(list_offsets("orders", -99), ListOffsetsResponse, version)
    assert only_offset(reply).error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_end_of_an_epoch_that_never_was_is_not_known(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("empty")
    for epoch in (-1, -2, -(1 << 31), 5):
        wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic("empty", (wanted,)),))
        (answer,) = (await talk.ask(request, OffsetForLeaderEpochResponse)).topics[0].partitions
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (ErrorCode.NONE, -1, -1)


@pytest.mark.usefixtures("orders")
async def test_leader_epoch_is_told_and_compared(talk: Conversation) -> None:
    for version in (4, 11):
        found = only_offset(
            await talk.ask(list_offsets("orders", LATEST, leader_epoch=0), ListOffsetsResponse, version)
        )
        assert (found.error_code, found.leader_epoch) == (ErrorCode.NONE, 0)
        found = only_offset(
            await talk.ask(list_offsets("orders", LATEST, leader_epoch=1), ListOffsetsResponse, version)
        )
        assert found.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def end_of_epoch(topic: str, epoch: int, *, current: int = -1) -> OffsetForLeaderEpochRequest:
    place = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    return OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic=topic, partitions=(place,)),))


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("version", [2, 4])
async def test_end_of_the_leaders_epoch_is_the_end_of_the_log(talk: Conversation, version: int) -> None:
    async def ask(request: OffsetForLeaderEpochRequest) -> EpochEndOffset:
        return (await talk.ask(request, OffsetForLeaderEpochResponse, version)).topics[0].partitions[0]

    found = await ask(end_of_epoch("orders", 0))
    assert (found.error_code, found.leader_epoch, found.end_offset) == (ErrorCode.NONE, 0, 6)
    found = await ask(end_of_epoch("orders", 5))
    assert (found.error_code, found.leader_epoch, found.end_offset) == (ErrorCode.NONE, -1, -1)
    assert (await ask(end_of_epoch("orders", 0, current=3))).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (await ask(end_of_epoch("missing", 0))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def delete_before(offset: int, topic: str = "orders", partition: int = 0) -> DeleteRecordsRequest:
    place = DeleteRecordsPartition(partition_index=partition, offset=offset)
    return DeleteRecordsRequest(topics=(DeleteRecordsTopic(name=topic, partitions=(place,)),), timeout_ms=1000)


async def begin_at(talk: Conversation, request: DeleteRecordsRequest, version: int) -> DeleteRecordsPartitionResult:
    return (await talk.ask(request, DeleteRecordsResponse, version)).topics[0].partitions[0]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("version", [0, 2])
async def test_deleted_records_are_out_of_range(talk: Conversation, version: int) -> None:
    deleted = await begin_at(talk, delete_before(4), version)
    assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, 4)
    assert await locate(talk, EARLIEST, 5) == (4, -1)
    assert await locate(talk, 0, 5) == (4, DAY_MS + 101)
    reply = await talk.ask(fetch("orders", 3), FetchResponse, 12)
    assert only_partition(reply).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert only_partition(reply).log_start_offset == -1
    reply = await talk.ask(fetch("orders", 4), FetchResponse, 12)
    # The batch that holds offset 4 holds 3 as well: clients pass over it.
    assert values_in(only_partition(reply).records) == [b"d", b"e", b"f"]


@pytest.mark.usefixtures("orders")
async def test_all_records_are_deleted_by_minus_one(talk: Conversation) -> None:
    deleted = await begin_at(talk, delete_before(-1), 2)
    assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, 6)
    assert await locate(talk, EARLIEST, 5) == (6, -1)
    assert await locate(talk, MAX_TIMESTAMP, 7) == (-1, -1)
    await talk.ask(produce("orders", batch(b"g")), ProduceResponse, 9)
    reply = await talk.ask(fetch("orders", 6), FetchResponse, 12)
    assert values_in(only_partition(reply).records) == [b"g"]


@pytest.mark.usefixtures("orders")
async def test_start_never_moves_back_nor_past_the_end(talk: Conversation) -> None:
    await begin_at(talk, delete_before(3), 2)
    deleted = await begin_at(talk, delete_before(1), 2)
    assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, 3)
    for offset in (7, -2):
        deleted = await begin_at(talk, delete_before(offset), 2)
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    for topic, partition in (("missing", 0), ("orders", 1)):
        deleted = await begin_at(talk, delete_before(0, topic, partition), 2)
        assert deleted.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
