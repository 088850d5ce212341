"""What operators are told of leaderships: elections by cause, and looks that were refused."""

from __future__ import annotations

from collections.abc import Callable

from penstock.base.clock import Clock
from penstock.broker.replication.group import ReplicaGroup
from penstock.broker.replication.in_sync import Place
from penstock.domain.replication.causes import ElectionCause, cause_of
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import View


class ElectionTally:
    def __init__(self) -> None:
        self.counts: dict[ElectionCause, int] = {}
        # The epoch that was counted last: a partition is settled several times in one.
        self._counted: dict[Place, int] = {}

    def note(self, place: Place, state: PartitionState, led_before: int | None, view: View) -> None:
        cause = cause_of(state, led_before, view)
        if cause is not None and self._counted.get(place) != state.epoch:
            self._counted[place] = state.epoch
            self.counts[cause] = self.counts.get(cause, 0) + 1


class Looks:
    """`is_held_at`: whether nobody can have ended this node's session before then, by the monotonic clock."""

    def __init__(self, clock: Clock, view: Callable[[], View], is_held_at: Callable[[int], bool]) -> None:
        self._clock = clock
        self._view = view
        self._is_held_at = is_held_at
        self.refused_count = 0

    def may(self, group: ReplicaGroup) -> bool:
        now_ms = self._clock.monotonic_ms()
        is_held = self._is_held_at(now_ms)
        may = group.progress.may_answer_looks(now_ms, self._view(), group.followed_ms(), is_held=is_held)
        self.refused_count += not may
        return may
