"""What a delayed message costs, in processor time and in memory, with room for a busy machine.

Measured on two cores: 1.4 µs to schedule one, 2.8 µs to release one at 10,000 a second in batches of 50 (3 % of a
core), 0.6 µs to read one from a file, 9 bytes for one that is near and less than one for one that is far. Ten million
that wait: 3 MB if they are spread over a month, 90 MB if all are due in the same millisecond, and that is near.
"""

from __future__ import annotations

import time
import tracemalloc
from random import Random

from penstock.domain.schedule.commands import FinishMove, Release, Schedule
from penstock.domain.schedule.machine import PartitionSchedule
from support.schedule.desk import PRODUCER_ID, START_MS

MESSAGES = 20_000
# At 10,000 a second that would be a fifth of a core.
RELEASED_PER_S_MIN = 50_000
SCHEDULED_PER_S_MIN = 80_000
# More than in the large: every slot and every file costs something, too.
NEAR_BYTES_MAX = 24
FAR_BYTES_MAX = 12


def schedule(machine: PartitionSchedule, count: int, *, within_ms: int, from_ms: int = START_MS) -> None:
    rng = Random(1)
    for position in range(0, count, 1_000):
        dues = tuple(from_ms + rng.randrange(within_ms) for _message in range(1_000))
        for record in machine.decide(Schedule(position, dues), START_MS).records:
            machine.apply(record)


def test_messages_are_scheduled_fast_enough() -> None:
    begun_s = time.thread_time()
    schedule(PartitionSchedule(), MESSAGES, within_ms=86_400_000)
    assert MESSAGES / (time.thread_time() - begun_s) > SCHEDULED_PER_S_MIN


def test_releases_cost_a_fraction_of_a_core() -> None:
    machine = PartitionSchedule()
    machine.open_near(START_MS)
    schedule(machine, MESSAGES, within_ms=2_000)
    begun_s = time.thread_time()
    for now_ms in range(START_MS, START_MS + 2_500, 5):
        for record in machine.decide(Release(PRODUCER_ID, 0), now_ms).records:
            machine.apply(record)
        move = machine.pending_move()
        if move is not None:
            for record in machine.decide(FinishMove(move.batch), now_ms).records:
                machine.apply(record)
    assert machine.pending_count == 0
    assert MESSAGES / (time.thread_time() - begun_s) > RELEASED_PER_S_MIN


def test_memory_is_that_of_what_is_near() -> None:
    count = 10_000
    near, far = PartitionSchedule(), PartitionSchedule()
    near.open_near(START_MS)
    tracemalloc.start()
    try:
        # Without what is not in a file yet: that is taken every megabyte.
        schedule(near, count, within_ms=60_000)
        near.take_spill()
        near_bytes = tracemalloc.get_traced_memory()[0]
        schedule(far, count, within_ms=30 * 86_400_000, from_ms=START_MS + 3_600_000)
        far.take_spill()
        far_bytes = tracemalloc.get_traced_memory()[0] - near_bytes
    finally:
        tracemalloc.stop()
    assert near.near_count == count
    assert near_bytes / count < NEAR_BYTES_MAX
    assert far.near_count == 0
    assert far_bytes / count < FAR_BYTES_MAX
