"""A partition that another node leads, or nobody: what each door tells its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock.broker.partition.role import Following, Idle, Leading, Role
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.list_offsets import ListOffsetsResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.gateways.http.server import HttpServerConfig
from support.door.conversation import ANY_PORT, Conversation, TalkingNode, running_node
from support.door.kafka_phrases import (
    batch,
    fetch,
    list_offsets,
    only_offset,
    only_partition,
    outcome,
    outcomes,
    produce,
    produce_many,
)
from support.storage.gated_disk import GatedDisk

FOR_EVER_MS = 60_000
ELSEWHERE = Following(epoch=4, leader=2)
ROLES: list[Role] = [ELSEWHERE, Idle("its replicas are gone")]
REFUSED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
async def node(disk: GatedDisk) -> AsyncIterator[TalkingNode]:
    async with running_node(files=lambda: disk, http=HttpServerConfig(listen=ANY_PORT)) as running:
        await running.create_topic("orders", 2)
        yield running
        disk.open_gate()


@pytest.fixture
async def http(node: TalkingNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client:
        yield client


@pytest.fixture
async def writer(talk: Conversation) -> Conversation:
    """Has sent so much that its requests take the short way."""
    for _ in range(3):
        await talk.ask(produce("orders", batch(b"old")), ProduceResponse, 12)
    return talk


# Kafka


@pytest.mark.parametrize("role", ROLES)
async def test_kafka_producer_is_sent_to_the_leader(node: TalkingNode, writer: Conversation, role: Role) -> None:
    node.shell("orders").take_role(role)
    reply = await writer.ask(produce("orders", batch(b"new")), ProduceResponse, 12)
    assert outcome(reply) == REFUSED
    both = produce_many([("orders", 0, batch(b"new")), ("orders", 1, batch(b"new"))])
    assert outcomes(await writer.ask(both, ProduceResponse, 12)) == [REFUSED, (ErrorCode.NONE, 0)]
    node.shell("orders").take_role(Leading(5))
    assert outcome(await writer.ask(produce("orders", batch(b"new")), ProduceResponse, 12)) == (ErrorCode.NONE, 3)


async def test_kafka_producer_that_waits_for_the_disk_is_told_when_the_lead_is_lost(
    node: TalkingNode, disk: GatedDisk, writer: Conversation
) -> None:
    several = await node.connect()
    disk.close_gate()
    await writer.send(produce("orders", batch(b"new")), 12)
    await disk.wait_until_syncing()
    await several.send(produce_many([("orders", 0, batch(b"new")), ("orders", 1, batch(b"new"))]), 12)
    await (await node.connect()).expect_open()
    node.shell("orders").take_role(ELSEWHERE)
    lost = await writer.hear(ProduceResponse)
    assert outcome(lost) == REFUSED
    assert lost.responses[0].partition_responses[0].current_leader.leader_id == ELSEWHERE.leader
    disk.open_gate()
    assert outcomes(await several.hear(ProduceResponse)) == [REFUSED, (ErrorCode.NONE, 0)]


@pytest.mark.parametrize("role", ROLES)
async def test_kafka_consumer_is_sent_to_the_leader(node: TalkingNode, writer: Conversation, role: Role) -> None:
    waiting = await node.connect()
    await waiting.send(fetch("orders", 3, wait_ms=FOR_EVER_MS), 12)
    await writer.expect_open()
    node.shell("orders").take_role(role)
    assert only_partition(await waiting.hear(FetchResponse)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    asked = only_offset(await writer.ask(list_offsets("orders", -1), ListOffsetsResponse))
    assert asked.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# HTTP and SQS


async def test_http_says_unavailable_and_who_leads(node: TalkingNode, http: httpx.AsyncClient) -> None:
    node.shell("orders").take_role(ELSEWHERE)
    message = {"value": "a", "partition": 0}
    reply = await http.post("/v1/topics/orders/messages", json={"messages": [message]})
    assert reply.status_code == 503, reply.text
    assert "orders-0 is led by node 2" in reply.json()["detail"]


async def test_http_keyless_message_goes_where_this_node_leads(node: TalkingNode, http: httpx.AsyncClient) -> None:
    node.shell("orders").take_role(ELSEWHERE)
    for number in range(4):
        reply = await http.post("/v1/topics/orders/messages", json={"messages": [{"value": str(number)}]})
        assert reply.status_code == 201, reply.text
    assert (node.shell("orders", 0).readable_end, node.shell("orders", 1).readable_end) == (0, 4)


async def test_http_queue_that_is_not_all_here_is_not_served_by_half(
    node: TalkingNode, http: httpx.AsyncClient
) -> None:
    made = await http.put("/v1/queues/orders/jobs", json={})
    assert made.status_code in (200, 201), made.text
    node.shell("orders").take_role(ELSEWHERE)
    queue = "/v1/queues/orders/jobs"
    for reply in (
        await http.post(f"{queue}/receive", json={}),
        await http.get(f"{queue}/stats"),
        await http.get(f"{queue}/peek"),
        await http.post(f"{queue}/pause"),
        await http.post(f"{queue}/purge"),
    ):
        assert reply.status_code == 503, reply.text
        assert "orders-0 is led by node 2" in reply.json()["detail"]


async def sqs(http: httpx.AsyncClient, action: str, **body: Any) -> httpx.Response:
    head = {"x-amz-target": f"AmazonSQS.{action}", "content-type": "application/x-amz-json-1.0"}
    return await http.post("/", json=body, headers=head)


async def test_sqs_says_unavailable_and_who_leads(node: TalkingNode, http: httpx.AsyncClient) -> None:
    made = await sqs(http, "CreateQueue", QueueName="jobs")
    assert made.status_code == 200, made.text
    for shell in node.broker.shells():
        shell.take_role(ELSEWHERE)
    reply = await sqs(http, "SendMessage", QueueUrl=made.json()["QueueUrl"], MessageBody="a")
    assert reply.status_code == 503, reply.text
    assert "is led by node 2" in reply.json()["message"]
