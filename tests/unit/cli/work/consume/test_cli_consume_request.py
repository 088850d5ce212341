"""What the options of `penstock consume` mean together."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.cli.failure import CommandError
from penstock.cli.moments import AtTime, Earliest, Latest
from penstock.cli.work.consume.request import ConsumeRequest, plan_of
from penstock.cli.work.consume.snapshot import SnapshotPlan
from penstock.cli.work.consume.work import ConsumePlan, Window

NOON_MS = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000


def plan(**words: object) -> ConsumePlan | SnapshotPlan:
    return plan_of(ConsumeRequest(topic="t", **words), now_ms=NOON_MS, zone=UTC)  # type: ignore[arg-type]


def test_a_moment_is_a_start_and_merges_partitions() -> None:
    expected = ConsumePlan(topic="t", start=AtTime(NOON_MS - 2 * HOUR_MS), is_merged=True)
    assert plan(at="10:00") == plan(at="-2h") == plan(at="2026-11-15 10:00") == expected


def test_two_moments_are_a_window() -> None:
    window = Window(since_ms=NOON_MS - 26 * HOUR_MS, before_ms=NOON_MS, late_ms_max=600_000)
    found = plan(between=("yesterday 10:00", "now"), late_max="10 minutes")
    assert found == ConsumePlan(topic="t", window=window, is_merged=True)


def test_without_a_start_everything_is_read_as_it_comes() -> None:
    assert plan() == ConsumePlan(topic="t", start=Earliest())
    assert plan(is_tail=True) == ConsumePlan(topic="t", start=Latest(), is_following=True)


def test_a_snapshot_is_as_of_now_a_moment_or_an_offset() -> None:
    assert plan(is_snapshot=True) == SnapshotPlan(topic="t")
    assert plan(is_snapshot=True, at="12:00") == SnapshotPlan(topic="t", moment_ms=NOON_MS)
    assert plan(is_snapshot=True, until_offset=5) == SnapshotPlan(topic="t", until_offset=5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"at": "10:00", "start": "earliest"}, "--from and --at exclude each other"),
        ({"at": "10:00", "between": ("10:00", "11:00")}, "--at and --between exclude each other"),
        ({"between": ("10:00", "11:00"), "is_following": True}, "excludes --follow"),
        ({"between": ("11:00", "10:00")}, "'10:00' is not after '11:00'"),
        ({"between": ("11:00", "noon")}, "--between: 'noon' is not a time"),
        ({"at": "25:00"}, "--at: '25:00' is not a time"),
        ({"late_max": "1h"}, "goes with --between only"),
        ({"between": ("10:00", "11:00"), "late_max": "soon"}, "--late-max: 'soon' is not a duration"),
        ({"until_offset": 5}, "goes with --snapshot only"),
        ({"is_snapshot": True, "last": 5}, "--snapshot excludes --last"),
        ({"is_snapshot": True, "is_following": True}, "--snapshot excludes --follow"),
        ({"is_snapshot": True, "until_offset": 5, "at": "10:00"}, "--at and --until-offset exclude each other"),
    ],
)
def test_words_that_do_not_go_together_are_one_sentence(words: dict[str, object], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence) as refused:
        plan(**words)
    assert refused.value.exit_code == 2
