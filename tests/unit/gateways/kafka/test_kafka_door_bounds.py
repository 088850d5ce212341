"""What many clients together, or one with a large request, can take of a node at the Kafka door."""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import alter_user_scram_credentials as scram
from penstock.codec.kafka.messages import incremental_alter_configs as alter
from penstock.codec.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.codec.kafka.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.codec.kafka.messages.share_fetch import (
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from penstock.gateways.kafka.server_config import KafkaServerConfig
from support.door.conversation import ANY_PORT, PATIENCE_SECONDS, Conversation, TalkingNode, running_node
from support.door.kafka_phrases import batch, fetch, only_partition, outcome, produce

MEGABYTE = 1_000_000
GROUP_SETTINGS = 32
NODE_SETTINGS = 4


def settings(**changes: int) -> KafkaServerConfig:
    return KafkaServerConfig(listen=ANY_PORT, **changes)  # type: ignore[arg-type]


# Memory for requests


async def test_who_claims_memory_and_sends_nothing_cannot_keep_it_from_others() -> None:
    async with running_node(kafka=settings(request_bytes_max=10 * MEGABYTE)) as node:
        await node.create_topic("orders")
        claimant, writer = await node.connect(), await node.connect()
        claimant.send_bytes(struct.pack(">i", 9 * MEGABYTE + MEGABYTE // 2) + b"\0\0\0\x09")
        await until(lambda: node.server.memory.bytes_held > 9 * MEGABYTE)
        await writer.send(produce("orders", batch(bytes(MEGABYTE))), 9)
        await until(lambda: node.server.memory.is_wanted)
        for _ in range(3):
            await node.server._sweep()
        await claimant.expect_closed()
        assert outcome(await writer.hear(ProduceResponse))[0] == ErrorCode.NONE


async def test_a_large_request_that_is_under_way_is_left_alone() -> None:
    async with running_node(kafka=settings(request_bytes_max=10 * MEGABYTE)) as node:
        await node.create_topic("orders", max_message_bytes="20000000")
        steady, other = await node.connect(), await node.connect()
        request = steady.frame(produce("orders", batch(bytes(9 * MEGABYTE))), 9)
        steady.send_bytes(request[: 4 * MEGABYTE])
        await until(lambda: node.server.memory.bytes_held > 9 * MEGABYTE)
        other.send_bytes(struct.pack(">i", 9 * MEGABYTE) + b"\0\0\0\x09")
        await until(lambda: node.server.memory.is_wanted)
        for sent in range(4, 9):
            await node.server._sweep()
            before = node.server.bytes_in
            steady.send_bytes(request[sent * MEGABYTE : (sent + 1) * MEGABYTE])
            await until(partial(has_come, node, before + MEGABYTE))
        steady.send_bytes(request[9 * MEGABYTE :])
        assert outcome(await steady.hear(ProduceResponse))[0] == ErrorCode.NONE


async def test_memory_that_nobody_needs_is_given_to_who_asks_at_once() -> None:
    async with running_node(kafka=settings(request_bytes_max=3 * MEGABYTE // 2)) as node:
        await node.create_topic("orders")
        first, second = await node.connect(), await node.connect()
        for talk in (first, second, first):
            # No sweep is needed in between.
            reply = await talk.ask(produce("orders", batch(bytes(MEGABYTE))), ProduceResponse, 9)
            assert outcome(reply)[0] == ErrorCode.NONE


def has_come(node: TalkingNode, bytes_in: int) -> bool:
    return node.server.bytes_in >= bytes_in


def are_asked(node: TalkingNode, count: int) -> bool:
    return node.server.request_counts[1] == count


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_true():  # noqa: ASYNC110  nothing is told of it that could be waited for
            await asyncio.sleep(0.005)


# Memory for replies


async def test_what_slow_readers_leave_unread_is_bounded_and_all_of_them_come_through() -> None:
    bound = 24 * MEGABYTE
    async with running_node(kafka=settings(reply_bytes_max=bound)) as node:
        await node.create_topic("orders")
        writer = await node.connect()
        for _ in range(10):
            await writer.ask(produce("orders", batch(bytes(MEGABYTE))), ProduceResponse, 9)
        readers = []
        for number in range(16):
            reader = socket.create_connection((node.server.host, node.server.port))
            reader.sendall(wire.encode_request(fetch("orders"), 12, number, "slow"))
            readers.append(reader)
            await until(partial(are_asked, node, number + 1))
            await writer.expect_open()
        assert sum(connection.unread_bytes for connection in node.server._connections) < bound + 2 * MEGABYTE
        for reader in readers:
            size = await asyncio.to_thread(read_reply, reader)
            assert size > 64_000
            reader.close()
        # With all that taken there is as much as ever.
        await until(lambda: node.server.reply_room() >= 8 * 1024 * 1024 // 4)
        reply = await (await node.connect()).ask(fetch("orders"), FetchResponse, 12)
        assert len(only_partition(reply).records or b"") > MEGABYTE


def read_reply(reader: socket.socket) -> int:
    with reader.makefile("rb") as stream:
        (size,) = struct.unpack(">i", stream.read(4))
        return len(stream.read(size))


# Requests that grow by being answered


async def test_what_is_named_a_thousand_times_is_told_once(talk: Conversation) -> None:
    resource = DescribeConfigsResource(NODE_SETTINGS, "1", None)
    reply = await talk.ask(DescribeConfigsRequest(resources=[resource] * 1000), DescribeConfigsResponse)
    assert [(each.resource_name, each.error_code) for each in reply.results] == [("1", 0)]
    groups = await talk.ask(DescribeGroupsRequest(groups=["a"] * 1000), DescribeGroupsResponse)
    assert [group.group_id for group in groups.groups] == ["a"]


def handler_of(node: TalkingNode, request: type[wire.Request]) -> Any:
    return inspect.unwrap(node.server._handlers[request.api_key]).__self__  # type: ignore[attr-defined]


async def test_settings_of_too_many_groups_at_a_time_are_refused(node: TalkingNode, talk: Conversation) -> None:
    handler_of(node, DescribeConfigsRequest).described_max = 150
    resources = [DescribeConfigsResource(GROUP_SETTINGS, f"g{number}", None) for number in range(200)]
    reply = await talk.ask(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
    codes = [each.error_code for each in reply.results]
    assert codes == [ErrorCode.NONE] * 150 + [ErrorCode.INVALID_REQUEST] * 50


async def test_many_changes_in_one_request_do_not_take_their_number_squared(talk: Conversation) -> None:
    """Ten thousand of either took half a minute, in which nobody else was served."""
    resource = alter.AlterConfigsResource(2, "orders", ())
    upsertion = scram.ScramCredentialUpsertion("alice", 1, 0, b"salt", b"password")
    users = [scram.ScramCredentialUpsertion(f"u{number}", 1, 0, b"salt", b"x") for number in range(10_000)]
    began = time.monotonic()
    altered = await talk.ask(
        alter.IncrementalAlterConfigsRequest(resources=[resource] * 10_000), alter.IncrementalAlterConfigsResponse
    )
    assert {each.error_code for each in altered.responses} == {ErrorCode.INVALID_REQUEST}
    changed = await talk.ask(
        scram.AlterUserScramCredentialsRequest(upsertions=[upsertion, *users]), scram.AlterUserScramCredentialsResponse
    )
    assert {each.error_code for each in changed.results} == {ErrorCode.UNACCEPTABLE_CREDENTIAL}
    assert time.monotonic() - began < 5


# Share sessions


async def test_partitions_of_share_sessions_are_bounded(node: TalkingNode) -> None:
    handler_of(node, ShareFetchRequest)._desk.partitions_max = 100
    talk = await node.connect()

    async def open_session(member: str, count: int) -> int:
        partitions = [FetchPartition(partition_index=number) for number in range(count)]
        request = ShareFetchRequest(
            group_id="g", member_id=member, share_session_epoch=0, max_wait_ms=0, min_bytes=1, max_bytes=1,
            max_records=1, topics=[FetchTopic(topic_id=b"x" * 16, partitions=partitions)],
        )  # fmt: skip
        return (await talk.ask(request, ShareFetchResponse)).error_code

    assert await open_session("ann", 60) == ErrorCode.NONE
    assert await open_session("bob", 60) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert await open_session("bob", 40) == ErrorCode.NONE
