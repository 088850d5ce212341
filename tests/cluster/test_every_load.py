"""kill -9 of leaders under all that clients can want at once: a transactional copy, a group of KIP-848, a share group,
delayed and cancelled messages, queues with dead letters.

Committed positions never go back, no aborted or torn transaction is read, nothing acked comes back, no message has two
holders, dead letters and delays are there exactly once, nothing early, nothing that was cancelled. One kill in `make
test`; `make chaos` sets PENSTOCK_EVERY_LOAD_KILLS.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.chaos.checks import told
from support.chaos.every_load import FEED, EveryLoad
from support.chaos.nodes import Nodes

# Minutes of five loads at once: in `make chaos`.
pytestmark = pytest.mark.slow

KILLS: Final = int(os.environ.get("PENSTOCK_EVERY_LOAD_KILLS", "1"))
SEED: Final = int(os.environ.get("PENSTOCK_CHAOS_SEED", "14"))
BEFORE_SECONDS: Final = 3.0
AWAY_SECONDS_MAX: Final = 3.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, metadata=f"sqlite:{tmp_path / 'metadata.sqlite'}", has_http=True) as running:
        yield running


@pytest.mark.timeout(240 + 60 * KILLS)
def test_every_promise_outlives_its_leader(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(SEED)
    every = EveryLoad(nodes, seed=SEED)
    every.start()
    time.sleep(BEFORE_SECONDS)
    for _ in range(KILLS):
        victim = nodes.choose_leader(FEED, chance)
        nodes[victim].kill()
        time.sleep(chance.uniform(0.5, AWAY_SECONDS_MAX))
        nodes[victim].start()
        nodes.wait_until_well()
        time.sleep(chance.uniform(0.2, BEFORE_SECONDS))
    broken = told(every.finish())
    with capsys.disabled():
        print(f"\n{KILLS} kills, seed {SEED}, load average {os.getloadavg()[0]:.1f}\n{every.told()}")
    assert not broken, broken
    assert not nodes.tracebacks(), nodes.tracebacks()[0]
