from __future__ import annotations

from random import Random

import pytest

from penstock.domain.log.aborted_index import AbortedIndex, AbortedTransaction


def index_of(*entries: tuple[int, int, int, int]) -> AbortedIndex:
    index = AbortedIndex()
    for entry in entries:
        index.append(AbortedTransaction(*entry))
    return index


def producers(found: list[AbortedTransaction]) -> list[int]:
    return [entry.producer_id for entry in found]


# Producer 1 at 10-20, while 2 is open since 5 and ends at 30; producer 3 at 40-50.
SAMPLE = ((1, 10, 20, 5), (2, 5, 30, 31), (3, 40, 50, 51))


def test_fetch_lists_what_overlaps_it_in_the_order_of_first_offsets() -> None:
    index = index_of(*SAMPLE)
    assert producers(index.between(0, 60)) == [2, 1, 3]
    assert producers(index.between(21, 60)) == [2, 3]
    assert producers(index.between(31, 40)) == []
    assert producers(index.between(50, 51)) == [3]
    assert producers(index.between(51, 99)) == []


def test_transaction_that_began_below_the_fetch_and_ends_after_it_is_listed() -> None:
    index = index_of(*SAMPLE)
    # The abort of 1 left the last stable offset at 5: a search that stopped there would miss producer 2.
    assert producers(index.between(6, 8)) == [2]
    assert producers(index.between(5, 6)) == [2]
    assert producers(index.between(0, 5)) == []


def test_entry_stays_until_its_marker_is_gone() -> None:
    index = index_of(*SAMPLE)
    index.drop_before(20)
    assert len(index) == 3
    index.drop_before(21)
    assert producers(index.entries()) == [2, 3]
    index.drop_before(1000)
    assert len(index) == 0
    index.drop_before(2000)


def test_cut_log_has_lost_the_markers_after_the_cut() -> None:
    index = index_of(*SAMPLE)
    index.truncate_to(51)
    assert len(index) == 3
    index.truncate_to(50)
    assert producers(index.entries()) == [1, 2]
    index.truncate_to(0)
    assert len(index) == 0


def test_bytes_bring_back_the_same_index() -> None:
    index = index_of(*SAMPLE)
    assert AbortedIndex.from_bytes(index.to_bytes()) == index
    assert AbortedIndex.from_bytes(AbortedIndex().to_bytes()) == AbortedIndex()
    assert len(index.to_bytes()) == 4 + 3 * 32
    assert index != index_of(*SAMPLE[:2])


def test_markers_come_in_their_order() -> None:
    with pytest.raises(AssertionError):
        index_of((1, 10, 20, 21), (2, 5, 20, 21))


@pytest.mark.parametrize("seed", range(20))
def test_search_finds_what_looking_at_every_entry_finds(seed: int) -> None:
    rng = Random(seed)
    index = AbortedIndex()
    ongoing: dict[int, int] = {}
    for offset in range(200):
        producer_id = rng.randint(0, 5)
        if producer_id not in ongoing:
            ongoing[producer_id] = offset
        elif rng.random() < 0.4:
            first = ongoing.pop(producer_id)
            stable = min(ongoing.values(), default=offset + 1)
            index.append(AbortedTransaction(producer_id, first, offset, stable))
    for _ in range(100):
        start = rng.randint(0, 210)
        end = start + rng.randint(1, 60)
        expected = [entry for entry in index.entries() if entry.last_offset >= start and entry.first_offset < end]
        assert index.between(start, end) == sorted(expected, key=lambda entry: entry.first_offset)


def test_entries_leave_by_the_offsets_of_their_markers() -> None:
    index = index_of(*SAMPLE)
    assert index.remove([30, 35, 50, 99]) == 2
    assert producers(index.entries()) == [1]
    assert index.remove([30]) == 0
    assert index.remove([]) == 0
    assert index.remove([20]) == 1
    assert len(index) == 0


def test_copy_does_not_follow_the_index() -> None:
    index = index_of(*SAMPLE)
    copied = index.copy()
    index.drop_before(99)
    assert producers(copied.entries()) == [1, 2, 3]
