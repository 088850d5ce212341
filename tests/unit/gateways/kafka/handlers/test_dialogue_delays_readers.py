"""Topics with holes as every kind of reader meets them: queues, share groups, fetches that wait, searches by time."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from penstock.broker.queue.delivery import QueueTotals, ReceivedMessages
from penstock.broker.queue.settling import ReceiptSettlement
from penstock.codec.batch.compression import Codec
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.list_offsets import ListOffsetsResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.domain.queue.commands import Act
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.values import Ordering
from support.door.conversation import Conversation, TalkingNode
from support.door.kafka_phrases import (
    DAY_MS,
    fetch,
    fetch_many,
    list_offsets,
    only_offset,
    only_partition,
    outcome,
    produce,
    values_in,
    wanted,
)
from support.schedule.delay_phrases import Later, mixed_batch
from support.share.phrases import ShareMember, accept, set_group

LONG_MS = 15_000
LATEST, NEWEST = -1, -3


@pytest.fixture(autouse=True)
async def _topic(node: TalkingNode) -> None:
    await node.create_topic("orders")


async def send(talk: Conversation, *values: bytes | Later, key: bytes | None = None) -> None:
    sent = mixed_batch(*values, key=key, codec=Codec.SNAPPY)
    assert outcome(await talk.ask(produce("orders", sent), ProduceResponse, 12))[0] is ErrorCode.NONE


async def send_holes(talk: Conversation) -> list[tuple[int, bytes]]:
    """What there is to read, with its offsets."""
    later = [Later(b"later")] * 5
    await send(talk, *later)
    await send(talk, b"a", *later, b"b", *later)
    await send(talk, *later)
    await send(talk, *later, b"c")
    await send(talk, b"d", *later)
    await send(talk, *later)
    return [(5, b"a"), (11, b"b"), (27, b"c"), (28, b"d")]


@pytest.mark.parametrize("ordering", list(Ordering))
async def test_queue_delivers_what_is_there_and_is_done_then(
    node: TalkingNode, talk: Conversation, ordering: Ordering
) -> None:
    expected = await send_holes(talk)
    name = QueueName("orders", "workers")
    await node.parts.queues.define(name, QueueOptions(ordering=ordering))
    seen: list[tuple[int, bytes | None]] = []
    for _ in range(3):
        received = await node.parts.delivery.receive(name, consumer="c", count_max=2)
        assert isinstance(received, ReceivedMessages)
        seen += [(message.record.offset, message.record.value) for message in received.messages]
        items = [ReceiptSettlement(message.receipt, Act.ACCEPT) for message in received.messages]
        await node.parts.delivery.settle(name, items)
    assert seen == expected
    totals = await node.parts.delivery.totals(name)
    assert isinstance(totals, QueueTotals)
    assert totals.backlog_count == 0
    waiting = asyncio.ensure_future(node.parts.delivery.receive(name, consumer="c", count_max=2, wait_ms=LONG_MS))
    await send(talk, Later(b"later"), b"e")
    received = await waiting
    assert isinstance(received, ReceivedMessages)
    assert [message.record.value for message in received.messages] == [b"e"]


async def test_share_group_acquires_records_and_no_holes(node: TalkingNode, talk: Conversation) -> None:
    await set_group(node.catalog, share_auto_offset_reset="earliest")
    expected = await send_holes(talk)
    member = ShareMember(await node.connect(), "ann")
    await member.join("orders")
    acquired = await member.fetch()
    assert acquired == [(offset, 1) for offset, _value in expected]
    assert await member.acknowledge(*(accept(offset) for offset, _count in acquired)) == ErrorCode.NONE
    reply = asyncio.ensure_future(member.fetch(wait_ms=LONG_MS))
    await send(talk, Later(b"later"), b"e")
    assert await reply == [(40, 1)]


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("offset", [29, 33, 34, 38, 39])
async def test_fetch_that_meets_only_holes_waits_for_a_record(
    node: TalkingNode, talk: Conversation, offset: int, isolation: int
) -> None:
    await send_holes(talk)
    reader = await node.connect()
    request = fetch("orders", offset, wait_ms=LONG_MS)
    await reader.send(msgspec.structs.replace(request, isolation_level=isolation), 12)
    await talk.expect_open()
    assert not reader.has_heard
    await send(talk, Later(b"later"))
    await talk.expect_open()
    assert not reader.has_heard
    await send(talk, b"e")
    assert values_in(only_partition(await reader.hear(FetchResponse)).records) == [b"e"]


async def test_holes_count_for_nothing_in_the_least_bytes(node: TalkingNode, talk: Conversation) -> None:
    """Many batches without records are no reason to answer a reader who wants a kilobyte."""
    for _ in range(30):
        await send(talk, Later(b"later"))
    reader = await node.connect()
    await reader.send(fetch("orders", wait_ms=LONG_MS, bytes_min=1000), 12)
    await talk.expect_open()
    assert not reader.has_heard
    await send(talk, b"e", random.Random(1).randbytes(2000))
    assert values_in(only_partition(await reader.hear(FetchResponse)).records)[0] == b"e"


async def test_session_is_not_told_of_a_partition_with_nothing_but_holes(node: TalkingNode, talk: Conversation) -> None:
    await send(talk, Later(b"later"))
    opened = await talk.ask(fetch_many([wanted("orders", {0: 0})], session=(0, 0)), FetchResponse, 12)
    assert values_in(only_partition(opened).records) == []
    again = await talk.ask(fetch_many([], session=(opened.session_id, 1)), FetchResponse, 12)
    assert list(again.responses) == []
    await send(talk, b"a")
    third = await talk.ask(fetch_many([], session=(opened.session_id, 2)), FetchResponse, 12)
    assert values_in(only_partition(third).records) == [b"a"]


async def test_offsets_are_found_by_the_times_of_records(node: TalkingNode, talk: Conversation) -> None:
    await send(talk, Later(b"later"), Later(b"later"))
    await send(talk, Later(b"later"), b"a", Later(b"later"))

    async def offset_of(timestamp: int) -> tuple[int, int]:
        found = only_offset(await talk.ask(list_offsets("orders", timestamp), ListOffsetsResponse))
        return found.offset, found.timestamp

    assert await offset_of(DAY_MS) == (3, DAY_MS + 1)
    assert await offset_of(DAY_MS + 2) == (-1, -1)
    assert await offset_of(NEWEST) == (3, DAY_MS + 1)
    assert await offset_of(LATEST) == (5, -1)
