"""Tells the stories of the seeds that are named: `PYTHONPATH=tests:src python -m support.sim 17 18`, of one node, or
`… python -m support.sim cluster 17 --load log --fault pause`, of several, perhaps of one load and some faults alone."""

from __future__ import annotations

import argparse

from support.sim import cluster_story, story

parser = argparse.ArgumentParser(prog="python -m support.sim")
parser.add_argument("seeds", nargs="+")
parser.add_argument("--load", action="append", default=[])
parser.add_argument("--fault", action="append", default=[])
named = parser.parse_args()
is_cluster = named.seeds[0] == "cluster"
for seed in named.seeds[is_cluster:]:
    if is_cluster:
        world = cluster_story.tell(int(seed), loads=named.load, weighted=named.fault)
    else:
        world = story.tell(int(seed), loads=named.load)
    print(f"seed {seed}: {world.trace}, {world.loop.step_count} handles, {world.loop.time():.3f} s")
