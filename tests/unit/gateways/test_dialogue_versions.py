"""ApiVersions and DescribeCluster: what a client asks before anything else."""

from __future__ import annotations

import pytest

from penstock.codec import wire
from penstock.codec.wire import ErrorCode
from penstock.codec.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.codec.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from support.conversation import ANY_PORT, Conversation, KafkaServerConfig, TalkingNode, running_node

# Kafka 4.2's table for the requests that are served, except that Produce is told from 0 on.
SERVED = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 10: (0, 6), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 32: (1, 4), 33: (0, 2), 35: (1, 5), 37: (0, 3), 44: (0, 1), 60: (0, 2), 75: (0, 0),
}  # fmt: skip


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
async def test_served_versions_are_told(node: TalkingNode, talk: Conversation, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="dialogue", client_software_version="1.0")
    reply = await talk.ask(request, ApiVersionsResponse, version)
    assert reply.error_code == ErrorCode.NONE
    told = {entry.api_key: (entry.min_version, entry.max_version) for entry in reply.api_keys}
    assert {key: told.get(key) for key in SERVED} == SERVED
    assert set(told) == set(node.server._handlers)


async def test_too_new_question_is_answered_in_the_oldest_version(talk: Conversation) -> None:
    frame = bytearray(talk.frame(ApiVersionsRequest(), 0))
    talk._asked.clear()
    frame[4:8] = b"\x00\x12\x00\x63"
    # The header of a flexible version has tags, and the body is something that nobody has heard of yet.
    frame += b"\x00and more"
    frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    talk.send_bytes(bytes(frame))
    decoded = wire.decode_response(ApiVersionsResponse, 0, memoryview(await talk.hear_frame()))
    assert not isinstance(decoded, wire.Malformed)
    assert decoded[0] == 1
    assert decoded[1].error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {entry.api_key for entry in decoded[1].api_keys} >= set(SERVED)
    await talk.expect_open()


@pytest.mark.parametrize(
    ("name", "version"),
    [("", "1"), ("-x", "1"), ("x-", "1"), ("a b", "1"), ("ä", "1"), ("x", ""), ("x", "1 2"), ("x", "-1")],
)
async def test_client_must_have_a_proper_name(talk: Conversation, name: str, version: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    for api_version in (3, 4):
        await talk.send(request, api_version)
        await talk.expect(ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
    # Before version 3 nobody introduced himself.
    assert (await talk.ask(request, ApiVersionsResponse, 2)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("name", ["a", "librdkafka", "apache-kafka-java", "kafka.js-2", "0"])
async def test_proper_names_are_taken(talk: Conversation, name: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="v2.0.2-dirty.1")
    assert (await talk.ask(request, ApiVersionsResponse, 4)).error_code == ErrorCode.NONE


async def test_client_without_a_name_is_served(node: TalkingNode) -> None:
    for client_id in (None, "", "ä" * 1000):
        talk = await node.connect(client_id=client_id)
        await talk.expect_open()


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_cluster_is_this_node(node: TalkingNode, talk: Conversation, version: int) -> None:
    reply = await talk.ask(DescribeClusterRequest(), DescribeClusterResponse, version)
    assert (reply.error_code, reply.controller_id) == (ErrorCode.NONE, 1)
    assert reply.cluster_id
    assert reply.cluster_authorized_operations == -0x80000000
    host, _, port = node.addresses["kafka"].rpartition(":")
    assert list(reply.brokers) == [DescribeClusterBroker(broker_id=1, host=host, port=int(port))]


async def test_permissions_on_the_cluster_are_told_if_asked_for(talk: Conversation) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    reply = await talk.ask(request, DescribeClusterResponse)
    # Create, alter, describe, cluster action, describe and alter configs, idempotent write.
    assert reply.cluster_authorized_operations == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


async def test_controllers_are_not_listed_here(talk: Conversation) -> None:
    for endpoint_type, error in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
        reply = await talk.ask(DescribeClusterRequest(endpoint_type=endpoint_type), DescribeClusterResponse)
        assert reply.error_code == error
        assert not reply.brokers


async def test_clients_are_told_the_advertised_address() -> None:
    async with running_node(kafka=KafkaServerConfig(listen=ANY_PORT, advertised="broker.example:19092")) as node:
        talk = await node.connect()
        reply = await talk.ask(DescribeClusterRequest(), DescribeClusterResponse)
        assert [(broker.host, broker.port) for broker in reply.brokers] == [("broker.example", 19092)]
