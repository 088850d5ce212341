"""Clients of the HTTP and SQS doors that break off, say nothing, or ask for what no number holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.gateways.http.protocol import HEAD_BYTES_MAX
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.http_port import HttpPort
from support.door.conversation import ANY_PORT, PATIENCE_SECONDS, TalkingNode, running_node
from support.door.kafka_phrases import outcome, produce

POST = b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\n"
BYTES = POST + b"Content-Type: application/octet-stream\r\n"


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    config = HttpServerConfig(listen=ANY_PORT, connections_max=4, request_bytes_total_max=400_000)
    async with running_node(http=config) as running:
        yield running


@pytest.fixture
async def http(node: TalkingNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client:
        yield client


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, node: TalkingNode) -> Raw:
        host, _, port = node.addresses["http"].rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self._writer.close()

    async def rest(self) -> bytes:
        """All that comes until the other side closes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def status(self) -> int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return int((await self._reader.readline()).split()[1])


async def ask_sqs(http: httpx.AsyncClient, action: str, fields: dict[str, Any]) -> httpx.Response:
    return await http.post("/", content=json.dumps(fields), headers={"x-amz-target": f"AmazonSQS.{action}"})


# Broken off


async def test_half_a_message_is_not_published(node: TalkingNode, http: httpx.AsyncClient) -> None:
    await node.create_topic("orders")
    raw = await Raw.open(node)
    raw.send(BYTES + b"Content-Length: 100\r\n\r\nonly half of it")
    await until_connected(node)
    raw.close()
    # Answered on the same loop, after the other one's end was seen.
    for _ in range(20):
        assert (await http.get("/health")).status_code == 200
    assert node.shell("orders").log.log_end == 0
    whole = await Raw.open(node)
    whole.send(BYTES + b"Content-Length: 5\r\n\r\nwhole")
    assert await whole.status() == 201
    whole.close()


async def until_connected(node: TalkingNode) -> None:
    """The request before it on the same loop was looked at."""
    other = await Raw.open(node)
    other.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert await other.status() == 200
    other.close()


# Too much, too many, too slow


async def test_headers_without_end_are_refused(node: TalkingNode) -> None:
    raw = await Raw.open(node)
    raw.send(POST + b"X: " + b"x" * HEAD_BYTES_MAX)
    await until_connected(node)
    raw.send(b"x")
    assert (await raw.rest()).startswith(b"HTTP/1.1 431 ")


async def test_one_connection_too_many_is_told_so(node: TalkingNode) -> None:
    inside = [await Raw.open(node) for _ in range(4)]
    for raw in inside:
        raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await raw.status() == 200
    assert (await (await Raw.open(node)).rest()).startswith(b"HTTP/1.1 503 ")
    inside[0].close()
    await inside[0].rest()


def hurry(node: TalkingNode) -> None:
    """What is looked at every quarter of a minute is looked at all the time."""
    port = node.doors[HttpPort.name]
    assert isinstance(port, HttpPort)
    assert port.server is not None
    assert port.server.protocol is not None
    port.server.protocol.period_seconds = 0.05


@pytest.mark.parametrize(
    "sent", [b"", POST, BYTES + b"Content-Length: 100000\r\n\r\nslow", b"\r\n", POST + b"X: y\r\n"]
)
async def test_who_owes_the_rest_of_a_request_is_not_waited_for(node: TalkingNode, sent: bytes) -> None:
    hurry(node)
    raw = await Raw.open(node)
    raw.send(sent)
    assert b"HTTP/1.1 2" not in await raw.rest()


async def test_who_waits_for_our_answer_is_left_alone(node: TalkingNode) -> None:
    hurry(node)
    await node.create_topic("orders")
    raw = await Raw.open(node)
    body = b'{"wait_ms":500}'
    raw.send(
        b"POST /v1/queues/orders/workers/receive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    raw.send(body)
    assert await raw.status() == 200
    raw.close()


async def test_bodies_that_are_being_received_are_bounded_together(node: TalkingNode) -> None:
    await node.create_topic("orders")
    body = b"x" * 300_000
    first, second = await Raw.open(node), await Raw.open(node)
    first.send(BYTES + b"Content-Length: %d\r\n\r\n" % len(body) + body[:200_000])
    await until_connected(node)
    second.send(BYTES + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await until_connected(node)
    assert node.shell("orders").log.log_end == 0
    # Its place is free when the first one has gone.
    first.close()
    assert await second.status() == 201
    second.close()


# What no number holds


async def test_a_count_is_what_it_says_or_refused(http: httpx.AsyncClient) -> None:
    await http.post("/v1/topics/orders/messages", json={"value": "a"})
    await http.put("/v1/queues/orders/workers", json={})
    for count in ("00000000110000000", "0", "-1", "²", "9" * 5_000, "000000001" + "0" * 5_000):
        for path in ("/v1/queues/orders/workers/peek", "/v1/dead-letters/orders", "/v1/schedules"):
            reply = await http.get(path, params={"count": count, "topic": "orders"})
            assert reply.status_code == 400, f"{path}: {reply.text}"


async def test_a_body_that_cannot_be_read_is_the_senders_fault(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    for body in [
        b'{"value":"\xff"}',
        b'{"value":' + b"[" * 100_000,
        b'{"value":1e999}',
        b'{"priority":1e400}',
        b"\xff\xfe",
    ]:
        for path in ("/v1/topics/orders/messages", "/v1/queues/orders/workers/receive"):
            assert (await http.post(path, content=body, headers=headers)).status_code == 400
        sqs = await http.post("/", content=body, headers={"x-amz-target": "AmazonSQS.SendMessage"})
        assert sqs.status_code == 400


async def test_nesting_that_can_be_read_can_be_stored(http: httpx.AsyncClient) -> None:
    for depth in range(100, 1_200, 10):
        body = b'{"value":' + b"[" * depth + b"]" * depth + b',"priority":3.0}'
        reply = await http.post(
            "/v1/topics/orders/messages", content=body, headers={"content-type": "application/json"}
        )
        assert reply.status_code in (201, 400), f"{depth}: {reply.text}"


async def test_an_account_of_many_digits_is_an_account(http: httpx.AsyncClient) -> None:
    reply = await http.post(
        f"/{'1' * 5_000}/orders",
        content="Action=SendMessage&MessageBody=x",
        headers={"authorization": "AWS4-HMAC-SHA256"},
    )
    assert reply.status_code == 400
    assert "NonExistentQueue" in reply.text


async def test_attributes_that_cannot_be_read_are_the_senders_fault(http: httpx.AsyncClient) -> None:
    for attributes in [
        {"VisibilityTimeout": "1" * 5_000},
        {"RedrivePolicy": "[" * 100_000},
        {"RedrivePolicy": '{"deadLetterTargetArn":"arn:aws:sqs:a:1:q","maxReceiveCount":"²"}'},
        {"RedriveAllowPolicy": "[" * 100_000},
    ]:
        assert (await ask_sqs(http, "CreateQueue", {"QueueName": "q", "Attributes": attributes})).status_code == 400


# SQS


async def test_a_batch_may_be_larger_than_one_message(http: httpx.AsyncClient) -> None:
    """As with AWS: a queue's maximum is for each message, all of them together have a megabyte."""
    await ask_sqs(http, "CreateQueue", {"QueueName": "q", "Attributes": {"MaximumMessageSize": "1024"}})
    entries = [{"Id": str(number), "MessageBody": "x" * 1_000} for number in range(9)]
    entries.append({"Id": "large", "MessageBody": "x" * 1_025})
    reply = (await ask_sqs(http, "SendMessageBatch", {"QueueUrl": "/0/q", "Entries": entries})).json()
    assert len(reply["Successful"]) == 9
    assert [each["Id"] for each in reply["Failed"]] == ["large"]


async def test_headers_of_a_kafka_producer_do_not_poison_an_sqs_queue(
    node: TalkingNode, http: httpx.AsyncClient
) -> None:
    await ask_sqs(http, "CreateQueue", {"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}})
    headers = (
        ("penstock-sqs-types", b"[" * 100_000),
        ("penstock-sqs-deduplication-id", b"1"),
        ("penstock-message-id", b"08iG_FVFgk3QseosQV9M-PIAAAAAAAAAAAAAAAA"),
        ("penstock-scheduled-at", "²".encode()),
    )
    record = Record(value=b"a", key=b"k", timestamp_ms=node.broker.clock.now_ms(), headers=headers)
    talk = await node.connect()
    reply = await talk.ask(produce("q.fifo", build_batch([record])), ProduceResponse, 9)
    assert outcome(reply)[0] == ErrorCode.NONE
    fields = {"QueueUrl": "/0/q.fifo", "MessageBody": "b", "MessageGroupId": "g", "MessageDeduplicationId": "2"}
    assert (await ask_sqs(http, "SendMessage", fields)).status_code == 200
    received = await ask_sqs(http, "ReceiveMessage", {"QueueUrl": "/0/q.fifo", "MessageAttributeNames": ["All"]})
    assert [each["Body"] for each in received.json()["Messages"]] == ["a"]
