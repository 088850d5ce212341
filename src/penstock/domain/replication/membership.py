"""As what a node may come back: how far its disk and its memory are those that were promised.

    full          the same directory, as it was when it was last admitted
    memory lost   the same, but the machine went down under it: what only its memory had is gone
    nothing       another directory, or an older copy of this one

Rules:
- Judged against the last *admitted* life: one that died before the controller admitted it has proved nothing.
- A directory keeps two broker epochs, the last one that was admitted and its newest (`epochs_to_keep`). The newest is
  on its disk before it asks to be admitted, so whichever of the two the controller has written, the directory knows it.
- The controller first changes every partition (`distrust`), then writes the admitted epoch. Before that the node
  neither fetches nor leads, so nothing of an untrusted life counts anywhere.
- What cannot be seen: a copy made while the node ran and put back within the same life. Its epochs are the right ones.
"""

from __future__ import annotations

import enum

import msgspec
from msgspec.structs import replace

from penstock.domain.replication.election import promote_eligible
from penstock.domain.replication.sets import without
from penstock.domain.replication.state import NO_LIFE, PartitionState


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of `members/{id}`: lasting, unlike the node's own key. Fields are only ever added, with defaults."""

    directory_id: str
    # The broker epoch of the life that was admitted last.
    admitted_epoch: int = NO_LIFE
    # Of the machine, when it was admitted.
    boot_id: str = ""
    rack: str | None = None
    # The levels that the node supports, by the feature's name.
    features: dict[str, int] = {}
    is_removed: bool = False


class DirectoryRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a data directory says of itself, durably."""

    # Drawn when the directory was made, never derived from its place.
    directory_id: str
    cluster_id: str
    node_id: int
    # As `epochs_to_keep` says; none in a new directory.
    epochs: tuple[int, ...] = ()
    boot_id: str = ""
    # Written last when a node stops, removed first when it starts.
    is_stopped_cleanly: bool = False


class Trust(enum.Enum):
    FULL = "full"
    MEMORY_LOST = "memory lost"
    NOTHING = "nothing"


class Verdict(msgspec.Struct, frozen=True):
    trust: Trust
    # A sentence for the log and for whoever asks why a node fetches everything anew; None: full trust.
    reason: str | None = None


def judge(
    member: MemberRecord | None, directory: DirectoryRecord, *, node_id: int, cluster_id: str, boot_id: str
) -> Verdict:
    """`boot_id` is that of the machine which the node now runs on."""
    reason = _why_nothing(member, directory, node_id, cluster_id)
    if reason is not None:
        return Verdict(Trust.NOTHING, reason)
    if directory.is_stopped_cleanly or directory.boot_id == boot_id:
        return Verdict(Trust.FULL)
    return Verdict(
        Trust.MEMORY_LOST,
        f"node {node_id} was not stopped, and its machine has been started since: what was not synced may be gone",
    )


def _why_nothing(member: MemberRecord | None, directory: DirectoryRecord, node_id: int, cluster_id: str) -> str | None:
    if directory.cluster_id != cluster_id:
        return f"the data directory is of the cluster {directory.cluster_id}, not of {cluster_id}"
    if directory.node_id != node_id:
        return f"the data directory is that of node {directory.node_id}, not of node {node_id}"
    if member is None:
        return f"node {node_id} has never been a member"
    if member.is_removed:
        return f"node {node_id} was removed from the cluster"
    if member.directory_id != directory.directory_id:
        return (
            f"node {node_id} comes with the data directory {directory.directory_id}, and was last admitted with "
            f"{member.directory_id}: the disk was wiped or replaced"
        )
    if member.admitted_epoch not in directory.epochs:
        return (
            f"node {node_id} was last admitted in its life {member.admitted_epoch}, of which its data directory knows "
            "nothing: it was put back from an older copy, or a copy of it has run since"
        )
    return None


def epochs_to_keep(member: MemberRecord | None, directory: DirectoryRecord, epoch: int) -> tuple[int, ...]:
    """What the directory has to say before it asks for the admission of its new life.

    The admitted epoch stays beside the new one however often a node dies before it is admitted: with the last two
    lives alone, two such deaths would cost it all trust.
    """
    if member is None or member.admitted_epoch not in directory.epochs:
        return (epoch,)
    return (member.admitted_epoch, epoch)


def distrust(state: PartitionState, node: int, trust: Trust, *, is_synced: bool) -> PartitionState | None:
    """What the controller makes of a partition before it admits `node`; then it chooses. None: nothing changes.

    `is_synced`: the partition promises nothing that is not on disk, so no memory can be lost.
    """
    if trust is Trust.NOTHING:
        # Of nobody's `minimum`: who has lost it is not eligible whatever it is.
        left = promote_eligible(without(state, (), minimum=0, lost=(node,)))
        return None if left == state else left
    if node not in state.in_sync and node not in state.eligible:
        return None
    # A single replica knows by itself whether its recovery cut something off, and then begins a new epoch.
    if trust is Trust.FULL or is_synced or state.is_alone(node) or node in state.unsure:
        return None
    # It stays a member: if the others have lost their memory too, what it has left is needed to find the longest.
    return replace(state, unsure=tuple(sorted({*state.unsure, node})))
