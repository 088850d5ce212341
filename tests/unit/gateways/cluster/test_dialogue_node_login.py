"""Who comes in by the internal door: nodes that have the secret, of this cluster, at this feature level."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.base.clock import ManualClock
from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.internal.barrier import BarrierRequest, BarrierResponse
from penstock.codec.kafka.internal.hello import HelloRequest
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.codec.kafka.messages.metadata import MetadataRequest
from penstock.domain.replication.identity import NODE_USER, NodeIdentity, login_password, mismatch
from penstock.gateways.kafka.server_config import KafkaServerConfig, ServerLimits
from support.cluster.replicas import (
    HERE,
    SECRET,
    THERE,
    ScriptedReplicas,
    come_in,
    internal_door,
    node_with_internal_door,
    say_hello,
)
from support.door.conversation import ANY_PORT, TalkingNode
from support.door.sasl_phrases import handshake, log_in

DOOR = "cluster"


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with node_with_internal_door(ScriptedReplicas()) as running:
        yield running


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_node_with_the_secret_is_greeted_and_served(node: TalkingNode, mechanism: str) -> None:
    talk = await come_in(node, mechanism=mechanism)
    answer = await say_hello(talk)
    assert answer.error_code == ErrorCode.NONE
    assert NodeIdentity(answer.cluster_id, answer.node_id, answer.broker_epoch, answer.feature_level) == HERE
    await talk.ask(BarrierRequest(timeout_ms=10), BarrierResponse)


@pytest.mark.parametrize(("user", "secret"), [(NODE_USER, b"another"), ("alice", SECRET), (NODE_USER, b"")])
async def test_wrong_secret_is_refused_with_a_line_in_the_log(node: TalkingNode, user: str, secret: bytes) -> None:
    talk = await node.connect(door=DOOR)
    with capture_logs() as events:
        answer = await log_in(talk, "SCRAM-SHA-512", user, login_password(secret) or "empty")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    await talk.expect_closed()
    (told,) = [event for event in events if event["event"] == "login refused"]
    assert (told["area"], told["user"]) == (DOOR, user)


async def test_password_itself_is_never_asked_for(node: TalkingNode) -> None:
    talk = await node.connect(door=DOOR)
    refused = await handshake(talk, "PLAIN")
    assert refused.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert list(refused.mechanisms) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    await talk.expect_closed()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cluster_id": "meadow"}, "node 3 is of cluster 'meadow', node 2 of cluster 'orchard'"),
        ({"feature_level": 2}, "node 3 acts by feature level 2, node 2 by level 1"),
        ({"feature_level": 0}, "node 3 acts by feature level 0, node 2 by level 1"),
    ],
)
async def test_node_that_is_none_of_us_is_told_why_and_so_is_our_log(
    node: TalkingNode, change: dict[str, Any], told: str
) -> None:
    talk = await come_in(node)
    with capture_logs() as events:
        answer = await say_hello(talk, msgspec.structs.replace(THERE, **change))
        again = await come_in(node)
        await say_hello(again, msgspec.structs.replace(THERE, **change))
    assert (answer.error_code, answer.error_message) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, told)
    assert (answer.cluster_id, answer.node_id) == (HERE.cluster_id, HERE.node_id)
    await talk.expect_closed()
    # Once: who is refused tries again for as long as it lives.
    (event,) = [event for event in events if event["event"] == "node refused"]
    assert (event["node"], event["reason"]) == (3, told)


def test_feature_levels_and_clusters_are_compared_and_nothing_else() -> None:
    assert mismatch(HERE, THERE) is None
    assert mismatch(HERE, msgspec.structs.replace(HERE, life=71)) is None


@pytest.mark.parametrize("request_", [BarrierRequest(), wire.ProduceRequest(), wire.FetchRequest()])
async def test_nothing_is_served_before_hello(node: TalkingNode, request_: wire.Request) -> None:
    talk = await come_in(node)
    await talk.ask(ApiVersionsRequest("node", "1"), ApiVersionsResponse)
    await talk.send(request_)
    await talk.expect_closed()


@pytest.mark.parametrize("request_", [HelloRequest(), BarrierRequest(), wire.ProduceRequest(), MetadataRequest()])
async def test_nothing_is_served_before_the_login(node: TalkingNode, request_: wire.Request) -> None:
    talk = await node.connect(door=DOOR)
    await talk.send(request_)
    await talk.expect_closed()


async def test_what_is_told_is_what_is_served(node: TalkingNode) -> None:
    talk = await node.connect(door=DOOR)
    told = await talk.ask(ApiVersionsRequest("node", "1"), ApiVersionsResponse)
    names = {wire.APIS[api.api_key].name for api in told.api_keys}
    assert names == {
        "ApiVersions", "SaslHandshake", "SaslAuthenticate", "Hello", "Fetch", "Barrier", "DescribeReplica", "Forward",
        "Produce", "WriteTxnMarkers", "AddPartitionsToTxn", "ListOffsets", "OffsetFetch",
    }  # fmt: skip


async def test_what_is_not_served_to_nodes_ends_the_connection(node: TalkingNode) -> None:
    talk = await come_in(node)
    await say_hello(talk)
    await talk.send(MetadataRequest())
    await talk.expect_closed()


async def test_frame_before_the_login_is_small(node: TalkingNode) -> None:
    for size in (64 * 1024, 1 << 30, -1, 0):
        talk = await node.connect(door=DOOR)
        talk.send_bytes(size.to_bytes(4, "big", signed=True) + b"\0\x12")
        await talk.expect_closed()


async def test_who_does_not_log_in_is_sent_away() -> None:
    clock = ManualClock()
    limits = ServerLimits(login_ms_max=5_000)
    async with node_with_internal_door(ScriptedReplicas(), limits=limits, clock=clock) as node:
        talk = await node.connect(door=DOOR)
        await handshake(talk, "SCRAM-SHA-512")
        inside = await come_in(node)
        server = internal_door(node).server
        assert server is not None
        clock.advance_ms(5_001)
        # What happens every five seconds.
        await server._sweep()
        await talk.expect_closed()
        await say_hello(inside)


async def test_connections_of_nodes_are_not_counted_among_the_clients() -> None:
    kafka = KafkaServerConfig(listen=ANY_PORT, connections_max=1)
    async with node_with_internal_door(ScriptedReplicas(), kafka=kafka) as node:
        client = await node.connect()
        await client.expect_open()
        for _ in range(3):
            await say_hello(await come_in(node))
        await client.expect_open()
        assert node.server.connection_count == 1
