"""What a mirror meets sooner or later: topics made anew, names used twice, rings, open transactions, odd settings."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from penstock.base.clock import SystemClock
from penstock.cli.work import mirror as mirror_work
from penstock.client.kafka.admin import delete_records
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.transactional_producer import ProducerFencedError
from penstock.net.address import parse_addresses
from penstock.pipeline.mirror.clusters import Mirror, MirrorError, MirrorPlan
from support.node_process import NodeProcess

SECONDS_MAX = 30
SET = AlterConfigOpType.SET


@pytest.fixture(scope="module")
def west(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("west"), memory=True) as running:
        yield running


@pytest.fixture(scope="module")
def east(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("east"), memory=True) as running:
        yield running


def admin_of(node: NodeProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.kafka})


def create(node: NodeProcess, topic: str, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin = admin_of(node)
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(20)


def delete(node: NodeProcess, topic: str) -> None:
    admin = admin_of(node)
    admin.delete_topics([topic])[topic].result(20)


def topics_of(node: NodeProcess) -> set[str]:
    return set(admin_of(node).list_topics(timeout=10).topics)


def settings_of(node: NodeProcess, topic: str) -> dict[str, str]:
    """Those of the topic itself."""
    resource, admin = ConfigResource(ConfigResource.Type.TOPIC, topic), admin_of(node)
    found = admin.describe_configs([resource])[resource].result(20)
    return {name: str(config.value) for name, config in found.items() if config.source == 1}


def produce(node: NodeProcess, topic: str, values: str, *, timestamp_ms: int = 0) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=0, timestamp=timestamp_ms or int(time.time() * 1000))
    assert producer.flush(20) == 0


def read(node: NodeProcess, topic: str) -> list[Any]:
    consumer = Consumer({
        "bootstrap.servers": node.kafka, "group.id": "reader", "enable.partition.eof": True,
        "enable.auto.commit": False, "isolation.level": "read_committed", "fetch.wait.max.ms": 10,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Any] = []
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        if message is not None:
            messages.append(message)
    consumer.close()
    return messages


def values_of(node: NodeProcess, topic: str) -> str:
    return "".join(message.value().decode() for message in read(node, topic))


def times_of(node: NodeProcess, topic: str) -> list[int]:
    return [message.timestamp()[1] for message in read(node, topic)]


def plan_of(source: NodeProcess, target: NodeProcess, topics: str, *, name: str = "", prefix: str = "") -> MirrorPlan:
    return MirrorPlan(name or topics, source.kafka, target.kafka, topics, prefix=prefix, refresh_ms=300, groups_ms=300)


def mirror(source: NodeProcess, target: NodeProcess, topics: str, *, name: str = "", prefix: str = "") -> None:
    """All that is there; how it came to its end is raised."""
    plan = plan_of(source, target, topics, name=name, prefix=prefix)
    asyncio.run(Mirror(plan, clock=SystemClock()).run(once=True))


@contextlib.asynccontextmanager
async def running(plan: MirrorPlan) -> AsyncIterator[asyncio.Task[None]]:
    at_work = Mirror(plan, clock=SystemClock())
    task = asyncio.create_task(at_work.run(once=False))
    try:
        yield task
    finally:
        at_work.stop()
        await asyncio.wait([task], timeout=SECONDS_MAX)
        assert task.done()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            if await asyncio.to_thread(condition):
                return
            await asyncio.sleep(0.05)


async def until_copied(node: NodeProcess, topic: str, values: str) -> None:
    await until(lambda: topic in topics_of(node) and values_of(node, topic) == values)


def test_an_open_transaction_of_another_topic_hides_no_run(west: NodeProcess, east: NodeProcess, topic: str) -> None:
    create(west, topic)
    mirror(west, east, "none", name=topic)
    other = Producer({"bootstrap.servers": east.kafka, "transactional.id": f"other-{topic}"})
    other.init_transactions(20)
    other.begin_transaction()
    other.produce(f"penstock-mirror.{topic}", b"[0,1,[]]", key=b'["another topic",0,"first"]')
    assert other.flush(20) == 0
    produce(west, topic, "abc")
    try:
        mirror(west, east, topic)
        produce(west, topic, "d")
        mirror(west, east, topic)
    finally:
        other.abort_transaction(20)
    assert values_of(east, topic) == "abcd"


def test_a_source_that_was_made_anew_is_told_and_mirrored_once_its_copy_is_gone(
    west: NodeProcess, east: NodeProcess, topic: str
) -> None:
    create(west, topic)
    produce(west, topic, "abc")
    mirror(west, east, topic)
    delete(west, topic)
    create(west, topic)
    # More than there were: no offset tells that it is another one.
    produce(west, topic, "defgh")
    with pytest.raises(MirrorError, match="made anew"):
        mirror(west, east, topic)
    assert values_of(east, topic) == "abc"
    delete(east, topic)
    mirror(west, east, topic)
    mirror(west, east, topic)
    assert values_of(east, topic) == "defgh"


def test_another_prefix_is_another_copy(west: NodeProcess, east: NodeProcess, topic: str) -> None:
    create(west, topic)
    produce(west, topic, "abc")
    mirror(west, east, topic, prefix="one.")
    mirror(west, east, topic, prefix="two.")
    assert values_of(east, f"two.{topic}") == "abc"


def test_mirrors_in_a_ring_copy_no_copies(west: NodeProcess, east: NodeProcess, topic: str) -> None:
    create(west, topic)
    produce(west, topic, "abc")
    for _ in range(2):
        mirror(west, east, f".*{topic}", name=topic, prefix="west.")
        mirror(east, west, f".*{topic}", name=topic, prefix="east.")
    found = {name for name in topics_of(west) | topics_of(east) if name.endswith(topic)}
    assert found == {topic, f"west.{topic}", f"penstock-mirror.{topic}"}


def test_without_a_prefix_nothing_comes_back_but_who_moved_may_move_back(
    west: NodeProcess, east: NodeProcess, topic: str
) -> None:
    create(west, topic)
    produce(west, topic, "abc")
    for _ in range(2):
        mirror(west, east, topic)
        mirror(east, west, topic)
    assert values_of(west, topic) == "abc"
    assert values_of(east, topic) == "abc"
    delete(west, topic)
    mirror(east, west, topic)
    mirror(east, west, topic)
    assert values_of(west, topic) == "abc"


def test_times_are_kept_whatever_the_topic_demands_of_new_records(
    west: NodeProcess, east: NodeProcess, topic: str
) -> None:
    create(west, topic, retention_ms="-1")
    produce(west, topic, "ab", timestamp_ms=1_600_000_000_000)
    admin = admin_of(west)
    wanted = {
        "message.timestamp.before.max.ms": "3600000",
        "message.timestamp.type": "LogAppendTime",
        "retention.after.archive": "true",
        "max.message.bytes": "2000000",
    }
    changes = [ConfigEntry(name, value, incremental_operation=SET) for name, value in wanted.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result(20)
    produce(west, topic, "c")
    mirror(west, east, topic)
    assert times_of(east, topic) == times_of(west, topic)
    held = settings_of(east, topic)
    assert held["max.message.bytes"] == "2000000"
    # There is no archive that it could wait for.
    assert "retention.after.archive" not in held


def test_a_topic_that_cannot_be_made_keeps_none_of_the_others_away(
    west: NodeProcess, east: NodeProcess, topic: str
) -> None:
    prefix, long = "too.long.to.have.", "a" * 235 + topic[-8:]
    create(west, long)
    create(west, topic)
    produce(west, topic, "abc")
    words = ["--topics", f"{long}|{topic}", "--name", topic, "--prefix", prefix, "--once", "--json"]
    command = [sys.executable, "-m", "penstock.main", "mirror", "run", "--from", west.kafka, "--to", east.kafka]
    done = subprocess.run([*command, *words], capture_output=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 1
    assert long[:20] in done.stderr.decode()
    told = {each["topic"]: (each["records"], each["error"]) for each in json.loads(done.stdout)["topics"]}
    assert told[topic] == (3, None)
    assert "invalid topic" in told[long][1]
    assert values_of(east, prefix + topic) == "abc"


async def test_who_is_past_all_markers_has_no_lag(west: NodeProcess, east: NodeProcess, topic: str) -> None:
    def write(values: str, *, is_commit: bool) -> None:
        producer = Producer({"bootstrap.servers": west.kafka, "transactional.id": topic})
        producer.init_transactions(20)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(20) == 0
        if is_commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)

    create(west, topic)
    for values, is_commit in (("abc", True), ("xyz", False)):
        await asyncio.to_thread(write, values, is_commit=is_commit)
        await asyncio.to_thread(mirror, west, east, topic)
    (status,) = await mirror_work._status(west.kafka, east.kafka, topic)
    assert (status.mirrored, status.lag) == (8, 0)
    assert values_of(east, topic) == "abc"


async def test_what_retention_took_before_it_was_copied_is_told(
    west: NodeProcess, east: NodeProcess, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create(west, topic)
    produce(west, topic, "ab")
    await asyncio.to_thread(mirror, west, east, topic)
    produce(west, topic, "cdef")
    async with ClusterClient(parse_addresses(west.kafka)) as client:
        await delete_records(client, topic, {0: 4})
    await asyncio.to_thread(mirror, west, east, topic)
    assert values_of(east, topic) == "abef"
    assert "gone from the source" in "".join(capsys.readouterr())


async def test_a_copy_that_is_deleted_while_the_mirror_runs_is_made_again(
    west: NodeProcess, east: NodeProcess, topic: str
) -> None:
    create(west, topic)
    produce(west, topic, "abc")
    async with running(plan_of(west, east, topic)):
        await until_copied(east, topic, "abc")
        await asyncio.to_thread(delete, east, topic)
        await asyncio.to_thread(produce, west, topic, "d")
        await until_copied(east, topic, "abcd")


async def test_of_two_mirrors_of_a_name_the_younger_goes_on(west: NodeProcess, east: NodeProcess, topic: str) -> None:
    create(west, topic)
    async with running(plan_of(west, east, topic)) as older:
        await asyncio.to_thread(produce, west, topic, "ab")
        await until_copied(east, topic, "ab")
        async with running(plan_of(west, east, topic)) as younger:
            written = "ab"
            # The older one is told when it writes, at the latest.
            for value in "cdefghijklmnopqrstuvwxyz":
                await asyncio.to_thread(produce, west, topic, value)
                written += value
                await until_copied(east, topic, written)
                if older.done():
                    break
            assert isinstance(older.exception(), ProducerFencedError)
            await asyncio.to_thread(produce, west, topic, "!")
            await until_copied(east, topic, f"{written}!")
            assert not younger.done()


async def test_a_topic_that_is_deleted_is_no_longer_followed(
    west: NodeProcess, east: NodeProcess, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create(west, topic)
    async with running(plan_of(west, east, topic)) as at_work:
        await until(lambda: topic in topics_of(east))
        await asyncio.to_thread(delete, west, topic)
        told: list[str] = []

        def is_told() -> bool:
            told.extend(capsys.readouterr())
            return "no longer there" in "".join(told)

        await until(is_told)
        assert not at_work.done()
    assert topic not in topics_of(west)
