"""The door as a whole: order, pressure, faults, idleness, and its end."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest

from penstock.broker.parts import Parts
from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.codec.kafka.messages.fetch import FetchRequest, FetchResponse
from penstock.codec.kafka.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from penstock.codec.kafka.messages.metadata import MetadataResponse
from penstock.codec.kafka.messages.produce import ProduceRequest, ProduceResponse
from penstock.config import Config
from penstock.gateways.admission import Admission
from penstock.gateways.door import Door
from penstock.gateways.kafka.context import Handler, HandlerResult, PendingReply, RequestContext
from penstock.gateways.kafka.door import KafkaDoor
from penstock.gateways.kafka.sasl import SaslHandler
from penstock.gateways.kafka.server_config import KafkaServerConfig
from support.door.conversation import ANY_PORT, Conversation, MakeDoors, TalkingNode, running_node
from support.door.kafka_phrases import (
    batch,
    fetch,
    list_offsets,
    metadata,
    only_offset,
    only_partition,
    outcome,
    produce,
    values_in,
)
from support.storage.gated_disk import GatedDisk

FOR_EVER_MS = 60_000
MEGABYTE = 1_000_000


def settings(**changes: int) -> KafkaServerConfig:
    return KafkaServerConfig(listen=ANY_PORT, **changes)  # type: ignore[arg-type]


async def test_pipelined_requests_are_answered_in_their_order(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("slow")
    await node.create_topic("quick", durability="interval")
    requests: list[tuple[wire.Request, type[wire.Response]]] = [
        (produce("slow", batch(b"x")), ProduceResponse),
        (produce("quick", batch(b"x")), ProduceResponse),
        (metadata("slow"), MetadataResponse),
        (fetch("quick"), FetchResponse),
        (list_offsets("slow", -1), ListOffsetsResponse),
    ]
    frames = [talk.frame(requests[number * 7 % 5][0], 4) for number in range(500)]
    talk.send_bytes(b"".join(frames))
    for number in range(500):
        await talk.hear(requests[number * 7 % 5][1])


async def test_request_in_pieces_is_answered_like_any_other(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    other = await node.connect()
    frame = talk.frame(produce("orders", batch(b"x" * 100)), 9)
    for start in range(0, len(frame), 17):
        talk.send_bytes(frame[start : start + 17])
        # Others are served between the pieces.
        await other.expect_open()
    assert outcome(await talk.hear(ProduceResponse)) == (ErrorCode.NONE, 0)


async def test_half_a_request_and_a_hang_up_leave_nothing(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    for length in (3, 4, 20, 100):
        half = await node.connect()
        half.send_bytes(half.frame(produce("orders", batch(b"x" * 200_000)), 9)[:length])
        half.close()
    await talk.expect_open()
    while node.server.connection_count > 1:
        await talk.expect_open()
    assert node.server.memory.bytes_held == 0
    assert node.shell("orders").log.log_end == 0


async def test_largest_frame_is_taken_and_one_byte_more_is_not() -> None:
    async with running_node(kafka=settings(frame_bytes_max=300_000)) as node:
        await node.create_topic("orders")
        talk = await node.connect()
        spare = 300_000 - (len(talk.frame(produce("orders", batch(b"")), 9)) - 4)
        # Lengths inside the frame take some bytes more as they grow.
        for size, is_taken in ((spare - 10, True), (spare + 1, False)):
            talk._asked.clear()
            await talk.send(produce("orders", batch(b"x" * size)), 9)
            if is_taken:
                assert outcome(await talk.hear(ProduceResponse)) == (ErrorCode.NONE, 0)
            else:
                await talk.expect_closed()


# Pressure


async def test_slow_reader_is_owed_no_more_than_the_bound() -> None:
    """A hundred fetches of a megabyte each, and a peer that reads none of them: a few are made, the rest wait."""
    async with running_node(kafka=settings(write_buffer_bytes_max=2 * MEGABYTE)) as node:
        await node.create_topic("orders")
        writer = await node.connect()
        await writer.ask(produce("orders", batch(bytes(MEGABYTE))), ProduceResponse, 9)
        slow = await node.connect()
        slow.send_bytes(b"".join(slow.frame(fetch("orders"), 12) for _ in range(100)))
        for _ in range(50):
            await writer.expect_open()
        made = node.server.request_counts[FetchRequest.api_key]
        # The socket's own buffers take some too.
        assert made < 30, f"{made} replies of a megabyte were made for a peer that reads none"
        for _ in range(100):
            assert len(values_in(only_partition(await slow.hear(FetchResponse)).records)) == 1
        assert node.server.request_counts[FetchRequest.api_key] == 100


async def test_slow_reader_behind_a_slow_disk_is_bounded_too() -> None:
    disk = GatedDisk()
    async with running_node(files=lambda: disk, kafka=settings(write_buffer_bytes_max=2 * MEGABYTE)) as node:
        await node.create_topic("orders")
        writer = await node.connect()
        await writer.ask(produce("orders", batch(bytes(MEGABYTE))), ProduceResponse, 9)
        disk.close_gate()
        slow = await node.connect()
        frames = [slow.frame(produce("orders", batch(b"x")), 9), *(slow.frame(fetch("orders"), 12) for _ in range(100))]
        slow.send_bytes(b"".join(frames))
        await disk.wait_until_syncing()
        for _ in range(20):
            await writer.expect_open()
        assert node.server.request_counts[FetchRequest.api_key] <= 4
        disk.open_gate()
        await slow.hear(ProduceResponse)
        for _ in range(100):
            await slow.hear(FetchResponse)


async def test_requests_under_way_are_bounded_over_all_connections() -> None:
    async with running_node(kafka=settings(request_bytes_max=3 * MEGABYTE)) as node:
        await node.create_topic("orders", durability="interval", max_message_bytes="5000000")
        talks = [await node.connect() for _ in range(8)]
        frames = [talk.frame(produce("orders", batch(bytes(MEGABYTE))), 9) for talk in talks]
        for talk, frame in zip(talks, frames, strict=True):
            talk.send_bytes(frame[:-100])
        other = await node.connect()
        for _ in range(50):
            await other.expect_open()
            assert node.server.memory.bytes_held <= 3 * MEGABYTE
        for talk, frame in zip(talks, frames, strict=True):
            talk.send_bytes(frame[-100:])
        for talk in talks:
            assert outcome(await talk.hear(ProduceResponse))[0] == ErrorCode.NONE
        # Large buffers go back when nothing is in them.
        await node.server._sweep()
        assert node.server.memory.bytes_held == 0


# Faults


def door_with(request: type[wire.Request], fault: Callable[[Handler], Handler]) -> MakeDoors:
    """Kafka's door, in which `fault` has made another handler of the true one for this request."""

    class FaultyDoor(KafkaDoor):
        def handlers(self, sasl: SaslHandler) -> dict[int, Handler]:
            handlers = super().handlers(sasl)
            return {**handlers, request.api_key: fault(handlers[request.api_key])}

    def make(config: Config, parts: Parts, cluster_id: str) -> list[Door]:
        admission = Admission(parts.authorizer)
        return [FaultyDoor(parts, admission, config.kafka, cluster_id=cluster_id, node_entries=lambda _address: ())]

    return make


def broken(_request: wire.Request, _context: object) -> wire.Response:
    raise RuntimeError("planted")


async def broken_later(_request: wire.Request, _context: object) -> wire.Response:
    await asyncio.sleep(0)
    raise RuntimeError("planted")


@pytest.mark.parametrize("handler", [broken, broken_later])
async def test_fault_of_ours_ends_its_own_connection_only(handler: Handler) -> None:
    async with running_node(doors=door_with(ListOffsetsRequest, lambda _true: handler)) as node:
        talk = await node.connect()
        hurt = await node.connect()
        await hurt.expect_open()
        await hurt.send(list_offsets("orders", -1))
        await hurt.send(ApiVersionsRequest(), 0)
        await hurt.expect_closed()
        await talk.expect_open()


async def test_fault_in_one_reply_after_a_sync_does_not_keep_the_others() -> None:
    """One turn of the disk tells many connections: a fault with the first must not silence the second."""

    def fail() -> wire.Response:
        raise RuntimeError("planted")

    def fail_the_unlucky(handle: Handler) -> Handler:
        def handle_or_fail(request: wire.Request, context: RequestContext) -> HandlerResult:
            reply = handle(request, context)
            assert isinstance(reply, PendingReply)
            return PendingReply(reply.commitments, fail) if context.client_id == "unlucky" else reply

        return handle_or_fail

    async with running_node(doors=door_with(ProduceRequest, fail_the_unlucky)) as node:
        await node.create_topic("orders")
        talk, unlucky = await node.connect(), await node.connect(client_id="unlucky")
        unlucky.send_bytes(unlucky.frame(produce("orders", batch(b"a")), 9))
        talk.send_bytes(talk.frame(produce("orders", batch(b"b")), 9))
        assert outcome(await talk.hear(ProduceResponse))[0] == ErrorCode.NONE
        await unlucky.expect_closed()


async def test_malformed_request_ends_its_connection_after_what_was_ready(
    node: TalkingNode, talk: Conversation
) -> None:
    await node.create_topic("orders")
    good = talk.frame(ApiVersionsRequest(), 0)
    bad = talk.frame(produce("orders", batch(b"x")), 9)[4:-1]
    after = talk.frame(produce("orders", batch(b"x")), 9)
    talk.send_bytes(good + struct.pack(">i", len(bad)) + bad + after)
    await talk.hear(ApiVersionsResponse)
    await talk.expect_closed()
    assert node.server.refused_connections == 1
    assert node.shell("orders").log.log_end == 0


# Idleness


async def test_silent_connection_is_closed_after_its_time() -> None:
    async with running_node(kafka=settings(idle_ms_max=15_000)) as node:
        silent, lively, waiting = [await node.connect() for _ in range(3)]
        await node.create_topic("orders")
        for talk in (silent, lively, waiting):
            await talk.expect_open()
        await waiting.send(fetch("orders", wait_ms=FOR_EVER_MS), 12)
        for _ in range(3):
            await node.server._sweep()
            await lively.expect_open()
            await silent_but_open(node, 3)
        await node.server._sweep()
        await silent.expect_closed()
        await lively.expect_open()
        # Who waits for an answer is not idle.
        await lively.ask(produce("orders", batch(b"x")), ProduceResponse, 9)
        assert only_partition(await waiting.hear(FetchResponse)).records


async def silent_but_open(node: TalkingNode, count: int) -> None:
    assert node.server.connection_count == count


async def test_peer_that_never_reads_its_last_replies_is_cut_off() -> None:
    async with running_node(kafka=settings(idle_ms_max=5_000, write_buffer_bytes_max=MEGABYTE)) as node:
        await node.create_topic("orders")
        writer = await node.connect()
        for _ in range(20):
            await writer.ask(produce("orders", batch(bytes(MEGABYTE))), ProduceResponse, 9)
        # Past all that the sockets between them can hold.
        deaf = socket.create_connection((node.server.host, node.server.port))
        for number in range(3):
            deaf.sendall(wire.encode_request(fetch("orders"), 12, number, "deaf"))
        while not node.server.request_counts[FetchRequest.api_key]:
            await writer.expect_open()
        for _ in range(6):
            await node.server._sweep()
            await writer.expect_open()
        assert node.server.connection_count == 1
        deaf.close()


async def test_waiting_fetch_does_not_outlive_its_client(node: TalkingNode, talk: Conversation) -> None:
    """Or a client that comes, asks and goes again and again would leave a fetch behind each time."""
    await node.create_topic("orders")
    for _ in range(5):
        gone = await node.connect()
        await gone.send(fetch("orders", wait_ms=FOR_EVER_MS), 12)
        while not node.shell("orders").readers:
            await talk.expect_open()
        gone.close()
        while node.server.connection_count > 1:
            await talk.expect_open()
        await talk.expect_open()
        assert not node.shell("orders").readers


async def test_no_more_connections_than_allowed() -> None:
    async with running_node(kafka=settings(connections_max=2)) as node:
        first, second = await node.connect(), await node.connect()
        await first.expect_open()
        await second.expect_open()
        third = await node.connect()
        await third.expect_closed()
        await first.expect_open()
        second.close()
        while node.server.connection_count > 1:
            await first.expect_open()
        await (await node.connect()).expect_open()


# The end


async def test_stop_answers_what_waits_and_what_is_on_its_way_to_the_disk() -> None:
    disk = GatedDisk()
    async with running_node(files=lambda: disk) as node:
        await node.create_topic("orders", 2)
        reader, writer, idle = [await node.connect() for _ in range(3)]
        await idle.expect_open()
        await reader.send(fetch("orders", partition=1, wait_ms=FOR_EVER_MS), 12)
        await reader.send(metadata("orders"), 12)
        disk.close_gate()
        for _ in range(3):
            await writer.send(produce("orders", batch(b"x")), 9)
        await disk.wait_until_syncing()
        stopping = asyncio.ensure_future(node.stop())
        # The parked reader is answered although the disk still keeps the writer waiting.
        assert only_partition(await reader.hear(FetchResponse)).records == b""
        assert len((await reader.hear(MetadataResponse)).topics) == 1
        disk.open_gate()
        for offset in range(3):
            assert outcome(await writer.hear(ProduceResponse)) == (ErrorCode.NONE, offset)
        for talk in (reader, writer, idle):
            await talk.expect_closed()
        await stopping
        with pytest.raises(ConnectionError):
            await node.connect()


async def test_stop_waits_until_a_large_reply_was_taken() -> None:
    async with running_node() as node:
        await node.create_topic("orders")
        talk = await node.connect()
        for _ in range(7):
            await talk.ask(produce("orders", batch(bytes(MEGABYTE))), ProduceResponse, 9)
        other = await node.connect()
        await talk.send(fetch("orders"), 12)
        while not node.server.request_counts[FetchRequest.api_key]:
            await other.expect_open()
        stopping = asyncio.ensure_future(node.stop())
        assert len(values_in(only_partition(await talk.hear(FetchResponse)).records)) == 7
        await talk.expect_closed()
        await stopping


async def test_stop_does_not_wait_for_ever_for_who_does_not_read() -> None:
    async with running_node(kafka=settings(drain_ms_max=50)) as node:
        await node.create_topic("orders")
        talk = await node.connect()
        for _ in range(20):
            await talk.ask(produce("orders", batch(bytes(MEGABYTE))), ProduceResponse, 9)
        deaf = await node.connect()
        await deaf.send(fetch("orders"), 12)
        while not node.server.request_counts[FetchRequest.api_key]:
            await talk.expect_open()
        async with asyncio.timeout(10):
            await node.stop()
        assert node.server.connection_count == 0


async def test_interval_topics_are_synced_by_the_stop() -> None:
    disk = GatedDisk()
    async with running_node(files=lambda: disk) as node:
        topic_id = await node.create_topic("quick", durability="interval")
        talk = await node.connect()
        await talk.ask(produce("quick", batch(b"x")), ProduceResponse, 9)
        assert not any(topic_id.hex() in path for path in disk.synced)
        await node.stop()
        assert any(topic_id.hex() in path and path.endswith(".log") for path in disk.synced)


async def test_every_message_counts_in_the_metrics(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("orders")
    for _ in range(5):
        await talk.ask(produce("orders", batch(b"x")), ProduceResponse, 9)
    assert only_offset(await talk.ask(list_offsets("orders", -1), ListOffsetsResponse)).offset == 5
    assert node.server.request_counts[ProduceRequest.api_key] == 5
    assert node.server.bytes_in > 0
    assert node.server.bytes_out > 0
