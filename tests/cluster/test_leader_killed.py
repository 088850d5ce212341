"""kill -9 of nodes that lead, under a load that every replica acknowledges: nothing lost, twice or out of order, and no
partition without an acknowledgement for long, whether it lost its leader or only a follower.

Two kills in `make test`, one of them with the metadata in etcd; `make chaos` has thirty (PENSTOCK_LEADER_KILLS): twenty
on SQLite, ten on etcd, of which every second hits the controller. How long each partition waited is printed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec
import pytest

from penstock.cli.commands.cluster import app as cluster_commands
from support.chaos.checks import told
from support.chaos.nodes import Nodes
from support.chaos.replicas import compare_replicas
from support.chaos.steady_load import SteadyLoad, distribution
from support.programs.etcd import EtcdCluster, require_etcd

pytestmark = pytest.mark.heavy

TOPIC: Final = "orders"
PARTITIONS: Final = 24
KILLS: Final = int(os.environ.get("PENSTOCK_LEADER_KILLS", "2"))
KILLS_ON_ETCD: Final = max(1, KILLS // 3)
SEED: Final = int(os.environ.get("PENSTOCK_CHAOS_SEED", "14"))
# What is promised; with the few gaps of a short run the median is as good as the longest.
GAP_SECONDS_MEDIAN: Final = 1.5
GAP_SECONDS_MAX: Final = 3.0
# Of load before the first kill, and between two.
STEADY_SECONDS: Final = 1.0
# What a node answered before it was killed is with its client by then.
ANSWERS_SECONDS: Final = 0.2


class Kill(msgspec.Struct, frozen=True):
    node_id: int
    at: float
    # Those that it led. All others lost a follower.
    led: frozenset[int]
    was_controller: bool


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, metadata=f"sqlite:{tmp_path / 'metadata.sqlite'}", has_http=True) as nodes:
        yield nodes


@pytest.fixture
def on_etcd(tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(require_etcd(), tmp_path / "etcd"))
        metadata = f"etcd:{etcd.endpoints}/chaos"
        nodes = Nodes(tmp_path, metadata=metadata, arguments=("--allow-old-etcd",), has_http=True)
        yield stack.enter_context(nodes)


@pytest.mark.timeout(180 + 60 * KILLS)
def test_leaders_killed_lose_nothing_and_are_replaced_soon(
    on_sqlite: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    kills, load = kill_leaders(on_sqlite, max(1, KILLS - KILLS_ON_ETCD), controllers=0)
    look_at(on_sqlite, "SQLite", kills, load, capsys)


@pytest.mark.timeout(180 + 60 * KILLS)
def test_leaders_and_controllers_killed_on_etcd_lose_nothing_and_are_replaced_soon(
    on_etcd: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    controllers = (KILLS_ON_ETCD + 1) // 2
    kills, load = kill_leaders(on_etcd, KILLS_ON_ETCD, controllers=controllers)
    assert sum(kill.was_controller for kill in kills) >= controllers
    look_at(on_etcd, "etcd", kills, load, capsys)


def kill_leaders(nodes: Nodes, count: int, *, controllers: int) -> tuple[list[Kill], SteadyLoad]:
    """Every second one of them is the controller, until that was so often enough."""
    chance = random.Random(SEED)
    nodes.create_topic(TOPIC, partitions=PARTITIONS)
    load = SteadyLoad(nodes.bootstrap, TOPIC, partitions=PARTITIONS)
    load.start()
    kills: list[Kill] = []
    for number in range(count):
        time.sleep(STEADY_SECONDS)
        wants_controller = number % 2 == 0 and number // 2 < controllers
        kills.append(kill_one(nodes, nodes.controller if wants_controller else nodes.choose_leader(TOPIC, chance)))
        moment = kills[-1].at + ANSWERS_SECONDS
        nodes.wait_until(lambda since=moment: load.is_acked_everywhere_since(since), "acknowledged everywhere")  # type: ignore[misc]
        nodes[kills[-1].node_id].start()
        # Whoever comes back has to be in the set before the next one goes, or there would be nobody to lead.
        nodes.wait_until_well()
    time.sleep(STEADY_SECONDS)
    load.finish()
    return kills, load


def kill_one(nodes: Nodes, node_id: int) -> Kill:
    led = frozenset(number for number, leader in nodes.leaders(TOPIC).items() if leader == node_id)
    assert led, f"node {node_id} leads nothing"
    was_controller = nodes.controller == node_id
    at = time.monotonic()
    nodes[node_id].kill()
    return Kill(node_id, at, led, was_controller)


def look_at(nodes: Nodes, store: str, kills: list[Kill], load: SteadyLoad, capsys: pytest.CaptureFixture[str]) -> None:
    leaderless, followerless = gaps_of(kills, load)
    controllers = sum(kill.was_controller for kill in kills)
    with capsys.disabled():
        print(f"\n{len(kills)} kills on {store} ({controllers} of the controller), seed {SEED}: ", end="")
        print(f"{len(load.acked)} messages acknowledged; load average {os.getloadavg()[0]:.1f}")
        print(f"  lost its leader:   {distribution(leaderless)}")
        print(f"  lost a follower:   {distribution(followerless)}")
        print(f"  all:               {distribution(leaderless + followerless)}")
    broken = told(load.check(nodes.bootstrap))
    assert not broken, broken
    compare(nodes)
    assert not nodes.tracebacks(), nodes.tracebacks()[0]
    gaps = sorted(leaderless + followerless)
    assert gaps[len(gaps) // 2] < GAP_SECONDS_MEDIAN
    assert gaps[-1] < GAP_SECONDS_MAX


def gaps_of(kills: list[Kill], load: SteadyLoad) -> tuple[list[float], list[float]]:
    """Of each kill and each partition the longest time without an acknowledgement until the next kill: of those that
    lost their leader, and of the others."""
    leaderless: list[float] = []
    followerless: list[float] = []
    ends = [kill.at for kill in kills[1:]] + [time.monotonic()]
    for kill, end in zip(kills, ends, strict=True):
        for partition in range(PARTITIONS):
            gaps = leaderless if partition in kill.led else followerless
            gaps.append(load.gap(partition, since=kill.at, until=end))
    return leaderless, followerless


def compare(nodes: Nodes) -> None:
    """Replicas of every partition are equal: by the command, where there is one, and by their files."""
    nodes.wait_until_well()
    if any(command.name == "verify" for command in cluster_commands.registered_commands):
        nodes.verify(TOPIC)
    for node in nodes.nodes.values():
        node.kill()
    troubles = compare_replicas({node_id: node.data_directory for node_id, node in nodes.nodes.items()}, TOPIC)
    assert not troubles, troubles
