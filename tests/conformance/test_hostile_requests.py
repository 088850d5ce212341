"""Requests that are well formed and make no sense, and such with a few bytes wrong, at both ports of a node: each is
answered or its connection closed, nothing is a fault of the node's, and whoever else is there is served."""

from __future__ import annotations

import http.client
import json
import random
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataResponse
from support.codec import wire_messages
from support.door.raw_kafka import METADATA_VERSION, RawConnection, create_by_asking, one_batch
from support.node_process import NodeProcess

KAFKA_REQUESTS = 1_500
HTTP_REQUESTS = 700
# A request that waits for others is given up after this: a member that joins, a batch that begins a transaction.
REPLY_SECONDS_MAX = 0.2
NAMES = ("orders", "orders", "others", "workers", "tx", "consumer", "range", "", "__consumer_offsets", "1", "*", "a/b")
NUMBERS = (0, 0, 0, 1, 1, 2, 3, -1, -1, -2, 5, 100, 1 << 31, -(1 << 31))


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("hurt"), has_http=True, memory=True) as running:
        with RawConnection(running) as first:
            create_by_asking(first, "orders")
        yield running


@pytest.fixture
def bystander(hurt: NodeProcess) -> Iterator[RawConnection]:
    with RawConnection(hurt) as connection:
        connection.ask(MetadataRequest(topics=()), MetadataResponse, METADATA_VERSION)
        yield connection
        connection.ask(MetadataRequest(topics=()), MetadataResponse, METADATA_VERSION)
    log = hurt.log_text()
    assert hurt.is_running
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4_000]
    assert "request failed" not in log


# Kafka


def telling(names: tuple[str, ...], topic_ids: list[bytes]) -> Any:
    """Values that mean something more often than by chance."""

    def value(kind: Any, version: int, chance: random.Random) -> Any:
        if isinstance(kind, wire_messages.Text) and chance.random() < 0.8:
            return chance.choice(names)
        if isinstance(kind, wire_messages.Scalar) and chance.random() < 0.7:
            if kind.format == "16s":
                return chance.choice(topic_ids)
            bits = wire_messages._BITS.get(kind.format)
            if bits is not None:
                number = chance.choice(NUMBERS)
                return number if -(1 << bits - 1) <= number < 1 << bits - 1 else -1
        if isinstance(kind, wire_messages.Blob) and chance.random() < 0.5:
            return spoilt(one_batch(b"value"), chance) if chance.random() < 0.3 else one_batch(b"value")
        return wire_messages.random_value(kind, version, chance, value)

    return value


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """A byte changed, some gone, or some more."""
    place, act = chance.randrange(len(data)), chance.randrange(3)
    if act == 0:
        return data[:place] + chance.randbytes(1) + data[place + 1 :]
    return data[:place] + data[place + 3 :] if act == 1 else data[:place] + chance.randbytes(3) + data[place:]


@pytest.mark.usefixtures("bystander")
def test_no_kafka_request_is_a_fault_of_the_nodes(hurt: NodeProcess) -> None:
    chance = random.Random(7)
    with RawConnection(hurt) as asking:
        known = asking.ask(MetadataRequest(topics=None), MetadataResponse, 12).topics
    topic_ids = [*(bytes(topic.topic_id) for topic in known), bytes(16), b"x" * 16]
    make = telling(NAMES, topic_ids)
    apis = list(wire.APIS.values())
    connection: RawConnection | None = None
    for _ in range(KAFKA_REQUESTS):
        api = chance.choice(apis)
        version = chance.randint(api.version_min, api.version_max)
        request = wire_messages.random_message(api.request, version, chance, make)
        body = wire.encode_request(request, version, 7, chance.choice(("x", None)))[4:]
        if chance.random() < 0.25:
            body = spoilt(body, chance)
        connection = connection or RawConnection(hurt, timeout_seconds=REPLY_SECONDS_MAX)
        try:
            connection.send_bytes(struct.pack(">i", len(body)) + body)
            if connection.receive_frame() is not None:
                continue
        except OSError:
            pass
        connection.close()
        connection = None
    if connection is not None:
        connection.close()


# HTTP and SQS

VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 1 << 63, 10**30, 1.5, 1e300, "", "orders", "a", "\0", "\ud83d\ude00", "x" * 5_000, "²",
    "1" * 5_000, [], ["a"], {}, {"a": {"a": "b"}}, "[" * 3_000,
    '{"deadLetterTargetArn":"arn:aws:sqs:a:1:orders","maxReceiveCount":"²"}',
)  # fmt: skip
FIELDS = (
    "value", "key", "headers", "messages", "priority", "delay_ms", "deliver_at", "partition", "timestamp_ms", "count",
    "wait_ms", "receipts", "lease_ms", "reject", "error", "ordering", "back_off", "dead_letter_topic", "cron",
    "timezone",
    "QueueUrl", "QueueName", "MessageBody", "Attributes", "AttributeNames", "Entries", "ReceiptHandle", "SourceArn",
    "VisibilityTimeout", "DelaySeconds", "MessageAttributes", "TaskHandle", "Tags", "TagKeys", "MaxNumberOfMessages",
)  # fmt: skip
BODIES = (
    b"",
    b"null",
    b"[",
    b'{"value":"\xff"}',
    b'{"value":' + b"[" * 50_000,
    b'{"value":"\\ud800"}',
    b"a=1&a.b=2",
    b"\0",
)


def some_fields(chance: random.Random) -> bytes:
    fields = {name: chance.choice(VALUES) for name in chance.sample(FIELDS, chance.randrange(5))}
    return json.dumps(fields | {"QueueUrl": "/0/orders"} if chance.random() < 0.5 else fields).encode(
        "utf-8", "replace"
    )


def paths() -> list[tuple[str, str]]:
    from penstock.gateways.rest.openapi import OPERATIONS

    return [(each.method.upper(), each.path) for each in OPERATIONS]


def some_request(chance: random.Random, known: list[tuple[str, str]], actions: list[str]) -> tuple[Any, ...]:
    headers = {"content-type": chance.choice(("application/json", "application/octet-stream", "text/markdown"))}
    body = chance.choice(BODIES) if chance.random() < 0.3 else some_fields(chance)
    if chance.random() < 0.4:
        return "POST", "/", body, headers | {"x-amz-target": f"AmazonSQS.{chance.choice(actions)}"}
    if chance.random() < 0.2:
        form = f"Action={chance.choice(actions)}&Attribute.1.Name=a&Attribute.{chance.choice(('1', '²', 'x'))}.Value=b"
        return (
            "POST",
            f"/{'1' * chance.choice((1, 12, 5_000))}/orders",
            form.encode(),
            headers | {"authorization": "AWS4-HMAC-SHA256"},
        )
    method, path = chance.choice(known)
    pieces = ("orders", "orders", "workers", "%FF", "%00", "..", "__consumer_offsets", "0", "1" * 5_000, "%C2%B2")
    path = re.sub(r"\{\w+\}", lambda _: chance.choice(pieces), path)
    numbers = ("1", "-1", "0000000019999999", "9" * 5_000, "%C2%B2", "x", "")
    names = ("count", "partition", "since_ms", "after", "topic", "key", "priority", "cursor", "group", "format")
    query = "&".join(f"{name}={chance.choice(numbers)}" for name in chance.sample(names, chance.randrange(4)))
    return method, f"{path}?{query}", body, headers


@pytest.mark.usefixtures("bystander")
def test_no_http_request_is_a_fault_of_the_nodes(hurt: NodeProcess) -> None:
    from penstock.gateways.sqs.access import RIGHTS

    chance, known, actions = random.Random(8), paths(), sorted(RIGHTS)
    connection = http.client.HTTPConnection(hurt.http, timeout=10)
    for _ in range(HTTP_REQUESTS):
        method, path, body, headers = some_request(chance, known, actions)
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        reply.read()
        assert reply.status != 500, (method, path[:200], body[:300], headers)
    connection.close()


@pytest.mark.usefixtures("bystander")
def test_no_bytes_at_the_http_port_are_a_fault_of_the_nodes(hurt: NodeProcess) -> None:
    chance = random.Random(9)
    whole = (
        b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )
    for _ in range(100):
        data = chance.randbytes(chance.randrange(1, 300)) if chance.random() < 0.3 else spoilt(whole, chance)
        host, _, port = hurt.http.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=REPLY_SECONDS_MAX)
        connection.connect()
        connection.sock.sendall(data)
        connection.close()
    connection = http.client.HTTPConnection(hurt.http, timeout=10)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
