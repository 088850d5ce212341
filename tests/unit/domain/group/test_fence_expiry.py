"""What a Spark query has committed is remembered for as long as somebody may start it again: for ever."""

from __future__ import annotations

from penstock.domain.group.commands import CommitOffsets, DeleteGroup, ExpireOffsets, OffsetToCommit
from penstock.domain.topic_rules import SPARK_STAGE
from support.group.world_desk import Desk

YEAR_MS = 365 * 24 * 3_600_000


def test_a_fence_does_not_expire() -> None:
    desk = Desk()
    desk.ask(CommitOffsets((OffsetToCommit(SPARK_STAGE, 0, 7), OffsetToCommit("orders", 0, 5))))
    desk.now_ms += YEAR_MS
    desk.ask(ExpireOffsets())
    assert list(desk.group.offsets.as_dict()) == [(SPARK_STAGE, 0)]
    desk.restart()
    assert list(desk.group.offsets.as_dict()) == [(SPARK_STAGE, 0)]


def test_a_fence_goes_with_its_group() -> None:
    desk = Desk()
    desk.ask(CommitOffsets((OffsetToCommit(SPARK_STAGE, 0, 7),)))
    desk.ask(DeleteGroup())
    assert not desk.group.exists
