"""The commitments of a partition with one replica: made by the turns of the node's disk, and broken where nobody can
keep them.

    durability=fsync      readable, and acknowledged, when the disk has it (one turn of the group commit)
    durability=interval   readable, and acknowledged, when the kernel has it; the disk follows within the interval
"""

from __future__ import annotations

import asyncio

from penstock.broker.partition.acks import Acks
from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.commits import Commits, follow
from penstock.broker.partition.waiting import WaitingRoom
from penstock.domain.config.topic import TopicConfig
from penstock.storage.commit.group_commit import GroupCommit, Turn
from penstock.storage.log.partition_log import PartitionLog


class DiskCommits:
    __slots__ = (
        "_alarm",
        "_group_commit",
        "_interval_ms",
        "_is_over",
        "_is_synced",
        "_log",
        "_on_done",
        "_open",
        "_readers",
        "has_enough",
    )

    # Nobody else can lead.
    may_look = True

    def __init__(self, log: PartitionLog, group_commit: GroupCommit, readers: WaitingRoom) -> None:
        self._log = log
        self._group_commit = group_commit
        self._readers = readers
        # Not known yet: of the turn of the disk that runs and of the next, no more.
        self._open: dict[Turn, Commitment] = {}
        # Made once: every turn of a busy partition is asked to call it.
        self._on_done = self._on_turn
        self._alarm: asyncio.TimerHandle | None = None
        self._is_synced = True
        self._interval_ms = 0
        # Another decides by now what is readable.
        self._is_over = False
        # Nobody else is needed, unless the topic asks for more replicas in sync than it has.
        self.has_enough = True

    def configure(self, config: TopicConfig) -> None:
        self.has_enough = (config.min_insync_replicas or 1) <= 1
        self._is_synced = config.is_synced
        self._interval_ms = config.sync_interval_ms

    @property
    def kept_end(self) -> int:
        return self._log.durable_end

    def promise(self, _acks: Acks) -> Commitment | None:
        if self._is_synced:
            return self.commit()
        self._commit_within(self._interval_ms)
        self._log.advance_readable(self._log.log_end)
        self._readers.wake_all()
        return None

    def commit(self) -> Commitment:
        turn = self._group_commit.join(self._log)
        commitment = self._open.get(turn)
        if commitment is None:
            commitment = self._open[turn] = Commitment()
            turn.add_done_callback(self._on_done)
        return commitment

    def give_up(self, loss: Loss) -> None:
        broken, self._open = self._open, {}
        for commitment in broken.values():
            commitment.settle(loss)

    def hand_over(self, heir: Commits) -> None:
        self.close()
        self._is_over = True
        waiting, self._open = list(self._open.values()), {}
        if waiting or self._log.durable_end < self._log.log_end:
            follow(waiting, heir.commit())

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _commit_within(self, interval_ms: int) -> None:
        # The first write after a sync sets the alarm: an idle partition costs nothing, a busy one is synced on time.
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(interval_ms / 1000, self._commit_now)

    def _commit_now(self) -> None:
        self._alarm = None
        self._group_commit.join(self._log)

    def _on_turn(self, turn: Turn) -> None:
        if self._is_over:
            return
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
