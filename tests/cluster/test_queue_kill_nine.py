"""kill -9 in the middle of leases, acks, rejects and dead-lettering, with consumers over HTTP and SQS in processes.

Three queues on one topic: one without order, one by key, one of SQS. What must hold for each: nothing that was
confirmed as acked comes back, nothing is lost, dead letters are there exactly once, messages of a key come in order.
Five cycles in `make test`; `make chaos` sets PENSTOCK_QUEUE_KILL_CYCLES to 100.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess
from support.queue.worker import Door

CYCLES = int(os.environ.get("PENSTOCK_QUEUE_KILL_CYCLES", "5"))
PARTITIONS = 2
KEYS = 20
MESSAGES_PER_CYCLE = 200
SEED = 4
DRAIN_SECONDS_MAX = 60.0
TOPIC = "orders"
# Of HTTP, and where their dead letters go.
GROUPS = {"plain": "plain-dead", "keyed": "keyed-dead"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "node", has_http=True) as started:
        yield started


@pytest.mark.timeout(120 + 10 * CYCLES)
def test_kill_nine_brings_nothing_back_loses_nothing_and_buries_once(node: NodeProcess, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    door = Door(node.http)
    make_queues(node, door)
    published: list[str] = []
    with workers(node, tmp_path) as facts:
        for _ in range(CYCLES):
            published += publish(door, len(published))
            time.sleep(chance.uniform(0.05, 0.6))
            node.kill()
            node.start()
        published += publish(door, len(published))
        time.sleep(0.5)
    stories = {group: read_story(paths) for group, paths in facts.items()}
    for group in GROUPS:
        drain_http(door, group, stories[group])
    drain_sqs(door, stories["sqs"])
    for group, dead_topic in GROUPS.items():
        check(group, published, stories[group], dead_letters(node, dead_topic))
    check("sqs", published, stories["sqs"], [])
    check_order(stories["keyed"])
    assert "Traceback" not in node.log_text(), node.log_tail()


# The scene


def make_queues(node: NodeProcess, door: Door) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(20)
    for group, dead_topic in GROUPS.items():
        options: dict[str, object] = {"deliveries_max": 4, "dead_letter_topic": dead_topic}
        if group == "keyed":
            options["ordering"] = "key"
        assert door.post(f"/v1/queues/{TOPIC}/{group}", options, method="PUT") is not None
    assert door.sqs("CreateQueue", {"QueueName": TOPIC}) is not None


def publish(door: Door, begin: int) -> list[str]:
    """Values say their key and their number within it. Between two kills, so every one is confirmed."""
    values = [f"{number % KEYS}:{number // KEYS}" for number in range(begin, begin + MESSAGES_PER_CYCLE)]
    messages = [{"value": value, "key": value.partition(":")[0]} for value in values]
    reply = door.post(f"/v1/topics/{TOPIC}/messages", {"messages": messages})
    if reply is None:
        # The connection was that of the node before; nothing was taken by the one that is gone.
        reply = door.post(f"/v1/topics/{TOPIC}/messages", {"messages": messages})
    assert reply is not None
    assert all("error" not in each for each in reply["messages"])
    return values


@contextmanager
def workers(node: NodeProcess, directory: Path) -> Iterator[dict[str, list[Path]]]:
    """Two for each queue of HTTP, one of SQS."""
    wanted = [("http", group, number) for group in GROUPS for number in range(2)] + [("sqs", "sqs", 0)]
    facts: dict[str, list[Path]] = {}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for seed, (kind, group, number) in enumerate(wanted):
            path = directory / f"{group}-{number}.facts"
            facts.setdefault(group, []).append(path)
            command = [
                sys.executable,
                "-m",
                "support.queue.worker",
                kind,
                node.http,
                TOPIC,
                group,
                str(path),
                str(seed),
            ]
            processes.append(subprocess.Popen(command, cwd=Path(__file__).parents[1]))
        yield facts
        for process in processes:
            process.terminate()
        for process in processes:
            assert process.wait(30) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


# The end


def drain_http(door: Door, group: str, story: list[dict[str, Any]]) -> None:
    """Until nothing is in the queue any more: leases that were left run out, dead letters are carried away."""
    path = f"/v1/queues/{TOPIC}/{group}"
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while True:
        asked_at = time.monotonic()
        reply = door.post(f"{path}/receive", {"count": 1_000, "wait_ms": 200})
        messages = reply["messages"]
        if messages:
            values = {message["receipt"]: message["value"] for message in messages}
            story.append(fact("delivered", list(values.values()), asked_at=asked_at))
            settled = door.post(f"{path}/ack", {"receipts": list(values)})["results"]
            story.append(fact("ack", [values[each["receipt"]] for each in settled if each["outcome"] == "done"]))
            continue
        totals = door.post(f"{path}/stats", None, method="GET")
        names = ("backlog_count", "leased_count", "waiting_count", "blocked_count", "dying_count")
        if not any(totals[name] for name in names):
            return
        assert time.monotonic() < deadline, f"{group} is not empty: {totals}"


def drain_sqs(door: Door, story: list[dict[str, Any]]) -> None:
    url = f"http://localhost/000000000000/{TOPIC}"
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    while True:
        asked_at = time.monotonic()
        reply = door.sqs("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})
        messages = reply.get("Messages", [])
        if messages:
            story.append(fact("delivered", [message["Body"] for message in messages], asked_at=asked_at))
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
            door.sqs("DeleteMessageBatch", {"QueueUrl": url, "Entries": entries})
            story.append(fact("ack", [message["Body"] for message in messages]))
            continue
        left = door.sqs("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": names})["Attributes"]
        if not any(int(left[name]) for name in names):
            return
        assert time.monotonic() < deadline, f"the SQS queue is not empty: {left}"
        time.sleep(0.05)


def dead_letters(node: NodeProcess, topic: str) -> list[str]:
    """The values of all letters, read by a stock client."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "reader", "enable.partition.eof": False})
    try:
        letters: list[str] = []
        for partition in range(PARTITIONS):
            place = TopicPartition(topic, partition, OFFSET_BEGINNING)
            _, end = consumer.get_watermark_offsets(place, timeout=10)
            consumer.assign([place])
            found = 0
            while found < end:
                message = consumer.poll(10)
                assert message is not None
                assert message.error() is None, message.error()
                letters.append(message.value().decode())
                found = message.offset() + 1
        return letters
    finally:
        consumer.close()


# What must hold


def fact(what: str, values: list[str], **more: object) -> dict[str, Any]:
    return {"what": what, "values": values, "at": time.monotonic(), **more}


def read_story(paths: list[Path]) -> list[dict[str, Any]]:
    """What all consumers of a queue have seen, in the order in which it happened."""
    return sorted((json.loads(line) for path in paths for line in path.read_text().splitlines()), key=lambda f: f["at"])


def check(group: str, published: list[str], story: list[dict[str, Any]], letters: list[str]) -> None:
    acked_at: dict[str, float] = {}
    maybe_acked: set[str] = set()
    delivered: set[str] = set()
    for each in story:
        if each["what"] == "delivered":
            back = [v for v in each["values"] if v in acked_at and acked_at[v] < each["asked_at"]]
            assert not back, f"{group}: acked and delivered again: {back[:5]}"
            delivered.update(each["values"])
        elif each["what"] == "ack":
            acked_at.update(dict.fromkeys(each["values"], each["at"]))
        elif each["what"] == "ack?":
            maybe_acked.update(each["values"])
    assert len(letters) == len(set(letters)), f"{group}: buried twice: {sorted(letters)[:5]}"
    dead = set(letters)
    assert not dead & set(acked_at), f"{group}: acked and buried: {sorted(dead & set(acked_at))[:5]}"
    lost = set(published) - set(acked_at) - maybe_acked - dead
    assert not lost, f"{group}: {len(lost)} lost, such as {sorted(lost)[:5]}, {len(lost & delivered)} of them delivered"
    rejected = {value for each in story if each["what"] == "reject" for value in each["values"]}
    assert rejected <= dead, f"{group}: rejected and not buried: {sorted(rejected - dead)[:5]}"
    assert delivered | dead <= set(published)


def check_order(story: list[dict[str, Any]]) -> None:
    """A message of a key is delivered when those before it are finished, and those never come back."""
    newest: dict[str, int] = {}
    for each in story:
        for value in each["values"] if each["what"] == "delivered" else ():
            key, _, number = value.partition(":")
            assert newest.get(key, -1) <= int(number), f"key {key}: {number} came after {newest[key]}"
            newest[key] = int(number)
