"""W3C trace context passes through every door, and OpenTelemetry spans are sent if they are asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.door.sqs_client import sqs_client
from support.node_process import NodeProcess
from support.programs.otlp_collector import OtlpCollector, attributes_of
from support.queue.worker import Door

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
STATE = "vendor=value"
XRAY = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector() as running:
        yield running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, collector: OtlpCollector) -> Iterator[NodeProcess]:
    environment = {
        "PENSTOCK_OTEL__ENABLED": "true",
        "PENSTOCK_OTEL__ENDPOINT": collector.endpoint,
        "PENSTOCK_OTEL__FLUSH_MS": "50",
        "PENSTOCK_OTEL__SERVICE_NAME": "penstock-test",
    }
    with NodeProcess(tmp_path_factory.mktemp("context"), has_http=True, environment=environment) as running:
        yield running


@pytest.fixture
def door(node: NodeProcess) -> Door:
    return Door(node.http)


@pytest.fixture
def sqs(node: NodeProcess) -> Any:
    return sqs_client(node)


def publish(door: Door, topic: str, body: object, **headers: str) -> Any:
    reply = door.post(f"/v1/topics/{topic}/messages", body, headers={**JSON, **headers})
    assert reply is not None
    return reply["messages"]


def receive(door: Door, topic: str, count: int = 1) -> Any:
    reply = door.post(f"/v1/queues/{topic}/readers/receive", {"count": count, "wait_ms": 5_000})
    assert reply is not None
    assert len(reply["messages"]) == count
    return reply["messages"]


def read_by_kafka(node: NodeProcess, topic: str) -> dict[str, Any]:
    consumer = Consumer(
        {"bootstrap.servers": node.kafka, "group.id": f"readers-of-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.error() is None
    headers: Any = message.headers() or ()
    return dict(headers)


def read_by_sqs(sqs: Any, topic: str) -> Any:
    url = sqs.create_queue(QueueName=topic)["QueueUrl"]
    received = sqs.receive_message(
        QueueUrl=url, WaitTimeSeconds=5, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"]
    )
    (message,) = received["Messages"]
    return message


def test_what_comes_with_an_http_request_is_seen_by_every_reader(node: NodeProcess, door: Door, sqs: Any) -> None:
    sqs.create_queue(QueueName="by-http")
    publish(door, "by-http", {"value": "v"}, traceparent=PARENT, tracestate=STATE)
    (message,) = receive(door, "by-http")
    assert (message["headers"]["traceparent"], message["headers"]["tracestate"]) == (PARENT, STATE)
    assert read_by_kafka(node, "by-http")["traceparent"] == PARENT.encode()
    attributes = read_by_sqs(sqs, "by-http")["MessageAttributes"]
    assert attributes["traceparent"]["StringValue"] == PARENT


def test_a_message_of_many_keeps_its_own_context(door: Door) -> None:
    own = PARENT.replace("4bf9", "1111")
    many = {"messages": [{"value": "a", "headers": {"traceparent": own}}, {"value": "b"}]}
    publish(door, "many", many, traceparent=PARENT)
    assert [message["headers"]["traceparent"] for message in receive(door, "many", 2)] == [own, PARENT]


def test_what_a_kafka_producer_wrote_is_handed_on(node: NodeProcess, door: Door, sqs: Any) -> None:
    sqs.create_queue(QueueName="by-kafka")
    producer = Producer({"bootstrap.servers": node.kafka, "compression.type": "zstd"})
    producer.produce("by-kafka", "v", headers=[("traceparent", PARENT.encode())])
    assert producer.flush(10) == 0
    (message,) = receive(door, "by-kafka")
    assert message["headers"]["traceparent"] == PARENT
    assert read_by_sqs(sqs, "by-kafka")["MessageAttributes"]["traceparent"]["StringValue"] == PARENT


def test_sqs_attributes_and_the_header_of_xray_are_handed_on(node: NodeProcess, door: Door, sqs: Any) -> None:
    url = sqs.create_queue(QueueName="by-sqs")["QueueUrl"]
    sqs.send_message(
        QueueUrl=url,
        MessageBody="v",
        MessageAttributes={"traceparent": {"DataType": "String", "StringValue": PARENT}},
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": XRAY}},
    )
    (message,) = receive(door, "by-sqs")
    assert message["headers"]["traceparent"] == PARENT
    assert read_by_kafka(node, "by-sqs")["traceparent"] == PARENT.encode()
    received = read_by_sqs(sqs, "by-sqs")
    assert received["MessageAttributes"]["traceparent"]["StringValue"] == PARENT
    assert received["Attributes"]["AWSTraceHeader"] == XRAY


def test_a_delayed_message_has_its_context_when_it_is_released(door: Door) -> None:
    publish(door, "later", {"value": "v", "delay_ms": 100}, traceparent=PARENT)
    (message,) = receive(door, "later")
    assert message["headers"]["traceparent"] == PARENT


def test_publish_receive_and_settle_are_spans_of_the_senders_trace(door: Door, collector: OtlpCollector) -> None:
    (published,) = publish(door, "spans", {"value": "v"}, traceparent=PARENT)
    (message,) = receive(door, "spans")
    door.post("/v1/queues/spans/readers/ack", {"receipts": [message["receipt"]]})
    (sent,) = collector.wait("publish spans")
    assert sent.trace_id.hex() == TRACE_ID
    assert sent.parent_span_id.hex() == "00f067aa0ba902b7"
    assert sent.kind == Span.SPAN_KIND_PRODUCER
    told = attributes_of(sent)
    assert told["messaging.system"] == "penstock"
    assert told["messaging.operation.type"] == "send"
    assert told["messaging.destination.name"] == "spans"
    assert told["messaging.message.id"] == published["id"]
    (received,) = collector.wait("receive spans")
    assert received.kind == Span.SPAN_KIND_CONSUMER
    assert [link.trace_id.hex() for link in received.links] == [TRACE_ID]
    assert attributes_of(received)["messaging.consumer.group.name"] == "readers"
    (settled,) = collector.wait("ack spans")
    assert settled.kind == Span.SPAN_KIND_CLIENT
    assert [link.trace_id.hex() for link in settled.links] == [TRACE_ID]
    assert attributes_of(settled)["messaging.operation.type"] == "settle"
    assert collector.resources[0]["service.name"] == "penstock-test"


def test_a_batch_is_one_span_with_a_link_to_each_message(door: Door, sqs: Any, collector: OtlpCollector) -> None:
    parents = [PARENT.replace("4bf9", f"{number}{number}{number}{number}") for number in range(1, 4)]
    publish(door, "links", {"messages": [{"value": "v", "headers": {"traceparent": parent}} for parent in parents]})
    messages = receive(door, "links", 3)
    door.post("/v1/queues/links/readers/nack", {"receipts": [message["receipt"] for message in messages]})
    for name in ("publish links", "receive links", "nack links"):
        (span,) = collector.wait(name)
        assert [link.trace_id.hex()[:4] for link in span.links] == ["1111", "2222", "3333"]
        assert attributes_of(span)["messaging.batch.message_count"] == 3
    url = sqs.create_queue(QueueName="jobs.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="v", MessageGroupId="g", MessageDeduplicationId="d")
    assert collector.wait("publish jobs.fifo")


def test_a_receive_that_brings_nothing_is_no_span(door: Door, collector: OtlpCollector) -> None:
    publish(door, "quiet", {"value": "v"})
    receive(door, "quiet")
    door.post("/v1/queues/quiet/readers/receive", {"count": 1})
    collector.wait("publish quiet")
    assert len(collector.wait("receive quiet")) == 1


def test_nothing_of_opentelemetry_is_loaded_by_a_node_without_it() -> None:
    program = "import sys, penstock.node; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
