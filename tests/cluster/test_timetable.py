"""Faults from a timetable that a printed seed draws, under every load, with the checker at the end.

    PENSTOCK_CHAOS_SEED=7 PENSTOCK_CHAOS_FAULTS=12 pytest tests/cluster/test_timetable.py -m slow

repeats the timetable of seed 7; processes and packets take their own time.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from penstock.cli.commands.cluster import app as cluster_commands
from support.chaos.checks import told
from support.chaos.every_load import FEED, TASKS, EveryLoad
from support.chaos.network import Network
from support.chaos.nodes import NODE_IDS, Nodes
from support.chaos.replicas import compare_replicas
from support.chaos.timetable import STORE, Hand, draw
from support.programs.etcd import EtcdCluster, require_etcd

FAULTS: Final = int(os.environ.get("PENSTOCK_CHAOS_FAULTS", "8"))
SEED: Final = int(os.environ.get("PENSTOCK_CHAOS_SEED") or random.randrange(1_000_000))
SETTINGS: Final = {"PENSTOCK_CLUSTER__REPLICA_LAG_MS": "4000"}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[tuple[Nodes, Hand]]:
    with ExitStack() as stack:
        network = stack.enter_context(Network((*map(str, NODE_IDS), STORE)))
        store = EtcdCluster(
            require_etcd(), tmp_path / "etcd", host=network.address(STORE), wrapper=network.wrapper(STORE)
        )
        etcd = stack.enter_context(store)
        made = Nodes(
            tmp_path,
            metadata=f"etcd:{etcd.endpoints}/chaos",
            settings=SETTINGS,
            arguments=("--allow-old-etcd",),
            has_http=True,
            network=network,
        )
        nodes = stack.enter_context(made)
        yield nodes, Hand(nodes, network, etcd)


@pytest.mark.slow
@pytest.mark.timeout(300 + 120 * FAULTS)
def test_every_promise_is_kept_whatever_the_timetable_says(
    scene: tuple[Nodes, Hand], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, hand = scene
    every = EveryLoad(nodes, seed=SEED)
    every.start()
    for fault in draw(SEED, FAULTS):
        with capsys.disabled():
            print(f"\n{time.monotonic():.1f} seed {SEED}: {fault}", end="", flush=True)
        hand.do(fault)
    broken = told(every.finish())
    with capsys.disabled():
        print(f"\n{every.told()}")
    assert not broken, broken
    nodes.wait_until_well()
    if any(command.name == "verify" for command in cluster_commands.registered_commands):
        nodes.verify()
    for node in nodes.nodes.values():
        node.kill()
    directories = {node_id: node.data_directory for node_id, node in nodes.nodes.items()}
    troubles = [trouble for topic in (FEED, TASKS) for trouble in compare_replicas(directories, topic)]
    assert not troubles, troubles
    assert not nodes.tracebacks(), nodes.tracebacks()[0]


def test_the_same_seed_draws_the_same_timetable() -> None:
    assert draw(7, 20) == draw(7, 20)
    assert draw(7, 20) != draw(8, 20)
