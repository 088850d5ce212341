"""ElectLeaders on real nodes: a disk that was replaced gets a leader again, and the preferred replica its partition."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import elect_leaders
from support.door.raw_kafka import RawConnection
from support.node_process import NodeProcess

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(90)]

PREFERRED, UNCLEAN = 0, 1
PATIENCE_SECONDS = 20.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[int, NodeProcess]]:
    environment = {"PENSTOCK_CLUSTER__SESSION_MS": "2000", "PENSTOCK_CLUSTER__LISTEN": "127.0.0.1:0"}
    made = {
        node_id: NodeProcess(
            tmp_path / str(node_id),
            arguments=("--metadata", f"sqlite:{tmp_path / 'metadata.sqlite'}"),
            environment={**environment, "PENSTOCK_NODE__ID": str(node_id)},
        )
        for node_id in (1, 2)
    }
    with ExitStack() as stack:
        for node in made.values():
            stack.enter_context(node)
        yield made


def create(admin: AdminClient, name: str, replicas: list[int]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        wanted = NewTopic(name, num_partitions=1, replica_assignment=[replicas])
        try:
            admin.create_topics([wanted], request_timeout=20)[name].result(timeout=20)
        except KafkaException:
            # Node 2 has said a moment ago that it serves, and node 1 has yet to hear it.
            assert time.monotonic() < until
            time.sleep(0.05)
        else:
            return


def leader_of(admin: AdminClient, topic: str) -> int:
    found = admin.list_topics(topic, timeout=10).topics[topic].partitions
    return int(found[0].leader) if 0 in found else -1


def until_led_by(admin: AdminClient, topic: str, node_id: int) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while leader_of(admin, topic) != node_id:
        assert time.monotonic() < until, f"{topic} is not led by {node_id}"
        time.sleep(0.05)


def elect(node: NodeProcess, kind: int, topic: str) -> int:
    """By the wire: the binding of librdkafka 2.16 cannot ask for it (a SystemError of its own)."""
    request = elect_leaders.ElectLeadersRequest(kind, (elect_leaders.TopicPartitions(topic, (0,)),))
    with RawConnection(node) as connection:
        told = connection.ask(request, elect_leaders.ElectLeadersResponse, 2)
    assert told.error_code == ErrorCode.NONE
    return int(told.replica_election_results[0].partition_result[0].error_code)


def produce(address: str, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": address, "acks": "all", "message.timeout.ms": 15_000})
    failed: list[object] = []
    producer.produce(topic, value, callback=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(20) == 0
    assert failed == []


def test_partition_of_a_replaced_disk_gets_a_leader_when_it_is_asked_for(nodes: dict[int, NodeProcess]) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[1].kafka})
    create(admin, "orders", [2])
    until_led_by(admin, "orders", 2)
    produce(nodes[1].kafka, "orders", "a")
    assert elect(nodes[1], UNCLEAN, "orders") == ErrorCode.ELECTION_NOT_NEEDED

    nodes[2].kill()
    shutil.rmtree(nodes[2].data_directory)
    nodes[2].start()
    until_led_by(admin, "orders", -1)
    assert elect(nodes[1], PREFERRED, "orders") == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert elect(nodes[1], UNCLEAN, "orders") == ErrorCode.NONE
    until_led_by(admin, "orders", 2)
    produce(nodes[1].kafka, "orders", "b")


def test_preferred_leader_leads_again(nodes: dict[int, NodeProcess]) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[1].kafka})
    create(admin, "orders", [2, 1])
    until_led_by(admin, "orders", 2)
    nodes[2].kill()
    until_led_by(admin, "orders", 1)
    nodes[2].start()
    until = time.monotonic() + PATIENCE_SECONDS
    # Node 2 is not the controller, and does it too.
    while (told := elect(nodes[2], PREFERRED, "orders")) != ErrorCode.NONE:
        # It has to catch up first.
        assert told == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert time.monotonic() < until
        time.sleep(0.05)
    until_led_by(admin, "orders", 2)
    produce(nodes[1].kafka, "orders", "a")
