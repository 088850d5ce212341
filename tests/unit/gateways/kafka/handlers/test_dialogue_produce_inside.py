"""Batches whose checksum is right and whose inside is not: no reader could get past them, so nobody takes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from penstock.broker.partition.batch_look import LOOP_RECORDS_MAX, PLAIN_BYTES_MAX
from penstock.codec.batch.compression import Codec, compress
from penstock.codec.batch.header import HEADER_BYTES
from penstock.codec.batch.records import DECOMPRESSED_BYTES_MAX, Record, build_batch, seal_batch
from penstock.codec.batch.rewrite import header_of
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.codec.unreadable_batches import with_checksum
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import outcome, produce

NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_RECORD
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
# The last version in which topics have their names.
BY_NAME = 12
# Of the loop's processor time. To clear 100 MB takes longer, and to unpack them.
LOOP_SECONDS_MAX = 0.03
GARBAGE = bytes(range(7, 207))


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node() as running:
        await running.create_topic("orders", 1)
        yield running


def plain_of(*records: Record) -> bytes:
    return bytes(build_batch(records)[HEADER_BYTES:])


def batch_of(payload: bytes, count: int, codec: Codec = Codec.NONE) -> bytes:
    """With these bytes as they are, whatever codec they are said to have."""
    header = header_of(build_batch([Record(b"")]))
    header = msgspec.structs.replace(header, record_count=count, last_offset_delta=count - 1)
    sealed = bytearray(seal_batch(header, payload))
    sealed[22] = codec
    return bytes(with_checksum(sealed))


async def told(talk: Conversation, batch: bytes) -> tuple[ErrorCode, str]:
    reply = await talk.ask(produce("orders", batch), ProduceResponse, BY_NAME)
    (partition,) = reply.responses[0].partition_responses
    return ErrorCode(partition.error_code), partition.error_message or ""


GOOD = plain_of(Record(b"good"))
BROKEN = {
    "garbage": (GARBAGE, 1),
    "too few records": (GOOD, 1000),
    "too many records": (plain_of(Record(b"good"), Record(b"two")), 1),
    "no records": (b"", 1),
    "negative value": (GOOD.replace(b"\x01\x08good", b"\x01\x09good"), 1),
    "past the end": (b"\xa0\x9c\x01" + GOOD[1:], 1),
    "offsets that jump": (plain_of(Record(b"a"), Record(b"b", offset_delta=2)), 2),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("codec", list(Codec))
async def test_batch_with_a_broken_inside_is_refused(talk: Conversation, name: str, codec: Codec) -> None:
    payload, count = BROKEN[name]
    code, reason = await told(talk, batch_of(compress(codec, payload), count, codec))
    assert code is INVALID
    assert reason
    assert (await told(talk, batch_of(compress(codec, GOOD), 1, codec)))[0] is NONE


@pytest.mark.parametrize("codec", COMPRESSED)
async def test_batch_that_is_not_compressed_as_it_says_is_refused(talk: Conversation, codec: Codec) -> None:
    assert (await told(talk, batch_of(GARBAGE, 1, codec)))[0] is INVALID


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.GZIP, Codec.LZ4])
async def test_batch_that_unpacks_to_more_than_readers_open_is_refused(talk: Conversation, codec: Codec) -> None:
    large = plain_of(Record(bytes(DECOMPRESSED_BYTES_MAX)))
    code, reason = await told(talk, batch_of(compress(codec, large), 1, codec))
    assert code is INVALID
    assert str(DECOMPRESSED_BYTES_MAX) in reason


async def test_large_batch_that_is_sound_is_taken(talk: Conversation) -> None:
    large = plain_of(*(Record(bytes(1_000_000)) for _ in range(20)))
    assert (await told(talk, batch_of(compress(Codec.ZSTD, large), 20, Codec.ZSTD)))[0] is NONE


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_batch_of_too_many_records_for_the_loop_is_checked_too(talk: Conversation, codec: Codec) -> None:
    count = LOOP_RECORDS_MAX + 1
    many = plain_of(*(Record(b"%d" % number) for number in range(count)))
    assert (await told(talk, batch_of(compress(codec, many), count, codec)))[0] is NONE
    assert (await told(talk, batch_of(compress(codec, many[:-1]), count, codec)))[0] is INVALID


async def test_batches_of_one_connection_keep_their_order_past_one_that_goes_to_a_thread(talk: Conversation) -> None:
    """Opened in a thread or on the loop: what was sent first is stored first."""
    large = plain_of(Record(bytes(2 * PLAIN_BYTES_MAX)))
    batches = [batch_of(compress(Codec.ZSTD, large), 1, Codec.ZSTD), batch_of(GOOD, 1)] * 3
    for each in batches:
        await talk.send(produce("orders", each), BY_NAME)
    offsets = [outcome(await talk.hear(ProduceResponse))[1] for _ in batches]
    assert offsets == list(range(6))


async def test_topic_may_take_batches_unseen(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("unseen", 1, penstock_record_check="false")
    reply = await talk.ask(produce("unseen", batch_of(GARBAGE, 1)), ProduceResponse, BY_NAME)
    assert outcome(reply)[0] is NONE


async def test_others_are_served_while_a_batch_is_opened(node: TalkingNode, talk: Conversation) -> None:
    """4 KB that unpack to 100 MB, on a topic whose rules ask for what is inside."""
    await node.create_topic("compacted", 1, cleanup_policy="compact")
    large = batch_of(compress(Codec.ZSTD, plain_of(Record(bytes(100_000_000), b"key"))), 1, Codec.ZSTD)
    other = await node.connect()
    await talk.send(produce("compacted", large), BY_NAME)
    answer = asyncio.create_task(talk.hear(ProduceResponse))
    began = time.thread_time()
    for _ in range(5):
        assert outcome(await other.ask(produce("orders", batch_of(GOOD, 1)), ProduceResponse, BY_NAME))[0] is NONE
    assert not answer.done()
    assert outcome(await answer)[0] is NONE
    assert time.thread_time() - began < LOOP_SECONDS_MAX


async def test_batch_that_is_read_for_long_keeps_nobody_waiting(talk: Conversation) -> None:
    """A few hundred bytes that unpack to one record with very many headers."""
    headers = plain_of(Record(b"", headers=(("", None),) * 700_000))
    batch = batch_of(compress(Codec.ZSTD, headers), 1, Codec.ZSTD)
    assert len(headers) < PLAIN_BYTES_MAX
    began = time.thread_time()
    assert (await told(talk, batch))[0] is NONE
    assert time.thread_time() - began < LOOP_SECONDS_MAX
