"""A real node whose metadata are in a real etcd: it serves, comes back, and goes on while etcd is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from support.node_process import NodeFailedError, NodeProcess
from support.programs.etcd import EtcdCluster, require_etcd

pytestmark = pytest.mark.heavy

# What an administrator's tool waits for at most, and what a busy machine adds to it.
ANSWER_SECONDS_MAX = 5.0
SLACK_SECONDS = 1.5
WAIT_SECONDS_MAX = 30.0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(require_etcd(), tmp_path / "etcd") as cluster:
        yield cluster


def node_on(etcd: EtcdCluster, directory: Path, *, prefix: str = "/one") -> NodeProcess:
    return NodeProcess(directory, arguments=("--metadata", f"etcd:{etcd.endpoints}{prefix}", "--allow-old-etcd"))


def create_topic(node: NodeProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, num_partitions=2)], request_timeout=20)[topic].result(timeout=20)


def produce(node: NodeProcess, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "acks": "all", "message.timeout.ms": 10_000})
    lost: list[object] = []
    for value in values:
        producer.produce(topic, value, partition=0, callback=lambda error, _: lost.append(error) if error else None)
    assert producer.flush(15) == 0
    assert lost == []


def consume(node: NodeProcess, topic: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[str] = []
    until = time.monotonic() + WAIT_SECONDS_MAX
    while len(values) < count and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
    consumer.close()
    return values


def test_a_node_on_etcd_serves_and_comes_back(etcd: EtcdCluster, tmp_path: Path) -> None:
    with node_on(etcd, tmp_path / "node") as node:
        create_topic(node, "orders")
        produce(node, "orders", ["a", "b"])
        assert consume(node, "orders", 2) == ["a", "b"]
        assert node.terminate() == 0
        node.start()
        produce(node, "orders", ["c"])
        assert consume(node, "orders", 1) == ["c"]
        node.kill()
        # One member is gone when it comes back.
        etcd.kill_member(0)
        node.start()
        create_topic(node, "more")
    assert not (node.data_directory / "metadata.sqlite").exists()


def test_a_node_goes_on_while_etcd_is_away(etcd: EtcdCluster, tmp_path: Path) -> None:
    with node_on(etcd, tmp_path / "node") as node:
        create_topic(node, "orders")
        produce(node, "orders", ["a"])
        # Also makes the topic of the groups' offsets, which needs the metadata once.
        assert consume(node, "orders", 1) == ["a"]
        etcd.stop()
        produce(node, "orders", ["b"])
        assert consume(node, "orders", 1) == ["b"]
        began = time.monotonic()
        with pytest.raises(KafkaException, match="metadata is out of reach"):
            create_topic(node, "more")
        assert time.monotonic() - began < ANSWER_SECONDS_MAX + SLACK_SECONDS
        for change in (change_setting, change_user):
            began = time.monotonic()
            with pytest.raises(KafkaException, match="metadata is out of reach"):
                change(node)
            assert time.monotonic() - began < ANSWER_SECONDS_MAX + SLACK_SECONDS
        # What is there is served as before.
        produce(node, "orders", ["still"])
        etcd.start()
        create_topic_when_possible(node, "more")
        produce(node, "more", ["c"])


def change_setting(node: NodeProcess) -> None:
    entry = ConfigEntry("retention.ms", "1000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.incremental_alter_configs([resource], request_timeout=20)[resource].result(timeout=20)


def change_user(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    wanted = UserScramCredentialUpsertion("anna", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")
    admin.alter_user_scram_credentials([wanted], request_timeout=20)["anna"].result(timeout=20)


def create_topic_when_possible(node: NodeProcess, topic: str) -> None:
    until = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            return create_topic(node, topic)
        except KafkaException:
            if time.monotonic() > until:
                raise


def test_a_directory_is_not_served_by_the_metadata_of_another_prefix(etcd: EtcdCluster, tmp_path: Path) -> None:
    with node_on(etcd, tmp_path / "node") as node:
        create_topic(node, "orders")
        produce(node, "orders", ["a"])
    stranger = node_on(etcd, tmp_path / "node", prefix="/two")
    with pytest.raises(NodeFailedError, match="is it the right etcd, with the right prefix"):
        stranger.start()
