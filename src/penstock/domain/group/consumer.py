"""A consumer group (KIP-848): the coordinator assigns, members report by heartbeat what they hold.

    group epoch    grows with every change: a member comes, goes, subscribes differently, a topic changes
    target         who shall have what, computed for one group epoch
    current        who has what; each member walks to the target by itself, see `reconcile`

A partition moves only after its holder has said that it let go: `owners` names the holder of every partition that a
member has or has not yet given up, and nobody else is given it. All of that is kept; only sessions and deadlines are
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from penstock.domain.group.commands import STATIC_LEAVE_EPOCH, Outbox
from penstock.domain.group.records import (
    EPOCH_KEY,
    TARGET_EPOCH_KEY,
    ConsumerRecord,
    CurrentStored,
    EpochStored,
    MemberState,
    MemberStored,
    RecordKey,
    Removed,
    TargetEpochStored,
    TargetStored,
    current_key,
    member_key,
    target_key,
)
from penstock.domain.group.sizes import stored_bytes
from penstock.domain.group.values import NO_PARTITIONS, Assignment, Deadlines, GroupConfig, GroupError, Partition

_UNSEEN: Final = -1


class ConsumerState(StrEnum):
    """As ConsumerGroupDescribe names them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    __slots__ = (
        "by_instance",
        "config",
        "currents",
        "deadlines",
        "member_bytes",
        "members",
        "owners",
        "seen_revision",
        "stored_epoch",
        "target_epoch",
        "targets",
    )

    def __init__(self, config: GroupConfig, first_epoch: int = 0) -> None:
        self.config = config
        self.stored_epoch = EpochStored(first_epoch, b"", 0)
        self.target_epoch = first_epoch
        self.members: dict[str, MemberStored] = {}
        self.member_bytes = 0
        self.targets: dict[str, Assignment] = {}
        self.currents: dict[str, CurrentStored] = {}
        # Both follow from the above.
        self.by_instance: dict[str, str] = {}
        self.owners: dict[Partition, str] = {}
        # From here on nothing is kept.
        self.deadlines = Deadlines()
        self.seen_revision = _UNSEEN

    # ------------------------------------------------------------------ what is kept

    def apply(self, record: ConsumerRecord) -> None:
        """In any order: a compacted log may hold a member's assignment before the member."""
        match record:
            case CurrentStored():
                self._replace_current(record.member_id, record)
            case TargetStored(member_id, partitions):
                self.targets[member_id] = partitions
            case MemberStored():
                self.member_bytes += stored_bytes(record) - stored_bytes(self.members.get(record.member_id))
                self.members[record.member_id] = record
                if record.instance_id is not None:
                    self.by_instance[record.instance_id] = record.member_id
            case TargetEpochStored(epoch):
                self.target_epoch = epoch
            case EpochStored():
                self.stored_epoch = record

    def apply_removal(self, key: RecordKey) -> None:
        if key == TARGET_EPOCH_KEY:
            self.target_epoch = 0
            return
        kind, member_id, _partition = key
        if kind == "current":
            self._replace_current(member_id, None)
        elif kind == "target":
            self.targets.pop(member_id, None)
        elif kind == "member":
            member = self.members.pop(member_id, None)
            self.member_bytes -= stored_bytes(member)
            if member is not None and self.by_instance.get(member.instance_id or "") == member_id:
                del self.by_instance[member.instance_id or ""]

    def _replace_current(self, member_id: str, current: CurrentStored | None) -> None:
        owners = self.owners
        previous = self.currents.pop(member_id, None)
        if previous is not None:
            for partition in (*previous.assigned, *previous.pending_revocation):
                if owners.get(partition) == member_id:
                    del owners[partition]
        if current is not None:
            self.currents[member_id] = current
            for partition in (*current.assigned, *current.pending_revocation):
                owners[partition] = member_id

    def snapshot(self) -> list[ConsumerRecord]:
        return [
            *(self.members[member_id] for member_id in sorted(self.members)),
            self.stored_epoch,
            *(TargetStored(member_id, self.targets[member_id]) for member_id in sorted(self.targets)),
            TargetEpochStored(self.target_epoch),
            *(self.currents[member_id] for member_id in sorted(self.currents)),
        ]

    # ------------------------------------------------------------------ what others ask

    @property
    def epoch(self) -> int:
        return self.stored_epoch.epoch

    @property
    def is_empty(self) -> bool:
        return not self.members

    def current(self, member_id: str) -> CurrentStored:
        """A member that has only just joined holds nothing, at epoch 0."""
        known = self.currents.get(member_id)
        return known or CurrentStored(member_id, 0, 0, MemberState.STABLE, NO_PARTITIONS)

    def target(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NO_PARTITIONS)

    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        settled = all(self._is_settled(self.current(member_id)) for member_id in self.members)
        return ConsumerState.STABLE if settled else ConsumerState.RECONCILING

    def _is_settled(self, current: CurrentStored) -> bool:
        return current.state is MemberState.STABLE and current.epoch == self.target_epoch

    def commit_problem(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        is_transactional: bool,
        knows_epochs: bool,
        partitions: Callable[[], Iterable[Partition]],
    ) -> GroupError | None:
        """Who is at an older epoch may have given partitions up since, and must not move their offsets; those that it
        has kept it may commit (KIP-1251). `partitions` are asked for only then.
        """
        if epoch < 0 and not self.members:
            return None
        member = self.members.get(member_id)
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if instance_id is not None and self.by_instance.get(instance_id) != member_id:
            return GroupError.FENCED_INSTANCE_ID
        if member.classic is None and not is_transactional and not knows_epochs:
            return GroupError.UNSUPPORTED_VERSION
        current = self.current(member_id)
        if epoch >= 0 and epoch == current.epoch:
            return None
        is_classic = member.classic is not None
        if not is_classic and 0 <= epoch < current.epoch:
            since = current.held_since()
            if all(since.get(partition, current.epoch) <= epoch for partition in partitions()):
                return None
        return GroupError.ILLEGAL_GENERATION if is_classic or is_transactional else GroupError.STALE_MEMBER_EPOCH

    def fetch_problem(self, *, member_id: str | None, epoch: int) -> GroupError | None:
        if member_id is None and epoch < 0:
            return None
        member = self.members.get(member_id or "")
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if epoch == self.current(member.member_id).epoch:
            return None
        return GroupError.STALE_MEMBER_EPOCH if member.classic is None else GroupError.ILLEGAL_GENERATION

    # ------------------------------------------------------------------ who is alive

    def touch(self, member_id: str, now_ms: int) -> None:
        member = self.members.get(member_id)
        classic = member.classic if member is not None else None
        timeout_ms = self.config.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self.deadlines.set(("session", member_id), now_ms + timeout_ms)

    def watch_revocation(self, current: CurrentStored, rebalance_timeout_ms: int, now_ms: int) -> None:
        """Who does not give up what it was asked for within its rebalance timeout is out, alive or not."""
        key = ("revoke", current.member_id)
        if current.state is MemberState.UNREVOKED:
            self.deadlines.set(key, now_ms + rebalance_timeout_ms)
        else:
            self.deadlines.cancel(key)

    def forget_deadlines(self, member_id: str) -> None:
        for kind in ("session", "revoke", "rejoin", "sync"):
            self.deadlines.cancel((kind, member_id))

    def overdue(self, now_ms: int) -> list[str]:
        """Members that have to go: each once, whatever they missed."""
        due: dict[str, None] = {}
        for key in self.deadlines.due(now_ms):
            assert isinstance(key, tuple)
            if key[1] in self.members:
                due[key[1]] = None
        return list(due)

    def load(self, now_ms: int) -> None:
        for member_id in sorted(self.members):
            self.touch(member_id, now_ms)
            self.watch_revocation(self.current(member_id), self.members[member_id].rebalance_timeout_ms, now_ms)

    # ------------------------------------------------------------------ the end of members and of the group

    def tombstones(self, out: Outbox) -> None:
        """Everything of the group goes; its members first, so that no half of it looks like a group."""
        remove_members(sorted(self.members), out)
        out.records += [Removed(TARGET_EPOCH_KEY), Removed(EPOCH_KEY)]


def remove_members(member_ids: Iterable[str], out: Outbox) -> None:
    for member_id in member_ids:
        out.records += [
            Removed(current_key(member_id)),
            Removed(target_key(member_id)),
            Removed(member_key(member_id)),
        ]


def left_for_a_while(current: CurrentStored) -> bool:
    """A static member said that it restarts: it keeps its partitions until its session ends."""
    return current.epoch == STATIC_LEAVE_EPOCH
