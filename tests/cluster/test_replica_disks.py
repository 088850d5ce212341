"""Replicas whose disk fails them, in three real processes under load: bits that flip, directories that are gone or old.

What must hold: nothing acknowledged is lost, the replica is back in sync by itself, and it says what it found.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.numbered_load import NumberedLoad
from support.programs.cluster_up import ClusterUp

pytestmark = pytest.mark.heavy

TOPIC: Final = "orders"
ACKNOWLEDGED: Final = 1_000
# Sealed soon, so that there is something that nobody writes to any more.
SEGMENT_BYTES: Final = 64 * 1024
# Often, and fast: a test has no day.
SCRUB: Final = {
    "PENSTOCK_STORAGE__SCRUB_INTERVAL_MS": "100",
    "PENSTOCK_STORAGE__SCRUB_BYTES_PER_SECOND": "100000000",
    "PENSTOCK_BROKER__SCRUB_CHECK_MS": "100",
}
PUT_ASIDE: Final = "replica put aside"
TRUSTED_WITH_NOTHING: Final = "trust=nothing"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterUp]:
    for name, value in SCRUB.items():
        monkeypatch.setenv(name, value)
    with ClusterUp(tmp_path) as running:
        yield running


@pytest.mark.timeout(240)
def test_flipped_bit_costs_a_replica_its_seat_and_nobody_a_record(cluster: ClusterUp) -> None:
    load = begin(cluster)
    leader = leader_of(cluster)
    for number, victim in enumerate((follower_of(leader), leader), start=1):
        flip(sealed_segment(cluster, victim))
        cluster.wait_until(lambda number=number: cluster.said.count(PUT_ASIDE) == number, "put aside")  # type: ignore[misc]
        load.run(acknowledgements=ACKNOWLEDGED)
        cluster.wait_until(lambda: is_well(cluster), "in sync again")
    assert leader_of(cluster) != leader, "it answered for a log that it had put aside"
    assert cluster.said.count("log damaged") == 2
    assert len(list((cluster.directory / "cluster").glob("*/logs/*/0.*.damaged"))) == 2
    load.finish()
    load.check(cluster.bootstrap)
    # A read of everything has found nothing more.
    assert cluster.said.count("log damaged") == 2
    assert "Traceback" not in cluster.said


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wiped_directory_is_trusted_with_nothing_and_filled_again(cluster: ClusterUp) -> None:
    load = begin(cluster)
    for victim in (follower_of(leader_of(cluster)), leader_of(cluster)):
        told = cluster.said.count(TRUSTED_WITH_NOTHING)
        stop_node(cluster, victim)
        shutil.rmtree(directory_of(cluster, victim))
        load.run(acknowledgements=ACKNOWLEDGED)
        cluster.wait_until(lambda: is_well(cluster), "in sync again")
        assert cluster.said.count(TRUSTED_WITH_NOTHING) > told
    load.finish()
    load.check(cluster.bootstrap)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_directory_of_an_earlier_life_is_trusted_with_nothing(cluster: ClusterUp, tmp_path: Path) -> None:
    load = begin(cluster)
    for victim in (follower_of(leader_of(cluster)), leader_of(cluster)):
        copy, directory = tmp_path / f"copy-{victim}", directory_of(cluster, victim)
        stop_node(cluster, victim)
        shutil.copytree(directory, copy)
        load.run(acknowledgements=ACKNOWLEDGED)
        cluster.wait_until(lambda: is_well(cluster), "in sync again")
        told = cluster.said.count(TRUSTED_WITH_NOTHING)
        stop_node(cluster, victim)
        shutil.rmtree(directory)
        copy.rename(directory)
        load.run(acknowledgements=ACKNOWLEDGED)
        cluster.wait_until(lambda: is_well(cluster), "in sync again")
        assert cluster.said.count(TRUSTED_WITH_NOTHING) > told
    load.finish()
    load.check(cluster.bootstrap)


# The scene


def begin(cluster: ClusterUp) -> NumberedLoad:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    config = {"segment.bytes": str(SEGMENT_BYTES)}
    topic = NewTopic(TOPIC, num_partitions=1, replication_factor=3, config=config)
    admin.create_topics([topic], request_timeout=20)[TOPIC].result(timeout=20)
    load = NumberedLoad(cluster.bootstrap, TOPIC, partitions=1)
    load.run(acknowledgements=5 * ACKNOWLEDGED)
    cluster.wait_until(lambda: is_well(cluster), "in sync")
    return load


def is_well(cluster: ClusterUp) -> bool:
    """Every replica of every partition is in sync."""
    command = [sys.executable, "-m", "penstock.main", "cluster", "status", "--json", "--bootstrap", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        return False
    status = json.loads(done.stdout)
    return len(status["nodes"]) == 3 and status["out_of_sync"] == status["without_leader"] == 0


def leader_of(cluster: ClusterUp) -> int:
    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(TOPIC, timeout=20)
    leader: int = metadata.topics[TOPIC].partitions[0].leader
    return leader


def follower_of(leader: int) -> int:
    return leader % 3 + 1


def directory_of(cluster: ClusterUp, node: int) -> Path:
    return cluster.directory / "cluster" / str(node)


def sealed_segment(cluster: ClusterUp, node: int) -> Path:
    """Of the topic of this test: no other has so many of them."""
    found = sorted(directory_of(cluster, node).glob("logs/*/0/00000000000000000000.log"))
    return next(path for path in found if len(list(path.parent.glob("*.log"))) > 1)


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def stop_node(cluster: ClusterUp, node: int) -> None:
    """By -9. It is started again after a second."""
    directory = str(directory_of(cluster, node)).encode()
    for process in cluster.process_ids():
        if directory in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0"):
            os.kill(process, signal.SIGKILL)
            return
    raise AssertionError(f"node {node} does not run:\n{cluster.said}")
