"""The short way of a repeated Produce must lead to the same place as the long one.

Two nodes live the same life. One hears everything on a connection that learns routes; the other hears each request on
a connection of its own, which has learnt nothing. Their replies must be the same bytes, and so must their logs.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest

from penstock.base.clock import ManualClock
from penstock.codec import kafka as wire
from penstock.codec.batch.compression import Codec
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.counted_routes import frames_taken
from support.door.kafka_phrases import (
    DAY_MS,
    altered,
    batch,
    corrupt,
    fetch,
    only_partition,
    outcome,
    produce,
    produce_many,
)

MARKER = 0x7ABBCCDD
LENGTH = struct.Struct(">i")
TOPICS = {
    "synced": {},
    "quick": {"durability": "interval"},
    "dated": {"durability": "interval", "message_timestamp_type": "LogAppendTime"},
    "small": {"max_message_bytes": "400"},
}
STEPS = 400


class Twin:
    """One of the two nodes, and how it is spoken to."""

    def __init__(self, node: TalkingNode, *, is_routed: bool) -> None:
        self.node = node
        self.ids: dict[str, bytes] = {}
        self._is_routed = is_routed
        self._talk: Conversation | None = None
        self._topic_count = 0
        node.catalog._new_topic_id = self._next_id

    def _next_id(self) -> bytes:
        # The same for both, so that replies can be compared byte by byte.
        self._topic_count += 1
        return self._topic_count.to_bytes(16, "big")

    async def create(self, name: str, partitions: int = 2) -> None:
        self.ids[name] = await self.node.create_topic(name, partitions, **TOPICS[name])

    async def say(self, frame: bytes) -> list[bytes]:
        """The replies to one frame; the last is empty if the connection ended."""
        if self._talk is None:
            self._talk = await self.node.connect()
        talk = self._talk
        talk.send_bytes(frame + wire.encode_request(ApiVersionsRequest(), 0, MARKER, None))
        heard: list[bytes] = []
        try:
            while not heard or heard[-1][:4] != MARKER.to_bytes(4, "big"):
                heard.append(await talk.hear_frame())
        except (ConnectionError, asyncio.IncompleteReadError):
            heard.append(b"")
        if heard[-1] == b"" or not self._is_routed:
            talk.close()
            self._talk = None
        return heard

    async def stored(self) -> dict[tuple[str, int], bytes]:
        talk = await self.node.connect()
        found = {}
        for topic in self.node.broker.topics():
            for index in range(topic.partition_count):
                reply = await talk.ask(fetch(topic.name, partition=index), FetchResponse, 12)
                records = only_partition(reply).records
                assert isinstance(records, memoryview)
                found[topic.name, index] = bytes(records)
        return found


@asynccontextmanager
async def twins() -> AsyncIterator[tuple[Twin, Twin, ManualClock]]:
    clock = ManualClock(now_ms=DAY_MS)
    async with AsyncExitStack() as nodes:
        routed = Twin(await nodes.enter_async_context(running_node(clock=clock)), is_routed=True)
        plain = Twin(await nodes.enter_async_context(running_node(clock=clock)), is_routed=False)
        for twin in (routed, plain):
            for name in TOPICS:
                await twin.create(name)
        yield routed, plain, clock


@pytest.fixture
def taken(node: TalkingNode) -> list[int]:
    return frames_taken(node)


class Sender:
    """What a producer of changing habits sends: mostly the same again, as producers do."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self._correlation_id = 0
        self._sequences: dict[tuple[str, int], int] = {}
        self._change()

    def _change(self) -> None:
        chance = self.chance
        self.topic = chance.choice([*TOPICS, *TOPICS, *TOPICS, "missing"])
        self.partition = chance.choice([0, 0, 0, 1, 1, 1, 7])
        self.version = chance.randint(5, 13)
        self.acks = chance.choice([-1, -1, -1, 1, 1, 1, 0, 2])
        self.client_id = chance.choice([None, "", "a", "b", "a longer name"])
        self.timeout_ms = chance.choice([1000, 30_000])
        self.transactional_id = chance.choice([None, None, None, None, None, "", "tx"])

    def _change_one_thing(self) -> None:
        old = dict(vars(self))
        self._change()
        changeable = [name for name, value in vars(self).items() if old[name] is not value]
        kept = self.chance.choice(changeable or ["version"])
        vars(self).update({name: value for name, value in old.items() if name != kept})

    def frame(self, ids: dict[str, bytes]) -> bytes:
        kind = self.chance.random()
        if kind < 0.05:
            self._change()
        elif kind < 0.15:
            self._change_one_thing()
        self._correlation_id += 1
        topic_id = ids.get(self.topic, b"\x99" * 16)
        request = produce(
            self.topic,
            self._records(),
            self.partition,
            topic_id=topic_id,
            acks=self.acks,
            timeout_ms=self.timeout_ms,
            transactional_id=self.transactional_id,
        )
        if self.chance.random() < 0.03:
            records = batch(b"x")
            request = produce_many([("quick", 0, records), ("quick", 1, records)], ids=ids, acks=-1)
        return self._bend(wire.encode_request(request, self.version, self._correlation_id, self.client_id))

    def _records(self) -> bytes | None:
        chance = self.chance
        # So that the length takes one, two and three bytes; one is too few for a batch.
        size = chance.choice([1, 30, 60, 100, 5_000, 16_000, 17_000, 300_000])
        good = batch(chance.randbytes(size), codec=chance.choice([Codec.NONE, Codec.NONE, Codec.GZIP]))
        kind = chance.random()
        if kind < 0.6:
            return good
        if kind < 0.8:
            return self._numbered()
        bad = [
            None, b"", good[:20], good[:59], corrupt(good), good + good, good + b"\0\0\0", altered(good, attributes=5),
            altered(good, attributes=0x20), altered(good, attributes=0x10), altered(good, magic=1),
            altered(good, record_count=7), batch(b"x", timestamp_ms=DAY_MS * 2),
        ]  # fmt: skip
        return chance.choice(bad)

    def _numbered(self) -> bytes:
        key = self.topic, self.partition
        sequence = self._sequences.get(key, 0)
        which = self.chance.random()
        if which < 0.2:
            sequence = max(0, sequence - self.chance.randint(1, 8))
        elif which < 0.3:
            sequence += self.chance.randint(1, 3)
        else:
            self._sequences[key] = sequence + 1
        return batch(b"%d" % sequence, producer_id=5, sequence=sequence)

    def _bend(self, frame: bytes) -> bytes:
        """Now and then a frame that no client sends."""
        chance = self.chance
        kind = chance.random()
        body = frame[4:]
        if kind < 0.90:
            return frame
        if kind < 0.95:
            place = chance.choice([chance.randrange(min(len(body), 120)), len(body) - chance.randint(1, 4)])
            body = body[:place] + bytes([body[place] ^ 1 << chance.randrange(8)]) + body[place + 1 :]
        elif kind < 0.97:
            body = body[: chance.randrange(8, len(body))]
        elif kind < 0.99:
            # A tag that nobody knows, whose bytes look like the end of a request without any.
            body = body[:-1] + b"\x01\x09\x03\0\0\0"
        else:
            body += bytes(chance.randrange(1, 4))
        return LENGTH.pack(len(body)) + body


@pytest.mark.parametrize("seed", range(6))
async def test_both_ways_lead_to_the_same_place(seed: int) -> None:
    sender = Sender(seed)
    async with twins() as (routed, plain, clock):
        taken = frames_taken(routed.node)
        for step in range(STEPS):
            if sender.chance.random() < 0.03:
                await change_topics(sender.chance, routed, plain)
            clock.advance_ms(1)
            frame = sender.frame(routed.ids)
            heard, expected = await asyncio.gather(routed.say(frame), plain.say(frame))
            assert heard == expected, f"step {step}: {frame[:150].hex()}"
        assert await routed.stored() == await plain.stored()
    assert len(taken) >= 5, "hardly anything went the short way"


async def change_topics(chance: Random, *both: Twin) -> None:
    """The same change to both nodes."""
    name = chance.choice(list(TOPICS))
    what = chance.choice(["delete", "recreate", "grow", "alter"])
    limit = chance.choice(["500", "1000000"])
    for twin in both:
        served = twin.node.broker.topic(name)
        if served is None:
            await twin.create(name)
        elif what == "grow":
            await twin.node.catalog.create_partitions(name, served.partition_count + 1)
        elif what == "alter":
            await twin.node.catalog.replace_config(name, {"max.message.bytes": limit})
        else:
            await twin.node.catalog.delete_topic(name)
            if what == "recreate":
                await twin.create(name)


# The ways in which a frame could be taken for another's


async def learnt(node: TalkingNode, version: int, *, size: int = 100) -> Conversation:
    """A connection that has learnt the way to partition 0 of a topic, with two batches in it."""
    topic_id = await node.create_topic("orders", 2, durability="interval")
    talk = await node.connect()
    for _ in range(2):
        await talk.ask(produce("orders", batch(b"x" * size), topic_id=topic_id), ProduceResponse, version)
    return talk


@pytest.mark.parametrize("version", range(5, 14))
async def test_route_is_learnt_and_counted(node: TalkingNode, taken: list[int], version: int) -> None:
    talk = await learnt(node, version)
    topic_id = node.broker.topics()[0].topic_id
    for number, size in enumerate((1, 64, 127, 128, 10_000, 16_200, 16_400, 300_000)):
        request = produce("orders", batch(b"y" * size), topic_id=topic_id)
        assert outcome(await talk.ask(request, ProduceResponse, version))[1] == 2 + number
    assert len(taken) == 8
    assert node.server.request_counts[0] == 10


@pytest.mark.parametrize("version", [8, 9, 12])
async def test_frame_cut_anywhere_is_not_taken(node: TalkingNode, version: int) -> None:
    """Also at the very end of the receive buffer, where looking for a length would look past it."""
    talk = await learnt(node, version)
    (connection,) = [each for each in node.server._connections if each.route is not None]
    route = connection.route
    assert route is not None
    whole = talk.frame(produce("orders", batch(b"x" * 300)), version)[4:]
    for end in range(len(whole)):
        cut = bytearray(whole[:end])
        assert not route.take(connection, cut, memoryview(cut), 0, end)
        beside = bytearray(whole)
        assert not route.take(connection, beside, memoryview(beside), 0, end)
    assert node.shell("orders").log.log_end == 2


async def test_padded_length_is_judged_by_the_decoder(node: TalkingNode) -> None:
    """Six bytes of length: the sixth would belong to the records of whoever counts to five."""
    talk = await learnt(node, 9)
    sent = batch(b"x" * 50)
    frame = talk.frame(produce("orders", sent), 9)
    assert frame[-len(sent) - 4 : -len(sent) - 3] == bytes([len(sent) + 1 & 0x7F])
    padded = frame[4 : -len(sent) - 4] + bytes([len(sent) + 1 | 0x80, 0x80, 0x80, 0x80, 0x80]) + sent + b"\0\0\0"
    talk.send_bytes(LENGTH.pack(len(padded)) + padded)
    await talk.expect_closed()
    assert node.shell("orders").log.log_end == 2


async def test_other_client_ids_acks_and_partitions_find_their_own_way(node: TalkingNode, taken: list[int]) -> None:
    talk = await learnt(node, 9)
    talk.client_id = "dialogueX"
    assert outcome(await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9)) == (0, 2)
    assert outcome(await talk.ask(produce("orders", batch(b"a"), 1), ProduceResponse, 9)) == (0, 0)
    await talk.send_unanswered(produce("orders", batch(b"a"), acks=0), 9)
    assert outcome(await talk.ask(produce("orders", batch(b"a"), acks=1), ProduceResponse, 9)) == (0, 4)
    talk.client_id = None
    assert outcome(await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9)) == (0, 5)
    assert taken == []


async def test_topic_of_a_longer_name_is_another(node: TalkingNode, taken: list[int]) -> None:
    talk = await learnt(node, 9)
    await node.create_topic("orders2", durability="interval")
    for _ in range(2):
        assert outcome(await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9))[0] == 0
        assert outcome(await talk.ask(produce("orders2", batch(b"a")), ProduceResponse, 9))[0] == 0
    assert node.shell("orders").log.log_end == 4
    assert node.shell("orders2").log.log_end == 2


async def test_route_ends_with_its_topic(node: TalkingNode, taken: list[int]) -> None:
    talk = await learnt(node, 9)
    await node.catalog.delete_topic("orders")
    unknown = wire.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcome(await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9)) == (unknown, -1)
    await node.create_topic("orders", durability="interval")
    assert outcome(await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 9)) == (0, 0)
    assert taken == []


async def test_route_keeps_no_receive_buffer_alive(node: TalkingNode) -> None:
    talk = await learnt(node, 9, size=300_000)
    (connection,) = [each for each in node.server._connections if each.route is not None]
    assert len(connection._buffer) > 300_000
    buffer = connection._buffer
    connection.release_memory()
    connection._view.release()
    # Nobody else looks into the old buffer: it could not be resized otherwise.
    buffer.clear()
    del talk
