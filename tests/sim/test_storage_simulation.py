"""Random appends, syncs, crashes and recoveries against a plain list of what was appended, over many seeds.

`make chaos` runs more of them (`PENSTOCK_SIM_SEEDS`); a seed that fails fails again by its number.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from support.storage.simulation import Simulation

SEEDS: Final = int(os.environ.get("PENSTOCK_SIM_SEEDS", "2000"))
# In shares, so that they can run side by side.
SHARES: Final = 8


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.timeout(3600)
def test_log_is_what_was_appended_after_any_crash(share: int) -> None:
    for seed in range(share, SEEDS, SHARES):
        try:
            Simulation(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
