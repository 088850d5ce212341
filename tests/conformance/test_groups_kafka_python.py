"""Groups of kafka-python: classic groups in the newest versions of their requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.structs import OffsetAndMetadata

from support.group.node import HEARTBEAT_MS, LONG_SESSION_MS, SESSION_MS, node_for_groups
from support.node_process import NodeProcess

WAIT_SECONDS_MAX = 30.0
PARTITIONS = 4
Enter = Callable[..., KafkaConsumer]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path_factory.mktemp("groups-kafka-python")) as running:
        yield running


@pytest.fixture
def admin(node: NodeProcess) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=node.kafka)
    yield admin
    admin.close()


@pytest.fixture
def orders(admin: KafkaAdminClient, topic: str) -> str:
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    return topic


def start_member(node: NodeProcess, topic: str, group: str, **settings: Any) -> KafkaConsumer:
    options: dict[str, Any] = {
        "bootstrap_servers": node.kafka,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "max_poll_interval_ms": LONG_SESSION_MS,
    }
    listener = settings.pop("listener", None)
    consumer = KafkaConsumer(**{**options, **settings})
    consumer.subscribe([topic], listener=listener)
    return consumer


@pytest.fixture
def enter(node: NodeProcess) -> Iterator[Enter]:
    members: list[KafkaConsumer] = []

    def make(topic: str, group: str, **settings: Any) -> KafkaConsumer:
        members.append(start_member(node, topic, group, **settings))
        return members[-1]

    yield make
    for member in members:
        member.close()


def send(node: NodeProcess, topic: str, count: int) -> list[bytes]:
    producer = KafkaProducer(bootstrap_servers=node.kafka)
    values = [b"%d" % number for number in range(count)]
    for number, value in enumerate(values):
        producer.send(topic, value, partition=number % PARTITIONS)
    producer.flush(WAIT_SECONDS_MAX)
    producer.close()
    return values


def poll_until(is_done: Callable[[], bool], *members: KafkaConsumer) -> list[bytes]:
    """What everybody received meanwhile."""
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_done():
        values += poll(*members)
        assert time.monotonic() < deadline, [sorted(member.assignment()) for member in members]
    return values


def receive(count: int, *members: KafkaConsumer) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(values) < count:
        values += poll(*members)
        assert time.monotonic() < deadline, f"{len(values)} of {count}"
    return values


def poll(*members: KafkaConsumer) -> list[bytes]:
    found: list[bytes] = []
    for member in members:
        polled = member.poll(timeout_ms=50)
        found += [message.value for messages in polled.values() for message in messages]
    return found


def shared(topic: str, *members: KafkaConsumer) -> Callable[[], bool]:
    def is_shared() -> bool:
        held = [place for member in members for place in member.assignment()]
        counts = sorted(len(member.assignment()) for member in members)
        everything = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return sorted(held) == everything and counts[-1] - counts[0] <= 1

    return is_shared


def test_member_reads_commits_and_is_taken_up_by_the_next(node: NodeProcess, orders: str, enter: Enter) -> None:
    sent = send(node, orders, 20)
    first = enter(orders, orders)
    assert sorted(receive(20, first)) == sorted(sent)
    first.commit()
    first.close()
    send(node, orders, 8)
    second = enter(orders, orders)
    assert len(receive(8, second)) == 8
    places = [TopicPartition(orders, number) for number in range(PARTITIONS)]
    assert [second.committed(place) for place in places] == [5, 5, 5, 5]
    second.commit({places[0]: OffsetAndMetadata(3, "rewound", -1)})
    assert second.committed(places[0], metadata=True).metadata == "rewound"


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor, CooperativeStickyAssignor])
def test_partitions_are_shared_as_members_come_and_go(
    node: NodeProcess, orders: str, enter: Enter, assignor: Any
) -> None:
    how = {"partition_assignment_strategy": (assignor,)}
    first = enter(orders, orders, **how)
    poll_until(shared(orders, first), first)
    second = enter(orders, orders, **how)
    poll_until(shared(orders, first, second), first, second)
    sent = send(node, orders, 20)
    assert sorted(receive(20, first, second)) == sorted(sent)
    second.close()
    poll_until(shared(orders, first), first)


class Listener(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.heard.append(("revoked", len(revoked)))

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.heard.append(("assigned", len(assigned)))


def test_static_member_that_restarts_disturbs_nobody(orders: str, enter: Enter) -> None:
    long = {"session_timeout_ms": LONG_SESSION_MS}
    listener = Listener()
    first = enter(orders, orders, group_instance_id="one", listener=listener, **long)
    second = enter(orders, orders, group_instance_id="two", **long)
    poll_until(shared(orders, first, second), first, second)
    held, heard = second.assignment(), list(listener.heard)
    assert heard[-1] == ("assigned", 2)
    second.close()
    again = enter(orders, orders, group_instance_id="two", **long)
    poll_until(lambda: again.assignment() == held, first, again)
    poll_until(shared(orders, first, again), first, again)
    assert listener.heard == heard


def test_commits_and_members_outlive_a_killed_node(tmp_path: Path, topic: str) -> None:
    with node_for_groups(tmp_path / "own-node") as node:
        admin = KafkaAdminClient(bootstrap_servers=node.kafka)
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        admin.close()
        send(node, topic, 20)
        member = start_member(node, topic, topic, session_timeout_ms=LONG_SESSION_MS)
        receive(20, member)
        member.commit()
        node.kill()
        node.start()
        send(node, topic, 8)
        # From where it was: nothing comes twice.
        assert len(receive(8, member)) == 8
        member.commit()
        assert [member.committed(TopicPartition(topic, number)) for number in range(PARTITIONS)] == [7] * 4
        member.close()


def test_groups_are_listed_described_reset_and_deleted(
    node: NodeProcess, orders: str, admin: KafkaAdminClient, enter: Enter
) -> None:
    send(node, orders, 20)
    member = enter(orders, orders, client_id="reader")
    receive(20, member)
    member.commit()
    assert orders in [group["group_id"] for group in admin.list_groups()]
    described = admin.describe_groups([orders])[orders]
    assert described["group_state"] == "Stable"
    assert [each["client_id"] for each in described["members"]] == ["reader"]
    places = {TopicPartition(orders, number): 5 for number in range(PARTITIONS)}
    offsets = admin.list_group_offsets(orders)[orders]
    assert {place: entry.offset for place, entry in offsets.items()} == places
    assert "NonEmptyGroup" in str(admin.delete_groups([orders]))
    member.close()
    admin.alter_group_offsets(orders, {place: OffsetAndMetadata(2, "", -1) for place in places})
    offsets = admin.list_group_offsets(orders)[orders]
    assert {entry.offset for entry in offsets.values()} == {2}
    admin.delete_groups([orders])
    assert orders not in [group["group_id"] for group in admin.list_groups()]
