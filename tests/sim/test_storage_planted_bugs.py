"""The storage simulation is only as good as what it catches: bugs planted one at a time, each must be found."""

from __future__ import annotations

from typing import Final

import pytest

from support.storage.planted import PlantedBug, plant
from support.storage.simulation import Simulation

# More than the hardest of them needs by far.
SEEDS_MAX: Final = 2_000

THERE: Final = "acknowledged is there"
NO_DAMAGE: Final = "no damage where there is none"
PRODUCERS: Final = "producers are as replayed from the log"
BYTES: Final = "bytes come back as they were appended"
TRANSACTIONS: Final = "transactions are as replayed from the log"
STABLE: Final = "the last stable offset is below what is undecided"
# The code under test has noticed by itself.
OWN: Final = "an assertion of its own"
COMMITTED: Final = "a reader of committed records sees them and no others"

BUGS: Final = (
    PlantedBug(
        "a turn promises what was written while it ran",
        "storage.log.partition_log",
        "self.durable_end = max(self.durable_end, sync.end_offset)",
        "self.durable_end = self.log_end",
        (THERE,),
    ),
    PlantedBug(
        "the name of a new segment is not synced",
        "storage.log.partition_log",
        "        segment.is_new = True\n",
        "        segment.is_new = False\n",
        (THERE, "no gap", NO_DAMAGE),
    ),
    PlantedBug(
        "recovery believes the cache of a process that was killed",
        "storage.store",
        "            self._whole_disk.sync()\n            self._was_disk_synced = True\n",
        "            self._was_disk_synced = True\n",
        (THERE, NO_DAMAGE),
    ),
    PlantedBug(
        "recovery believes it where the disk cannot be synced as a whole",
        "storage.log.recovery",
        "        if not self._is_synced:\n            file.sync()\n        file.drop_cache()\n",
        "",
        (THERE, NO_DAMAGE),
    ),
    PlantedBug(
        "a bad batch is cut although a good one follows",
        "storage.log.segment_recovery",
        "    if found is not None or any_holds_a_batch(files, [(path, size) for _, path, size in filled], offset):\n",
        "    if found is not None:\n",
        (THERE,),
        first_seed=312,
    ),
    PlantedBug(
        "damage reaches to the end of its segment",
        "storage.segment.damage_search",
        "        limit_position, limit_offset = found.position, found.base_offset\n",
        "        pass\n",
        ("damage is found where it is",),
    ),
    PlantedBug(
        "a read behind damage begins before it",
        "storage.log.read_plan",
        "        if self._floor is not None and self._floor[0] > start:\n",
        "        if False:\n",
        (BYTES, "damage is found where it is", "damage is reported, not served"),
        first_seed=605,
    ),
    PlantedBug(
        "a failed sync is taken for one that went well",
        "storage.commit.group_commit",
        "                log.fail(reason)\n",
        "                pass\n",
        (THERE, NO_DAMAGE),
        first_seed=84,
    ),
    PlantedBug(
        "a failed sync of the whole disk is held against its own turn only",
        "storage.commit.group_commit",
        "            hit += [log for log in self._all_logs() if log.durable_end < log.log_end]\n",
        "",
        (THERE, NO_DAMAGE),
        first_seed=243,
    ),
    PlantedBug(
        "half a batch stays in the file after a failed write",
        "storage.log.refusals",
        "            segment.file.truncate(segment.size)\n",
        "            pass\n",
        (NO_DAMAGE, THERE, BYTES, "a clean start reads nothing"),
        first_seed=82,
    ),
    PlantedBug(
        "segments are removed before the new start is saved",
        "storage.log.removal",
        "            save_log_start(context.files, context.reserve, log.home.directory, self._log_start)\n",
        "",
        (NO_DAMAGE, "log start moves by request only", THERE),
    ),
    PlantedBug(
        "a start after a crash passes for one after a clean end",
        "storage.store",
        '            files.remove(f"{self.root}/{CLEAN_FILE}")\n',
        "",
        (THERE, "the log ends with a batch", "truncation ends where it was told to", PRODUCERS),
    ),
    PlantedBug(
        "the checkpoint is there before what it speaks of",
        "storage.commit.checkpoint_work",
        "                for file in written:\n                    file.sync()\n",
        "                pass\n",
        (PRODUCERS, "leader epochs are known"),
    ),
    PlantedBug(
        "recovery counts batches twice that the saved producers know",
        "storage.log.producer_recovery",
        "        if 0 <= self._offset <= header.base_offset:\n",
        "        if 0 <= self._offset:\n",
        (PRODUCERS, OWN),
    ),
    PlantedBug(
        "old bytes are served unchecked",
        "storage.segment.verified_ranges",
        "        if place == 0:\n            return False\n",
        "        if place == 0:\n            return True\n",
        (BYTES, "damage is reported, not served"),
    ),
    PlantedBug(
        "a base offset that does not fit is served",
        "storage.log.read_plan",
        "            if header.base_offset != walk.expected:\n",
        "            if False:\n",
        (BYTES, "damage is reported, not served", "nothing is served that was never appended"),
        first_seed=573,
    ),
    PlantedBug(
        "a truncation leaves the checkpoint as it was",
        "storage.commit.log_cut",
        "            self._checkpoints.replace(key_of(log), entry)\n",
        "            pass\n",
        (
            NO_DAMAGE,
            THERE,
            PRODUCERS,
            BYTES,
            "truncation ends where it was told to",
            "damage does not take the log off",
        ),
    ),
    PlantedBug(
        "a read ends one batch too late",
        "storage.log.read_plan",
        "            if place + size > limit:\n",
        "            if place > limit:\n",
        ("a read keeps to its limit", BYTES, "nothing is served that was never appended"),
    ),
    # --- transactions
    PlantedBug(
        "a marker is looked for in the first batch of its append",
        "storage.log.partition_log",
        "self.known_producers.apply(header, data, segment.size - header.size_bytes - position)",
        "self.known_producers.apply(header, data, 0)",
        (STABLE,),
    ),
    PlantedBug(
        "a marker counts before it is durable",
        "domain.transaction.partition",
        "            if unstable is None or first_offset < unstable:\n",
        "            if False:\n",
        (STABLE,),
        first_seed=183,
    ),
    PlantedBug(
        "nobody is told what has become readable",
        "storage.log.partition_log",
        "            self.readable_end, self._readable_segment, self._readable_position = marks.popleft()\n"
        "        self.transactions.advance(self.readable_end)\n",
        "            self.readable_end, self._readable_segment, self._readable_position = marks.popleft()\n",
        (STABLE,),
    ),
    PlantedBug(
        "recovery reads no markers",
        "storage.log.producer_recovery",
        'scan.batch(header) if header.is_control else b""',
        'b""',
        (TRANSACTIONS,),
    ),
    PlantedBug(
        "recovery reads the bytes after the marker",
        "storage.segment.scan",
        "return self._chunk[end - header.size_bytes : end]",
        "return self._chunk[end : end + header.size_bytes]",
        (TRANSACTIONS,),
    ),
    PlantedBug(
        "transactions are saved only if sequences have changed too",
        "storage.log.producers",
        "return self.sequences.change_count + self.transactions.change_count",
        "return self.sequences.change_count",
        (TRANSACTIONS,),
    ),
    PlantedBug(
        "transactions are saved only if there are sequences",
        "storage.log.producers",
        "return not len(self.sequences) and self.transactions.is_empty",
        "return not len(self.sequences)",
        (TRANSACTIONS,),
    ),
    PlantedBug(
        "saved transactions count for less than they hold",
        "storage.commit.checkpoint_work",
        "producers = pack_producers(log.known_producers, log.log_end)",
        "producers = pack_producers(log.known_producers, log.log_start)",
        (TRANSACTIONS, PRODUCERS, OWN),
    ),
    PlantedBug(
        "what was saved of records that are cut off stays",
        "storage.log.truncation",
        "    if saved is not None and saved[0] > offset:\n",
        "    if False:\n",
        (TRANSACTIONS, PRODUCERS),
    ),
    PlantedBug(
        "the aborted index forgets what a crash may bring back",
        "storage.log.partition_log",
        "self.transactions.move_log_start(self.log_start, kept_from=kept_from)",
        "self.transactions.move_log_start(self.log_start)",
        (TRANSACTIONS, COMMITTED),
        first_seed=655,
    ),
    PlantedBug(
        "the aborted index keeps what retention took",
        "storage.log.head",
        "    log.move_transactions()\n    directories",
        "    directories",
        ("what is gone leaves the aborted index", STABLE),
    ),
    PlantedBug(
        "a search of the aborted index ends at the first one that lies behind",
        "domain.log.aborted_index",
        "            if self._stable_offsets[place] >= end:\n",
        "            if self._last_offsets[place] >= end:\n",
        (COMMITTED,),
        first_seed=335,
    ),
)


@pytest.mark.heavy
@pytest.mark.parametrize(("number", "bug"), list(enumerate(BUGS)), ids=[bug.name.replace(" ", "-") for bug in BUGS])
def test_simulation_catches_the_bug(number: int, bug: PlantedBug) -> None:
    broken = first_broken(bug, number)
    assert broken is not None, f"{SEEDS_MAX} seeds did not notice: {bug.name}"
    assert getattr(broken, "invariant", OWN) in bug.caught_by, f"{bug.name}: {broken}"


def first_broken(bug: PlantedBug, number: int) -> AssertionError | None:
    storage = plant(bug, number)
    for seed in range(bug.first_seed, bug.first_seed + SEEDS_MAX):
        try:
            Simulation(seed, storage).run()
        except AssertionError as broken:
            return broken
    return None
