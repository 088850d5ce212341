"""Delayed records with clients that nobody here wrote: sent by one, read by all; nobody spins or stalls on holes."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess
from support.programs.kafkajs import kafkajs_modules
from support.schedule.delay_readers import (
    AiokafkaReader,
    ConfluentReader,
    KafkajsReader,
    KafkaPythonReader,
    Reader,
    wait_until,
)

# Longer than the test lasts.
HOUR: Final = "3600000"
# How long nothing comes and requests are counted. Clients wait half a second in each fetch.
WATCHED_SECONDS: Final = 2.0
FETCHES_A_SECOND_MAX: Final = 3
LATE_MS_MAX: Final = 50
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Of its own: requests are counted."""
    with NodeProcess(tmp_path_factory.mktemp("delays")) as running:
        yield running


@pytest.fixture
def topic(node: NodeProcess) -> str:
    name = f"delays-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(name, 1)])[name].result()
    return name


class Sender:
    """One batch for each `send`."""

    def __init__(self, node: NodeProcess, topic: str, **settings: Any) -> None:
        self._topic = topic
        self.producer = Producer(
            {
                "bootstrap.servers": node.kafka,
                "enable.idempotence": True,
                "linger.ms": 20,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )

    def send(self, *values: str, delayed: Sequence[str] = (), delay: str = HOUR) -> None:
        for value in values:
            self.add(value, [("penstock-delay-ms", delay)] if value in delayed else [])
        self.producer.flush()

    def add(self, value: str, headers: list[tuple[str, str | bytes | None]]) -> None:
        self.producer.produce(self._topic, value, partition=0, headers=headers, on_delivery=_raise_errors)


def _raise_errors(error: Any, _message: Any) -> None:
    if error is not None:
        raise KafkaException(error)


def fetch_count(node: NodeProcess) -> int:
    with urllib.request.urlopen(f"http://{node.metrics}/metrics") as page:
        found = re.search(r'^penstock_kafka_requests_total\{api="Fetch"\} (\S+)$', page.read().decode(), re.MULTILINE)
    return 0 if found is None else int(float(found[1]))


PYTHON_READERS: Final = (ConfluentReader, KafkaPythonReader, AiokafkaReader)


def fill_with_holes(node: NodeProcess, topic: str) -> list[str]:
    """Wholly delayed batches at the beginning, in the middle and at the end, and one that ends in holes."""
    later = [f"later {number}" for number in range(40)]
    # Not zstd, which kafkajs does not read.
    sender = Sender(node, topic, compression_type="gzip")
    sender.send(*later, delayed=later)
    sender.send("a", "b", "c")
    sender.send(*later, delayed=later)
    transactional = Sender(node, topic, transactional_id=topic)
    transactional.producer.init_transactions()
    transactional.producer.begin_transaction()
    transactional.send(*later, delayed=later)
    transactional.send("d", *later, delayed=later)
    transactional.producer.commit_transaction()
    # kafkajs goes on from the last record that it got: the holes at the end of this batch are in its way.
    sender.send("e", later[0], "f", *later[1:], delayed=later)
    sender.send(*later, delayed=later)
    sender.send(*later, delayed=later)
    return ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize("kinds", [PYTHON_READERS, (KafkajsReader,)], ids=["python", "kafkajs"])
def test_no_client_spins_or_stalls_on_holes(node: NodeProcess, topic: str, kinds: tuple[type[Reader], ...]) -> None:
    if KafkajsReader in kinds:
        KafkajsReader.modules = kafkajs_modules()
    expected = fill_with_holes(node, topic)
    levels = ("read_committed", "read_uncommitted")
    readers = [kind(node.kafka, topic, level) for kind in kinds for level in levels]
    try:
        for reader in readers:
            reader.start()
        wait_until(lambda: all(reader.values for reader in readers))
        before = fetch_count(node)
        threading.Event().wait(WATCHED_SECONDS)
        fetches = fetch_count(node) - before
        wait_until(lambda: all(len(reader.values) >= len(expected) for reader in readers))
        assert {reader.name: reader.values for reader in readers} == {reader.name: expected for reader in readers}
        assert fetches <= len(readers) * WATCHED_SECONDS * FETCHES_A_SECOND_MAX, "somebody asks again and again"
        Sender(node, topic).send("end")
        wait_until(lambda: all(reader.values[-1] == "end" for reader in readers))
        assert {reader.name: reader.values[6:] for reader in readers} == {reader.name: ["end"] for reader in readers}
    finally:
        for reader in readers:
            reader.stop()


def test_tasks_of_spark_read_what_is_there_whatever_span_they_are_given(node: NodeProcess, topic: str) -> None:
    pytest.importorskip("pyarrow")
    from penstock.pipeline.source.filters import Narrowing
    from penstock.pipeline.source.ranges import OffsetSpan
    from penstock.pipeline.source.row_batches import SpanReader

    expected = fill_with_holes(node, topic)
    cuts = [0, 1, 40, 41, 43, 60, 100, 124, 125, 166, 167, 169, 200, 250, 287]
    values: list[str] = []
    for start, end in pairwise(cuts):
        reader = SpanReader(
            node.kafka,
            OffsetSpan(topic, 0, start, end),
            includes_headers=False,
            is_read_committed=True,
            fails_on_loss=True,
            narrowing=Narrowing(),
        )
        values += [value.decode() for batch in reader.batches() for value in batch.column("value").to_pylist()]
    assert values == expected


def test_command_line_ends_at_the_end_though_it_is_a_hole(node: NodeProcess, topic: str) -> None:
    expected = fill_with_holes(node, topic)
    words = [sys.executable, "-m", "penstock.main", "consume", topic, "-b", node.kafka, "--read-committed"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == expected


def test_group_that_has_read_everything_is_not_behind(node: NodeProcess, topic: str) -> None:
    expected = fill_with_holes(node, topic)
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    for behind in (len(expected) - 1, 0):
        message = consumer.consume(len(expected) if behind == 0 else 1, 10)[-1]
        consumer.commit(message, asynchronous=False)
        words = [sys.executable, "-m", "penstock.main", "group", "describe", topic, "-b", node.kafka, "--json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        assert json.loads(done.stdout)["lag"] == behind
        consumer.seek(TopicPartition(topic, 0, 0))
    consumer.close()


def test_delayed_record_arrives_after_its_time_and_not_before(node: NodeProcess, topic: str) -> None:
    reader = ConfluentReader(node.kafka, topic, "read_committed")
    reader.start()
    try:
        senders = {codec: Sender(node, topic, compression_type=codec) for codec in CODECS}
        for sender in senders.values():
            sender.send("now")
        assert wait_until(lambda: len(reader.values) == len(CODECS))
        begin_ms = int(time.time() * 1000) + 500
        due_ms = {f"{codec} {number}": begin_ms + 40 * number for number in range(5) for codec in CODECS}
        for value, due in due_ms.items():
            senders[value.split()[0]].add(value, [("penstock-deliver-at", str(due))])
        for sender in senders.values():
            sender.producer.flush()
        wait_until(lambda: len(reader.values) == len(CODECS) + len(due_ms))
        later = reader.values[len(CODECS) :]
        assert sorted(later) == sorted(due_ms)
        late_ms = [came - due_ms[value] for came, value in zip(reader.came_ms[len(CODECS) :], later, strict=True)]
        assert min(late_ms) >= 0
        # Of most of them: a busy machine may hold up any one.
        assert statistics.median(late_ms) <= LATE_MS_MAX
    finally:
        reader.stop()


def test_delayed_record_of_a_transaction_waits_for_the_commit(node: NodeProcess, topic: str) -> None:
    reader = ConfluentReader(node.kafka, topic, "read_committed")
    reader.start()
    try:
        sender = Sender(node, topic, transactional_id=f"shop-{topic}", compression_type="lz4")
        sender.producer.init_transactions()
        sender.producer.begin_transaction()
        sender.send("lost", "lost later", delayed=["lost later"], delay="50")
        sender.producer.abort_transaction()
        sender.producer.begin_transaction()
        sender.send("now", "later", delayed=["later"], delay="50")
        threading.Event().wait(0.2)
        committed_ms = time.time() * 1000
        sender.producer.commit_transaction()
        assert wait_until(lambda: len(reader.values) == 2)
        assert (reader.values, min(reader.came_ms) >= committed_ms) == (["now", "later"], True)
    finally:
        reader.stop()


def test_header_without_a_sense_is_an_error_for_its_sender_alone(node: NodeProcess, topic: str) -> None:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 0})
    headers: list[tuple[str, str | bytes | None]] = [("penstock-deliver-at", "tomorrow")]
    producer.produce(topic, b"bad", headers=headers, on_delivery=lambda error, _message: errors.append(error))
    producer.flush(10)
    assert [error.name() for error in errors] == ["INVALID_RECORD"]
    Sender(node, topic).send("good")
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(10)
    consumer.close()
    assert message is not None
    assert (message.value(), message.offset()) == (b"good", 0)
