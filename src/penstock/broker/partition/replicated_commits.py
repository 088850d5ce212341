"""The commitments of a partition with several replicas: kept when the watermark has passed them.

    own end      what this replica can never lose: the disk's end with `fsync`, the log's end with anything less
    watermark    what no replica in sync can lose: nobody reads, and nobody is told, what lies past it

Where the watermark is, this does not know: the replica group of the partition is told when the own end moves
(`ReplicaListener`), and says how far the watermark has come (`advance`). Until there is a group nothing is committed.

Rules:
- Whoever waits is told when the readable end has come to the end of what was written when it asked. It is told of a
  loss when the leader changes, when the disk fails, and when its own time is up: then nobody knows how it will end, and
  the loss says whether too few replicas are in sync or those that are take too long.
- Commitments end in the order of offsets, so that the last one of several writes stands for those before it.
- Who follows keeps no promise to anybody: it has own ends only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import NamedTuple, Protocol

from penstock.broker.partition.acks import Acks
from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.commits import Commits, follow
from penstock.broker.partition.waiting import WaitingRoom
from penstock.domain.config.topic import TopicConfig
from penstock.storage.commit.group_commit import GroupCommit, Turn
from penstock.storage.log.partition_log import PartitionLog


class ReplicaListener(Protocol):
    """The replica group of a partition, as one of its logs tells it. Called on the loop, with the log as it is now."""

    def on_written(self) -> None:
        """There is more for the followers. Where the topic promises less than the disk, the own end has moved too."""
        ...

    def on_own_end(self) -> None: ...

    def on_log_start(self, start: int) -> Commitment:
        """The log begins there from now on. Kept when all replicas in sync have said that theirs does too."""
        ...

    def on_failed(self) -> None:
        """The disk did not take something."""
        ...

    def may_look(self) -> bool:
        """What this node knows of the partition is no older than a second."""
        ...

    def on_full(self) -> None:
        """There is no room for what somebody wanted to write."""
        ...


class _Waiting(NamedTuple):
    # The end of what was written when it asked.
    offset: int
    # By the loop's clock.
    deadline: float
    commitment: Commitment


class ReplicatedCommits:
    __slots__ = (
        "_alarm",
        "_deadlines",
        "_group_commit",
        "_interval_ms",
        "_is_over",
        "_is_synced",
        "_log",
        "_loop",
        "_on_done",
        "_own",
        "_readers",
        "_waiting",
        "has_enough",
        "listener",
    )

    def __init__(self, log: PartitionLog, group_commit: GroupCommit, readers: WaitingRoom) -> None:
        self._log = log
        self._group_commit = group_commit
        self._readers = readers
        self.listener: ReplicaListener | None = None
        # Set by the group.
        self.has_enough = True
        # Of the turn of the disk that runs and of the next, no more.
        self._own: dict[Turn, Commitment] = {}
        # By offset.
        self._waiting: deque[_Waiting] = deque()
        self._on_done = self._on_turn
        self._alarm: asyncio.TimerHandle | None = None
        self._deadlines: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_synced = True
        self._interval_ms = 0
        # Another decides by now what is readable.
        self._is_over = False

    def configure(self, config: TopicConfig) -> None:
        self._is_synced = config.is_synced
        self._interval_ms = config.sync_interval_ms

    @property
    def kept_end(self) -> int:
        return self._log.readable_end

    @property
    def may_look(self) -> bool:
        return self.listener is not None and self.listener.may_look()

    @property
    def own_end(self) -> int:
        """Up to here this replica loses nothing, as far as the topic asks for it."""
        return self._log.durable_end if self._is_synced else self._log.log_end

    @property
    def is_synced(self) -> bool:
        return self._is_synced

    def note_full(self) -> None:
        if self.listener is not None:
            self.listener.on_full()

    # Writing

    def promise(self, acks: Acks) -> Commitment | None:
        own = self.own()
        return self._wait(acks.timeout_ms) if acks.is_all else own

    def commit(self) -> Commitment:
        self.own()
        return self._wait(None) or _settled(None)

    def own(self) -> Commitment | None:
        """What this replica promises by itself of everything that is in the log now; None: it is so already. Called
        after every write, by the leader and by a follower alike."""
        commitment = None
        if not self._is_synced:
            self._commit_within()
        elif self._log.durable_end < self._log.log_end:
            commitment = self._join()
        if self.listener is not None:
            self.listener.on_written()
        return commitment

    def _join(self) -> Commitment:
        turn = self._group_commit.join(self._log)
        commitment = self._own.get(turn)
        if commitment is None:
            commitment = self._own[turn] = Commitment()
            turn.add_done_callback(self._on_done)
        return commitment

    def _wait(self, timeout_ms: int | None) -> Commitment | None:
        log = self._log
        if log.failure is not None:
            return _settled(Loss.DISK)
        if log.readable_end >= log.log_end:
            return None
        deadline = inf if timeout_ms is None else self._deadline(timeout_ms)
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.offset == log.log_end and last.deadline == deadline:
            return last.commitment
        commitment = Commitment()
        self._waiting.append(_Waiting(log.log_end, deadline, commitment))
        return commitment

    # The watermark

    def advance(self, watermark: int) -> None:
        """Everything below is committed."""
        log = self._log
        before = log.readable_end
        log.advance_readable(watermark)
        if log.readable_end == before:
            return
        self._readers.wake_all()
        waiting = self._waiting
        # Whoever is told may write, and ask for more, meanwhile.
        while waiting and waiting[0].offset <= log.readable_end:
            waiting.popleft().commitment.settle()

    def start_told(self, start: int) -> Commitment:
        """Of a log whose start has moved there."""
        return _settled(Loss.LEADERSHIP) if self.listener is None else self.listener.on_log_start(start)

    def give_up(self, loss: Loss) -> None:
        broken = [*self._own.values(), *(each.commitment for each in self._waiting)]
        self._own = {}
        self._waiting.clear()
        for commitment in broken:
            commitment.settle(loss)

    def hand_over(self, heir: Commits) -> None:
        self.close()
        self._is_over = True
        self.listener = None
        waiting = [*self._own.values(), *(each.commitment for each in self._waiting)]
        self._own = {}
        self._waiting.clear()
        if waiting or self._log.readable_end < self._log.log_end:
            follow(waiting, heir.commit())

    def close(self) -> None:
        for alarm in (self._alarm, self._deadlines):
            if alarm is not None:
                alarm.cancel()
        self._alarm = self._deadlines = None

    # The disk

    def _commit_within(self) -> None:
        # As with one replica: the first write after a sync sets the alarm.
        if self._alarm is None:
            self._alarm = self._running_loop().call_later(self._interval_ms / 1000, self._commit_now)

    def _commit_now(self) -> None:
        self._alarm = None
        self._join()

    def _on_turn(self, turn: Turn) -> None:
        if self._is_over:
            return
        is_failed = self._log in turn.failed
        commitment = self._own.pop(turn, None)
        if commitment is not None:
            commitment.settle(Loss.DISK if is_failed else None)
        if is_failed:
            # Followers may have what this disk has lost, or not: nobody knows.
            self.give_up(Loss.DISK)
            self._readers.wake_all()
        if self.listener is not None:
            if is_failed:
                self.listener.on_failed()
            else:
                self.listener.on_own_end()

    # Deadlines

    def _deadline(self, timeout_ms: int) -> float:
        loop = self._running_loop()
        deadline = loop.time() + timeout_ms / 1000
        # The alarm stays where it is when whoever it was set for has been answered: one alarm a timeout, not one a
        # batch.
        if self._deadlines is None or deadline < self._deadlines.when():
            if self._deadlines is not None:
                self._deadlines.cancel()
            self._deadlines = loop.call_at(deadline, self._on_deadline)
        return deadline

    def _on_deadline(self) -> None:
        self._deadlines = None
        loop = self._running_loop()
        now = loop.time()
        due = [each for each in self._waiting if each.deadline <= now]
        if due:
            self._waiting = deque(each for each in self._waiting if each.deadline > now)
        next_deadline = min((each.deadline for each in self._waiting), default=inf)
        if next_deadline < inf:
            self._deadlines = loop.call_at(next_deadline, self._on_deadline)
        loss = Loss.TIMEOUT if self.has_enough else Loss.REPLICAS
        for each in due:
            each.commitment.settle(loss)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop


def _settled(loss: Loss | None) -> Commitment:
    commitment = Commitment()
    commitment.settle(loss)
    return commitment
