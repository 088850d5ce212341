"""A disk that has spoiled one bit of each log that the node keeps for itself: real clients are told so and get no old
state; an operator repairs the logs, and everything is served again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.storage.files.directory import DirectoryFiles
from support.door.sqs_client import sqs_client
from support.node_process import NodeProcess
from support.storage.rotten_log import batches_in

JOURNALS = ("__consumer_offsets", "__transaction_state", "jobs.queues", "tasks.queues", "mails.schedule")
MESSAGES = 12
COMMITS = 9
PATIENCE_SECONDS = 10.0


@pytest.fixture
def node(tmp_path: Path) -> NodeProcess:
    return NodeProcess(tmp_path / "node", has_http=True)


def test_damage_in_every_journal_is_told_at_every_door_and_can_be_repaired(node: NodeProcess) -> None:
    with node:
        fill(node)
        node.terminate()
        damage_all(node.data_directory / "logs")
        node.start()
        groups_are_refused(node)
        transactions_are_refused(node)
        queues_and_schedules_are_refused(node)
        health_tells(node)
        node.terminate()
        report = repair(node.data_directory)
        assert set(JOURNALS) <= {each["topic"] for each in json.loads(report)["repaired"]}
        node.start()
        everything_is_served(node)


def fill(node: NodeProcess) -> None:
    with httpx.Client(base_url=f"http://{node.http}", timeout=20) as http:
        publish(http, "jobs", [{"value": f"job {number}"} for number in range(MESSAGES)])
        for _ in range(MESSAGES // 2):
            (message,) = receive(http)
            http.post("/v1/queues/jobs/workers/ack", json={"receipts": [message["receipt"]]}).raise_for_status()
        for number in range(MESSAGES):
            publish(http, "mails", [{"value": f"mail {number}", "delay_ms": 3_600_000 + number}])
    sqs = sqs_client(node)
    url = sqs.create_queue(QueueName="tasks")["QueueUrl"]
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=f"task {number}")
    for _ in range(2):
        (received,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)["Messages"]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=received["ReceiptHandle"])
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "g", "enable.auto.commit": False})
    for offset in range(1, COMMITS + 1):
        consumer.commit(offsets=[TopicPartition("jobs", 0, offset)], asynchronous=False)
    consumer.close()
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "payments"})
    producer.init_transactions(PATIENCE_SECONDS)
    for number in range(3):
        producer.begin_transaction()
        producer.produce("payments", f"payment {number}".encode())
        producer.commit_transaction(PATIENCE_SECONDS)


def damage_all(logs: Path) -> None:
    for topic in JOURNALS:
        (home,) = (path.parent for path in logs.glob("*/topic.json") if json.loads(path.read_text())["name"] == topic)
        spoiled = [spoil(path) for path in sorted(home.glob("*/*.log"))]
        assert any(spoiled), topic


def spoil(path: Path) -> bool:
    """The batch in the middle."""
    batches = batches_in(DirectoryFiles(), str(path))
    if len(batches) < 3:
        return False
    position, header = batches[len(batches) // 2]
    data = bytearray(path.read_bytes())
    data[position + header.size_bytes - 1] ^= 4
    path.write_bytes(data)
    return True


def groups_are_refused(node: NodeProcess) -> None:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "g", "enable.auto.commit": False})
    try:
        (found,) = consumer.committed([TopicPartition("jobs", 0)], PATIENCE_SECONDS)
        assert found.error is not None
        code = found.error.code()
    except KafkaException as error:
        code = error.args[0].code()
    assert code == KafkaError.UNKNOWN
    with pytest.raises(KafkaException) as refused:
        consumer.commit(offsets=[TopicPartition("jobs", 0, 1)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN
    consumer.subscribe(["jobs"])
    told = consumer.poll(PATIENCE_SECONDS)
    assert told is not None
    assert told.error() is not None
    consumer.close()


def transactions_are_refused(node: NodeProcess) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "payments"})
    # librdkafka tries again for as long as it is told to, whatever the error; others end with it.
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(2)
    assert refused.value.args[0].code() in (KafkaError.UNKNOWN, KafkaError._TIMED_OUT)


def queues_and_schedules_are_refused(node: NodeProcess) -> None:
    with httpx.Client(base_url=f"http://{node.http}", timeout=20) as http:
        for reply, journal in (
            (http.post("/v1/queues/jobs/workers/receive", json={"count": 1, "wait_ms": 20_000}), "jobs.queues"),
            (http.get("/v1/queues/jobs/workers/stats"), "jobs.queues"),
            (http.get("/v1/queues/jobs/workers/peek"), "jobs.queues"),
            (http.delete("/v1/queues/jobs/workers"), "jobs.queues"),
            (http.get("/v1/schedules", params={"topic": "mails"}), "mails.schedule"),
            (http.get("/v1/schedule-counts"), "mails.schedule"),
            (http.get("/v1/crons"), "mails.schedule"),
            (http.get(f"/v1/why/{last_job(http)}"), "jobs.queues"),
            (http.post("/v1/topics/mails/messages", json={"value": "x", "delay_ms": 1000}), "mails.schedule"),
        ):
            problem = reply.json()
            assert (reply.status_code, problem.get("title")) == (500, "Damaged"), (reply.url, reply.text)
            assert f"`penstock log repair {journal} 0 --data-dir DIR`" in problem["detail"]
        publish(http, "mails", [{"value": "at once"}])
    sqs = sqs_client(node)
    url = sqs.get_queue_url(QueueName="tasks")["QueueUrl"]
    with pytest.raises(ClientError) as refused:
        sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)
    assert refused.value.response["Error"]["Code"] == "QueueDamaged"
    assert "`penstock log repair tasks.queues 0 " in refused.value.response["Error"]["Message"]


def last_job(http: httpx.Client) -> str:
    reply = http.post("/v1/topics/jobs/messages", json={"messages": [{"value": f"job {MESSAGES}"}]})
    return str(reply.json()["messages"][0]["id"])


def health_tells(node: NodeProcess) -> None:
    page = httpx.get(f"http://{node.metrics}/metrics").text
    for journal in JOURNALS:
        assert 'penstock_damaged_journals{partition="' in page
        assert f'topic="{journal}"}} 1.0' in page
    for address in (f"http://{node.metrics}/health", f"http://{node.http}/health"):
        health = httpx.get(address)
        assert health.status_code == 200, "a restart would not help"
        assert "penstock log repair" in health.text


def repair(directory: Path) -> str:
    command = [sys.executable, "-m", "penstock.main", "log", "repair", "--yes", "--json", "--data-dir", str(directory)]
    return subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout


def everything_is_served(node: NodeProcess) -> None:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "g", "enable.auto.commit": False})
    (found,) = consumer.committed([TopicPartition("jobs", 0)], PATIENCE_SECONDS)
    assert (found.error, found.offset) == (None, COMMITS)
    consumer.close()
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "payments"})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce("payments", b"another")
    producer.commit_transaction(PATIENCE_SECONDS)
    with httpx.Client(base_url=f"http://{node.http}", timeout=20) as http:
        values = set()
        while messages := receive(http, count=5, lease_ms=600_000):
            values |= {message["value"] for message in messages}
        assert values >= {f"job {number}" for number in range(MESSAGES // 2, MESSAGES)}
        pending = http.get("/v1/schedules", params={"topic": "mails", "count": 100}).json()["messages"]
        assert len(pending) == MESSAGES - 1
    assert httpx.get(f"http://{node.http}/health").json() == {"status": "ok"}


def publish(http: httpx.Client, topic: str, messages: list[dict[str, object]]) -> None:
    http.post(f"/v1/topics/{topic}/messages", json={"messages": messages}).raise_for_status()


def receive(http: httpx.Client, **how: object) -> list[dict[str, str]]:
    reply = http.post("/v1/queues/jobs/workers/receive", json={"count": 1, **how})
    reply.raise_for_status()
    return list(reply.json()["messages"])
