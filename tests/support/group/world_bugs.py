"""Bugs planted into the group machines, each with the story that brings it out and the invariant that catches it."""

from __future__ import annotations

from typing import Final

import msgspec

from support.planted_bugs import Bug

_DOMAIN: Final = "penstock.domain"
WORLD: Final = "support.group.world_story"
# Everything that holds a name from a module which may be changed.
ANEW: Final = (f"{_DOMAIN}.group.", "support.group.world")


class GroupBug(msgspec.Struct, frozen=True):
    bug: Bug
    # Of the stories in `world_story`.
    kind: str


def _bug(name: str, module: str, right: str, wrong: str, *, kind: str, caught_by: str, first_seed: int = 0) -> GroupBug:
    return GroupBug(Bug(name, f"{_DOMAIN}.{module}", right, wrong, caught_by, first_seed), kind)


BUGS: Final = (
    _bug(
        "a heartbeat that says nothing of partitions counts as having given them up",
        "group.reconcile",
        "if owned is None or not frozenset(owned)",
        "if owned is not None and not frozenset(owned)",
        kind="consumer",
        caught_by="holder unknown",
    ),
    _bug(
        "a partition that another member holds is given away",
        "group.reconcile",
        "if owners.get(partition, current.member_id) == current.member_id]",
        "]",
        kind="consumer",
        caught_by="holder unknown",
    ),
    _bug(
        "giving up all partitions instead of those that move",
        "group.reconcile",
        "kept = tuple(partition for partition in current.assigned if partition in wanted)",
        "kept = current.assigned if wanted.issuperset(current.assigned) else ()",
        kind="consumer",
        caught_by="taken needlessly",
    ),
    _bug(
        "a partition that has to be given up counts as free at once",
        "group.consumer",
        "for partition in (*current.assigned, *current.pending_revocation):",
        "for partition in current.assigned:",
        kind="consumer",
        caught_by="holder unknown",
    ),
    _bug(
        "what a member held is not free when it goes",
        "group.consumer",
        "if owners.get(partition) == member_id:",
        "if owners.get(partition) == member_id and current is not None:",
        kind="consumer",
        caught_by="no share",
    ),
    _bug(
        "a member goes and no new epoch begins",
        "group.consumer_heartbeat",
        "out.records.append(EpochStored(group.epoch + 1, digest, now_ms))",
        "out.records.append(EpochStored(group.epoch, digest, now_ms))",
        kind="consumer",
        caught_by="no share",
    ),
    _bug(
        "a topic that grew is not noticed",
        "group.consumer_heartbeat",
        "if wishes_differ or resolved.digest != group.stored_epoch.topics_digest:",
        "if wishes_differ:",
        kind="consumer",
        caught_by="no share",
    ),
    _bug(
        "sessions do not begin anew after a restart",
        "group.consumer",
        "            self.touch(member_id, now_ms)\n            self.watch_revocation(",
        "            self.watch_revocation(",
        kind="consumer",
        caught_by="no share",
    ),
    _bug(
        "an alarm that is moved loses the earlier ones",
        "group.values",
        "if self.next_ms is None or at_ms < self.next_ms:",
        "if True:",
        kind="consumer",
        caught_by="no share",
    ),
    _bug(
        "a commit is not compared with the member's epoch",
        "group.consumer",
        "if epoch >= 0 and epoch == current.epoch:",
        "if epoch >= 0:",
        kind="consumer",
        caught_by="offset went back",
    ),
    _bug(
        "a static member that comes back gets none of its partitions, and nobody else does",
        "group.consumer_heartbeat",
        "    remove_members([arrival.replaces], out)\n",
        "",
        kind="consumer",
        caught_by="no share",
    ),
    _bug(
        "the uniform assignor forgets the last partition of a topic",
        "group.assign.uniform",
        "for number in range(partition_counts[topic_id])",
        "for number in range(partition_counts[topic_id] - 1)",
        kind="consumer",
        caught_by="no share",
    ),
    _bug(
        "a commit is not compared with the group's generation",
        "group.classic_requests",
        "        if generation != group.generation:\n            return GroupError.ILLEGAL_GENERATION\n    elif",
        "    elif",
        kind="cooperative",
        caught_by="offset went back",
    ),
    _bug(
        "a number of a generation is used twice",
        "group.classic",
        "self.generation_told = max(self.generation_told, record.generation)\n\n    def remember",
        "pass\n\n    def remember",
        kind="cooperative",
        caught_by="two owners",
        first_seed=120,
    ),
    _bug(
        "who waits for its assignment is forgotten when the group rebalances again",
        "group.classic",
        "            self.answer_syncs(Refused(GroupError.REBALANCE_IN_PROGRESS), now_ms, out)",
        "            self.syncing.clear()",
        kind="eager",
        caught_by="unanswered",
    ),
    _bug(
        "a member that is away for a whole round is let in with what it holds",
        "group.classic_join",
        "    if member.is_behind:",
        "    if False:",
        kind="cooperative",
        caught_by="two owners",
    ),
    _bug(
        "the group waits for members that never come",
        "group.classic",
        "            self.deadlines.set(_JOIN, now_ms + self.roster.rebalance_timeout_ms())\n\n    def rebalance_soon",
        "            pass\n\n    def rebalance_soon",
        kind="eager",
        caught_by="unanswered",
    ),
    _bug(
        "assignments are not kept",
        "group.classic",
        'member.stored(assignments.get(member_id, b""))',
        'member.stored(b"")',
        kind="eager",
        caught_by="no share",
    ),
    _bug(
        "a classic member that still gives partitions up is taken over without them",
        "group.conversion",
        "CurrentStored(member_id, epoch, epoch, state, assigned[member_id], unrevoked)",
        "CurrentStored(member_id, epoch, epoch, MemberState.STABLE, assigned[member_id])",
        kind="mixed",
        caught_by="holder unknown",
    ),
    _bug(
        "a member that was away joins the other protocol with what it holds",
        "group.bridge",
        "    if not frozenset(owned) <= frozenset((*arrival.current.assigned, *arrival.current.pending_revocation)):",
        "    if False:",
        kind="mixed",
        caught_by="holder unknown",
    ),
    _bug(
        "a classic member is not called back for what has become free",
        "group.bridge",
        "return any(partition not in group.owners for partition in group.target(current.member_id))",
        "return False",
        kind="mixed",
        caught_by="no share",
        first_seed=38,
    ),
    _bug(
        "the transaction that ends later wins, not the offset that was written later",
        "group.offset_store",
        "if is_commit and order > self._orders.get(place, 0):",
        "if is_commit:",
        kind="consumer",
        caught_by="offset went back",
    ),
    _bug(
        "an aborted transaction commits",
        "group.offset_store",
        "if is_commit and order > self._orders.get(place, 0):",
        "if order > self._orders.get(place, 0):",
        kind="consumer",
        caught_by="wrong transaction",
    ),
    _bug(
        "an offset that waits replaces the committed one when the log is compacted",
        "group.records",
        "        if self.producer_id != NO_PRODUCER:\n            return pending_key(",
        "        if False:\n            return pending_key(",
        kind="consumer",
        caught_by="left behind",
    ),
    _bug(
        "what waits for a transaction stays when that has ended",
        "group.offset_store",
        "            out.records.append(Removed(waiting.key))\n",
        "            pass\n",
        kind="consumer",
        caught_by="left behind",
    ),
    _bug(
        "offsets come in after their transaction has ended",
        "group.table",
        "        self.guards.end(command.producer_id)\n",
        "",
        kind="consumer",
        caught_by="left behind",
    ),
    _bug(
        "a marker that comes late ends the transaction after its own",
        "group.offsets",
        "last_epoch = command.producer_epoch - 1 if command.version >= VERSION_TWO else command.producer_epoch",
        "last_epoch = command.producer_epoch",
        kind="consumer",
        caught_by="commit lost",
        first_seed=290,
    ),
    _bug(
        "an offset that may still change is read as stable",
        "group.offset_store",
        "if requires_stable and any(place in offsets for offsets in self._pending.values()):",
        "if False:",
        kind="consumer",
        caught_by="unstable read",
    ),
    _bug(
        "only some of a commit is written",
        "group.offset_store",
        "self._committed[place] = record\n",
        "self._committed.setdefault(place, record)\n",
        kind="consumer",
        caught_by="restart differs",
    ),
)
