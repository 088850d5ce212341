"""compression.type of a topic, by way of the Kafka door: large batches, retries, delays, other doors."""

from __future__ import annotations

import pytest

from penstock.broker.publisher import Outgoing, Published
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.codec.unreadable_batches import with_checksum
from support.door.conversation import Conversation, TalkingNode
from support.door.kafka_phrases import fetch, only_partition, outcome, produce
from support.schedule.delay_phrases import Later, all_records, eventually, headers_in, mixed_batch, pending

# More than any codec is given on the loop.
LARGE = b"".join(b"line %d of a long text\n" % number for number in range(20_000))
BY_NAME = 12


async def send(talk: Conversation, records: bytes) -> tuple[ErrorCode, int]:
    return outcome(await talk.ask(produce("orders", records), ProduceResponse, BY_NAME))


async def headers(talk: Conversation) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    while True:
        offset = found[-1].next_offset if found else 0
        reply = only_partition(await talk.ask(fetch("orders", offset), FetchResponse, BY_NAME))
        batches = headers_in(reply.records)
        if not batches:
            return found
        found += batches


@pytest.mark.parametrize("sent", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("name", ["uncompressed", "gzip", "lz4"])
async def test_large_batch_is_recompressed_in_a_thread(
    node: TalkingNode, talk: Conversation, name: str, sent: Codec
) -> None:
    await node.create_topic("orders", compression_type=name)
    values = [LARGE, b"small"]
    batch = bytes(
        build_batch([Record(value) for value in values], codec=sent, producer_id=7, producer_epoch=0, base_sequence=0)
    )
    after = bytes(build_batch([Record(b"after")], codec=sent, producer_id=7, producer_epoch=0, base_sequence=2))
    assert await send(talk, batch) == (ErrorCode.NONE, 0)
    assert await send(talk, batch) == (ErrorCode.NONE, 0), "a retry"
    assert await send(talk, after) == (ErrorCode.NONE, 2)
    wanted = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "lz4": Codec.LZ4}[name]
    assert [(each.codec, each.record_count) for each in await headers(talk)] == [(wanted, 2), (wanted, 1)]
    assert [record.value for record in await eventually(talk, 3)] == [*values, b"after"]


async def test_batch_with_delays_is_stored_in_the_codec_with_its_holes(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders", compression_type="lz4")
    sent = mixed_batch(b"a", Later(b"b"), b"c", codec=Codec.ZSTD, producer_id=7, sequence=0)
    assert await send(talk, sent) == (ErrorCode.NONE, 0)
    assert await send(talk, sent) == (ErrorCode.NONE, 0)
    (header,) = await headers(talk)
    assert (header.codec, header.record_count, header.last_offset_delta) == (Codec.LZ4, 2, 2)
    assert [(record.offset, record.value) for record in await all_records(talk)] == [(0, b"a"), (2, b"c")]
    assert pending(node) == 1


async def test_released_message_comes_in_the_codec_of_its_topic(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders", compression_type="zstd")
    assert await send(talk, mixed_batch(Later(b"later", delay_ms=20))) == (ErrorCode.NONE, 0)
    (record,) = await eventually(talk, 1)
    assert record.value == b"later"
    assert (await headers(talk))[-1].codec == Codec.ZSTD


async def test_message_of_another_door_comes_in_the_codec_of_its_topic(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders", compression_type="snappy")
    served = node.broker.topic("orders")
    assert served is not None
    (published,) = await node.parts.publisher.publish(served, [Outgoing(Record(b"by HTTP"))])
    assert isinstance(published, Published)
    (header,) = await headers(talk)
    assert header.codec == Codec.SNAPPY
    assert [record.value for record in await all_records(talk)] == [b"by HTTP"]


async def test_batch_that_nobody_can_open_is_refused_also_where_records_are_taken_unseen(
    node: TalkingNode, talk: Conversation
) -> None:
    await node.create_topic("orders", compression_type="lz4", penstock_record_check="false")
    broken = bytearray(build_batch([Record(b"good")]))
    broken[22] = Codec.ZSTD
    reply = await talk.ask(produce("orders", bytes(with_checksum(broken))), ProduceResponse, BY_NAME)
    answer = reply.responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "compression.type is lz4" in (answer.error_message or "")


async def test_setting_counts_from_the_next_batch_on(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    batch = bytes(build_batch([Record(b"a")], codec=Codec.GZIP))
    assert await send(talk, batch) == (ErrorCode.NONE, 0)
    await node.catalog.replace_config("orders", {"compression.type": "zstd"})
    assert await send(talk, batch) == (ErrorCode.NONE, 1)
    assert [each.codec for each in await headers(talk)] == [Codec.GZIP, Codec.ZSTD]
