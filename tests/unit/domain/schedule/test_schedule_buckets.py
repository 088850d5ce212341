"""Buckets of due times: a bounded number of files whatever the times are, and what is taken to them in portions."""

from __future__ import annotations

import struct
from random import Random

from penstock.domain.schedule.buckets import ENTRY_BYTES, Buckets

NOW_MS = 1_700_000_000_000
LATEST_MS = 2**62 + NOW_MS
ENTRY = struct.Struct("<qq")


def entries_of(data: bytes) -> list[tuple[int, int]]:
    return list(ENTRY.iter_unpack(data))


def test_made_up_times_of_a_million_years_share_a_few_files() -> None:
    buckets = Buckets(lambda _position: True)
    random = Random(1)
    dues_ms = [random.randrange(NOW_MS, LATEST_MS) for _ in range(5_000)]
    for position, due_ms in enumerate(dues_ms):
        buckets.place(due_ms, position, from_ms=NOW_MS)
    assert len(buckets.store()) <= 65
    # Whoever lists what is due after any of them finds it.
    for position in range(0, 5_000, 500):
        due_ms = dues_ms[position]
        found = [entry for part in buckets.parts(due_ms) for entry in entries_of(part.entries)]
        assert (due_ms, position) in found
        assert all(
            part.start_ms <= due_ms for part in buckets.parts(due_ms) if ENTRY.pack(due_ms, position) in part.entries
        )


def test_time_that_is_too_far_for_every_file_comes_when_it_comes() -> None:
    """Nine thousand years are a step of the clock away."""
    buckets = Buckets(lambda _position: True)
    due_ms = NOW_MS + (150 << 42) + 12_345
    buckets.place(due_ms, 7, from_ms=NOW_MS)
    now_ms = NOW_MS
    while buckets.wheel.count == 0:
        opening_ms = buckets.next_opening_ms()
        assert opening_ms is not None
        assert now_ms <= opening_ms <= due_ms
        now_ms = opening_ms
        assert buckets.open_near(now_ms) == []
    assert buckets.wheel.peek(due_ms, count_max=1, is_live=lambda _number: True) == ([], 0)
    assert buckets.wheel.peek(due_ms + 1, count_max=1, is_live=lambda _number: True) == ([7], 1)


def test_portions_of_what_is_not_in_files_yet_make_the_whole() -> None:
    random = Random(2)
    ended = set(range(0, 3_000, 3))
    for bytes_max in (ENTRY_BYTES, 100, 1_000, 10**6):
        buckets = Buckets(lambda position: position not in ended)
        # Near ones among them, which may have ended by now.
        buckets.open_near(NOW_MS)
        expected: dict[int, list[tuple[int, int]]] = {}
        for position in range(3_000):
            due_ms = NOW_MS + random.choice((5, 100_000, 10_000_000, 10_000_000_000))
            buckets.place(due_ms, position, from_ms=NOW_MS)
        for part in buckets.parts(0):
            of_part = entries_of(part.entries)
            is_near = part.start_ms < NOW_MS + 60_000 and part.name.level == 0
            expected[part.name.number] = [each for each in of_part if not is_near or each[1] not in ended]
        found: dict[int, list[tuple[int, int]]] = {}
        while buckets.spill_bytes:
            before = buckets.spill_bytes
            writes = buckets.take_spill(bytes_max)
            assert before - buckets.spill_bytes in (bytes_max - bytes_max % ENTRY_BYTES, before)
            for write in writes:
                found.setdefault(write.name.number, []).extend(entries_of(write.entries))
        assert found == {number: entries for number, entries in expected.items() if entries}
        assert {each.number: each.count for each in buckets.store()} == {
            number: len(entries) for number, entries in found.items()
        }
