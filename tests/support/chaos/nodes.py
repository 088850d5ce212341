"""Nodes in processes of their own that are one cluster: killed, paused, started again, and asked how they are.

with Nodes(tmp_path, metadata="sqlite:…") as nodes:
    nodes.create_topic("orders", partitions=24)
    victim = nodes.choose_leader(chance)
    nodes[victim].kill()
    nodes[victim].start()
    nodes.wait_until_well()     # every replica of every partition is in sync
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from support.chaos.network import Network
from support.door.raw_kafka import METADATA_VERSION, RawConnection
from support.node_process import NodeFailedError, NodeProcess

NODE_IDS: Final = (1, 2, 3)
# A node that comes back reads its logs, is admitted, and fetches what it missed; machines are busy.
PATIENCE_SECONDS: Final = 90.0
CALL_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.05
LOCAL: Final = "127.0.0.1:0"
# In a network of its own a node may have any: for Kafka, metrics, HTTP; for other nodes.
PORTS: Final = (9092, 9644, 8080)
INTERNAL_PORT: Final = 19_092


class Nodes:
    def __init__(
        self,
        root: Path,
        *,
        metadata: str,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        has_http: bool = False,
        network: Network | None = None,
    ) -> None:
        """In a network each node has a place of its own, which is called by its id."""
        self.nodes: dict[int, NodeProcess] = {}
        for node_id in NODE_IDS:
            place = str(node_id)
            host = "" if network is None else network.address(place)
            listen = f"{host}:{INTERNAL_PORT}" if host else LOCAL
            node = self.nodes[node_id] = NodeProcess(
                root / place,
                arguments=("--metadata", metadata, *arguments),
                environment={"PENSTOCK_NODE__ID": place, "PENSTOCK_CLUSTER__LISTEN": listen, **(settings or {})},
                wrapper=() if network is None else network.wrapper(place),
                has_http=has_http,
            )
            if host:
                node.kafka, node.metrics, node.http = (f"{host}:{port}" for port in PORTS)
        self._stack = ExitStack()
        self._admin: AdminClient | None = None

    def __enter__(self) -> Self:
        for node in self.nodes.values():
            self._stack.enter_context(node)
        self.wait_until(lambda: len(self.metadata().brokers) == len(self.nodes), "all nodes serve")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin = None
        self._stack.close()

    def __getitem__(self, node_id: int) -> NodeProcess:
        return self.nodes[node_id]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.kafka for node in self.nodes.values())

    def http_addresses(self) -> dict[int, str]:
        return {node_id: node.http for node_id, node in self.nodes.items()}

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(
                {"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 200, "log_level": 0}
            )
        return self._admin

    def metadata(self) -> Any:
        return self.admin.list_topics(timeout=CALL_SECONDS)

    def create_topic(self, name: str, *, partitions: int, replicas: Sequence[int] = ()) -> None:
        """Without named replicas it is spread over all nodes; the first of those that are named leads."""
        if replicas:
            topic = NewTopic(name, num_partitions=partitions, replica_assignment=[list(replicas)] * partitions)
        else:
            topic = NewTopic(name, num_partitions=partitions, replication_factor=len(self.nodes))
        self.admin.create_topics([topic], request_timeout=20)[name].result(timeout=20)
        # Whoever is asked next may not have heard of it yet.
        self.wait_until(self.is_well, f"{name} is everywhere")

    # looking

    @property
    def controller(self) -> int:
        return int(self.metadata().controller_id)

    def leaders(self, topic: str) -> dict[int, int]:
        """Of each partition."""
        found = self.metadata().topics[topic].partitions
        return {number: int(partition.leader) for number, partition in found.items()}

    def leaders_by(self, node_id: int, topic: str) -> dict[int, int]:
        """As that node says, and no other: one that is cut off tells what it knew."""
        request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
        with RawConnection(self.nodes[node_id]) as connection:
            reply = connection.ask(request, MetadataResponse, METADATA_VERSION)
        return {each.partition_index: each.leader_id for each in reply.topics[0].partitions}

    def is_well(self) -> bool:
        """All nodes serve, every partition has a leader and all its replicas are in sync."""
        seen = self.metadata()
        partitions = [each for topic in seen.topics.values() for each in topic.partitions.values()]
        return len(seen.brokers) == len(self.nodes) and all(
            partition.leader in seen.brokers and sorted(partition.isrs) == sorted(partition.replicas)
            for partition in partitions
        )

    def wait_until_well(self) -> float:
        return self.wait_until(self.is_well, "all in sync")

    def wait_until(self, is_so: Callable[[], bool], what: str, *, seconds: float = PATIENCE_SECONDS) -> float:
        """How long it took. A cluster that cannot be asked is asked again."""
        began = time.monotonic()
        while True:
            try:
                if is_so():
                    return time.monotonic() - began
                trouble = ""
            except KafkaException as error:
                trouble = f" ({error})"
            if time.monotonic() - began > seconds:
                raise NodeFailedError(f"{what}: not so after {seconds:g} s{trouble}\n{self.log_tails()}")
            time.sleep(LOOK_SECONDS)

    def log_tails(self) -> str:
        return "\n".join(f"node {node_id}\n{node.log_tail()}" for node_id, node in self.nodes.items())

    def tracebacks(self) -> list[str]:
        """What a node said that it must never say, with the lines around it."""
        found: list[str] = []
        for node_id, node in self.nodes.items():
            text = node.log_text()
            at = text.find("Traceback")
            if at >= 0:
                found.append(f"node {node_id}: …{text[max(0, at - 1_000) : at + 4_000]}")
        return found

    # choosing

    def choose_leader(self, topic: str, chance: random.Random) -> int:
        """A node that leads some of it; which, is chance."""
        return chance.choice(sorted(set(self.leaders(topic).values())))

    # comparing

    def verify(self, *topics: str) -> None:
        """By the command that compares the replicas' checksums; without a name, of all topics. It asks by HTTP."""
        door = next(iter(self.nodes.values())).http
        command = [sys.executable, "-m", "penstock.main", "cluster", "verify", *topics, "--http", door]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert done.returncode == 0, f"cluster verify: {done.stdout}\n{done.stderr}"
