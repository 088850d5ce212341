from __future__ import annotations

from penstock.domain.log.retention import (
    UNLIMITED,
    RetentionReason,
    Retirement,
    SegmentFacts,
    jittered_ms,
    roll_is_due,
    segments_to_retire,
)

# Three of 100 bytes, the last one is written to.
SEGMENTS = (SegmentFacts(10, 100, 1_000), SegmentFacts(20, 100, 2_000), SegmentFacts(30, 100, 3_000))


def retire(
    segments: tuple[SegmentFacts, ...] = SEGMENTS,
    *,
    retention_ms: int = UNLIMITED,
    retention_bytes: int = UNLIMITED,
    now_ms: int = 10_000,
    readable_end: int = 30,
) -> Retirement:
    return segments_to_retire(
        segments,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        now_ms=now_ms,
        readable_end=readable_end,
    )


def test_nothing_goes_without_limits() -> None:
    assert retire().count == 0


def test_segment_goes_when_its_newest_record_is_too_old() -> None:
    assert retire(retention_ms=8_500).count == 1
    assert retire(retention_ms=8_000).count == 1
    assert retire(retention_ms=7_999).count == 2


def test_last_segment_goes_by_time_too() -> None:
    assert retire(retention_ms=1_000) == Retirement(by_time=3, by_size=0)


def test_empty_last_segment_stays() -> None:
    empty = (*SEGMENTS, SegmentFacts(30, 0, 3_000))
    assert retire(empty, retention_ms=1_000).count == 3


def test_young_segment_keeps_the_older_ones_behind_it() -> None:
    segments = (SegmentFacts(10, 100, 9_000), SegmentFacts(20, 100, 1_000), SegmentFacts(30, 100, 1_000))
    assert retire(segments, retention_ms=5_000).count == 0


def test_size_keeps_at_least_what_was_asked_for() -> None:
    assert retire(retention_bytes=300).count == 0
    assert retire(retention_bytes=250).count == 0
    assert retire(retention_bytes=200).count == 1
    assert retire(retention_bytes=150).count == 1


def test_size_never_takes_the_last_segment() -> None:
    assert retire(retention_bytes=0).count == 2


def test_nothing_unread_goes() -> None:
    assert retire(retention_ms=0, retention_bytes=0, readable_end=15).count == 1


def test_reason_names_the_stronger_limit() -> None:
    assert retire(retention_ms=8_500).reason is RetentionReason.TIME
    assert retire(retention_bytes=0).reason is RetentionReason.SIZE


def test_roll_is_due_by_age_and_only_with_something_in_it() -> None:
    assert roll_is_due(begun_ms=0, size_bytes=1, segment_ms=100, now_ms=100)
    assert not roll_is_due(begun_ms=0, size_bytes=1, segment_ms=100, now_ms=99)
    assert not roll_is_due(begun_ms=0, size_bytes=0, segment_ms=100, now_ms=500)
    assert not roll_is_due(begun_ms=0, size_bytes=1, segment_ms=UNLIMITED, now_ms=10**15)


def test_only_what_is_archived_goes_and_the_rest_is_held() -> None:
    def due(archived_end: int | None, **limits: int) -> Retirement:
        return segments_to_retire(
            SEGMENTS, **({"retention_ms": UNLIMITED, "retention_bytes": UNLIMITED} | limits),
            now_ms=10_000, readable_end=30, archived_end=archived_end,
        )  # fmt: skip

    assert due(None, retention_ms=7_999) == Retirement(2, 0)
    assert due(0, retention_ms=7_999) == Retirement(0, 0, held=2)
    assert due(19, retention_ms=7_999) == Retirement(1, 0, held=1)
    assert due(20, retention_ms=7_999) == Retirement(2, 0)
    assert due(10, retention_bytes=100) == Retirement(0, 1, held=1)
    # What may stay is not held.
    assert due(0, retention_bytes=300) == Retirement(0, 0)


def test_logs_close_their_segments_at_different_ages_within_the_jitter() -> None:
    ages = {jittered_ms(1_000, 100, f"orders-{partition}-0") for partition in range(50)}
    assert min(ages) >= 900
    assert max(ages) <= 1_000
    assert len(ages) > 10
    assert jittered_ms(1_000, 100, "orders-0-0") == jittered_ms(1_000, 100, "orders-0-0")
    assert jittered_ms(1_000, 0, "orders-0-0") == 1_000
    assert jittered_ms(50, 10_000, "orders-0-0") >= 1
    assert jittered_ms(UNLIMITED, 100, "orders-0-0") == UNLIMITED
