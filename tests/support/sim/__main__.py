"""Tells the stories of the seeds that are named: `PYTHONPATH=tests:src python -m support.sim 17 18`."""

from __future__ import annotations

import sys

from support.sim.story import tell

for seed in sys.argv[1:]:
    world = tell(int(seed))
    print(f"seed {seed}: {world.trace}, {world.loop.step_count} handles, {world.loop.time():.3f} s")
