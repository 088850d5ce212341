"""kill -9 of nodes that lead, under a load that every replica acknowledges: nothing lost, twice or out of order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.numbered_load import NumberedLoad
from support.programs.cluster_up import ClusterUp

pytestmark = pytest.mark.heavy

TOPIC = "orders"
PARTITIONS = 6
KILLS = int(os.environ.get("PENSTOCK_LEADER_KILLS", "2"))
# Between two kills, while a node is away, and when it is back.
ACKNOWLEDGED = 1_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterUp]:
    with ClusterUp(tmp_path) as running:
        yield running


def is_well(cluster: ClusterUp) -> bool:
    """Every replica of every partition is in sync."""
    command = [sys.executable, "-m", "penstock.main", "cluster", "status", "--json", "--bootstrap", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        return False
    status = json.loads(done.stdout)
    return len(status["nodes"]) == 3 and status["out_of_sync"] == status["without_leader"] == 0


@pytest.mark.timeout(120 + 60 * KILLS)
def test_nothing_acknowledged_is_lost_when_leaders_are_killed(cluster: ClusterUp) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=3)
    admin.create_topics([topic], request_timeout=20)[TOPIC].result(timeout=20)
    load = NumberedLoad(cluster.bootstrap, TOPIC, partitions=PARTITIONS)
    for kill in range(KILLS):
        load.run(acknowledgements=ACKNOWLEDGED)
        victims = cluster.process_ids()
        os.kill(victims[kill % len(victims)], signal.SIGKILL)
        load.run(acknowledgements=ACKNOWLEDGED)
        # Whoever comes back has to be in the set before the next one goes, or there would be nobody to lead.
        cluster.wait_until(lambda: is_well(cluster), "in sync again")
    load.run(acknowledgements=ACKNOWLEDGED)
    load.finish()
    load.check(cluster.bootstrap)
