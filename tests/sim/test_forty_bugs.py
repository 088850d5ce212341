"""Every bug that the design names is planted somewhere, or stands on a list that says why not."""

from __future__ import annotations

import re
from pathlib import Path

from support.replication import world_bugs as walk_bugs
from support.sim import bugs as node_bugs
from support.sim import cluster_bugs
from support.sim.forty import CAUGHT, CLUSTER, LOG, NODE, NOT_SEEN, OPEN, TRANSACTION, WALK
from support.transaction import world_bugs as transaction_bugs

NUMBERS = range(1, 41)
LOG_TEST = Path(__file__).with_name("test_replica_log_simulation.py")
PLANTED = {
    CLUSTER: {case.bug.name for case in cluster_bugs.BUGS},
    NODE: {case.bug.name for case in node_bugs.BUGS},
    WALK: {case.bug.name for case in walk_bugs.BUGS},
    TRANSACTION: {case.bug.name for case in transaction_bugs.BUGS},
    # Planted by the test itself.
    LOG: set(
        re.findall(r'PlantedBug\(\n +"(.+)",', Path(__file__).with_name("test_replica_log_simulation.py").read_text())
    ),
}


def test_each_of_the_forty_bugs_is_on_one_list() -> None:
    assert sorted([*CAUGHT, *NOT_SEEN, *OPEN]) == list(NUMBERS)


def test_each_bug_is_planted_where_the_table_says() -> None:
    missing = [
        f"{number}: {name} ({where})"
        for number, places in CAUGHT.items()
        for where, name in places
        if name not in PLANTED[where]
    ]
    assert not missing, "\n".join(missing)


def test_each_bug_of_the_cluster_is_in_the_table() -> None:
    listed = {(number, name) for number, places in CAUGHT.items() for where, name in places if where == CLUSTER}
    assert {(case.number, case.bug.name) for case in cluster_bugs.BUGS} == listed
