"""Which log is cleaned, which of its segments, and what happens to each batch."""

from __future__ import annotations

import msgspec
import pytest

from penstock.domain.log.aborted_index import AbortedTransaction
from penstock.domain.log.compaction import (
    NO_HORIZON,
    AbortedRanges,
    BatchFate,
    CleanablePart,
    CleaningRules,
    CompactionRules,
    SealedSegment,
    find_cleanable,
    joins_group,
    most_due,
    survives,
)

NOW_MS = 1_000_000
RULES = CompactionRules()


def segments(*sizes: int, newest_ms: int = 0) -> list[SealedSegment]:
    """Ten offsets each."""
    return [
        SealedSegment(number * 10, number * 10 + 10, size, newest_ms, newest_ms) for number, size in enumerate(sizes)
    ]


def cleanable(sealed: list[SealedSegment], rules: CompactionRules = RULES, **changes: int) -> CleanablePart | None:
    facts = {"clean_end": 0, "offset_limit": 1_000, "now_ms": NOW_MS, **changes}
    return find_cleanable(sealed, rules, **facts)


class Batch(msgspec.Struct, frozen=True):
    base_offset: int
    next_offset: int
    record_count: int = 1
    producer_id: int = -1
    is_transactional: bool = False


def rules(**changes: object) -> CleaningRules:
    facts: dict[str, object] = {"log_start": 0, "end_offset": 100, "now_ms": NOW_MS, "delete_retention_ms": 50}
    return CleaningRules(**{**facts, **changes})  # type: ignore[arg-type]


def marker(cleaning: CleaningRules, offset: int, *, horizon_ms: int = NO_HORIZON, is_commit: bool = True) -> BatchFate:
    batch = Batch(offset, offset + 1, producer_id=7, is_transactional=True)
    return cleaning.fate_of_marker(batch, horizon_ms=horizon_ms, is_commit=is_commit)


# Which log


def test_share_of_dirty_bytes_decides() -> None:
    part = cleanable(segments(100, 100, 100, 100), clean_end=20)
    assert part is not None
    assert (part.clean_bytes, part.dirty_bytes, part.dirty_ratio, part.end_offset) == (200, 200, 0.5, 40)
    assert not part.is_due(RULES)
    assert part.is_due(CompactionRules(min_cleanable_dirty_ratio=0.49))


def test_log_without_anything_dirty_is_left_alone() -> None:
    assert cleanable(segments(100, 100), clean_end=20) is None
    assert cleanable([]) is None


def test_nothing_at_or_past_the_limit_is_touched() -> None:
    part = cleanable(segments(100, 100, 100), offset_limit=29)
    assert part is not None
    assert (part.segment_count, part.end_offset) == (2, 20)


def test_young_records_wait() -> None:
    young = [*segments(100), SealedSegment(10, 20, 100, NOW_MS - 99, 0), SealedSegment(20, 30, 100, 0, 0)]
    part = cleanable(young, CompactionRules(min_compaction_lag_ms=100))
    assert part is not None
    assert part.segment_count == 1, "the one after the young one waits too: the last record of a key may be between"
    assert cleanable(young, CompactionRules(min_compaction_lag_ms=98)) is not None


def test_records_dated_in_the_future_are_no_reason_to_wait_without_a_lag() -> None:
    part = cleanable(segments(100, newest_ms=NOW_MS * 2))
    assert part is not None


def test_log_that_waited_too_long_is_due_whatever_its_share() -> None:
    patient = CompactionRules(min_cleanable_dirty_ratio=1.0)
    part = cleanable(segments(1_000, 1), patient, clean_end=10)
    assert part is not None
    assert not part.is_due(patient)
    hurried = CompactionRules(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=NOW_MS - 1)
    part = cleanable(segments(1_000, 1), hurried, clean_end=10)
    assert part is not None
    assert part.is_due(hurried)


def test_overdue_log_goes_first_then_the_dirtiest() -> None:
    def part(dirty_bytes: int, *, is_overdue: bool = False) -> CleanablePart:
        return CleanablePart(1, 0, 10, 100, dirty_bytes, is_overdue)

    candidates = [("half", part(101), RULES), ("most", part(900), RULES), ("late", part(1, is_overdue=True), RULES)]
    assert most_due(candidates) == ("late", candidates[2][1])
    assert most_due(candidates[:2]) == ("most", candidates[1][1])
    assert most_due([("clean enough", part(50), RULES)]) is None


# Which segments together


def joins(segment: SealedSegment, *, size_bytes: int = 0, segment_count: int = 1) -> bool:
    return joins_group(
        segment, base_offset=0, size_bytes=size_bytes, segment_count=segment_count, segment_bytes_max=100
    )


def test_neighbours_make_one_segment_up_to_its_size() -> None:
    (segment,) = segments(40)
    assert joins(segment, size_bytes=60)
    assert not joins(segment, size_bytes=61)


def test_offsets_of_a_group_fit_an_index() -> None:
    assert joins(SealedSegment(10, 2**31 - 1, 1, 0, 0))
    assert not joins(SealedSegment(10, 2**31, 1, 0, 0))


def test_group_holds_a_bounded_number_of_files() -> None:
    (segment,) = segments(1)
    assert not joins(segment, segment_count=64)


# Which batches


def test_batches_past_the_noted_keys_stay_as_they_are() -> None:
    assert rules(end_offset=10).fate_of(Batch(10, 12)) is BatchFate.KEEP
    assert rules(end_offset=10).fate_of(Batch(8, 10)) is BatchFate.SIFT


def test_deleted_and_aborted_records_go() -> None:
    assert rules(log_start=10).fate_of(Batch(8, 10)) is BatchFate.EMPTY
    cleaning = rules(aborted=[AbortedTransaction(7, 4, 20, 21)])
    assert cleaning.fate_of(Batch(4, 5, producer_id=7, is_transactional=True)) is BatchFate.EMPTY
    assert cleaning.fate_of(Batch(5, 6, producer_id=8, is_transactional=True)) is BatchFate.SIFT
    assert cleaning.fate_of(Batch(21, 22, producer_id=7, is_transactional=True)) is BatchFate.SIFT
    assert cleaning.fate_of(Batch(6, 7, producer_id=7)) is BatchFate.SIFT


def test_last_batch_of_a_known_producer_is_kept_empty() -> None:
    cleaning = rules(last_batches={7: 30})
    assert cleaning.is_kept_empty(Batch(30, 35, producer_id=7))
    assert not cleaning.is_kept_empty(Batch(20, 30, producer_id=7))
    assert not cleaning.is_kept_empty(Batch(30, 35))


def test_aborted_ranges_tell_transactions_of_one_producer_apart() -> None:
    ranges = AbortedRanges([AbortedTransaction(7, 10, 14, 0), AbortedTransaction(7, 20, 24, 0)])
    held = [offset for offset in range(30) if ranges.hold(Batch(offset, offset + 1, 1, 7, is_transactional=True))]
    assert held == [10, 11, 12, 13, 14, 20, 21, 22, 23, 24]


def test_marker_stays_while_a_batch_of_its_transaction_does() -> None:
    cleaning = rules()
    cleaning.fate_of(Batch(1, 2, producer_id=7, is_transactional=True))
    assert marker(cleaning, 2, horizon_ms=1) is BatchFate.KEEP
    assert marker(cleaning, 3, horizon_ms=1) is BatchFate.EMPTY, "nothing came between the two"


def test_marker_of_nothing_is_dated_then_kept_then_goes() -> None:
    assert marker(rules(), 2) is BatchFate.DATE
    assert marker(rules(), 2, horizon_ms=NOW_MS + 1) is BatchFate.KEEP
    assert marker(rules(), 2, horizon_ms=NOW_MS) is BatchFate.EMPTY


def test_last_marker_of_a_known_producer_stays() -> None:
    assert marker(rules(last_markers={7: 2}), 2, horizon_ms=1) is BatchFate.KEEP
    assert marker(rules(last_markers={7: 3}), 2, horizon_ms=1) is BatchFate.EMPTY


def test_abort_marker_of_nothing_is_told_of_before_it_goes() -> None:
    for horizon_ms in (NO_HORIZON, NOW_MS + 1, NOW_MS):
        cleaning = rules()
        marker(cleaning, 2, horizon_ms=horizon_ms, is_commit=False)
        marker(cleaning, 3, horizon_ms=horizon_ms, is_commit=True)
        assert cleaning.empty_aborts == [2]


# Which records


@pytest.mark.parametrize(
    ("is_latest", "has_value", "keeps_tombstones", "stays"),
    [
        (True, True, False, True),
        (True, False, True, True),
        (True, False, False, False),
        (False, True, True, False),
        (False, False, True, False),
    ],
)
def test_last_record_of_a_key_stays(*, is_latest: bool, has_value: bool, keeps_tombstones: bool, stays: bool) -> None:
    assert survives(is_latest=is_latest, has_value=has_value, keeps_tombstones=keeps_tombstones) is stays


def test_tombstones_stay_until_their_horizon() -> None:
    cleaning = rules()
    assert cleaning.horizon_ms == NOW_MS + 50
    assert cleaning.keeps_tombstones(NO_HORIZON)
    assert cleaning.keeps_tombstones(NOW_MS + 1)
    assert not cleaning.keeps_tombstones(NOW_MS)
