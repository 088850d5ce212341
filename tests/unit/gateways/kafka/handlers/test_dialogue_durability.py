"""What a reply promises: nothing is acknowledged or readable before the disk has it, and a failed disk is told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.list_offsets import ListOffsetsResponse
from penstock.codec.kafka.messages.metadata import MetadataResponse
from penstock.codec.kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import (
    DAY_MS,
    batch,
    fetch,
    list_offsets,
    metadata,
    only_offset,
    only_partition,
    outcome,
    outcomes,
    produce,
    produce_many,
    values_in,
)
from support.storage.gated_disk import GatedDisk

FOR_EVER_MS = 60_000
FAILED = (ErrorCode.KAFKA_STORAGE_ERROR, -1)


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
async def node(disk: GatedDisk) -> AsyncIterator[TalkingNode]:
    async with running_node(files=lambda: disk) as running:
        yield running
        disk.heal()
        disk.open_gate()


@pytest.fixture
async def writer(node: TalkingNode) -> Conversation:
    """Has sent so much to partition 0 that its requests take the short way; 3 batches are in the log."""
    await node.create_topic("orders", 3)
    await node.create_topic("quick", durability="interval")
    talk = await node.connect()
    for _ in range(3):
        await talk.ask(produce("orders", batch(b"old", timestamp_ms=DAY_MS - 1000)), ProduceResponse, 12)
    return talk


async def readable(talk: Conversation, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    """What a reader gets, checked against everything else that tells where the log ends."""
    data = only_partition(await talk.ask(fetch(topic, partition=partition), FetchResponse, 12))
    assert data.error_code == ErrorCode.NONE
    found = values_in(data.records)
    assert data.high_watermark == len(found)
    latest = only_offset(await talk.ask(list_offsets(topic, -1, partition), ListOffsetsResponse))
    assert latest.offset == len(found)
    youngest = only_offset(await talk.ask(list_offsets(topic, -3, partition), ListOffsetsResponse))
    assert youngest.offset < len(found)
    later = only_offset(await talk.ask(list_offsets(topic, DAY_MS, partition), ListOffsetsResponse))
    assert later.offset < len(found)
    place = OffsetForLeaderTopic(topic, (OffsetForLeaderPartition(partition=partition, leader_epoch=0),))
    reply = await talk.ask(OffsetForLeaderEpochRequest(topics=(place,)), OffsetForLeaderEpochResponse)
    assert reply.topics[0].partitions[0].end_offset <= len(found)
    return found


OLD = [b"old"] * 3


async def test_nothing_is_acknowledged_or_readable_before_its_sync(
    disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    disk.close_gate()
    await writer.send(produce("orders", batch(b"new")), 12)
    await disk.wait_until_syncing()
    assert await readable(talk) == OLD
    # Past the readable end there is nothing yet, but it is no error to wait for it.
    data = only_partition(await talk.ask(fetch("orders", 4), FetchResponse, 12))
    assert (data.error_code, data.records) == (ErrorCode.NONE, b"")
    assert not writer.has_heard
    disk.open_gate()
    assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, 3)
    assert await readable(talk) == [*OLD, b"new"]


async def test_waiting_reader_is_woken_by_the_sync_and_not_by_the_write(
    node: TalkingNode, disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    reader = await node.connect()
    await reader.send(fetch("orders", 3, wait_ms=FOR_EVER_MS), 12)
    disk.close_gate()
    await writer.send(produce("orders", batch(b"new")), 12)
    await disk.wait_until_syncing()
    await talk.expect_open()
    assert not reader.has_heard
    disk.open_gate()
    assert values_in(only_partition(await reader.hear(FetchResponse)).records) == [b"new"]


async def test_writes_during_a_sync_wait_for_the_next(
    disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    disk.close_gate()
    await writer.send(produce("orders", batch(b"first")), 12)
    await disk.wait_until_syncing()
    await writer.send(produce("orders", batch(b"second")), 12)
    await talk.expect_open()
    synced = len(disk.synced)
    disk.open_gate()
    assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, 3)
    assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, 4)
    assert len(disk.synced) - synced >= 2


async def test_reply_waits_for_each_of_its_partitions_and_not_for_the_last_alone(
    node: TalkingNode, disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    """Another request has written to partition 2 before: that is known first, and says nothing of partition 1."""
    disk.close_gate()
    await writer.send(produce("orders", batch(b"holds the disk up")), 12)
    await disk.wait_until_syncing()
    earlier = await node.connect()
    await earlier.send(produce("orders", batch(b"first"), partition=2), 12)
    await talk.expect_open()
    disk.fail(node.shell("orders").log.home.topic_id, 1)
    both = await node.connect()
    await both.send(produce_many([("orders", 1, batch(b"lost")), ("orders", 2, batch(b"second"))]), 12)
    await talk.expect_open()
    disk.open_gate()
    assert outcomes(await both.hear(ProduceResponse)) == [FAILED, (ErrorCode.NONE, 1)]


async def test_replies_keep_their_order_over_slow_and_quick_topics(
    disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    disk.close_gate()
    await writer.send(produce("orders", batch(b"slow")), 12)
    await writer.send(produce("quick", batch(b"quick")), 12)
    await writer.send(metadata("orders"), 12)
    await writer.send(produce("orders", batch(b"slow")), 12)
    await writer.send(fetch("quick"), 12)
    await writer.send(fetch("orders", 3), 12)
    await disk.wait_until_syncing()
    # What is quick has been done, and only its reply waits behind the slow one's.
    assert await readable(talk, "quick") == [b"quick"]
    assert not writer.has_heard
    disk.open_gate()
    assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, 3)
    assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, 0)
    assert len((await writer.hear(MetadataResponse)).topics) == 1
    assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, 4)
    assert values_in(only_partition(await writer.hear(FetchResponse)).records) == [b"quick"]
    await writer.hear(FetchResponse)


async def test_acknowledgement_by_the_leader_alone_waits_for_its_disk(
    disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    disk.close_gate()
    await writer.send(produce("orders", batch(b"new"), acks=1), 12)
    await disk.wait_until_syncing()
    await talk.expect_open()
    assert not writer.has_heard, "acks=1 promises the leader's disk"
    disk.open_gate()
    assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, 3)


async def test_repeated_batch_waits_for_the_sync_of_the_first(
    node: TalkingNode, disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    sent = produce("orders", batch(b"once", producer_id=7, sequence=0))
    other = await node.connect()
    disk.close_gate()
    await writer.send(sent, 12)
    await disk.wait_until_syncing()
    await other.send(sent, 12)
    await talk.expect_open()
    assert not other.has_heard
    disk.open_gate()
    for conversation in (writer, other):
        assert outcome(await conversation.hear(ProduceResponse)) == (ErrorCode.NONE, 3)
    # Once it is durable nothing is waited for.
    disk.close_gate()
    assert outcome(await other.ask(sent, ProduceResponse, 12)) == (ErrorCode.NONE, 3)
    disk.open_gate()
    assert await readable(talk) == [*OLD, b"once"]


# A sync that fails


async def test_failed_sync_is_told_for_exactly_its_partitions(
    node: TalkingNode, disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    disk.fail(node.broker.topics()[0].topic_id, 1)
    request = produce_many([("quick", 0, batch(b"q")), *[("orders", index, batch(b"new")) for index in range(3)]])
    reply = await writer.ask(request, ProduceResponse, 12)
    assert outcomes(reply) == [(ErrorCode.NONE, 0), (ErrorCode.NONE, 3), FAILED, (ErrorCode.NONE, 0)]
    assert await readable(talk, partition=0) == [*OLD, b"new"]
    assert await readable(talk, partition=2) == [b"new"]
    for request in (fetch("orders", 0, 1), fetch("orders", 1, 1)):
        data = only_partition(await talk.ask(request, FetchResponse, 12))
        assert (data.error_code, data.records) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")


async def test_failed_partition_takes_nothing_until_it_was_read_again(
    node: TalkingNode, disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    disk.fail(node.broker.topics()[0].topic_id, 0)
    sent = produce("orders", batch(b"new", producer_id=7, sequence=0))
    for _ in range(3):
        assert outcome(await writer.ask(sent, ProduceResponse, 12)) == FAILED
    disk.heal()
    assert outcome(await writer.ask(sent, ProduceResponse, 12)) == FAILED
    await node.broker._upkeep.recover_offline()
    # This disk forgot nothing, so the batch is there and known: its retry is no second one.
    assert outcome(await writer.ask(sent, ProduceResponse, 12)) == (ErrorCode.NONE, 3)
    assert await readable(talk) == [*OLD, b"new"]


async def test_reader_that_waits_is_told_of_the_failure(
    node: TalkingNode, disk: GatedDisk, writer: Conversation
) -> None:
    reader = await node.connect()
    await reader.send(fetch("orders", 3, wait_ms=FOR_EVER_MS), 12)
    disk.fail(node.broker.topics()[0].topic_id, 0)
    assert outcome(await writer.ask(produce("orders", batch(b"new")), ProduceResponse, 12)) == FAILED
    assert only_partition(await reader.hear(FetchResponse)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_everything_behind_a_failed_sync_fails_too(
    node: TalkingNode, disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    """The second batch was written while the first one's sync ran: it stands on bytes that are lost."""
    disk.close_gate()
    disk.fail(node.broker.topics()[0].topic_id, 0)
    await writer.send(produce("orders", batch(b"first")), 12)
    await disk.wait_until_syncing()
    await writer.send(produce("orders", batch(b"second")), 12)
    other = await node.connect()
    await other.send(produce("orders", batch(b"elsewhere"), 2), 12)
    await talk.expect_open()
    disk.open_gate()
    assert outcome(await writer.hear(ProduceResponse)) == FAILED
    assert outcome(await writer.hear(ProduceResponse)) == FAILED
    assert outcome(await other.hear(ProduceResponse)) == (ErrorCode.NONE, 0)


async def test_repeated_batch_shares_the_failure_of_the_first(
    node: TalkingNode, disk: GatedDisk, writer: Conversation
) -> None:
    sent = produce("orders", batch(b"once", producer_id=7, sequence=0))
    other = await node.connect()
    disk.close_gate()
    disk.fail(node.broker.topics()[0].topic_id, 0)
    await writer.send(sent, 12)
    await disk.wait_until_syncing()
    await other.send(sent, 12)
    await (await node.connect()).expect_open()
    disk.open_gate()
    for conversation in (writer, other):
        assert outcome(await conversation.hear(ProduceResponse)) == FAILED


async def test_topic_deleted_during_its_sync_hurts_no_other(
    node: TalkingNode, disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    await node.create_topic("doomed", 6)
    other = await node.connect()
    disk.close_gate()
    await writer.send(produce("orders", batch(b"first")), 12)
    await disk.wait_until_syncing()
    await other.send(produce_many([("doomed", index, batch(b"x")) for index in range(6)]), 12)
    await writer.send(produce("orders", batch(b"second")), 12)
    await talk.expect_open()
    await node.catalog.delete_topic("doomed")
    disk.open_gate()
    assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, 3)
    assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, 4)
    # Stored or not: nobody can ever read it.
    assert len(outcomes(await other.hear(ProduceResponse))) == 6
    assert node.broker.is_healthy


async def test_topic_that_becomes_quicker_does_not_show_what_the_disk_has_not(
    node: TalkingNode, disk: GatedDisk, talk: Conversation, writer: Conversation
) -> None:
    """Altered from fsync to interval and back while a batch waits: each batch has the promise it was sent under."""
    disk.close_gate()
    await writer.send(produce("orders", batch(b"slow")), 12)
    await disk.wait_until_syncing()
    await node.catalog.replace_config("orders", {"durability": "interval"})
    await node.catalog.replace_config("orders", {"durability": "fsync"})
    assert await readable(talk) == OLD
    assert not writer.has_heard
    disk.open_gate()
    assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, 3)
