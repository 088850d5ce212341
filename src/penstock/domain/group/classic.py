"""A classic group: its members agree on a generation in two rounds, and one of them assigns the partitions.

    Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance
      ▲                ▲     ▲    │                                     │ leader's sync
      └────nobody left─┼─────┼────┘                                     ▼
                       │     └──member joins, leaves, is silent──────Stable
                       └─────────────the same─────────────────CompletingRebalance

First round: every member joins and waits; then all are answered with the new generation, and the leader with everyone's
metadata. Second round: every member syncs and waits for the leader's assignment. A group that was empty waits a little
for more members, or each of them would cost a generation.

Kept for ever is a stable generation and that a group is empty, and which generations there were: after a restart the
group is at its last stable generation, and members that were further have to join again. So `apply` sets what is
kept, and `decide` (here and in `classic_join`, `classic_requests`) changes what is not: who waits, until
when, who has joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from penstock.domain.group.classic_roster import ClassicMember, Roster
from penstock.domain.group.commands import Joined, JoinedMember, Outbox, Refused, Synced
from penstock.domain.group.records import (
    CLASSIC_KEY,
    GENERATION_KEY,
    ClassicGroupStored,
    ClassicMemberStored,
    GenerationStored,
    Removed,
)
from penstock.domain.group.subscription import read_subscription
from penstock.domain.group.values import CONSUMER_PROTOCOL_TYPE, Deadlines, GroupConfig, GroupError

_JOIN: Final = "join"
_SYNC: Final = "sync"
_REBALANCE: Final = "rebalance"


class ClassicState(StrEnum):
    """As DescribeGroups names them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class ClassicGroup:
    __slots__ = (
        "_config",
        "_initial_remaining_ms",
        "_newcomer_since_delay",
        "deadlines",
        "generation",
        "generation_told",
        "joining",
        "owing_sync",
        "pending",
        "protocol",
        "protocol_type",
        "roster",
        "state",
        "stored",
        "syncing",
    )

    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        # What the log holds: the last stable generation, or that the group is empty.
        self.stored: ClassicGroupStored | None = None
        self.state = ClassicState.EMPTY
        self.generation = 0
        # The last one that any member was told of: kept too, and at least `generation`.
        self.generation_told = 0
        self.protocol_type = ""
        self.protocol = ""
        self.roster = Roster()
        self.deadlines = Deadlines()
        # Ids that were given out and have not joined with yet (KIP-394).
        self.pending: dict[str, None] = {}
        # Members that wait, and their tickets.
        self.joining: dict[str, int] = {}
        self.syncing: dict[str, int] = {}
        # Members that were answered in the first round and have not synced yet.
        self.owing_sync: dict[str, None] = {}
        # How much longer an initial rebalance may be drawn out by newcomers; None if this is not one.
        self._initial_remaining_ms: int | None = None
        self._newcomer_since_delay = False

    # ------------------------------------------------------------------ what is kept

    def apply(self, record: ClassicGroupStored) -> None:
        """Whoever is not in the record is no member. Who waits for an answer is not touched."""
        self.stored = record
        self.state = ClassicState.STABLE if record.members else ClassicState.EMPTY
        self.generation = record.generation
        self.generation_told = max(self.generation_told, record.generation)
        self.protocol_type = record.protocol_type
        self.protocol = record.protocol
        self.roster = Roster()
        for stored in record.members:
            self.roster.add(_member(stored))
        self.roster.leader = record.leader

    def apply_generation(self, record: GenerationStored) -> None:
        """It does not make the group leave the stable generation that it may be at."""
        self.generation_told = max(self.generation_told, record.generation)

    def remember(self, assignments: dict[str, bytes], now_ms: int, out: Outbox) -> None:
        """The record of the generation that the group has just agreed on, or of its being empty."""
        members = tuple(
            member.stored(assignments.get(member_id, b"")) for member_id, member in self.roster.members.items()
        )
        out.records.append(
            ClassicGroupStored(self.generation, self.protocol_type, self.protocol, self.roster.leader, now_ms, members)
        )

    # ------------------------------------------------------------------ the first round

    def prepare_rebalance(self, now_ms: int, out: Outbox) -> None:
        if self.state is ClassicState.COMPLETING:
            self.answer_syncs(Refused(GroupError.REBALANCE_IN_PROGRESS), now_ms, out)
        self.owing_sync.clear()
        self.deadlines.cancel(_SYNC)
        was_empty = self.state is ClassicState.EMPTY
        self.state = ClassicState.PREPARING
        if was_empty and self._config.initial_rebalance_delay_ms > 0:
            delay_ms = self._config.initial_rebalance_delay_ms
            self._initial_remaining_ms = max(self.roster.rebalance_timeout_ms() - delay_ms, 0)
            self._newcomer_since_delay = False
            self.deadlines.set(_JOIN, now_ms + delay_ms)
        elif self.all_joined():
            self.complete_join(now_ms, out)
        else:
            self.deadlines.set(_JOIN, now_ms + self.roster.rebalance_timeout_ms())

    def rebalance_soon(self, now_ms: int) -> None:
        """With the next tick, which is due at once."""
        self.deadlines.set(_REBALANCE, now_ms)

    def maybe_complete_join(self, now_ms: int, out: Outbox) -> None:
        is_initial = self._initial_remaining_ms is not None
        if self.state is ClassicState.PREPARING and not is_initial and self.all_joined():
            self.complete_join(now_ms, out)

    def rebalance_or_complete(self, now_ms: int, out: Outbox) -> None:
        """Something changed: begin a rebalance, or see whether the one under way can go on."""
        if self.state is ClassicState.PREPARING:
            self.maybe_complete_join(now_ms, out)
        else:
            self.prepare_rebalance(now_ms, out)

    def note_newcomer(self) -> None:
        self._newcomer_since_delay = True

    def all_joined(self) -> bool:
        return not self.pending and len(self.joining) == len(self.roster.members)

    def complete_join(self, now_ms: int, out: Outbox) -> None:
        """The first round is over: who has not joined is out, unless it is static and may still come back."""
        self.deadlines.cancel(_JOIN)
        self._initial_remaining_ms = None
        for member in list(self.roster.members.values()):
            if member.member_id not in self.joining and member.instance_id is None:
                self.drop(member.member_id)
        if self.roster.members and not self.roster.elect_leader(self.joining):
            # Static members that are all away: their sessions will tell, so look again later.
            self.deadlines.set(_JOIN, now_ms + self.roster.rebalance_timeout_ms())
            return
        self.generation = self.generation_told + 1
        if not self.roster.members:
            self.state = ClassicState.EMPTY
            self.protocol = ""
            self.remember({}, now_ms, out)
            return
        for member in self.roster.members.values():
            member.is_behind = member.member_id not in self.joining
        self.state = ClassicState.COMPLETING
        self.protocol = self.roster.select_protocol()
        out.records.append(GenerationStored(self.generation))
        self.answer_joins(now_ms, out)
        self.deadlines.set(_SYNC, now_ms + self.roster.rebalance_timeout_ms())

    def answer_joins(self, now_ms: int, out: Outbox) -> None:
        for member_id, ticket in self.joining.items():
            member = self.roster.members[member_id]
            out.answer(ticket, self.joined(member_id))
            member.is_new = False
            # Only who was answered owes a sync: a static member that is away has its session to come back in.
            self.owing_sync[member_id] = None
            self.touch(member, now_ms)
        self.joining.clear()

    def joined(self, member_id: str) -> Joined:
        members: tuple[JoinedMember, ...] = ()
        if member_id == self.roster.leader:
            members = tuple(
                JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
                for member in self.roster.members.values()
            )
        return Joined(member_id, self.generation, self.protocol_type, self.protocol, self.roster.leader, members)

    # ------------------------------------------------------------------ the second round

    def note_sync(self, member_id: str) -> None:
        self.owing_sync.pop(member_id, None)
        if not self.owing_sync:
            self.deadlines.cancel(_SYNC)

    def answer_syncs(self, refusal: Refused, now_ms: int, out: Outbox) -> None:
        for member_id, ticket in self.syncing.items():
            out.answer(ticket, refusal)
            self.touch(self.roster.members[member_id], now_ms)
        self.syncing.clear()

    def hand_out(self, assignments: dict[str, bytes], now_ms: int, out: Outbox) -> None:
        for member_id, ticket in self.syncing.items():
            out.answer(ticket, self.synced(assignments.get(member_id, b"")))
            self.touch(self.roster.members[member_id], now_ms)
        self.syncing.clear()

    def synced(self, assignment: bytes) -> Synced:
        return Synced(self.protocol_type, self.protocol, assignment)

    # ------------------------------------------------------------------ who is alive

    def touch(self, member: ClassicMember, now_ms: int) -> None:
        self.deadlines.set(("session", member.member_id), now_ms + member.session_timeout_ms)

    def await_join(self, member: ClassicMember, ticket: int, now_ms: int, out: Outbox) -> None:
        """It waits, so it is alive, however long the round takes; a new one is given a limit, see the config."""
        self.answer_member(member.member_id, GroupError.REBALANCE_IN_PROGRESS, out)
        self.joining[member.member_id] = ticket
        if member.is_new:
            limit_ms = self._config.new_member_join_timeout_ms
            self.deadlines.set(("session", member.member_id), now_ms + limit_ms)
        else:
            self.deadlines.cancel(("session", member.member_id))

    def await_sync(self, member: ClassicMember, ticket: int, out: Outbox) -> None:
        self.answer_member(member.member_id, GroupError.REBALANCE_IN_PROGRESS, out)
        self.syncing[member.member_id] = ticket
        self.deadlines.cancel(("session", member.member_id))

    def answer_member(self, member_id: str, error: GroupError, out: Outbox) -> None:
        """Ends its waiting. If it asks twice, the client has given up on its first request and misses nothing."""
        for waiting in (self.joining, self.syncing):
            ticket = waiting.pop(member_id, None)
            if ticket is not None:
                out.answer(ticket, Refused(error, member_id))

    def add_pending(self, member_id: str, session_timeout_ms: int, now_ms: int) -> None:
        self.pending[member_id] = None
        self.deadlines.set(("pending", member_id), now_ms + session_timeout_ms)

    def forget_pending(self, member_id: str) -> None:
        self.pending.pop(member_id, None)
        self.deadlines.cancel(("pending", member_id))

    def drop(self, member_id: str) -> ClassicMember | None:
        """It does not wait for anything: see `expel`."""
        self.deadlines.cancel(("session", member_id))
        self.owing_sync.pop(member_id, None)
        return self.roster.remove(member_id)

    def expel(self, member_id: str, error: GroupError, out: Outbox) -> None:
        """It goes, and whatever it waits for is answered so that it comes back if it is still there."""
        self.answer_member(member_id, error, out)
        self.drop(member_id)

    # ------------------------------------------------------------------ time

    def tick(self, now_ms: int, out: Outbox) -> None:
        for key in self.deadlines.due(now_ms):
            if key == _JOIN:
                self._join_time_is_up(now_ms, out)
            elif key == _SYNC:
                self._sync_time_is_up(now_ms, out)
            elif key == _REBALANCE:
                self.rebalance_or_complete(now_ms, out)
            else:
                assert isinstance(key, tuple)
                kind, member_id = key
                if kind == "pending":
                    self.forget_pending(member_id)
                    self.maybe_complete_join(now_ms, out)
                else:
                    self._session_ended(member_id, now_ms, out)

    def _join_time_is_up(self, now_ms: int, out: Outbox) -> None:
        if self.state is not ClassicState.PREPARING:
            return
        remaining_ms = self._initial_remaining_ms
        if remaining_ms and self._newcomer_since_delay:
            delay_ms = min(self._config.initial_rebalance_delay_ms, remaining_ms)
            self._initial_remaining_ms = remaining_ms - delay_ms
            self._newcomer_since_delay = False
            self.deadlines.set(_JOIN, now_ms + delay_ms)
        else:
            self.complete_join(now_ms, out)

    def _sync_time_is_up(self, now_ms: int, out: Outbox) -> None:
        if self.owing_sync and self.state in (ClassicState.COMPLETING, ClassicState.STABLE):
            for member_id in list(self.owing_sync):
                self.drop(member_id)
            self.prepare_rebalance(now_ms, out)

    def _session_ended(self, member_id: str, now_ms: int, out: Outbox) -> None:
        member = self.roster.members.get(member_id)
        if member is None:
            return
        if self.waits(member_id) and not member.is_new:
            return
        self.expel(member_id, GroupError.UNKNOWN_MEMBER_ID, out)
        self.rebalance_or_complete(now_ms, out)

    # ------------------------------------------------------------------ begin and end

    def load(self, now_ms: int, out: Outbox) -> None:
        for member in self.roster.members.values():
            self.touch(member, now_ms)
        if len(self.roster.members) > self._config.classic_members_max:
            # The limit has become smaller since: whoever rejoins last is refused.
            self.prepare_rebalance(now_ms, out)

    def answer_all(self, error: GroupError, out: Outbox) -> None:
        for member_id in [*self.joining, *self.syncing]:
            self.answer_member(member_id, error, out)

    def tombstones(self, out: Outbox) -> None:
        if self.stored is not None:
            out.records.append(Removed(CLASSIC_KEY))
        if self.generation_told > 0:
            out.records.append(Removed(GENERATION_KEY))

    def snapshot(self) -> list[ClassicGroupStored | GenerationStored]:
        records: list[ClassicGroupStored | GenerationStored] = [] if self.stored is None else [self.stored]
        if self.generation_told > 0:
            records.append(GenerationStored(self.generation_told))
        return records

    # ------------------------------------------------------------------ what others ask

    def waits(self, member_id: str) -> bool:
        return member_id in self.joining or member_id in self.syncing

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY and not self.pending

    @property
    def is_pristine(self) -> bool:
        """Nothing kept, nobody here: as if it had never been."""
        return self.is_empty and self.stored is None and self.generation_told == 0

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def subscribed_topics(self) -> frozenset[str] | None:
        """None if that is not known: other protocols than the consumers', or bytes that cannot be read."""
        if not self.uses_consumer_protocol:
            return None
        topics: list[str] = []
        for member in self.roster.members.values():
            subscription = read_subscription(member.metadata(self.protocol))
            if subscription is None:
                return None
            topics += subscription.topics
        return frozenset(topics)


def _member(stored: ClassicMemberStored) -> ClassicMember:
    return ClassicMember(
        stored.member_id,
        stored.instance_id,
        stored.client_id,
        stored.client_host,
        stored.rebalance_timeout_ms,
        stored.session_timeout_ms,
        stored.protocols,
        stored.assignment,
        stored.is_behind,
    )


def protocol_names(protocols: Iterable[tuple[str, bytes]]) -> list[str]:
    return [name for name, _metadata in protocols]
