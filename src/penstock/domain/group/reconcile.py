"""One member's next step towards the target assignment (KIP-848). Only partitions that move stop being read.

    Stable ──target has moved on──▶ something to give up?──yes──▶ Unrevoked ──its heartbeat no longer names them──┐
                                          │ no                                                                    │
                                          ▼                                                                       │
                             take what is free, at the target's epoch ◀───────────────────────────────────────────┘
                                          │
                       all of it? ──yes──▶ Stable
                                 └──no───▶ Unreleased: another still holds some; look again at each heartbeat

What a member was told to hold is its own until a heartbeat that follows the demand does not name it any more. (Kafka
skips the demand if the member's last report did not name the partition yet; a member that was just adding it would then
read it together with its successor for a moment.)
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.domain.group.records import CurrentStored, MemberState
from penstock.domain.group.values import NO_PARTITIONS, Assignment, Partition


def reconcile(
    current: CurrentStored,
    *,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    owners: Mapping[Partition, str],
) -> CurrentStored:
    """`current` itself if there is nothing to do. `owned` is what the heartbeat names, None if it says nothing."""
    epoch = current.epoch
    if current.state is MemberState.STABLE and epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED:
        if owned is None or not frozenset(owned).isdisjoint(current.pending_revocation):
            return current
        # One step, not the target's epoch: if the target has moved on, there may be more to give up before it gets
        # there. A step nevertheless, so that a commit that was sent before the partitions went is refused.
        epoch += 1
    wanted = frozenset(target)
    kept = tuple(partition for partition in current.assigned if partition in wanted)
    if len(kept) < len(current.assigned):
        revoked = tuple(partition for partition in current.assigned if partition not in wanted)
        return _dated(current, epoch, MemberState.UNREVOKED, kept, revoked)
    held = frozenset(kept)
    missing = [partition for partition in target if partition not in held]
    free = [partition for partition in missing if owners.get(partition, current.member_id) == current.member_id]
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
    if state is current.state and epoch == target_epoch and not free:
        return current
    return _dated(current, target_epoch, state, tuple(sorted((*kept, *free))))


def _dated(
    before: CurrentStored, epoch: int, state: MemberState, assigned: Assignment, pending: Assignment = NO_PARTITIONS
) -> CurrentStored:
    """What it had before it has since then: a commit under an older epoch is taken for such a partition."""
    known = before.held_since()
    since = tuple(known.get(partition, epoch) for partition in (*assigned, *pending))
    return CurrentStored(before.member_id, epoch, before.epoch, state, assigned, pending, since)


def may_have_missed_an_answer(current: CurrentStored, member_epoch: int, owned: Assignment | None) -> bool:
    """It is one epoch behind and holds nothing that it should not: the answer with its new epoch was lost."""
    if owned is None or member_epoch != current.previous_epoch:
        return False
    return frozenset(owned) <= frozenset((*current.assigned, *current.pending_revocation))
