"""How long the collector holds up a process that is given a million objects which stay."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import gc, json, sys, time
from penstock.base import garbage

garbage.begin_start()
looks = garbage.begin_serving()
began, pauses = 0.0, []

def note(phase, info):
    global began
    if phase == "start":
        began = time.thread_time()
    else:
        pauses.append(time.thread_time() - began)

gc.callbacks.append(note)
class Kept: pass
kept = [[Kept()] for _ in range(int(sys.argv[1]))]
gc.callbacks.remove(note)
frozen = gc.get_freeze_count()
gc.unfreeze()
gc.callbacks.clear()
began = time.thread_time()
gc.collect()
print(json.dumps({"longest": max(pauses), "all": time.thread_time() - began, "frozen": frozen}))
"""
CYCLES = """
import gc, weakref
from penstock.base import garbage

looks = garbage.begin_serving()
class Cycle: pass
one = Cycle()
one.itself = one
is_alive = weakref.ref(one)
while True:
    kept = [[] for _ in range(garbage.OBJECTS_PER_OLDEST_LOOK)]
    if gc.get_freeze_count() and not any(one is each for each in gc.get_objects()):
        break
del one
looked = 0
while is_alive() is not None and looked < 3 * garbage.LOOKS_BEFORE_ALL_MIN:
    kept = [kept, [[] for _ in range(garbage.OBJECTS_PER_OLDEST_LOOK)]]
    looked += 1
print(is_alive() is None)
"""


def _run(program: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, timeout=120
    ).stdout


def test_no_look_goes_over_all_that_a_node_has_been_given() -> None:
    seen = json.loads(_run(PROGRAM, "600000"))
    # A twelfth of them at a time; a third leaves room for a machine that does other things.
    assert seen["longest"] < seen["all"] / 3, seen
    assert seen["frozen"] > 600_000


def test_cycle_that_outlived_many_looks_is_found_in_the_end() -> None:
    assert _run(CYCLES).strip() == "True"
