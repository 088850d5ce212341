"""One topic, read every way at once: by a Kafka group, a share group, boto3 and plain HTTP. Each sees every message by
its own rules, what one of them acknowledges is nobody else's business, and afterwards the log is still there to replay.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from threading import Thread
from typing import Any, Final

import boto3
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from rich.console import Console
from rich.table import Table

TOPIC: Final = "parcels"
ORDERS: Final = 500
# Every hundredth order cannot be delivered: the queues find out, and their dead letters say why.
BAD_EVERY: Final = 100
SECONDS_MAX: Final = 60.0

Reader = Callable[[dict[str, int]], None]


def show_every_way(kafka: str, http: str, console: Console) -> None:
    console.print(f"[bold]every way[/bold]  {ORDERS} parcels in one topic, read by four kinds of clients at once")
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(TOPIC, 2)])[TOPIC].result(SECONDS_MAX)
    # By default a share group begins at the end, with Kafka as with us.
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    packers = ConfigResource(ResourceType.GROUP, "packers", incremental_configs=[earliest])
    admin.incremental_alter_configs([packers])[packers].result(SECONDS_MAX)
    sqs = boto3.client(
        "sqs",
        endpoint_url=f"http://{http}",
        region_name="eu-central-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106  nobody checks it
    )
    queue_url = sqs.create_queue(QueueName=TOPIC, Attributes={"PenstockStart": "earliest"})["QueueUrl"]
    _post(http, f"/v1/queues/{TOPIC}/billing/receive", {})
    readers: dict[str, Reader] = {
        "a Kafka consumer group": lambda seen: _read_as_group(kafka, seen),
        "a Kafka share group": lambda seen: _read_as_share_group(kafka, seen),
        "SQS, by boto3": lambda seen: _read_as_sqs(sqs, queue_url, seen),
        "HTTP, with acks and rejects": lambda seen: _read_over_http(http, seen),
    }
    seen: dict[str, dict[str, int]] = {name: {} for name in readers}
    threads = [Thread(target=read, args=(seen[name],), daemon=True) for name, read in readers.items()]
    for thread in threads:
        thread.start()
    _produce(kafka)
    for thread in threads:
        thread.join(SECONDS_MAX)
    rejected = len(range(0, ORDERS, BAD_EVERY))
    table = Table(title="one topic, every way")
    table.add_column("read by")
    table.add_column("orders", justify="right")
    for name, orders in seen.items():
        table.add_row(name, f"{len(orders):,}")
    table.add_row("dead letters, each with its reason", f"{_count_dead_letters(http, rejected):,}")
    table.add_row("replayed from the log afterwards", f"{_replay(kafka):,}")
    console.print(table)
    missing = [name for name, orders in seen.items() if len(orders) != ORDERS]
    if missing:
        raise SystemExit(f"not everything was seen by {', '.join(missing)}")


def _produce(kafka: str) -> None:
    producer = Producer({"bootstrap.servers": kafka, "compression.type": "zstd"})
    for number in range(ORDERS):
        order = json.dumps({"order": number, "good": number % BAD_EVERY != 0})
        producer.produce(TOPIC, order.encode(), key=f"customer-{number % 20}".encode())
    producer.flush(SECONDS_MAX)


def _until_all(seen: dict[str, int], step: Callable[[], None]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while len(seen) < ORDERS and time.monotonic() < deadline:
        step()


def _read_as_group(kafka: str, seen: dict[str, int]) -> None:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "analytics", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])

    def step() -> None:
        for message in consumer.consume(100, 1.0):
            if message.error() is None:
                _note(seen, message.value() or b"")

    _until_all(seen, step)
    consumer.close()


def _read_as_share_group(kafka: str, seen: dict[str, int]) -> None:
    consumer = ShareConsumer({"bootstrap.servers": kafka, "group.id": "packers"})
    consumer.subscribe([TOPIC])

    def step() -> None:
        for message in consumer.poll(1.0):
            if message.error() is None:
                _note(seen, message.value() or b"")

    _until_all(seen, step)
    consumer.close()


def _read_as_sqs(sqs: Any, queue_url: str, seen: dict[str, int]) -> None:
    def step() -> None:
        received = sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for message in received.get("Messages", []):
            _note(seen, message["Body"].encode())
            sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])

    _until_all(seen, step)


def _read_over_http(http: str, seen: dict[str, int]) -> None:
    path = f"/v1/queues/{TOPIC}/billing"

    def step() -> None:
        messages = _post(http, f"{path}/receive", {"count": 100, "wait_ms": 1_000})["messages"]
        good = [each["receipt"] for each in messages if json.loads(each["value"])["good"]]
        bad = [each["receipt"] for each in messages if not json.loads(each["value"])["good"]]
        for message in messages:
            _note(seen, message["value"].encode())
        if good:
            _post(http, f"{path}/ack", {"receipts": good})
        if bad:
            _post(http, f"{path}/nack", {"receipts": bad, "reject": True, "error": "no such address"})

    _until_all(seen, step)


def _count_dead_letters(http: str, expected: int) -> int:
    count = 0
    deadline = time.monotonic() + SECONDS_MAX
    while count < expected and time.monotonic() < deadline:
        try:
            reply = _post(http, f"/v1/queues/{TOPIC}-dlq/undertaker/receive", {"count": 100, "wait_ms": 500})
        except OSError:
            time.sleep(0.1)  # its topic is made when the first letter comes
            continue
        count += sum(each["headers"]["penstock-dead-letter-text"] == "no such address" for each in reply["messages"])
    return count


def _replay(kafka: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "replay", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(2)])
    seen: dict[str, int] = {}
    _until_all(seen, lambda: [_note(seen, each.value() or b"") for each in consumer.consume(500, 1.0)] and None)
    consumer.close()
    return len(seen)


def _note(seen: dict[str, int], value: bytes) -> None:
    order = str(json.loads(value)["order"])
    seen[order] = seen.get(order, 0) + 1


def _post(http: str, path: str, body: dict[str, object]) -> Any:
    request = urllib.request.Request(
        f"http://{http}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as reply:  # noqa: S310
        return json.loads(reply.read() or b"null")
