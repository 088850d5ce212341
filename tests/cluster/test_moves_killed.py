"""Three nodes in processes of their own, and kill -9 of those between which messages move: dead letters from a topic of
one node to a topic of another and back, and a cron. Each dead letter and each time exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import create_topics
from support.door.raw_kafka import RawConnection
from support.node_process import NodeProcess

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(180)]

NODE_IDS = (1, 2, 3)
ORDERS, DEAD, TICKS = "orders", "orders-dlq", "ticks"
LETTERS = 240
AT_ONCE = 20
LEASE_MS = 1_500
PATIENCE_SECONDS = 40.0


class Cluster:
    def __init__(self, root: Path) -> None:
        environment = {"PENSTOCK_CLUSTER__SESSION_MS": "2000", "PENSTOCK_CLUSTER__LISTEN": "127.0.0.1:0"}
        self.nodes = {
            node_id: NodeProcess(
                root / str(node_id),
                arguments=("--metadata", f"sqlite:{root / 'metadata.sqlite'}"),
                environment={**environment, "PENSTOCK_NODE__ID": str(node_id)},
                has_http=True,
            )
            for node_id in NODE_IDS
        }
        # Who answered last, by what was asked about: it leads that.
        self._asked: dict[str, int] = {}

    def create(self, topic: str, leader: int) -> None:
        """One partition, on all nodes."""
        replicas = [leader, *(node_id for node_id in NODE_IDS if node_id != leader)]
        assignment = create_topics.CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
        wanted = create_topics.CreatableTopic(
            name=topic, num_partitions=-1, replication_factor=-1, assignments=(assignment,)
        )
        request = create_topics.CreateTopicsRequest(topics=(wanted,), timeout_ms=10_000)

        def is_made() -> bool:
            with RawConnection(self.nodes[1]) as connection:
                (answer,) = connection.ask(request, create_topics.CreateTopicsResponse, 5).topics
            return answer.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

        until(is_made, f"{topic} is made")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Of whoever leads what it is about, as soon as somebody does."""
        deadline, said = time.monotonic() + PATIENCE_SECONDS, ""
        about = path.split("/")[1]
        while time.monotonic() < deadline:
            first = self._asked.get(about, 1)
            for node_id in sorted(self.nodes, key=lambda each: each != first):
                try:
                    url = f"http://{self.nodes[node_id].http}/v1/{path}"
                    reply = httpx.request(method, url, json=body, timeout=10)
                except httpx.HTTPError as error:
                    said = repr(error)
                    continue
                if reply.is_success:
                    self._asked[about] = node_id
                    return reply.json() if reply.content else None
                said = reply.text
            time.sleep(0.05)
        raise AssertionError(f"nobody answers {method} {path}: {said}")

    def read(self, topic: str) -> list[tuple[str, int]]:
        """All that is committed in partition 0: values and times."""
        bootstrap = ",".join(node.kafka for node in self.nodes.values())
        settings = {"bootstrap.servers": bootstrap, "group.id": "look", "enable.partition.eof": True}
        consumer = Consumer({**settings, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[tuple[str, int]] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                if message.error().name() == "_PARTITION_EOF":
                    consumer.close()
                    return found
                continue
            found.append(((message.value() or b"").decode(), message.timestamp()[1]))
        raise AssertionError(f"{topic} cannot be read to its end")

    def values(self, topic: str) -> list[str]:
        return [value for value, _ in self.read(topic)]


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not so after a long time"
        time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    with ExitStack() as stack:
        for node in cluster.nodes.values():
            stack.enter_context(node)
        yield cluster


def reject(cluster: Cluster, count: int) -> None:
    """So many are confirmed as rejected; others may be, too."""
    done = 0
    while done < count:
        asked = {"count": AT_ONCE, "wait_ms": 200, "lease_ms": LEASE_MS, "consumer": "c"}
        received = cluster.ask("POST", f"queues/{ORDERS}/workers/receive", asked)["messages"]
        if not received and not left(cluster):
            return
        if received:
            receipts = [message["receipt"] for message in received]
            reply = cluster.ask("POST", f"queues/{ORDERS}/workers/nack", {"receipts": receipts, "reject": True})
            done += sum(each["outcome"] == "done" for each in reply["results"])


def left(cluster: Cluster) -> int:
    """What nobody has rejected yet."""
    stats = cluster.ask("GET", f"queues/{ORDERS}/workers/stats")
    return int(stats["backlog_count"] + stats["leased_count"] + stats["waiting_count"])


def kill_and_bring_back(cluster: Cluster, node_id: int, meanwhile: Callable[[], None]) -> None:
    cluster.nodes[node_id].kill()
    meanwhile()
    cluster.nodes[node_id].start()


def check_once(found: list[str]) -> None:
    numbers = sorted(int(value) for value in found)
    assert numbers == list(range(LETTERS)), "lost, or there twice"


def test_dead_letters_and_redrives_come_once_and_crons_keep_their_times(cluster: Cluster) -> None:
    for topic, leader in ((ORDERS, 1), (DEAD, 2), (TICKS, 3)):
        cluster.create(topic, leader)
    cluster.ask("PUT", f"queues/{ORDERS}/workers", {"dead_letter_topic": DEAD, "deliveries_max": 50})
    cluster.ask("PUT", f"crons/{TICKS}/tick", {"cron": "* * * * * *", "value": "tick"})
    messages = [{"value": str(number)} for number in range(LETTERS)]
    cluster.ask("POST", f"topics/{ORDERS}/messages", {"messages": messages})

    # Who takes the letters, in the middle of them.
    reject(cluster, LETTERS // 4)
    kill_and_bring_back(cluster, 2, lambda: reject(cluster, LETTERS // 4))
    # Who sends them.
    kill_and_bring_back(cluster, 1, lambda: reject(cluster, LETTERS // 4))
    # And who fires the cron.
    kill_and_bring_back(cluster, 3, lambda: reject(cluster, LETTERS))
    until(lambda: len(cluster.values(DEAD)) >= LETTERS, "all of them are dead letters")
    check_once(cluster.values(DEAD))

    # Back again, over a leader that is killed.
    task = cluster.ask("POST", f"dead-letters/{DEAD}/redrive", {"rate": 60})
    until(lambda: len(cluster.values(ORDERS)) >= LETTERS + 30, "the redrive has begun")
    cluster.nodes[cluster._asked[DEAD]].kill()
    until(lambda: len(cluster.values(ORDERS)) >= 2 * LETTERS, "all of them are back")
    check_once(cluster.values(ORDERS)[LETTERS:])
    path = f"dead-letters/{DEAD}/redrives/{task['id']}"
    until(lambda: cluster.ask("GET", path)["state"] == "completed", "the redrive is over")

    times = [moment for _, moment in cluster.read(TICKS)]
    assert len(set(times)) == len(times), "a time of the cron came twice"
    assert times == list(range(times[0], times[0] + 1_000 * len(times), 1_000)), "a time is missing"
