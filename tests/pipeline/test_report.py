"""`penstock report` and `penstock dlq redrive --spark` with a real Spark, on topics whose story is known."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.work import report as report_work
from penstock.client.http.client import HttpClient
from penstock.client.http.settlements import settlements_of
from penstock.domain.queue.dead_letter import REASON_HEADER, TOPIC_HEADER
from penstock.pipeline.replay.redrive_choice import ConditionError, choose, dead_letters
from penstock.pipeline.report.job import ReportJob, ReportRequest
from penstock.pipeline.report.page import render_page
from support.node_process import NodeProcess

SECONDS_MAX = 120


def create(node: NodeProcess, topic: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, partitions, config=config)])[topic].result(20)


def reject_some(node: NodeProcess, topic: str, group: str, count: int) -> None:
    """Every third message is finished, every third rejected, the others stay leased."""
    with httpx.Client(base_url=f"http://{node.http}", timeout=30) as http:
        assert http.put(f"/v1/queues/{topic}/{group}", json={}).status_code == 201
        messages: list[dict[str, Any]] = []
        while len(messages) < count:
            reply = http.post(f"/v1/queues/{topic}/{group}/receive", json={"count": 100, "wait_ms": 1000})
            messages += reply.json()["messages"]
        by_rest: dict[int, list[str]] = {0: [], 1: [], 2: []}
        for message in messages:
            by_rest[message["offset"] % 3].append(message["receipt"])
        assert http.post(f"/v1/queues/{topic}/{group}/ack", json={"receipts": by_rest[0]}).status_code == 200
        nack = {"receipts": by_rest[1], "reject": True, "error": "no such street"}
        assert http.post(f"/v1/queues/{topic}/{group}/nack", json=nack).status_code == 200


def test_a_report_tells_what_happened(spark: Any, spark_node: NodeProcess) -> None:
    topic = "report-orders"
    create(spark_node, topic, 2)
    began_ms = int(time.time() * 1000) - 600_000
    producer = Producer({"bootstrap.servers": spark_node.kafka})
    for number in range(900):
        # Partition 0 has two thirds of them, and one key most of those; a record a second, ten minutes ago.
        partition = 0 if number % 3 else 1
        key = "hot" if partition == 0 and number % 2 else f"key-{number}"
        value = None if number % 100 == 99 else b"x" * (number % 200)
        producer.produce(topic, value, key, partition, timestamp=began_ms + number * 100)
    assert producer.flush(30) == 0
    group = Consumer({"bootstrap.servers": spark_node.kafka, "group.id": "report-billing"})
    # In two steps, of partition 0 alone: half of it was passed later.
    for offset in (300, 600):
        group.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        time.sleep(0.3)
    group.close()
    reject_some(spark_node, topic, "packing", 900)
    with HttpClient(spark_node.http) as client:
        settlements = [("packing", settlements_of(client, topic, "packing"))]

    request = ReportRequest(topic, spark_node.kafka, began_ms, dead_letter_topics=(f"{topic}-dlq",))
    found = ReportJob(spark, request, on_step=lambda _name: None).run(settlements, ["nothing is missing"])

    assert (found.record_count, found.deletion_count) == (900, 9)
    assert [(each.partition, each.record_count) for each in found.partitions] == [(0, 600), (1, 300)]
    assert found.hot_factor == pytest.approx(600 / 450)
    assert found.sizes is not None
    assert found.sizes.largest == 198
    assert sum(found.sizes.by_power.values()) == 891
    assert found.keys.heaviest[0].key == "hot"
    assert found.keys.heaviest[0].record_count == 300
    assert found.keys.distinct_count == pytest.approx(601, rel=0.1)
    assert found.bucket_ms == 1_000
    assert sum(bucket.record_count for bucket in found.buckets) == 900
    assert found.size_bytes == sum(bucket.size_bytes for bucket in found.buckets)

    delays = {(delay.kind, delay.name): delay for delay in found.delays}
    billing = delays["group", "report-billing"]
    assert billing.record_count == 600
    assert 600_000 - 90_000 < billing.p50 < 600_000 + 30_000
    packing = delays["queue", "packing"]
    # A third was acked, a third rejected: both are finished.
    assert packing.record_count == 600
    assert packing.largest >= 500_000
    (letters,) = found.dead_letters
    assert (letters.reason, letters.group, letters.record_count) == ("rejected", "packing", 300)
    page = render_page(found)
    assert "no such street" not in page
    assert "nothing is missing" in page


def test_a_cluster_where_nobody_has_committed_has_a_report_too(spark: Any, tmp_path: Path) -> None:
    """With keys that begin alike, partitions that are empty, a clock that counts microseconds, and others' letters."""
    now_ms = int(time.time() * 1000)
    with NodeProcess(tmp_path / "young", memory=True) as node:
        create(node, "young", 4, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
        create(node, "buried", 1)
        producer = Producer({"bootstrap.servers": node.kafka})
        for number in range(60):
            producer.produce("young", b"v", f"{'/long/path' * 10}/{number % 20}", partition=2, timestamp=now_ms)
        producer.produce("young", b"v", partition=2, timestamp=now_ms * 1000)
        for origin in ("young", "another", "another"):
            headers = [(TOPIC_HEADER, origin.encode()), (REASON_HEADER, b"rejected")]
            producer.produce("buried", b"v", headers=headers)
        assert producer.flush(30) == 0
        info, has_commits = asyncio.run(report_work._look_at(node.kafka, "young"))
        assert not has_commits
        request = ReportRequest(
            "young",
            node.kafka,
            now_ms,
            dead_letter_topics=("buried",),
            partition_count=len(info.partitions),
            topic_id=info.topic_id,
            has_commits=has_commits,
        )
        found = ReportJob(spark, request, on_step=lambda _name: None).run()
    assert found.keys.distinct_count == 20
    assert {key.record_count for key in found.keys.heaviest} == {3}
    assert found.keys.heaviest[0].key == ("/long/path" * 10)[:64] + "…"
    assert found.hot_factor == 4
    assert [(letter.reason, letter.record_count) for letter in found.dead_letters] == [("rejected", 1)]
    assert f"{now_ms * 1000} ms" in render_page(found)


def test_spark_picks_dead_letters_and_the_node_moves_them_once(
    spark: Any, spark_node: NodeProcess, tmp_path: Path
) -> None:
    topic = "redrive-orders"
    create(spark_node, topic, 1)
    producer = Producer({"bootstrap.servers": spark_node.kafka})
    for number in range(90):
        producer.produce(topic, json.dumps({"city": "berlin" if number < 45 else "paris", "number": number}))
    assert producer.flush(30) == 0
    reject_some(spark_node, topic, "packing", 90)
    dead = f"{topic}-dlq"
    condition = "reason = 'rejected' and error like 'no such%' and get_json_object(value, '$.city') = 'berlin'"

    letters = dead_letters(spark, spark_node.kafka, dead)
    assert sum(last - first + 1 for _partition, first, last in choose(letters, condition)) == 15
    assert list(choose(letters, "delivery_count = 1 and origin_offset = 4 and last_failure > first_failure")) == []
    assert len(list(choose(letters, "delivery_count = 1 and origin_offset = 4"))) == 1
    with pytest.raises(ConditionError, match="columns are partition, offset"):
        list(choose(letters, "no_such_column = 1"))
    with pytest.raises(ConditionError, match="CAST_INVALID_INPUT"):
        list(choose(letters, "cast(value as int) > 3"))

    command = [sys.executable, "-m", "penstock.main", "dlq", "redrive", dead, "--http", spark_node.http, "--json"]
    done = subprocess.run(
        [*command, "--bootstrap", spark_node.kafka, "--spark", "--where", condition],
        capture_output=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["moved_count"] == 15
    consumer = Consumer({"bootstrap.servers": spark_node.kafka, "group.id": "check"})
    consumer.assign([TopicPartition(topic, 0, 90)])
    moved = [json.loads(message.value()) for message in consumer.consume(15, 20)]
    consumer.close()
    assert sorted(each["number"] for each in moved) == [number for number in range(45) if number % 3 == 1]


def test_a_condition_without_spark_is_refused(spark_node: NodeProcess) -> None:
    command = [sys.executable, "-m", "penstock.main", "dlq", "redrive", "orders-dlq", "--http", spark_node.http]
    done = subprocess.run([*command, "--where", "true"], capture_output=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 2
    assert b"add --spark" in done.stderr
