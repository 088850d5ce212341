"""One log that this node follows: what is asked of its leader, and what is done with the answer.

    nothing new        the watermark and the start of the log follow the leader's
    batches            checked, and written as they are at the end of this log
    diverging          what the leader does not have is cut off, and it is asked again, until it agrees
    begins later       the log is dropped and begins where the leader's does; so too if tombstones were missed

Rules:
- An answer counts only if the role is the very object that was asked under, and the log ends where it did and as it
  did: a late one would cut off, or bring back, what another leader has decided since.
- From the look at the role to the write there is no `await`.
- A fetch says what this replica can never lose: it is not sent while the disk still owes something of it.
- What is below the watermark is never cut, except after an unclean election.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.machine.rehearsals import Tail
from penstock.broker.partition.commitment import Commitment
from penstock.broker.partition.role import Following
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.companion import CompanionKind
from penstock.domain.replication.exchange import (
    NO_EPOCH,
    NO_OFFSET,
    Buffer,
    LogFetch,
    LogFetched,
    LogName,
    ReplicaProblem,
)
from penstock.domain.replication.truncation import (
    BeginAnew,
    Cut,
    CutRefused,
    Diverging,
    plan_beginning,
    plan_cut,
)
from penstock.storage.errors import DiskFullError, StorageError
from penstock.storage.log.removal import LogRemoval

log_events = get_logger("replication")

# Of one log in a reply: what the leader gives at the most.
LOG_BYTES_MAX: Final = 1024 * 1024


class Asked(msgspec.Struct, frozen=True):
    """As this replica stood when it asked."""

    role: Following
    offset: int
    last_epoch: int


class Open(msgspec.Struct, frozen=True):
    """The leader has something in a companion that was never opened here."""


class Failure(enum.Enum):
    """What keeps this replica from following; whether it holds what it has promised."""

    DISK_FULL = "the disk is full"
    DISK_FAILED = "the disk failed a write or a sync"
    DAMAGED = "the leader sent what is no batch of this log"
    DIVERGED = "the leader's log parts from this one below the watermark"
    FLAWED = "a log is damaged, or shorter than it was"

    @property
    def is_whole(self) -> bool:
        return self is Failure.DISK_FULL or self is Failure.DAMAGED


class Taken(msgspec.Struct, frozen=True):
    """The answer was for this log as it is, and is in it."""

    size_bytes: int = 0
    # Until when the next fetch waits.
    commitment: Commitment | None = None
    removal: LogRemoval | None = None


class Stale(msgspec.Struct, frozen=True):
    """The answer is not for the log as it is: it is asked again."""


class Refused(msgspec.Struct, frozen=True):
    """The leader has no answer for now."""

    problem: ReplicaProblem


Outcome = Taken | Stale | Refused | Failure | Cut | BeginAnew | Open
STALE: Final = Stale()


class FollowedLog:
    """In one role: who is followed next, and in which epoch, is another of these."""

    __slots__ = ("_partition", "_role", "_told_end", "full_bytes", "kind", "name", "shell", "tail", "unclean_epoch")

    def __init__(
        self,
        name: LogName,
        partition: PartitionShell,
        role: Following,
        *,
        kind: CompanionKind | None,
        shell: PartitionShell | None,
        unclean_epoch: int = NO_EPOCH,
    ) -> None:
        self.name = name
        self.kind = kind
        # None: a companion that was never opened here, which is empty.
        self.shell = shell
        self._partition = partition
        self._role = role
        self.unclean_epoch = unclean_epoch
        # The highest end that the leader was told of.
        self._told_end = 0
        # Of a journal: what it has got since it was last rehearsed.
        self.tail: Tail | None = None
        # Of answers that were as full as can be, one after another: how far this log is behind.
        self.full_bytes = 0

    def __repr__(self) -> str:
        return f"<FollowedLog {self._partition.topic}-{self._partition.index} {self.kind or 'data'}>"

    @property
    def partition(self) -> PartitionShell:
        return self._partition

    @property
    def is_synced(self) -> bool:
        """The disk has to have it before it counts."""
        replicated = None if self.shell is None else self.shell.replicated
        # A companion always is.
        return replicated is None or replicated.is_synced

    @property
    def is_current(self) -> bool:
        return self._partition.role is self._role and not self._partition.is_closed

    @property
    def is_ready(self) -> bool:
        """It can be asked for: all of it is what this replica can never lose."""
        shell = self.shell
        if shell is None:
            return True
        log, replicated = shell.log, shell.replicated
        return replicated is not None and log.is_healthy and replicated.own_end == log.log_end and not log.is_being_cut

    @property
    def is_whole(self) -> bool:
        """It holds, undamaged, all that it has ever told this leader to hold."""
        if self.shell is None:
            return True
        log = self.shell.log
        return self.is_ready and log.flaws.described is None and log.log_end >= self._told_end

    # Asking

    def owes(self) -> Commitment | None:
        """What the disk has to do before this log can be asked for: left over from an earlier role."""
        replicated = None if self.shell is None else self.shell.replicated
        return None if replicated is None else replicated.own()

    def asked(self) -> Asked:
        if self.shell is None:
            return Asked(self._role, 0, NO_EPOCH)
        return Asked(self._role, self.shell.log.log_end, self.shell.log.epochs.latest)

    def wanted(self, asked: Asked) -> LogFetch:
        shell = self.shell
        if shell is not None and shell.replicated is not None:
            assert shell.replicated.own_end == asked.offset, "a fetch says what this replica can never lose"
        self._told_end = max(self._told_end, asked.offset)
        return LogFetch(
            log=self.name,
            leader_epoch=asked.role.epoch,
            offset=asked.offset,
            last_epoch=asked.last_epoch,
            log_start=0 if shell is None else shell.log.log_start,
            bytes_max=LOG_BYTES_MAX,
            high_watermark=0 if shell is None else shell.log.readable_end,
        )

    # Answers

    def take(self, answer: LogFetched, asked: Asked) -> Outcome:
        if not self.is_current or self.asked() != asked or asked.role is not self._role:
            return STALE
        if answer.problem is not None:
            return self._refused(answer)
        if answer.diverging is not None:
            return self._plan_cut(Diverging(answer.diverging.epoch, answer.diverging.end_offset))
        begin = plan_beginning(
            log_end=asked.offset, leader_log_start=answer.log_start, tombstone_horizon=answer.tombstone_horizon
        )
        if begin is not None:
            return begin
        if self.shell is None:
            return Open() if len(answer.records) else Taken()
        return self._write(self.shell, answer)

    def _refused(self, answer: LogFetched) -> Outcome:
        assert answer.problem is not None
        if answer.problem is ReplicaProblem.OFFSET_OUT_OF_RANGE and answer.log_start != NO_OFFSET:
            end = 0 if self.shell is None else self.shell.log.log_end
            begin = plan_beginning(log_end=end, leader_log_start=answer.log_start, tombstone_horizon=NO_OFFSET)
            if begin is not None:
                return begin
        return Refused(answer.problem)

    def _plan_cut(self, diverging: Diverging) -> Outcome:
        shell = self.shell
        assert shell is not None, "an empty log agrees with every other"
        plan = plan_cut(
            shell.log.epochs,
            diverging,
            log_end=shell.log.log_end,
            watermark=shell.log.readable_end,
            unclean_epoch=self.unclean_epoch,
        )
        if isinstance(plan, CutRefused):
            log_events.error("replica differs", topic=shell.topic, partition=shell.index, reason=plan.reason)
            return Failure.DIVERGED
        return plan

    def _write(self, shell: PartitionShell, answer: LogFetched) -> Outcome:
        log, replicated = shell.log, shell.replicated
        assert replicated is not None, "who follows has a replica"
        records = _joined(answer.records)
        commitment = None
        if len(records):
            is_compacted = log.config.compaction is not None
            end_before = log.log_end
            try:
                refused = log.append_replicated(records, leader_epoch=self._role.epoch, may_skip=is_compacted)
            except DiskFullError:
                return Failure.DISK_FULL
            except StorageError:
                return Failure.DISK_FAILED
            if refused is not None:
                log_events.error(
                    "batches of the leader refused", topic=shell.topic, partition=shell.index, reason=refused.detail
                )
                return Failure.DAMAGED
            commitment = replicated.own()
            if self.tail is not None:
                self.tail.note(log.log_end - end_before, len(records))
        replicated.advance(min(answer.high_watermark, log.log_end))
        self.full_bytes = self.full_bytes + len(records) if len(records) >= LOG_BYTES_MAX // 2 else 0
        removal = log.follow_log_start(answer.log_start) if answer.log_start > log.log_start else None
        return Taken(len(records), commitment, removal)


def _joined(records: Buffer | list[Buffer]) -> memoryview:
    if isinstance(records, list):
        return memoryview(records[0] if len(records) == 1 else b"".join(records))
    return memoryview(records)
