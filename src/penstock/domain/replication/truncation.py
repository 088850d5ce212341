"""Where two logs part, and what a follower cuts off: by leader epochs, inside every fetch.

    follower: I end at `offset`, and my last batch is of `epoch`
    leader:   in agreement, here is more        my epoch of that number ends there or later
              diverging (epoch, end)            the largest epoch of mine that is not above yours, and where it ends
              behind                            I begin only at my log start

Rules:
- The follower cuts to where both have that epoch, and asks again until the leader agrees: an epoch in between, which
  only one of them has, takes a step of its own.
- It cuts its list of epochs also when no byte goes: an epoch that it noted as leader and never wrote in would be asked
  about for ever.
- It never cuts below its watermark, unless an unclean election has happened since its last batch was written.
- It begins anew, at the leader's log start, if it ends before that, or if the leader has dropped tombstones behind its
  end that it never saw: it would keep what they deleted.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.domain.replication.state import NO_EPOCH


class EpochEnds(Protocol):
    """Which leader wrote which part of a log; storage keeps the list."""

    @property
    def latest(self) -> int: ...

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]: ...


class Diverging(msgspec.Struct, frozen=True):
    epoch: int
    end_offset: int


class Behind(msgspec.Struct, frozen=True):
    log_start: int


class Cut(msgspec.Struct, frozen=True):
    """The log and its list of epochs end here, also if that is where the log ends already."""

    offset: int


class CutRefused(msgspec.Struct, frozen=True):
    """What was promised to readers is not cut: the replica leaves the set, and somebody has to look."""

    offset: int
    watermark: int

    @property
    def reason(self) -> str:
        return f"the leader's log parts from ours at offset {self.offset}, below our watermark {self.watermark}"


class BeginAnew(msgspec.Struct, frozen=True):
    """Everything is dropped; the empty log begins here, and its watermark too."""

    offset: int


def answer(
    epochs: EpochEnds, *, log_start: int, log_end: int, last_epoch: int, fetch_offset: int
) -> Diverging | Behind | None:
    """By the leader. None: what the follower has is a beginning of what the leader has."""
    if fetch_offset < log_start:
        return Behind(log_start)
    if last_epoch == NO_EPOCH:
        # An empty log agrees with every other; only where it begins may be wrong.
        return None if fetch_offset <= log_end else Diverging(NO_EPOCH, log_end)
    found = _end_of(epochs, last_epoch, log_end)
    if found.epoch == last_epoch and fetch_offset <= found.end_offset:
        return None
    return found


def plan_cut(
    epochs: EpochEnds, diverging: Diverging, *, log_end: int, watermark: int, unclean_epoch: int
) -> Cut | CutRefused:
    """By the follower. `unclean_epoch` is that of the partition's state."""
    own = _end_of(epochs, diverging.epoch, log_end)
    offset = min(diverging.end_offset, own.end_offset)
    if offset < watermark and unclean_epoch <= epochs.latest:
        return CutRefused(offset, watermark)
    return Cut(offset)


def plan_beginning(*, log_end: int, leader_log_start: int, tombstone_horizon: int) -> BeginAnew | None:
    """By the follower, from what a reply tells of the leader's log. None: it goes on.

    `tombstone_horizon`: the leader has dropped tombstones and markers below it.
    """
    if log_end < leader_log_start or log_end < tombstone_horizon:
        return BeginAnew(leader_log_start)
    return None


def _end_of(epochs: EpochEnds, epoch: int, log_end: int) -> Diverging:
    """The largest epoch that is not above the one asked for, and where it ends."""
    if epoch >= epochs.latest:
        return Diverging(epochs.latest, log_end)
    if epoch < 0:
        # Nothing in common: everything of ours is younger.
        return Diverging(NO_EPOCH, 0)
    return Diverging(*epochs.end_offset_for(epoch, log_end))
