"""The commitments of one partition: made by the turns of the node's disk, and broken where nobody can keep them."""

from __future__ import annotations

import asyncio

from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.waiting import WaitingRoom
from penstock.storage.commit.group_commit import GroupCommit, Turn
from penstock.storage.log.partition_log import PartitionLog


class PartitionCommits:
    __slots__ = ("_alarm", "_group_commit", "_log", "_on_done", "_open", "_readers")

    def __init__(self, log: PartitionLog, group_commit: GroupCommit, readers: WaitingRoom) -> None:
        self._log = log
        self._group_commit = group_commit
        self._readers = readers
        # Not known yet: of the turn of the disk that runs and of the next, no more.
        self._open: dict[Turn, Commitment] = {}
        # Made once: every turn of a busy partition is asked to call it.
        self._on_done = self._on_turn
        self._alarm: asyncio.TimerHandle | None = None

    def commit(self) -> Commitment:
        """Has everything written so far kept."""
        turn = self._group_commit.join(self._log)
        commitment = self._open.get(turn)
        if commitment is None:
            commitment = self._open[turn] = Commitment()
            turn.add_done_callback(self._on_done)
        return commitment

    def commit_within(self, interval_ms: int) -> None:
        # The first write after a sync sets the alarm: an idle partition costs nothing, a busy one is synced on time.
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(interval_ms / 1000, self._commit_now)

    def give_up(self, loss: Loss) -> None:
        """Whoever waits is told at once, and what is written later has a commitment of its own."""
        broken, self._open = self._open, {}
        for commitment in broken.values():
            commitment.settle(loss)

    def close(self) -> None:
        """No alarm after this; who waits for a turn is told when it ends."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _commit_now(self) -> None:
        self._alarm = None
        self._group_commit.join(self._log)

    def _on_turn(self, turn: Turn) -> None:
        log = self._log
        readable_end = log.readable_end
        loss = Loss.DISK if log in turn.failed else None
        # Of a log that the sync failed, nothing past the readable end was promised to anybody; its readers are woken
        # to learn that it is offline.
        log.advance_readable(log.durable_end)
        if loss is not None or log.readable_end != readable_end:
            self._readers.wake_all()
        commitment = self._open.pop(turn, None)
        # None: given up, or told when this was called for the one that was.
        if commitment is not None:
            commitment.settle(loss)
