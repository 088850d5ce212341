"""A compacted topic read by real clients: holes, empty batches and horizons are things that they have to understand."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, TopicPartition

from support.node_process import NodeProcess

# Everything that is done from time to time is done all the time.
EAGER: Final = {
    "PENSTOCK_BROKER__CLEANER_CHECK_MS": "100",
    "PENSTOCK_BROKER__CHECKPOINT_MS": "100",
    "PENSTOCK_BROKER__RETENTION_CHECK_MS": "100",
}
SETTINGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "4096",
    "segment.ms": "500",
}
TOPIC: Final = "state"
KEYS: Final = 20
ROUNDS: Final = 50
WAIT_SECONDS_MAX: Final = 60.0
KAFKAJS: Final = Path(__file__).parents[2] / "build" / "kafkajs" / "node_modules"
READ_BY_KAFKAJS: Final = """
const { Kafka, logLevel } = require('kafkajs')
const [brokers, topic, end] = process.argv.slice(1)
const kafka = new Kafka({ brokers: [brokers], logLevel: logLevel.NOTHING })
const consumer = kafka.consumer({ groupId: 'kafkajs-reader' })
const seen = []
const run = async () => {
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => {
    seen.push([Number(message.offset), message.key.toString(), message.value && message.value.toString()])
    if (message.key.toString() === 'end') { console.log(JSON.stringify(seen)); process.exit(0) }
  } })
}
run()
"""

# Offset, key and value of a record.
Row = tuple[int, str, str | None]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("compaction"), environment=EAGER) as running:
        yield running


@pytest.fixture(scope="module")
def expected(node: NodeProcess) -> list[Row]:
    """The topic after its cleaning: the last value of each key, every fifth key deleted, and a last record."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(TOPIC, 1, config=SETTINGS)])[TOPIC].result()
    for codec in ("none", "lz4", "zstd"):
        _produce(node, codec)
    last = _produce_last(node)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while (rows := _read_by_confluent(node)) != last:
        assert time.monotonic() < deadline, f"{len(rows)} records are left: {rows[:30]}"
        time.sleep(0.2)
    return last


def _produce(node: NodeProcess, codec: str) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "compression.type": codec, "enable.idempotence": True})
    for number in range(KEYS * ROUNDS):
        producer.produce(TOPIC, key=f"key-{number % KEYS}", value=f"{codec} {number}")
        if number % 37 == 0:
            producer.flush()
    producer.flush()


def _produce_last(node: NodeProcess) -> list[Row]:
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 0})
    offset = 3 * KEYS * ROUNDS
    rows: list[Row] = []
    for number in range(KEYS):
        value = None if number % 5 == 0 else f"last {number}"
        producer.produce(TOPIC, key=f"key-{number}", value=value)
        producer.flush()
        rows.append((offset + number, f"key-{number}", value))
    # What is written to last is not cleaned: so the end stays, and the rest before it is sealed by its age.
    time.sleep(0.7)
    producer.produce(TOPIC, key="end", value="end")
    producer.flush()
    return [*rows, (offset + KEYS, "end", "end")]


def _read_by_confluent(node: NodeProcess) -> list[Row]:
    settings = {
        "bootstrap.servers": node.kafka,
        "group.id": "reader",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_uncommitted",
    }
    consumer = Consumer(settings)
    consumer.assign([Place(TOPIC, 0, 0)])
    rows: list[Row] = []
    try:
        while True:
            message = consumer.poll(10.0)
            assert message is not None, "the end of the topic was not reached"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return rows
            value = message.value()
            rows.append((message.offset(), message.key().decode(), None if value is None else value.decode()))
    finally:
        consumer.close()


def test_confluent_kafka_reads_what_is_left(node: NodeProcess, expected: list[Row]) -> None:
    assert _read_by_confluent(node) == expected


def test_kafka_python_reads_what_is_left(node: NodeProcess, expected: list[Row]) -> None:
    consumer = KafkaConsumer(bootstrap_servers=node.kafka, enable_auto_commit=False, consumer_timeout_ms=20_000)
    place = TopicPartition(TOPIC, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    rows: list[Row] = []
    for message in consumer:
        rows.append((message.offset, message.key.decode(), message.value and message.value.decode()))
        if message.key == b"end":
            break
    consumer.close()
    assert rows == expected


async def test_aiokafka_reads_what_is_left(node: NodeProcess, expected: list[Row]) -> None:
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=node.kafka, auto_offset_reset="earliest")
    await consumer.start()
    rows: list[Row] = []
    try:
        async for message in consumer:
            rows.append((message.offset, message.key.decode(), message.value and message.value.decode()))
            if message.key == b"end":
                break
    finally:
        await consumer.stop()
    assert rows == expected


def test_kafkajs_reads_what_is_left(node: NodeProcess, expected: list[Row]) -> None:
    program = shutil.which("node")
    if program is None or not (KAFKAJS / "kafkajs").is_dir():
        pytest.skip("kafkajs is not here: test_groups_kafkajs.py fetches it")
    words = [program, "-e", READ_BY_KAFKAJS, node.kafka, TOPIC]
    done = subprocess.run(
        words, env={"NODE_PATH": str(KAFKAJS)}, capture_output=True, timeout=WAIT_SECONDS_MAX, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [tuple(row) for row in json.loads(done.stdout)] == expected


def test_log_is_whole_and_the_same_after_a_kill(node: NodeProcess, expected: list[Row]) -> None:
    node.kill()
    node.start()
    assert _read_by_confluent(node) == expected
