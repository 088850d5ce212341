"""One message through everything that can happen to it, at a real node, and its trace tells each step in order."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from support.door.sqs_client import sqs_client
from support.node_process import NodeProcess
from support.queue.worker import Door

SECONDS_MAX = 20.0
LEASE_MS = 400
DELAY_MS = 300
CLOCKS_APART_MS_MAX = 50


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("journey"), has_http=True) as running:
        yield running


@pytest.fixture
def door(node: NodeProcess) -> Door:
    return Door(node.http)


def get(door: Door, path: str) -> Any:
    found = door.post(path, {}, method="GET")
    assert found is not None, path
    return found


def until(look: Callable[[], Any]) -> Any:
    """What it answers once it answers anything, in a bounded time."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it never came")


def receive(door: Door, queue: str, consumer: str, lease_ms: int) -> dict[str, Any]:
    """One message, waited for."""
    body = {"count": 1, "wait_ms": 5_000, "lease_ms": lease_ms, "consumer": consumer}
    (message,) = until(lambda: (door.post(f"/v1/queues/{queue}/receive", body) or {}).get("messages"))
    assert isinstance(message, dict)
    return message


def kinds(journey: dict[str, Any]) -> list[str]:
    return [event["kind"] for event in journey["events"]]


def lead_through(door: Door, queue: str) -> str:
    """Everything that can happen to a message, one after the other; its id."""
    door.post("/v1/topics/parcels/messages", {"value": "another one", "key": "k"})
    # Delayed, and released to its topic when it is due.
    (published,) = door.post("/v1/topics/parcels/messages", {"value": "this one", "key": "k", "delay_ms": DELAY_MS})[
        "messages"
    ]
    name = published["id"]
    assert kinds(get(door, f"/v1/trace/{name}")) == ["scheduled"]
    (reason,) = get(door, f"/v1/why/{name}")["reasons"]
    assert reason["standing"] == "delayed"
    door.post("/v1/queues/parcels/workers", {"deliveries_max": 5}, method="PUT")
    first = receive(door, queue, "zoe", 60_000)
    assert first["value"] == "another one"

    # A lease that runs out, a retry that is given back, and one that is rejected.
    assert receive(door, queue, "ann", LEASE_MS)["id"] == name
    second = receive(door, queue, "ben", 60_000)
    assert second["delivery_count"] == 2
    door.post(f"/v1/queues/{queue}/extend", {"receipts": [second["receipt"]], "lease_ms": 30_000})
    door.post(f"/v1/queues/{queue}/nack", {"receipts": [second["receipt"]], "delay_ms": 50, "error": "busy"})
    third = receive(door, queue, "cat", 60_000)
    door.post(f"/v1/queues/{queue}/nack", {"receipts": [third["receipt"]], "reject": True, "error": "no such street"})

    # To the dead letters and back, and done.
    until(lambda: "dead-lettered" in kinds(get(door, f"/v1/trace/{name}")))
    assert door.post("/v1/dead-letters/parcels-dlq/redrive", {}) is not None
    fourth = receive(door, queue, "dan", 60_000)
    assert fourth["id"] == name
    door.post(f"/v1/queues/{queue}/ack", {"receipts": [fourth["receipt"]]})
    return str(name)


def test_every_step_of_a_journey_is_told_in_order(door: Door) -> None:
    name = lead_through(door, "parcels/workers")
    journey = get(door, f"/v1/trace/{name}")
    told = [
        (event["kind"], event["place"]["topic"], event.get("consumer", ""), event.get("attempt", 0))
        for event in journey["events"]
        if event["kind"] != "passed" and event.get("group") != "penstock-redrive"
    ]
    assert told == [
        ("scheduled", "parcels", "", 0),
        ("released", "parcels", "", 0),
        ("appended", "parcels", "", 0),
        ("leased", "parcels", "ann", 1),
        ("lease-expired", "parcels", "ann", 1),
        ("leased", "parcels", "ben", 2),
        ("extended", "parcels", "ben", 2),
        ("nacked", "parcels", "ben", 2),
        ("leased", "parcels", "cat", 3),
        ("rejected", "parcels", "cat", 3),
        ("dead-lettered", "parcels", "", 0),
        ("appended", "parcels-dlq", "", 0),
        ("appended", "parcels", "", 0),
        ("leased", "parcels", "dan", 1),
        ("acked", "parcels", "dan", 1),
    ]
    redrive = [event["kind"] for event in journey["events"] if event.get("group") == "penstock-redrive"]
    assert redrive[-2:] == ["picked", "redriven"]
    # Delays go by the wall clock and leases by one that never jumps: they may be a little apart.
    times = [event["at_ms"] for event in journey["events"]]
    assert all(later >= earlier - CLOCKS_APART_MS_MAX for earlier, later in itertools.pairwise(times))
    assert "no such street" in str(journey["events"])
    assert [place["state"] for place in journey["places"]] == ["released", "stored", "stored", "stored"]
    # The same journey, whichever of its places is asked for.
    last = journey["places"][-1]["place"]
    again = get(door, f"/v1/trace/{last['topic']}/{last['partition']}/{last['offset']}")
    assert again["id"] == name
    assert kinds(again) == kinds(journey)
    (reason,) = [
        each
        for each in get(door, f"/v1/why/{name}")["reasons"]
        if each["place"] == last and each.get("group") == "workers"
    ]
    assert (reason["standing"], reason["is_over"]) == ("acked", True)


def test_the_journey_is_told_by_the_command_line(node: NodeProcess, door: Door) -> None:
    (published,) = door.post("/v1/topics/letters/messages", {"value": "v", "key": "one key"})["messages"]
    message = receive(door, "letters/readers", "ann", 60_000)
    door.post("/v1/queues/letters/readers/ack", {"receipts": [message["receipt"]]})

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "penstock.main", *arguments, "--http", node.http]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = run("trace", published["id"])
    assert "appended to letters-0@0" in told
    assert "leased to ann until" in told
    assert "acked by ann" in told
    assert '"standing": "acked"' in run("why", published["id"], "--json")


def test_a_message_sent_and_received_with_boto3_is_traced_by_its_message_id(node: NodeProcess, door: Door) -> None:
    client = sqs_client(node)
    url = client.create_queue(QueueName="jobs")["QueueUrl"]
    sent = client.send_message(QueueUrl=url, MessageBody="job")
    (received,) = client.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert received["MessageId"] == sent["MessageId"]
    (reason,) = get(door, f"/v1/why/{sent['MessageId']}")["reasons"]
    assert reason["standing"] == "leased"
    client.delete_message(QueueUrl=url, ReceiptHandle=received["ReceiptHandle"])
    assert kinds(get(door, f"/v1/trace/{sent['MessageId']}")) == ["appended", "leased", "acked"]


def test_a_groups_commits_tell_when_it_passed_a_message(node: NodeProcess, door: Door) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "teller"})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(10):
        producer.produce("ledger", str(number), partition=0)
    producer.flush(10)
    (reason,) = until(lambda: (door.post("/v1/why/ledger/0/4", {}, method="GET") or {}).get("reasons"))
    assert reason["standing"] == "nobody-reads"
    producer.commit_transaction(10)
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "auditors", "enable.auto.commit": False})
    for position in (2, 8):
        consumer.commit(offsets=[TopicPartition("ledger", 0, position)], asynchronous=False)
        if position == 2:
            (reason,) = get(door, "/v1/why/ledger/0/4")["reasons"]
            assert (reason["group"], reason["standing"]) == ("auditors", "no-consumer")
    consumer.close()
    journey = get(door, "/v1/trace/ledger/0/4")
    assert kinds(journey) == ["appended", "transaction-committed", "passed"]
    assert journey["events"][-1]["position"] == 8
    assert journey["places"][0]["transaction"] == "committed"
    (reason,) = get(door, "/v1/why/ledger/0/4")["reasons"]
    assert (reason["standing"], reason["is_over"]) == ("passed", True)


def test_the_empty_slot_of_a_delayed_message_leads_to_it(node: NodeProcess, door: Door) -> None:
    places: list[int] = []
    producer = Producer(
        {"bootstrap.servers": node.kafka, "enable.idempotence": True, "compression.type": "zstd", "linger.ms": 200}
    )
    delays = {1: b"100", 3: b"3600000", 4: b"200"}
    for number in range(5):
        producer.produce(
            "slots",
            str(number),
            key=str(number),
            partition=0,
            headers=[("penstock-delay-ms", delays[number])] if number in delays else [],
            on_delivery=lambda _error, message: places.append(int(message.offset() or 0)),
        )
    assert producer.flush(10) == 0

    def told(number: int) -> Any:
        return get(door, f"/v1/trace/slots/0/{sorted(places)[number]}")

    until(lambda: "appended" in kinds(told(4)))
    assert [kinds(told(number)) for number in (1, 3, 4)] == [
        ["scheduled", "released", "appended"],
        ["scheduled"],
        ["scheduled", "released", "appended"],
    ]
    assert [told(number)["places"][0]["key"] for number in range(5)] == ["0", "1", "2", "3", "4"]
    assert "empty slot" in told(1)["notes"][0]


def test_a_message_delayed_with_boto3_is_traced_from_its_schedule_on(node: NodeProcess, door: Door) -> None:
    client = sqs_client(node)
    url = client.create_queue(QueueName="alarms")["QueueUrl"]
    sent = client.send_message(QueueUrl=url, MessageBody="ring", DelaySeconds=1)["MessageId"]
    (reason,) = get(door, f"/v1/why/{sent}")["reasons"]
    assert reason["standing"] == "delayed"
    (received,) = client.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"]
    assert received["MessageId"] == sent
    client.delete_message(QueueUrl=url, ReceiptHandle=received["ReceiptHandle"])
    assert kinds(get(door, f"/v1/trace/{sent}")) == ["scheduled", "released", "appended", "leased", "acked"]


def test_a_cancelled_message_is_told_to_be_cancelled(door: Door) -> None:
    (published,) = door.post("/v1/topics/notes/messages", {"value": "v", "delay_ms": 3_600_000})["messages"]
    assert door.post(f"/v1/schedules/{published['id']}", {}, method="DELETE") is not None
    assert kinds(get(door, f"/v1/trace/{published['id']}")) == ["scheduled", "cancelled"]
    (reason,) = get(door, f"/v1/why/{published['id']}")["reasons"]
    assert (reason["standing"], reason["is_over"]) == ("cancelled", True)


def test_a_share_groups_members_are_told_as_consumers(node: NodeProcess, door: Door) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, "sharers", incremental_configs=[earliest])
    admin.incremental_alter_configs([resource])[resource].result(20)
    door.post("/v1/topics/shared/messages", {"value": "v"})
    consumer = ShareConsumer({"bootstrap.servers": node.kafka, "group.id": "sharers", "log_level": 3})
    consumer.subscribe(["shared"])
    until(lambda: consumer.poll(0.2))
    leased = get(door, "/v1/trace/shared/0/0")["events"][-1]
    assert (leased["kind"], leased["group"], leased["attempt"]) == ("leased", "sharers", 1)
    (reason,) = get(door, "/v1/why/shared/0/0")["reasons"]
    assert (reason["kind"], reason["standing"]) == ("share group", "leased")
    consumer.poll(0.1)
    consumer.close()
    assert until(lambda: "acked" in kinds(get(door, "/v1/trace/shared/0/0")))
