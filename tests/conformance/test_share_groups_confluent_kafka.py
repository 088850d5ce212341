"""Share groups (KIP-932) with confluent-kafka's ShareConsumer, unchanged: who gets what, and what comes back."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import AcknowledgeType, Consumer, KafkaException, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from support.node_process import NodeProcess

WAIT_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.2
EARLIEST: Final = {"share.auto.offset.reset": "earliest"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    # Ordinary groups read along, and need not wait for latecomers.
    environment = {"PENSTOCK_GROUPS__INITIAL_REBALANCE_DELAY_MS": "100"}
    with NodeProcess(tmp_path_factory.mktemp("share"), environment=environment) as running:
        yield running


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "own-node") as running:
        yield running


@pytest.fixture
def topic(node: NodeProcess) -> str:
    return create(node)


@pytest.fixture
def group(node: NodeProcess) -> str:
    return new_group(node)


def create(node: NodeProcess, partitions: int = 1) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(name, partitions)])[name].result(10)
    return name


def new_group(node: NodeProcess, **settings: str) -> str:
    group = f"packers-{uuid.uuid4().hex[:8]}"
    configure(node, group, {**EARLIEST, **{name.replace("_", "."): value for name, value in settings.items()}})
    return group


def configure(node: NodeProcess, group: str, settings: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": node.kafka})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def produce(node: NodeProcess, topic: str, values: list[bytes], *, batch: int = 10, **settings: object) -> None:
    """In batches of that many records: a member takes whole batches."""
    producer = Producer({"bootstrap.servers": node.kafka, "batch.num.messages": batch, "linger.ms": 0, **settings})
    for start in range(0, len(values), batch):
        for value in values[start : start + batch]:
            producer.produce(topic, value, partition=0)
        assert producer.flush(10) == 0


def share_consumer(node: NodeProcess, group: str, topic: str, **settings: object) -> ShareConsumer:
    consumer = ShareConsumer({"bootstrap.servers": node.kafka, "group.id": group, "log_level": 3, **settings})
    consumer.subscribe([topic])
    return consumer


def explicit(node: NodeProcess, group: str, topic: str, **settings: object) -> ShareConsumer:
    return share_consumer(node, group, topic, **{"share.acknowledgement.mode": "explicit", **settings})


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def values_of(messages: list[Message]) -> list[bytes]:
    return [message.value() or b"" for message in messages]


def poll(consumer: ShareConsumer) -> list[Message]:
    messages = list(consumer.poll(POLL_SECONDS))
    for message in messages:
        assert message.error() is None, message.error()
    return messages


def first(consumer: ShareConsumer) -> list[Message]:
    """The first messages that come."""
    found: list[Message] = []

    def look() -> bool:
        found.extend(poll(consumer))
        return bool(found)

    wait_for(look, "no message came")
    return found


def wait_for(is_true: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline, why


def test_several_consumers_share_one_partition(node: NodeProcess, topic: str, group: str) -> None:
    consumers = [share_consumer(node, group, topic, **{"max.poll.records": 10}) for _ in range(3)]
    values = numbered(300)
    produce(node, topic, values)
    got: list[Counter[bytes]] = [Counter() for _ in consumers]

    def everything_came() -> bool:
        for consumer, counter in zip(consumers, got, strict=True):
            counter.update(values_of(poll(consumer)))
        return sum(len(counter) for counter in got) >= len(values)

    wait_for(everything_came, f"{sum(map(len, got))} of {len(values)} came")
    for consumer in consumers:
        consumer.close()
    assert sum(got, Counter()) == Counter(values), "every message once, whoever got it"
    assert all(got), "each of them had a part"


def test_each_message_has_the_fate_that_its_consumer_gave_it(node: NodeProcess, topic: str, group: str) -> None:
    consumer = explicit(node, group, topic)
    produce(node, topic, numbered(6), batch=6)
    messages = first(consumer)
    assert values_of(messages) == numbered(6)
    fates = [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT] * 2
    for message, fate in zip(messages, fates, strict=True):
        consumer.acknowledge(message, fate)
    assert list(consumer.commit_sync(10).values()) == [None]
    again = first(consumer)
    assert values_of(again) == [b"1", b"4"]
    for message in again:
        consumer.acknowledge(message)
    assert list(consumer.commit_sync(10).values()) == [None]
    assert poll(consumer) == []
    consumer.close()


def test_what_an_orderly_consumer_did_not_settle_comes_back_at_once(node: NodeProcess, topic: str, group: str) -> None:
    leaving = explicit(node, group, topic)
    produce(node, topic, numbered(10))
    messages = first(leaving)
    leaving.acknowledge(messages[0])
    leaving.close()
    other = share_consumer(node, group, topic)
    assert values_of(first(other)) == numbered(10)[1:]
    other.close()


def test_what_a_killed_consumer_held_goes_to_another(node: NodeProcess, topic: str, group: str) -> None:
    produce(node, topic, numbered(10))
    code = f"""
import sys, time
from confluent_kafka import ShareConsumer
consumer = ShareConsumer({{"bootstrap.servers": {node.kafka!r}, "group.id": {group!r}, "log_level": 3}})
consumer.subscribe([{topic!r}])
while not (messages := list(consumer.poll(1.0))): pass
print(len(messages), flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "10"
        other = share_consumer(node, group, topic)
        assert poll(other) == []
    finally:
        process.kill()
        process.wait()
    assert sorted(values_of(first(other))) == sorted(numbered(10))
    other.close()


def test_a_message_that_fails_too_often_becomes_a_dead_letter(node: NodeProcess, topic: str) -> None:
    graveyard = f"{topic}-dead"
    group = new_group(node, share_delivery_count_limit="3", errors_deadletterqueue_topic_name=graveyard)
    consumer = explicit(node, group, topic)
    produce(node, topic, [b"poison", b"fine"], batch=2)
    deliveries: Counter[bytes] = Counter()

    def poison_has_failed_three_times() -> bool:
        for message in poll(consumer):
            value = message.value() or b""
            deliveries[value] += 1
            consumer.acknowledge(message, AcknowledgeType.ACCEPT if value == b"fine" else AcknowledgeType.RELEASE)
        assert set(consumer.commit_sync(10).values()) <= {None}
        return deliveries[b"poison"] >= 3

    wait_for(poison_has_failed_three_times, f"{deliveries}")
    reader = Consumer({"bootstrap.servers": node.kafka, "group.id": "undertaker", "auto.offset.reset": "earliest"})
    reader.subscribe([graveyard])
    letters: list[Message] = []

    def letter_came() -> bool:
        message = reader.poll(POLL_SECONDS)
        if message is not None and message.error() is None:
            letters.append(message)
        return bool(letters)

    wait_for(letter_came, "no dead letter")
    assert letters[0].value() == b"poison"
    headers = dict(letters[0].headers() or [])
    assert any(topic.encode() in (value or b"") for value in headers.values()), headers
    assert poll(consumer) == []
    assert deliveries == {b"poison": 3, b"fine": 1}
    reader.close()
    consumer.close()


def test_an_ordinary_group_replays_what_the_share_group_consumes(node: NodeProcess, topic: str, group: str) -> None:
    values = numbered(200)
    produce(node, topic, values)
    sharing = share_consumer(node, group, topic)
    reading = Consumer({"bootstrap.servers": node.kafka, "group.id": f"{group}-log", "auto.offset.reset": "earliest"})
    reading.subscribe([topic])
    shared: list[bytes] = []
    replayed: list[bytes] = []

    def both_have_all() -> bool:
        shared.extend(values_of(poll(sharing)))
        replayed.extend(values_of([each for each in reading.consume(100, POLL_SECONDS) if each.error() is None]))
        return len(shared) >= len(values) and len(replayed) >= len(values)

    wait_for(both_have_all, f"{len(shared)} shared, {len(replayed)} replayed")
    assert sorted(shared) == sorted(values)
    assert replayed == values
    sharing.close()
    reading.close()


def test_readers_of_committed_messages_get_no_others(node: NodeProcess, topic: str) -> None:
    group = new_group(node, share_isolation_level="read_committed")
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": f"{topic}-writer"})
    producer.init_transactions(10)
    for value, ends in ((b"never", producer.abort_transaction), (b"always", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(10)
        ends(10)
    consumer = share_consumer(node, group, topic)
    assert values_of(first(consumer)) == [b"always"]
    assert poll(consumer) == []
    consumer.close()


def test_a_group_that_says_nothing_begins_with_what_is_new(node: NodeProcess, topic: str) -> None:
    produce(node, topic, [b"old"])
    consumer = share_consumer(node, f"readers-{uuid.uuid4().hex[:8]}", topic)
    seen: list[bytes] = []
    numbers = iter(range(1_000_000))

    def something_new_came() -> bool:
        # It begins when it is assigned, which nobody is told: so it is fed until it has eaten.
        produce(node, topic, [b"new-%d" % next(numbers)])
        seen.extend(values_of(poll(consumer)))
        return bool(seen)

    wait_for(something_new_came, "nothing came")
    assert b"old" not in seen
    consumer.close()


def test_nothing_accepted_comes_back_when_the_node_is_killed(own_node: NodeProcess) -> None:
    topic, group = create(own_node), new_group(own_node, share_record_lock_duration_ms="2000")
    values = numbered(400)
    produce(own_node, topic, values, batch=20)
    consumer = explicit(own_node, group, topic, **{"max.poll.records": 20})
    accepted: Counter[bytes] = Counter()
    kills = iter((60, 200))
    next_kill = next(kills)

    def all_are_accepted() -> bool:
        nonlocal next_kill
        messages = [each for each in consumer.poll(POLL_SECONDS) if each.error() is None]
        twice = [value for value in values_of(messages) if accepted[value]]
        assert not twice, f"accepted before, and here again: {twice}"
        for message in messages:
            consumer.acknowledge(message)
        if len(accepted) >= next_kill:
            # In the middle: these are delivered and not yet settled.
            next_kill = next(kills, len(values) + 1)
            own_node.kill()
            own_node.start()
        try:
            outcome = consumer.commit_sync(5)
        except KafkaException:
            return False
        if messages and outcome and set(outcome.values()) == {None}:
            accepted.update(values_of(messages))
        return len(accepted) == len(values)

    wait_for(all_are_accepted, f"{len(accepted)} of {len(values)}")
    assert accepted == Counter(values)
    consumer.close()
