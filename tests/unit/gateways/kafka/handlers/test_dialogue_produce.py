"""Produce, said in its oldest and its newest version: what is stored, what is refused, and with which words."""

from __future__ import annotations

import pytest

from penstock.base.clock import ManualClock
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka import NO_UUID, ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import (
    DAY_MS,
    altered,
    batch,
    corrupt,
    fetch,
    only_partition,
    outcome,
    outcomes,
    produce,
    produce_many,
    produced,
    records_in,
    values_in,
)

OLDEST, NEWEST = 3, 13
BY_ID_FROM = 13


async def stored(talk: Conversation, topic: str, partition: int = 0) -> list[bytes | None]:
    reply = await talk.ask(fetch(topic, partition=partition), FetchResponse, 12)
    return values_in(only_partition(reply).records)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [OLDEST, 5, 8, 9, 12, NEWEST])
async def test_batches_get_the_next_offsets(node: TalkingNode, talk: Conversation, version: int, acks: int) -> None:
    topic_id = await node.create_topic("orders")
    await talk.send(produce("orders", batch(b"a", b"b"), topic_id=topic_id, acks=acks), version)
    await talk.expect(produced("orders", topic_id=topic_id, offset=0))
    await talk.send(produce("orders", batch(b"c"), topic_id=topic_id, acks=acks), version)
    await talk.expect(produced("orders", topic_id=topic_id, offset=2))
    assert await stored(talk, "orders") == [b"a", b"b", b"c"]


async def test_no_acks_get_no_reply_and_are_stored(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders", durability="interval")
    await talk.send_unanswered(produce("orders", batch(b"a"), acks=0), OLDEST)
    await talk.send_unanswered(produce("orders", batch(b"b"), acks=0), 12)
    assert await stored(talk, "orders") == [b"a", b"b"]


async def test_no_acks_and_an_error_end_the_connection(node: TalkingNode, talk: Conversation) -> None:
    """As Kafka does: a producer that is never answered would send to a deleted topic for ever."""
    await talk.send_unanswered(produce("missing", batch(b"a"), acks=0), 12)
    await talk.expect_closed()


@pytest.mark.parametrize("acks", [2, -2, 32767])
async def test_other_acks_are_refused_every_time(node: TalkingNode, talk: Conversation, acks: int) -> None:
    await node.create_topic("orders")
    for _ in range(3):
        await talk.send(produce("orders", batch(b"a"), acks=acks), 9)
        await talk.expect(produced("orders", error=ErrorCode.INVALID_REQUIRED_ACKS, log_start=-1))
    assert await stored(talk, "orders") == []


async def test_unknown_topics_and_partitions_are_refused_each(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    await talk.send(
        produce_many([("missing", 0, batch(b"a")), ("orders", 0, batch(b"b")), ("orders", 1, batch(b"c"))]), 9
    )
    reply = await talk.hear(ProduceResponse)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcomes(reply) == [(unknown, -1), (ErrorCode.NONE, 0), (unknown, -1)]
    assert await stored(talk, "orders") == [b"b"]


async def test_unknown_topic_id_is_refused(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    for topic_id in (NO_UUID, b"\x07" * 16):
        await talk.send(produce("orders", batch(b"a"), topic_id=topic_id), NEWEST)
        await talk.expect(produced("orders", topic_id=topic_id, error=ErrorCode.UNKNOWN_TOPIC_ID, log_start=-1))


GOOD = batch(b"a", b"b")
LATE_MS = 4_000_000_000_000

BAD_BATCHES: dict[str, tuple[bytes | None, ErrorCode]] = {
    "a wrong checksum": (corrupt(GOOD), ErrorCode.CORRUPT_MESSAGE),
    "nothing at all": (None, ErrorCode.INVALID_RECORD),
    "no bytes": (b"", ErrorCode.INVALID_RECORD),
    "half a header": (GOOD[:30], ErrorCode.INVALID_RECORD),
    "half a batch": (GOOD[:-1], ErrorCode.INVALID_RECORD),
    "the format before this one": (altered(GOOD, magic=1), ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "bytes behind the batch": (GOOD + b"x", ErrorCode.INVALID_RECORD),
    "a control batch": (batch(b"a", is_control=True), ErrorCode.INVALID_RECORD),
    "a control batch behind a sign bit": (altered(GOOD, attributes=-0x8000 | 0x20), ErrorCode.INVALID_RECORD),
    "a transaction without an id": (
        batch(b"a", producer_id=1, sequence=0, is_transactional=True),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "a codec nobody knows": (altered(GOOD, attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "such a codec behind a sign bit": (
        altered(GOOD, attributes=-0x8000 | 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "fewer records than offsets": (altered(GOOD, last_offset_delta=5), ErrorCode.INVALID_RECORD),
    "no records": (altered(GOOD, record_count=0, last_offset_delta=-1), ErrorCode.CORRUPT_MESSAGE),
    "no records for one offset": (altered(GOOD, record_count=0, last_offset_delta=0), ErrorCode.INVALID_RECORD),
    "a timestamp far ahead": (batch(b"a", timestamp_ms=LATE_MS), ErrorCode.INVALID_TIMESTAMP),
    "a producer without a sequence": (batch(b"a", producer_id=5, sequence=-1), ErrorCode.INVALID_RECORD),
    "a producer without an epoch": (
        batch(b"a", producer_id=5, producer_epoch=-1, sequence=0), ErrorCode.INVALID_RECORD,
    ),
    "more than max.message.bytes": (batch(b"x" * 1_048_588), ErrorCode.MESSAGE_TOO_LARGE),
}  # fmt: skip


@pytest.mark.parametrize("version", [OLDEST, 12])
@pytest.mark.parametrize("what", BAD_BATCHES)
async def test_bad_batch_is_refused_and_leaves_no_trace(
    node: TalkingNode, talk: Conversation, what: str, version: int
) -> None:
    records, error = BAD_BATCHES[what]
    await node.create_topic("orders")
    for _ in range(2):
        reply = await talk.ask(produce("orders", records), ProduceResponse, version)
        assert outcome(reply) == (error, -1), what
        message = reply.responses[0].partition_responses[0].error_message
        assert version < 8 or message, "the reason is told where the version has room for it"
    assert outcome(await talk.ask(produce("orders", GOOD), ProduceResponse, version)) == (ErrorCode.NONE, 0)
    assert await stored(talk, "orders") == [b"a", b"b"]


async def test_one_refused_partition_does_not_hold_the_others(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders", 3)
    request = produce_many([("orders", 0, GOOD), ("orders", 1, corrupt(GOOD)), ("orders", 2, GOOD)])
    reply = await talk.ask(request, ProduceResponse, 9)
    corrupted = (ErrorCode.CORRUPT_MESSAGE, -1)
    assert outcomes(reply) == [(ErrorCode.NONE, 0), corrupted, (ErrorCode.NONE, 0)]


async def test_message_formats_before_batches_are_refused(node: TalkingNode, talk: Conversation) -> None:
    """Advertised for librdkafka's sake, taken from nobody: version 0 can only carry them."""
    await node.create_topic("orders")
    old = b"\0" * 8 + (14).to_bytes(4, "big") + b"\0" * 4 + b"\x00" + b"\0" + b"\xff" * 8
    for version in (0, 1, 2):
        reply = await talk.ask(produce("orders", old), ProduceResponse, version)
        assert outcome(reply) == (ErrorCode.INVALID_RECORD, -1)


@pytest.mark.parametrize("codec", Codec)
async def test_every_codec_is_stored_as_it_came(node: TalkingNode, talk: Conversation, codec: Codec) -> None:
    await node.create_topic("orders")
    sent = batch(b"a" * 500, b"b" * 500, codec=codec)
    await talk.ask(produce("orders", sent), ProduceResponse, 9)
    reply = await talk.ask(fetch("orders"), FetchResponse, 11)
    kept = only_partition(reply).records
    assert isinstance(kept, memoryview)
    # All but the place that the log gave it: base offset and leader epoch.
    assert bytes(kept[16:]) == sent[16:]
    assert values_in(kept) == [b"a" * 500, b"b" * 500]


async def test_size_limit_is_the_topics_own(node: TalkingNode, talk: Conversation) -> None:
    small = len(batch(b"x" * 100))
    await node.create_topic("orders", max_message_bytes=str(small))
    assert outcome(await talk.ask(produce("orders", batch(b"x" * 100)), ProduceResponse, 9))[0] == ErrorCode.NONE
    reply = await talk.ask(produce("orders", batch(b"x" * 101)), ProduceResponse, 9)
    assert outcome(reply)[0] == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("ahead_ms", "error"),
    [
        (0, ErrorCode.NONE),
        (5_000, ErrorCode.NONE),
        (5_001, ErrorCode.INVALID_TIMESTAMP),
        (-7_000, ErrorCode.NONE),
        (-7_001, ErrorCode.INVALID_TIMESTAMP),
        (-DAY_MS - 1, ErrorCode.NONE),
    ],
)
async def test_timestamps_are_bounded_on_both_sides(ahead_ms: int, error: ErrorCode) -> None:
    clock = ManualClock(now_ms=DAY_MS)
    async with running_node(clock=clock) as node:
        await node.create_topic("orders", message_timestamp_after_max_ms="5000", message_timestamp_before_max_ms="7000")
        talk = await node.connect()
        reply = await talk.ask(produce("orders", batch(b"a", timestamp_ms=DAY_MS + ahead_ms)), ProduceResponse, 9)
        assert outcome(reply)[0] == error


async def test_every_record_whose_timestamp_is_out_of_bounds_is_named() -> None:
    """An old record beside a young one too: a batch's header knows its youngest only."""
    ages_ms = (0, 9_000, 100, 8_000)
    records = [Record(b"a", timestamp_ms=DAY_MS - age_ms) for age_ms in ages_ms]
    async with running_node(clock=ManualClock(now_ms=DAY_MS)) as node:
        await node.create_topic("orders", message_timestamp_before_max_ms="7000")
        talk = await node.connect()
        reply = await talk.ask(produce("orders", bytes(build_batch(records))), ProduceResponse, 9)
        (answer,) = reply.responses[0].partition_responses
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [record.batch_index for record in answer.record_errors] == [1, 3]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
async def test_log_append_time_replaces_the_producers(version: int) -> None:
    clock = ManualClock(now_ms=DAY_MS)
    async with running_node(clock=clock) as node:
        topic_id = await node.create_topic("orders", message_timestamp_type="LogAppendTime")
        talk = await node.connect()
        for number in range(3):
            clock.advance_ms(10)
            # However far ahead its producer's clock is: nobody looks at it.
            sent = batch(b"a", b"b", timestamp_ms=LATE_MS)
            await talk.send(produce("orders", sent, topic_id=topic_id), version)
            await talk.expect(
                produced("orders", topic_id=topic_id, offset=2 * number, append_time_ms=DAY_MS + 10 * (number + 1))
            )
        reply = await talk.ask(fetch("orders"), FetchResponse, 11)
        found = [record.timestamp_ms - DAY_MS for record in records_in(only_partition(reply).records)]
        assert found == [10, 10, 20, 20, 30, 30]


async def test_topic_deleted_between_two_batches_takes_no_more(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9)
    await node.catalog.delete_topic("orders")
    reply = await talk.ask(produce("orders", batch(b"b")), ProduceResponse, 9)
    assert outcome(reply) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    await node.create_topic("orders")
    reply = await talk.ask(produce("orders", batch(b"c")), ProduceResponse, 9)
    assert outcome(reply) == (ErrorCode.NONE, 0)
    assert await stored(talk, "orders") == [b"c"]
