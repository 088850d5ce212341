"""What may be asked of a group and what it answers: values, apart from any wire form.

A `ticket` names a request that may have to wait; `Answer` addresses it. Member ids are made by the caller
(`new_member_id`), because a rule makes nothing up.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.domain.group.guards import NO_GUARD
from penstock.domain.group.records import NEVER_MS, GroupRecord, Protocols
from penstock.domain.group.values import NO_TOPIC_ID, Assignment, GroupError

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
NO_GENERATION: Final = -1
UNCHANGED_MS: Final = -1


class Join(msgspec.Struct, frozen=True):
    ticket: int
    member_id: str
    new_member_id: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    # Version 0 has none: the gateway gives the session timeout.
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    # From version 4 on a member without an id is first given one, and joins with its next request (KIP-394).
    requires_known_id: bool = True
    # From version 9 on a returning static leader can be told to leave the assignment as it is.
    supports_skip_assignment: bool = True


class Sync(msgspec.Struct, frozen=True):
    ticket: int
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    # (member id, assignment) of every member, from the leader alone.
    assignments: tuple[tuple[str, bytes], ...] = ()


class Heartbeat(msgspec.Struct, frozen=True):
    member_id: str
    generation: int
    instance_id: str | None = None


class LeavingMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None = None


class Leave(msgspec.Struct, frozen=True):
    members: tuple[LeavingMember, ...]


class ConsumerHeartbeat(msgspec.Struct, frozen=True):
    """None is "as before". `owned` are the partitions that the member holds at this moment."""

    member_id: str
    member_epoch: int
    new_member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""
    principal: str = ""


class OffsetToCommit(msgspec.Struct, frozen=True, gc=False):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: bytes = NO_TOPIC_ID


class CommitOffsets(msgspec.Struct, frozen=True):
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    # The generation of a classic member, the epoch of a consumer protocol member, -1 of one who manages itself.
    generation: int = NO_GENERATION
    instance_id: str | None = None
    retention_ms: int = NEVER_MS
    # From version 9 on: older ones cannot be told that an epoch is stale.
    knows_epochs: bool = True


class CommitTransactionOffsets(msgspec.Struct, frozen=True):
    """The transaction's coordinator must have said that the transaction is under way: see `guards`."""

    producer_id: int
    producer_epoch: int
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None
    guard: int = NO_GUARD


class EndTransaction(msgspec.Struct, frozen=True):
    """A marker of the transaction's coordinator; one that says it again, or comes late, changes nothing."""

    producer_id: int
    # Of the marker: with version 2 of the protocol it is above the transaction's own.
    producer_epoch: int
    is_commit: bool
    version: int = 1


class PartitionName(msgspec.Struct, frozen=True, gc=False):
    topic: str
    partition: int
    topic_id: bytes = NO_TOPIC_ID


class FetchOffsets(msgspec.Struct, frozen=True):
    # None asks what there is: it may be very much, and is then asked for a portion at a time.
    partitions: tuple[PartitionName, ...] | None = None
    member_id: str | None = None
    member_epoch: int = -1
    requires_stable: bool = False


class DeleteOffsets(msgspec.Struct, frozen=True):
    partitions: tuple[PartitionName, ...]


class DeleteGroup(msgspec.Struct, frozen=True):
    pass


class ForgetTopics(msgspec.Struct, frozen=True):
    """The topics are gone: their offsets go too."""

    topics: tuple[str, ...]


class ExpireOffsets(msgspec.Struct, frozen=True):
    """A sweep, made now and then: offsets that outlived their retention go, then groups that hold nothing."""

    # Whose offsets of this group stay: it is their archive's.
    kept_topics: frozenset[str] = frozenset()


class Tick(msgspec.Struct, frozen=True):
    """The time that `next_deadline_ms` named has come."""


class Load(msgspec.Struct, frozen=True):
    """The last record has been applied: members have a whole session from now on to be heard of."""


class Unload(msgspec.Struct, frozen=True):
    """Another node takes over, or the machine will be rebuilt: whoever waits is told to look for the coordinator."""


GroupCommand = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | ConsumerHeartbeat
    | CommitOffsets
    | CommitTransactionOffsets
    | EndTransaction
    | FetchOffsets
    | DeleteOffsets
    | DeleteGroup
    | ForgetTopics
    | ExpireOffsets
    | Tick
    | Load
    | Unload
)


class Refused(msgspec.Struct, frozen=True):
    error: GroupError
    # Of a join: the id to join with (MEMBER_ID_REQUIRED), otherwise the one it came with.
    member_id: str = ""
    detail: str = ""


class JoinedMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(msgspec.Struct, frozen=True):
    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    # For the leader alone.
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class Synced(msgspec.Struct, frozen=True):
    protocol_type: str
    protocol: str
    assignment: bytes


class Alive(msgspec.Struct, frozen=True):
    pass


class LeftMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    error: GroupError | None = None


class Left(msgspec.Struct, frozen=True):
    members: tuple[LeftMember, ...]


class ConsumerAlive(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    # None is "as before".
    assignment: Assignment | None = None


class PartitionOutcome(msgspec.Struct, frozen=True, gc=False):
    topic: str
    partition: int
    error: GroupError | None = None


class OffsetsWritten(msgspec.Struct, frozen=True):
    """Of a commit or a deletion, in the order of the request."""

    partitions: tuple[PartitionOutcome, ...]


class FetchedOffset(msgspec.Struct, frozen=True, gc=False):
    topic: str
    partition: int
    # -1: nothing is committed.
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: GroupError | None = None


class OffsetsNamed(msgspec.Struct, frozen=True):
    """Topics and partitions of which offsets are kept, in no order."""

    places: tuple[tuple[str, int], ...]


class OffsetsFetched(msgspec.Struct, frozen=True):
    partitions: tuple[FetchedOffset, ...]


class Done(msgspec.Struct, frozen=True):
    pass


GroupReply = (
    Refused | Joined | Synced | Alive | Left | ConsumerAlive | OffsetsWritten | OffsetsNamed | OffsetsFetched | Done
)

ALIVE: Final = Alive()
DONE: Final = Done()


class Answer(msgspec.Struct, frozen=True):
    """A request that waited has waited long enough."""

    ticket: int
    reply: GroupReply


class Decision(msgspec.Struct, frozen=True):
    """What is to be applied and stored, and who is to be told what once that is durable.

    No `reply` to a join or a sync: it waits, and its ticket turns up in `answers` of a later decision.
    """

    records: tuple[GroupRecord, ...] = ()
    reply: GroupReply | None = None
    answers: tuple[Answer, ...] = ()


class Outbox:
    """Where the parts of a group put what one command brings about, in order."""

    __slots__ = ("answers", "records")

    def __init__(self) -> None:
        self.records: list[GroupRecord] = []
        self.answers: list[Answer] = []

    def answer(self, ticket: int, reply: GroupReply) -> None:
        self.answers.append(Answer(ticket, reply))

    def decision(self, reply: GroupReply | None, ticket: int | None = None) -> Decision:
        """A request that was parked and answered within its own command is answered at once."""
        answers = self.answers
        if reply is None and ticket is not None:
            for index, answer in enumerate(answers):
                if answer.ticket == ticket:
                    reply = answer.reply
                    answers = answers[:index] + answers[index + 1 :]
                    break
        return Decision(tuple(self.records), reply, tuple(answers))
