"""One topic, read at once by a Kafka group, a share group, an SQS client and an HTTP consumer: each sees everything by
its own rules, and what all of them have finished can be replayed from an old timestamp."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from support.door.sqs_client import sqs_client
from support.node_process import NodeProcess
from support.queue.worker import Door

PARTITIONS = 3
KAFKA_COUNT = 300
HTTP_COUNT = 200
SQS_COUNT = 100
SECONDS_MAX = 30.0
LATER_MS = 5_000

# Reads until it is over, and notes what it sees.
Way = Callable[[NodeProcess, str, threading.Event, list[str]], None]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("ways"), has_http=True) as running:
        yield running


# Ways to write


def produce(node: NodeProcess, topic: str, *, begin_ms: int) -> list[str]:
    """By Kafka, HTTP and SQS; the times of Kafka's are a minute old, of the first half and then of the second."""
    producer = Producer({"bootstrap.servers": node.kafka})
    values = [f"kafka-{number}" for number in range(KAFKA_COUNT)]
    for number, value in enumerate(values):
        timestamp_ms = begin_ms if number < KAFKA_COUNT // 2 else begin_ms + LATER_MS
        producer.produce(topic, value, key=str(number), timestamp=timestamp_ms)
    assert producer.flush(20) == 0
    by_http = [f"http-{number}" for number in range(HTTP_COUNT)]
    messages = [{"value": value, "key": value} for value in by_http]
    assert Door(node.http).post(f"/v1/topics/{topic}/messages", {"messages": messages}) is not None
    by_sqs = [f"sqs-{number}" for number in range(SQS_COUNT)]
    client = sqs_client(node)
    url = client.get_queue_url(QueueName=topic)["QueueUrl"]
    for first in range(0, SQS_COUNT, 10):
        entries = [{"Id": str(number), "MessageBody": by_sqs[number]} for number in range(first, first + 10)]
        assert len(client.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    return values + by_http + by_sqs


# Ways to read


def read_by_group(node: NodeProcess, topic: str, over: threading.Event, seen: list[str]) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        while not over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                seen.append((message.value() or b"").decode())
    finally:
        consumer.close()


def read_by_sqs(node: NodeProcess, topic: str, over: threading.Event, seen: list[str]) -> None:
    client = sqs_client(node)
    url = client.get_queue_url(QueueName=topic)["QueueUrl"]
    while not over.is_set():
        found = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
        seen += [message["Body"] for message in found]
        entries = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(found)]
        if entries:
            assert not client.delete_message_batch(QueueUrl=url, Entries=entries).get("Failed")


def read_by_http(node: NodeProcess, topic: str, over: threading.Event, seen: list[str]) -> None:
    door, path = Door(node.http), f"/v1/queues/{topic}/workers"
    while not over.is_set():
        found = door.post(f"{path}/receive", {"count": 50, "wait_ms": 200})["messages"]
        seen += [message["value"] for message in found]
        if found:
            settled = door.post(f"{path}/ack", {"receipts": [message["receipt"] for message in found]})
            assert {result["outcome"] for result in settled["results"]} == {"done"}


def read_by_share_group(node: NodeProcess, topic: str, over: threading.Event, seen: list[str]) -> None:
    consumer = ShareConsumer({"bootstrap.servers": node.kafka, "group.id": "sharers", "log_level": 3})
    consumer.subscribe([topic])
    try:
        while not over.is_set():
            # The next poll acknowledges what the last one brought.
            for message in consumer.poll(0.2):
                assert message.error() is None, message.error()
                seen.append((message.value() or b"").decode())
    finally:
        consumer.close()


WAYS: dict[str, Way] = {
    "group": read_by_group,
    "share group": read_by_share_group,
    "sqs": read_by_sqs,
    "http": read_by_http,
}


# The proof


def test_every_way_sees_everything_once_and_replay_still_works(node: NodeProcess) -> None:
    topic = "everything"
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(20)
    sqs_client(node).create_queue(QueueName=topic)
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    settings = ConfigResource(ResourceType.GROUP, "sharers", incremental_configs=[earliest])
    admin.incremental_alter_configs([settings])[settings].result(20)
    begin_ms = time.time_ns() // 1_000_000 - 60_000
    seen: dict[str, list[str]] = {name: [] for name in WAYS}
    with ThreadPoolExecutor(len(WAYS)) as threads:
        over = threading.Event()
        reading = [threads.submit(way, node, topic, over, seen[name]) for name, way in WAYS.items()]
        try:
            published = produce(node, topic, begin_ms=begin_ms)
            wait_until_read(node, topic, seen, len(published))
        finally:
            over.set()
        for future in reading:
            future.result(SECONDS_MAX)
    for name, values in seen.items():
        assert sorted(values) == sorted(published), f"{name}: {len(values)} of {len(published)}"
    # All of it is finished everywhere, and all of it is still there.
    assert sorted(replay(node, topic, begin_ms)) == sorted(published)
    later = replay(node, topic, begin_ms + LATER_MS)
    assert sorted(later) == sorted(published[KAFKA_COUNT // 2 :])


def wait_until_read(node: NodeProcess, topic: str, seen: dict[str, list[str]], count: int) -> None:
    """Until everybody has so many, and nothing is left in the queues that could come once more."""
    door, deadline = Door(node.http), time.monotonic() + SECONDS_MAX
    while True:
        left = [door.post(f"/v1/queues/{topic}/{group}/stats", None, method="GET") for group in ("workers", "sqs")]
        is_empty = all(stats and not (stats["backlog_count"] or stats["leased_count"]) for stats in left)
        if is_empty and all(len(values) >= count for values in seen.values()):
            return
        counts = {name: len(values) for name, values in seen.items()}
        assert time.monotonic() < deadline, f"{counts} of {count}; HTTP and SQS: {left}"
        time.sleep(0.1)


def replay(node: NodeProcess, topic: str, since_ms: int) -> list[str]:
    """What a stock consumer finds from a moment on, on all partitions."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "replay", "enable.auto.commit": False})
    try:
        wanted = [TopicPartition(topic, number, since_ms) for number in range(PARTITIONS)]
        places = consumer.offsets_for_times(wanted, timeout=10)
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=10)[1] for place in places}
        count = sum(ends[place.partition] - place.offset for place in places)
        consumer.assign(places)
        values: list[str] = []
        while len(values) < count:
            message = consumer.poll(10)
            assert message is not None, f"{len(values)} of {count} came"
            assert message.error() is None, message.error()
            values.append((message.value() or b"").decode())
        return values
    finally:
        consumer.close()
