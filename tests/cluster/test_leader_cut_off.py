"""A leader that stands still, is cut from the metadata store only, or from its followers only: it confirms nothing that
is not kept, others go on where they may, and when all is well again nothing is lost.

Real processes, each with a network of its own where something is cut.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from support.chaos.checks import check_log, told
from support.chaos.network import Network
from support.chaos.nodes import NODE_IDS, Nodes
from support.chaos.steady_load import SteadyLoad, read_partition
from support.chaos.witness import PositionsAsked, Witness
from support.door.raw_kafka import RawConnection
from support.programs.etcd import EtcdCluster, require_etcd

# Minutes, with network namespaces and pauses: in `make chaos`.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC: Final = "orders"
GROUP: Final = "readers"
FIND_COORDINATOR_VERSION: Final = 3
NOBODY: Final = -1
PARTITIONS: Final = 6
SESSION_MS: Final = 3_000
LAG_MS: Final = 2_000
SETTINGS: Final = {"PENSTOCK_CLUSTER__SESSION_MS": str(SESSION_MS), "PENSTOCK_CLUSTER__REPLICA_LAG_MS": str(LAG_MS)}
STORE: Final = "store"
# For `make chaos`: pauses of these lengths instead of one that outlives the session.
PAUSES_SECONDS: Final = [float(text) for text in os.environ.get("PENSTOCK_PAUSES_SECONDS", "6").split(",") if text]
NOT_LED: Final = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.REQUEST_TIMED_OUT}
TOO_FEW: Final = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, metadata=f"sqlite:{tmp_path / 'metadata.sqlite'}", settings=SETTINGS) as running:
        yield running


@pytest.fixture
def network() -> Iterator[Network]:
    with Network((*map(str, NODE_IDS), STORE)) as made:
        yield made


@pytest.fixture
def cuttable(network: Network, tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        place = {"host": network.address(STORE), "wrapper": network.wrapper(STORE)}
        etcd = stack.enter_context(EtcdCluster(require_etcd(), tmp_path / "etcd", members=1, **place))  # type: ignore[arg-type]
        made = Nodes(
            tmp_path,
            metadata=f"etcd:{etcd.endpoints}/chaos",
            settings=SETTINGS,
            arguments=("--allow-old-etcd",),
            network=network,
        )
        yield stack.enter_context(made)


class Scene:
    """A load on every partition, and the node that leads the first of them."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        nodes.create_topic(TOPIC, partitions=PARTITIONS)
        self.load = SteadyLoad(
            nodes.bootstrap, TOPIC, partitions=PARTITIONS, **{"socket.timeout.ms": 3_000, "request.timeout.ms": 2_500}
        )
        self.load.start()
        leaders = nodes.leaders(TOPIC)
        self.victim = leaders[0]
        self.led = [number for number, leader in leaders.items() if leader == self.victim]
        self.elsewhere = [number for number, leader in leaders.items() if leader != self.victim]
        self.witness = Witness(nodes[self.victim], TOPIC)
        nodes.wait_until(lambda: self.load.is_acked_everywhere_since(0.0), "acknowledged everywhere")

    def wait_until_others_lead(self) -> None:
        other = next(node_id for node_id in NODE_IDS if node_id != self.victim)
        self.nodes.wait_until(lambda: self.victim not in self.nodes.leaders_by(other, TOPIC).values(), "others lead")

    def wait_until_acked(self, partitions: list[int]) -> None:
        moment = time.monotonic()
        self.nodes.wait_until(lambda: self.load.is_acked_since(moment, partitions), f"{partitions} acknowledged")

    def finish(self) -> None:
        """All is well again, and everything that was confirmed to anybody is there."""
        self.nodes.wait_until_well()
        self.load.finish()
        logs = {number: read_partition(self.nodes.bootstrap, TOPIC, number) for number in range(PARTITIONS)}
        sent, acked = {**self.load.sent, **self.witness.sent}, {**self.load.acked, **self.witness.acked}
        broken = told(check_log(sent, acked, logs))
        assert not broken, broken
        assert not self.nodes.tracebacks(), self.nodes.tracebacks()[0]


@pytest.mark.parametrize("pause_seconds", PAUSES_SECONDS)
def test_leader_that_stood_still_confirms_nothing_in_its_old_epoch(nodes: Nodes, pause_seconds: float) -> None:
    scene = Scene(nodes)
    victim = nodes[scene.victim]
    outlives = pause_seconds * 1_000 > SESSION_MS
    victim.pause()
    paused_at = time.monotonic()
    try:
        if outlives:
            scene.wait_until_others_lead()
            scene.wait_until_acked(list(range(PARTITIONS)))
        # It finds these when it wakes, before anybody tells it that it was replaced.
        scene.witness.ask_produce(scene.led)
        time.sleep(max(0.0, paused_at + pause_seconds - time.monotonic()))
    finally:
        victim.resume()
    scene.witness.ask_produce(scene.led)
    scene.witness.hear()
    if outlives:
        assert not scene.witness.acked, "a leader that was replaced has confirmed what nobody else has"
        assert set(scene.witness.refusals) <= NOT_LED
    scene.wait_until_acked(list(range(PARTITIONS)))
    scene.finish()


def test_coordinator_that_stood_still_tells_no_position_of_before(nodes: Nodes) -> None:
    nodes.create_topic(TOPIC, partitions=1)
    commit(nodes, 1)
    coordinator = coordinator_of(nodes)
    nodes[coordinator].pause()
    try:
        other = next(node_id for node_id in NODE_IDS if node_id != coordinator)
        nodes.wait_until(
            lambda: coordinator_of(nodes, asked=other) not in (coordinator, NOBODY), "another one coordinates"
        )
        commit(nodes, 2)
        asked = [PositionsAsked(nodes[coordinator], GROUP, TOPIC) for _ in range(5)]
    finally:
        nodes[coordinator].resume()
    for each in asked:
        error, offset = each.hear()
        assert error is not ErrorCode.NONE or offset == 2, f"told {offset} after 2 was confirmed"
    nodes.wait_until_well()


def test_leader_cut_from_the_store_only_is_replaced_and_confirms_nothing(cuttable: Nodes, network: Network) -> None:
    scene = Scene(cuttable)
    network.cut(str(scene.victim), STORE)
    scene.wait_until_others_lead()
    scene.wait_until_acked(list(range(PARTITIONS)))
    scene.witness.ask_produce(scene.led)
    scene.witness.hear()
    assert not scene.witness.acked, "its followers have left it: nothing is committed there"
    network.heal()
    scene.finish()


def test_leader_cut_from_its_followers_only_takes_nothing_that_it_alone_has(cuttable: Nodes, network: Network) -> None:
    scene = Scene(cuttable)
    for node_id in NODE_IDS:
        if node_id != scene.victim:
            network.cut(str(scene.victim), str(node_id))
    # It is out of the sets of the others, which go on without it.
    scene.wait_until_acked(scene.elsewhere)
    cuttable.wait_until(lambda: not in_sync(cuttable, scene.led[0]) - {scene.victim}, "it is alone in its set")
    scene.witness.ask_produce(scene.led)
    scene.witness.hear()
    assert not scene.witness.acked, "no other one has it"
    assert set(scene.witness.refusals) <= TOO_FEW | NOT_LED
    network.heal()
    scene.wait_until_acked(list(range(PARTITIONS)))
    scene.finish()


def in_sync(nodes: Nodes, partition: int) -> set[int]:
    return set(nodes.metadata().topics[TOPIC].partitions[partition].isrs)


def commit(nodes: Nodes, offset: int) -> None:
    """Until it is confirmed: whoever coordinates is replaced now and then."""
    settings = {"group.id": GROUP, "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": nodes.bootstrap, **settings})
    try:
        nodes.wait_until(
            lambda: bool(consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)), ""
        )
    finally:
        consumer.close()


def coordinator_of(nodes: Nodes, *, asked: int = NODE_IDS[0]) -> int:
    """As one of them says. By the wire: librdkafka's admin client aborts the process when a coordinator is silent."""
    with RawConnection(nodes[asked]) as connection:
        request = FindCoordinatorRequest(key=GROUP)
        return connection.ask(request, FindCoordinatorResponse, FIND_COORDINATOR_VERSION).node_id
