"""A compacted log on a disk that fails, from seeds: see `support.cleaner.compaction_world`.

`PENSTOCK_SIM_SEEDS` is the number of stories; a failure names its seed, and `CompactionWorld(seed).run()` tells it
again.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from support.cleaner.compaction_check import InvariantBroken
from support.cleaner.compaction_world import CompactionWorld
from support.planted_bugs import Bug, planted

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "150"))
# A bug that needs an unlikely coincidence shows within so many stories, or the world has become too kind.
BUG_SEEDS_MAX: Final = 400

WORLD: Final = "support.cleaner.compaction_world"
ANEW: Final = (
    "penstock.storage",
    "penstock.domain.log.compaction",
    "penstock.domain.log.aborted_index",
    "penstock.domain.transaction.partition",
    "penstock.codec.batch.rewrite",
    "support.cleaner.",
)

_SWAP: Final = "penstock.storage.log.swap"
_RECOVERY: Final = "penstock.storage.log.producer_recovery"
_WORK: Final = "penstock.storage.cleaner.work"
_RULES: Final = "penstock.domain.log.compaction"

BUGS: Final = (
    Bug(
        "the last record of a key counts as an older one",
        "penstock.storage.cleaner.sift",
        "pl.lit(offset >= last_offset)",
        "pl.lit(offset > last_offset)",
        "the last value of each key is there",
    ),
    Bug(
        "a deletion goes in its first cleaning",
        _RULES,
        "return horizon_ms == NO_HORIZON or self.now_ms < horizon_ms",
        "return self.now_ms < horizon_ms",
        "a deletion stays its time",
    ),
    Bug(
        "a deletion stays for ever in the clean part",
        "penstock.storage.cleaner.sift",
        "is_latest &= pl.lit(last_offset.is_null())",
        'is_latest &= pl.lit(last_offset.is_null() | ~frame["has_value"])',
        "the clean part has each key once",
    ),
    Bug(
        "keys of aborted records push out committed ones",
        _WORK,
        "if not aborted.hold(batch.header)]",
        "]",
        "the last value of each key is there",
    ),
    Bug(
        "transactions that are under way are cleaned",
        "penstock.storage.cleaner.log_cleaner",
        "offset_limit = min(log.last_stable_offset, log.durable_end)",
        "offset_limit = min(log.readable_end, log.durable_end)",
        "the last value of each key is there",
    ),
    Bug(
        "a producer's last batch goes with its records",
        _RULES,
        "return batch.producer_id >= 0 and self._last_batches",
        "return batch.producer_id > 99 and self._last_batches",
        "the last batch of a producer stays",
    ),
    Bug(
        "a marker goes before its transaction",
        _RULES,
        "is_needed = batch.producer_id in self._open",
        "is_needed = False",
        "a marker stays while its transaction does",
    ),
    Bug(
        "the last marker of a producer goes",
        _RULES,
        "if self._last_markers.get(batch.producer_id) == batch.base_offset:",
        "if self._last_markers.get(batch.producer_id) == -2:",
        "the last marker of a producer stays",
    ),
    Bug(
        "readers are told of aborted transactions whose marker is gone",
        _WORK,
        "empty_aborts=self._rules.empty_aborts,",
        "",
        "a reader of committed records sees them and no others",
    ),
    Bug(
        "a swap leaves the aborted index as it was",
        _SWAP,
        "        log.transactions.forget_aborts(self._swap.empty_aborts)\n",
        "",
        "what left the aborted index stays out",
    ),
    Bug(
        "after a crash the saved aborted index is believed whole",
        _RECOVERY,
        "gone = set(empty_aborts)",
        "gone: set[int] = set()",
        "what left the aborted index stays out",
    ),
    Bug(
        "a truncation forgets what the swaps before it left empty",
        "penstock.storage.commit.log_cut",
        "        save_forgotten_aborts(files, log)\n",
        "",
        "what left the aborted index stays out",
    ),
    Bug(
        "what a swap took out of the aborted index is not saved",
        "penstock.domain.transaction.partition",
        "self.change_count += bool(self.aborted.remove(marker_offsets))",
        "self.aborted.remove(marker_offsets)",
        "what left the aborted index stays out",
    ),
    Bug(
        "without the swaps' file the saved aborted index is believed whole",
        _RECOVERY,
        "            gone |= {",
        "            _ = {",
        "what left the aborted index stays out",
    ),
    Bug(
        "the last batches are those of now, not those that were saved",
        _WORK,
        "return self._producers if saved is None else KnownProducers.of(saved[1])",
        "return self._producers",
        "the last batch of a producer stays",
    ),
    Bug(
        "producers with a transaction under way are forgotten",
        "penstock.storage.log.producers",
        "return self.transactions.is_ongoing(producer_id) or self.is_pinned(producer_id)",
        "return self.is_pinned(producer_id)",
        "no open transaction is forgotten",
    ),
    Bug(
        "a marker is taken for a producer's last batch",
        "penstock.storage.log.partition_log",
        "if header.attributes & IN_TRANSACTION:",
        "if header.attributes & IN_TRANSACTION and not header.is_control:",
        "the last stable offset is below what is undecided",
    ),
    Bug(
        "times stay relative to a base that has moved",
        "penstock.codec.batch.rewrite",
        "payload = _shift_times(payload",
        "_shift_times(payload",
        "a record stands where it was appended",
    ),
    Bug(
        "the newest time is of a record that is gone",
        "penstock.codec.batch.rewrite",
        "max_timestamp = newest_ms",
        "pass",
        "the newest record is found",
    ),
    Bug(
        "leader epochs vanish with their batches",
        "penstock.storage.segment.writer",
        "gap[2] == header.leader_epoch and",
        "",
        "leader epochs are known from the log",
    ),
    Bug(
        "old files go before the new names are durable",
        _SWAP,
        "        files.sync_directory(self.log.home.directory)\n        for gone",
        "        for gone",
        "no damage where there is none",
    ),
    Bug(
        "a swap happens that nothing on disk knows of",
        _SWAP,
        "self._write(CompactionState(log.clean_end, (*log.swaps, self._swap), self._tombstone_horizon))",
        "pass",
        "no damage where there is none",
    ),
    Bug(
        "a later swap forgets the one before it",
        _SWAP,
        "(*log.swaps, self._swap)",
        "(self._swap,)",
        "no damage where there is none",
    ),
    Bug(
        "half of the names are swapped after a crash",
        _SWAP,
        "    for suffix in SEGMENT_SUFFIXES:\n        name = _name(base_offset, suffix)\n",
        "    for suffix in SEGMENT_SUFFIXES[2:]:\n        name = _name(base_offset, suffix)\n",
        "a moment finds its record",
    ),
    Bug(
        "a log counts as clean although not all of its keys were noted",
        _WORK,
        "                if self._latest.is_full:\n                    return end_offset",
        "                if self._latest.is_full:\n                    return self.part.end_offset",
        "the clean part has each key once",
    ),
    Bug(
        "the index of a replaced segment is believed",
        "penstock.storage.segment.index_cache",
        "segment.is_replaced = True",
        "segment.is_replaced = False",
        "no damage where there is none",
    ),
)


# Few stories bring these out: where the search for one begins. It goes round from there.
FIRST_SEEDS: Final = {
    "a marker goes before its transaction": 52,
    "the last marker of a producer goes": 19,
    "readers are told of aborted transactions whose marker is gone": 175,
    "after a crash the saved aborted index is believed whole": 44,
    "a truncation forgets what the swaps before it left empty": 98,
    "what a swap took out of the aborted index is not saved": 81,
    "without the swaps' file the saved aborted index is believed whole": 42,
    "the last batches are those of now, not those that were saved": 96,
    "producers with a transaction under way are forgotten": 26,
}


def test_a_compacted_log_is_a_legal_history_whatever_happens() -> None:
    for seed in range(SEEDS):
        try:
            CompactionWorld(seed).run()
        except InvariantBroken as broken:
            pytest.fail(f"seed {seed}: {broken}")


def test_the_same_seed_tells_the_same_story() -> None:
    first, second = CompactionWorld(7), CompactionWorld(7)
    first.run()
    second.run()
    assert first.files.journal == second.files.journal


@pytest.mark.heavy
def test_stories_bring_out_what_they_are_about() -> None:
    """Swaps, crashes in the middle and failed disks must happen, or nothing is proved by surviving them."""
    counts: dict[str, int] = {}
    for seed in range(40):
        world = CompactionWorld(seed)
        world.run()
        for what, count in world.counts.items():
            counts[what] = counts.get(what, 0) + count
    assert counts["swap"] > 50
    assert counts["crash inside a cleaning"] > 15
    assert counts["crash inside recovery"] > 5
    assert counts["aborted transaction with nothing left of it"] > 10
    assert {"swap refused", "swap unknown", "cleaning failed", "compaction file lost"} <= set(counts)


@pytest.mark.heavy
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(bug: Bug) -> None:
    caught: set[str] = set()
    with planted(bug, world=WORLD, anew=ANEW) as world:
        for step in range(BUG_SEEDS_MAX):
            seed = (FIRST_SEEDS.get(bug.name, 0) + step) % BUG_SEEDS_MAX
            try:
                world.CompactionWorld(seed).run()
            except AssertionError as broken:
                # The world's own class, imported anew with it.
                caught.add(getattr(broken, "invariant", f"assertion {broken}"))
            if bug.invariant in caught:
                return
    pytest.fail(f"{BUG_SEEDS_MAX} stories, and {bug.invariant!r} did not catch it; caught: {caught}")
