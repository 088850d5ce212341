"""ApiVersions and DescribeCluster: what a client asks before anything else."""

from __future__ import annotations

import socket

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.codec.kafka.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from support.door.conversation import ANY_PORT, Conversation, KafkaServerConfig, TalkingNode, running_node

# The whole table of a broker of Kafka 4.3, except that Produce is told from 0 on. Clients guess a broker's release from
# it (franz-go's kversion takes the one whose keys and highest versions are all there), and tools choose by the guess.
SERVED = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3),
    31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2),
    40: (1, 2), 41: (1, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1),
    49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0),
    66: (0, 2), 68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2),
    80: (0, 1), 81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1), 88: (0, 0), 89: (0, 0),
    90: (0, 1), 91: (0, 0), 92: (0, 0),
}  # fmt: skip


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
async def test_served_versions_are_told(node: TalkingNode, talk: Conversation, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="dialogue", client_software_version="1.0")
    reply = await talk.ask(request, ApiVersionsResponse, version)
    assert reply.error_code == ErrorCode.NONE
    told = {entry.api_key: (entry.min_version, entry.max_version) for entry in reply.api_keys}
    assert told == SERVED
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
    assert list(reply.brokers) == [DescribeClusterBroker(1, host, int(port), rack=socket.gethostname())]


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
