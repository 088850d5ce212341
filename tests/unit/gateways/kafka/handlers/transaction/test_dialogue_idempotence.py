"""Idempotent producers: what was stored once is not stored again, and what is missing is not passed over."""

from __future__ import annotations

import pytest

from penstock.base.clock import ManualClock
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import DAY_MS, batch, fetch, only_partition, outcome, produce, produced, values_in

OUT_OF_ORDER = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
SEQUENCE_LAST = 2**31 - 1


class Producer:
    """Sends numbered batches of one producer id, and says how each ended."""

    def __init__(self, talk: Conversation, version: int, producer_id: int = 7) -> None:
        self._talk = talk
        self._version = version
        self._producer_id = producer_id

    async def send(self, sequence: int, *values: bytes, epoch: int = 0) -> tuple[ErrorCode, int]:
        sent = batch(*values, producer_id=self._producer_id, producer_epoch=epoch, sequence=sequence)
        return outcome(await self._talk.ask(produce("orders", sent), ProduceResponse, self._version))


@pytest.fixture(params=[3, 12])
async def producer(request: pytest.FixtureRequest, node: TalkingNode, talk: Conversation) -> Producer:
    await node.create_topic("orders")
    return Producer(talk, request.param)


async def stored(talk: Conversation) -> list[bytes | None]:
    return values_in(only_partition(await talk.ask(fetch("orders"), FetchResponse, 12)).records)


def stored_at(offset: int) -> tuple[ErrorCode, int]:
    return ErrorCode.NONE, offset


async def test_repeated_batch_is_answered_with_its_first_offset(producer: Producer, talk: Conversation) -> None:
    assert await producer.send(0, b"a", b"b") == stored_at(0)
    assert await producer.send(2, b"c") == stored_at(2)
    assert await producer.send(0, b"a", b"b") == stored_at(0)
    assert await producer.send(2, b"c") == stored_at(2)
    assert await producer.send(3, b"d") == stored_at(3)
    assert await stored(talk) == [b"a", b"b", b"c", b"d"]


async def test_last_five_batches_are_known_and_the_sixth_is_not(producer: Producer, talk: Conversation) -> None:
    for sequence in range(6):
        await producer.send(sequence, b"%d" % sequence)
    for sequence in range(1, 6):
        assert await producer.send(sequence, b"%d" % sequence) == stored_at(sequence)
    assert await producer.send(0, b"0") == OUT_OF_ORDER
    assert len(await stored(talk)) == 6


async def test_gap_in_the_sequence_is_refused_until_it_is_filled(producer: Producer, talk: Conversation) -> None:
    assert await producer.send(0, b"a") == stored_at(0)
    assert await producer.send(2, b"c") == OUT_OF_ORDER
    assert await producer.send(1, b"b") == stored_at(1)
    assert await producer.send(2, b"c") == stored_at(2)
    assert await stored(talk) == [b"a", b"b", b"c"]


async def test_same_sequence_with_another_length_is_no_duplicate(producer: Producer) -> None:
    assert await producer.send(0, b"a", b"b") == stored_at(0)
    assert await producer.send(0, b"a") == OUT_OF_ORDER
    assert await producer.send(1, b"b") == OUT_OF_ORDER


async def test_older_epoch_is_fenced(producer: Producer) -> None:
    assert await producer.send(0, b"a", epoch=4) == stored_at(0)
    assert await producer.send(1, b"b", epoch=3) == FENCED
    assert await producer.send(1, b"b", epoch=4) == stored_at(1)


async def test_newer_epoch_begins_at_sequence_zero(producer: Producer, talk: Conversation) -> None:
    assert await producer.send(0, b"a") == stored_at(0)
    assert await producer.send(1, b"b", epoch=1) == OUT_OF_ORDER
    assert await producer.send(0, b"b", epoch=1) == stored_at(1)
    assert await producer.send(1, b"c", epoch=0) == FENCED
    assert await stored(talk) == [b"a", b"b"]


async def test_sequences_wrap_to_zero(producer: Producer, talk: Conversation) -> None:
    # A log that has forgotten the producer takes its batch wherever it stands.
    assert await producer.send(SEQUENCE_LAST - 1, b"a") == stored_at(0)
    # Two numbers are left before the wrap, and this batch has three records.
    assert await producer.send(SEQUENCE_LAST, b"b", b"c", b"d") == stored_at(1)
    assert await producer.send(SEQUENCE_LAST, b"b", b"c", b"d") == stored_at(1)
    assert await producer.send(2, b"e") == stored_at(4)
    assert await stored(talk) == [b"a", b"b", b"c", b"d", b"e"]


async def test_producers_do_not_know_of_one_another(producer: Producer, talk: Conversation) -> None:
    other = Producer(talk, 12, producer_id=8)
    assert await producer.send(0, b"a") == stored_at(0)
    assert await other.send(0, b"b") == stored_at(1)
    assert await producer.send(1, b"c") == stored_at(2)
    assert await other.send(1, b"d") == stored_at(3)


async def test_duplicates_keep_the_time_they_were_dated_with() -> None:
    clock = ManualClock(now_ms=DAY_MS)
    async with running_node(clock=clock) as node:
        await node.create_topic("orders", message_timestamp_type="LogAppendTime")
        talk = await node.connect()
        sent = batch(b"a", producer_id=7, sequence=0)
        for _ in range(2):
            await talk.send(produce("orders", sent), 9)
            await talk.expect(produced("orders", offset=0, append_time_ms=DAY_MS))
            clock.advance_ms(1000)


@pytest.mark.parametrize("version", [0, 2, 5])
async def test_every_producer_gets_an_id_of_its_own(node: TalkingNode, talk: Conversation, version: int) -> None:
    replies = [
        await talk.ask(InitProducerIdRequest(transaction_timeout_ms=1), InitProducerIdResponse, version)
        for _ in range(3)
    ]
    assert [reply.error_code for reply in replies] == [0, 0, 0]
    assert [reply.producer_epoch for reply in replies] == [0, 0, 0]
    assert len({reply.producer_id for reply in replies}) == 3
