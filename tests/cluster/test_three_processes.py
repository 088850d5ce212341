"""Three nodes in processes of their own on one metadata file: who sees whom, and what becomes of the controller's seat
when its node is killed, told to stop, or comes back with an empty disk. What they decide is read from the file."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.cluster.catalog.nodes import ControllerRecord, NodeRecord
from penstock.cluster.catalog.topic_image import StoredTopic
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.values import decode
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import create_topics
from penstock.domain.replication.membership import MemberRecord
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import Duty
from support.door.raw_kafka import RawConnection
from support.node_process import NodeProcess

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(90)]

KEYS = KeySpace()
NODE_IDS = (1, 2, 3)
PARTITIONS = 6
SESSION_MS = 2_000
# A dead controller is replaced, and all that it led is led by others.
TAKEN_OVER_SECONDS_MAX = 3.0
PATIENCE_SECONDS = 20.0

V = TypeVar("V")


class Cluster:
    def __init__(self, root: Path) -> None:
        self._path = root / "metadata.sqlite"
        self._topic_id = b""
        environment = {"PENSTOCK_CLUSTER__SESSION_MS": str(SESSION_MS), "PENSTOCK_CLUSTER__LISTEN": "127.0.0.1:0"}
        self.nodes = {
            node_id: NodeProcess(
                root / str(node_id),
                arguments=("--metadata", f"sqlite:{self._path}"),
                environment={**environment, "PENSTOCK_NODE__ID": str(node_id)},
            )
            for node_id in NODE_IDS
        }

    def read(self, prefix: str, kind: type[V]) -> dict[str, V]:
        """By what follows the prefix. Read only: it must not be this process that ends a session."""
        with closing(sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute("SELECT key, value FROM entries ORDER BY key").fetchall()
        found = [(key, value) for key, value in rows if key.startswith(prefix)]
        return {key.removeprefix(prefix): decode(key, value, kind) for key, value in found}

    @property
    def serving(self) -> list[int]:
        records = self.read(KEYS.nodes, NodeRecord).values()
        return sorted(record.node_id for record in records if record.status is Duty.SERVING)

    @property
    def controller(self) -> int | None:
        found = self.read(KEYS.controller, ControllerRecord).get("")
        return None if found is None else found.node_id

    def states(self) -> list[PartitionState]:
        """Of the topic's partitions, those that are not as they were placed. Internal topics have fewer replicas: they
        were made when there were fewer nodes."""
        found = self.read(KEYS.partitions, PartitionState)
        return [state for key, state in found.items() if key.startswith(f"{self._topic_id.hex()}/")]

    def create(self, topic: str) -> None:
        """A replica of each partition on each node."""
        wanted = create_topics.CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=len(NODE_IDS))
        request = create_topics.CreateTopicsRequest(topics=(wanted,), timeout_ms=10_000)

        def is_made() -> bool:
            with RawConnection(self.nodes[1]) as connection:
                (answer,) = connection.ask(request, create_topics.CreateTopicsResponse, 5).topics
            # The store knows of all three; the node that is asked hears of the last a moment later.
            assert answer.error_code in (ErrorCode.NONE, ErrorCode.INVALID_REPLICATION_FACTOR), answer.error_message
            return answer.error_code == ErrorCode.NONE

        self.until(is_made, "a topic on all of them")
        self._topic_id = self.read(KEYS.topics, StoredTopic)[topic].topic_id

    def until(self, is_so: Callable[[], bool], what: str) -> float:
        """How long it took."""
        began = time.monotonic()
        while not is_so():
            tails = "\n".join(node.log_tail() for node in self.nodes.values())
            assert time.monotonic() - began < PATIENCE_SECONDS, f"{what}: not so after a long time\n{tails}"
            time.sleep(0.02)
        return time.monotonic() - began


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    with ExitStack() as stack:
        for node in cluster.nodes.values():
            stack.enter_context(node)
        yield cluster


def test_nodes_come_go_and_come_back(cluster: Cluster, topic: str) -> None:
    first, second, third = (cluster.nodes[node_id] for node_id in NODE_IDS)
    cluster.until(lambda: cluster.serving == [1, 2, 3], "all of them serve")
    assert cluster.controller == 1
    admitted = {each.admitted_epoch for each in cluster.read(KEYS.members, MemberRecord).values()}
    assert len(admitted) == 3, "each in a life of its own"
    cluster.create(topic)

    first.kill()
    took = cluster.until(lambda: cluster.controller not in (1, None), "another node takes the seat")
    took += cluster.until(lambda: bool(cluster.states()) and 1 not in leaders(cluster), "others lead what it led")
    assert took < TAKEN_OVER_SECONDS_MAX
    assert cluster.controller == 2, "the lowest of those that live"
    assert cluster.serving == [2, 3]
    assert not any(1 in state.in_sync for state in cluster.states())

    # Told to stop, the controller is relieved of everything before it goes.
    assert second.terminate() == 0
    assert cluster.serving == [3], "its key does not wait for the TTL"
    cluster.until(lambda: cluster.controller == 3, "the last one takes the seat")
    cluster.until(lambda: len(cluster.states()) == PARTITIONS and leaders(cluster) == {3}, "the last one leads it all")

    # A node whose disk was wiped is a node that has nothing.
    shutil.rmtree(first.data_directory)
    first.start()
    cluster.until(lambda: cluster.serving == [1, 3], "it comes back")
    said = [line for line in third.log_text().splitlines() if "node admitted" in line and "node=1 " in line]
    assert "trust=nothing" in said[-1]
    assert "the disk was wiped or replaced" in said[-1]
    assert leaders(cluster) == {3}

    # One whose disk is as it was is trusted, and needs no new directory.
    second.start()
    cluster.until(lambda: cluster.serving == [1, 2, 3], "it comes back")
    said = [line for line in third.log_text().splitlines() if "node admitted" in line and "node=2 " in line]
    assert "trust=full" in said[-1]


def leaders(cluster: Cluster) -> set[int]:
    return {state.leader for state in cluster.states()}
