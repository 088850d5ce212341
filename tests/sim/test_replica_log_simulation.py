"""A follower's log through changes of leaders and crashes of every kind; and bugs that the simulation must catch."""

from __future__ import annotations

import os
from typing import Final

import pytest

from support.storage.planted import PlantedBug, plant
from support.storage.replica_world import ReplicaWorld

SEEDS: Final = int(os.environ.get("PENSTOCK_SIM_SEEDS", "500"))
# More than the hardest of them needs by far.
SEEDS_MAX: Final = 500
# Apart from those of the other simulation, which plants under the same names.
FIRST_NUMBER: Final = 1_000

DAMAGE: Final = "no damage where there is none"
EPOCHS: Final = "leader epochs are those of the batches"
LEFT: Final = "no epoch without a batch is left by a cut or a start"
TAKEN: Final = "what the leader sends is taken"
READABLE: Final = "only what is committed is readable"
WATERMARK: Final = "the saved watermark holds"
LIES_IN: Final = "the readable end lies in the log"
SERVED: Final = "all of it is served"
PRODUCERS: Final = "producers are as replayed from the log"

BUGS: Final = (
    PlantedBug(
        "the watermark is not saved",
        "storage.commit.checkpoint_work",
        "            readable_end=log.readable_end,\n",
        "            readable_end=0,\n",
        (WATERMARK,),
    ),
    PlantedBug(
        "a replica is readable to its end after a start",
        "storage.store",
        "readable_end = self._saved_readable_end(key) if is_replicated else None",
        "readable_end = None",
        (READABLE,),
    ),
    PlantedBug(
        "a cut makes everything readable",
        "storage.commit.log_cut",
        "is_clean=False, readable_end=self._readable_end)",
        "is_clean=False)",
        (READABLE,),
    ),
    PlantedBug(
        "the checkpoint claims what is cut",
        "storage.commit.log_cut",
        "            self._checkpoints.replace(key_of(log), entry)\n",
        "            pass\n",
        (DAMAGE, PRODUCERS, EPOCHS, LEFT, READABLE, SERVED, "bytes come back as they were sent"),
    ),
    PlantedBug(
        "producers of what is cut are kept",
        "storage.log.truncation",
        "    if saved is not None and saved[0] > offset:\n",
        "    if False:\n",
        (PRODUCERS,),
    ),
    PlantedBug(
        "the checkpoint speaks of a log that began anew",
        "storage.commit.log_anew",
        "        self._checkpoints.forget([key_of(self._log)])\n",
        "        pass\n",
        (DAMAGE, "the start moves by request only", SERVED, WATERMARK),
    ),
    PlantedBug(
        "a beginning is forgotten by a restart",
        "storage.commit.log_anew",
        "            write_log_start(files, home.directory, self._offset)\n",
        "",
        (
            DAMAGE,
            "the start moves by request only",
            "producers are as replayed from the log",
            "an assertion of its own",
        ),
    ),
    PlantedBug(
        "readers see what replicas see",
        "storage.log.partition_log",
        "end=(segment.size, segment.next_offset) if is_replica else self.readable_part(segment)",
        "end=(segment.size, segment.next_offset)",
        ("nothing past its end is served",),
    ),
    PlantedBug(
        "a gap is taken in a log without compaction",
        "storage.log.replica",
        "self._may_skip = may_skip and log.config.compaction is not None",
        "self._may_skip = may_skip",
        ("a gap in a log without compaction is refused",),
    ),
    PlantedBug(
        "the readable end stays below a start that has moved",
        "storage.log.readable_marks",
        "    first = _first_mark(context, segments, max(readable_end, log_start), log_start)\n",
        "    first = _first_mark(context, segments, readable_end, 0)\n    log_start = 0\n",
        (LIES_IN,),
    ),
)


def test_follower_is_what_its_leader_sent_after_any_crash() -> None:
    for seed in range(SEEDS):
        try:
            ReplicaWorld(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.heavy
@pytest.mark.parametrize(("number", "bug"), list(enumerate(BUGS)), ids=[bug.name.replace(" ", "-") for bug in BUGS])
def test_simulation_catches_the_bug(number: int, bug: PlantedBug) -> None:
    broken = first_broken(bug, FIRST_NUMBER + number)
    assert broken is not None, f"{SEEDS_MAX} seeds did not notice: {bug.name}"
    assert getattr(broken, "invariant", "an assertion of its own") in bug.caught_by, f"{bug.name}: {broken}"


def first_broken(bug: PlantedBug, number: int) -> AssertionError | None:
    storage = plant(bug, number)
    for seed in range(bug.first_seed, bug.first_seed + SEEDS_MAX):
        try:
            ReplicaWorld(seed, storage).run()
        except AssertionError as broken:
            return broken
    return None
