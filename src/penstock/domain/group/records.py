"""What a group keeps for ever: the records of `__consumer_offsets`, as values.

Each record has a `key`, and the last record of a key says all there is to say about it: a group rebuilt from a
compacted log is the group rebuilt from the whole log. `Removed` is the tombstone of any key. The group's own id is not
in the record: whoever stores it puts it into the stored key, before this one.

    ("classic", "", -1)           ClassicGroupStored   the last stable generation, or that it is empty
    ("generation", "", -1)        GenerationStored     the last generation that any member was told of
    ("epoch", "", -1)             EpochStored          a consumer group's epoch
    ("member", member id, -1)     MemberStored         what a member asked for
    ("target-epoch", "", -1)      TargetEpochStored    the epoch that the target assignment is for
    ("target", member id, -1)     TargetStored         what a member shall have
    ("current", member id, -1)    CurrentStored        what a member has
    ("offset", topic, partition)  OffsetStored         a committed offset
    ("pending 7", topic, …)       OffsetStored         one that waits for the transaction of producer 7

No record says that a transaction has ended. What follows from it is written out: the offsets that count now, and
tombstones of those that waited. So the log holds plain keyed records only, and is compacted like any other.

As bytes they are arrays: names of fields would be half of an offset's bytes. New fields go to the end, with a default.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from penstock.domain.group.values import NO_PARTITIONS, NO_TOPIC_ID, Assignment, Partition

# What it is of, of whom or of which topic, and of which partition.
RecordKey = tuple[str, str, int]

CLASSIC_KEY: Final[RecordKey] = ("classic", "", -1)
GENERATION_KEY: Final[RecordKey] = ("generation", "", -1)
EPOCH_KEY: Final[RecordKey] = ("epoch", "", -1)
TARGET_EPOCH_KEY: Final[RecordKey] = ("target-epoch", "", -1)

# Names and metadata, in the member's order of preference.
Protocols = tuple[tuple[str, bytes], ...]

NO_PRODUCER: Final = -1
NO_EPOCH: Final = -1
NEVER_MS: Final = -1

_PENDING: Final = "pending "


def member_key(member_id: str) -> RecordKey:
    return ("member", member_id, -1)


def target_key(member_id: str) -> RecordKey:
    return ("target", member_id, -1)


def current_key(member_id: str) -> RecordKey:
    return ("current", member_id, -1)


def offset_key(topic: str, partition: int) -> RecordKey:
    return ("offset", topic, partition)


def pending_key(producer_id: int, topic: str, partition: int) -> RecordKey:
    """A key of its own: compaction must not take the committed offset for one that this replaces."""
    return (f"{_PENDING}{producer_id}", topic, partition)


def pending_producer(key: RecordKey) -> int | None:
    """Of a pending offset's key; None if it is another's."""
    return int(key[0][len(_PENDING) :]) if key[0].startswith(_PENDING) else None


class ClassicMemberStored(msgspec.Struct, frozen=True, array_like=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes
    is_behind: bool = False


class ClassicGroupStored(msgspec.Struct, frozen=True, tag=True, array_like=True):
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    # When it reached this state: an empty group's offsets live on from here.
    since_ms: int
    members: tuple[ClassicMemberStored, ...] = ()

    @property
    def key(self) -> RecordKey:
        return CLASSIC_KEY


class GenerationStored(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Members hear of a generation before it is stable. It is kept that there was one, so that after a restart its
    number is not given to another: a member of the first could commit what a member of the second one holds.
    """

    generation: int

    @property
    def key(self) -> RecordKey:
        return GENERATION_KEY


class EpochStored(msgspec.Struct, frozen=True, tag=True, array_like=True):
    epoch: int
    # A digest of the subscribed topics' ids and partition counts: after a restart it tells whether they changed.
    topics_digest: bytes
    since_ms: int

    @property
    def key(self) -> RecordKey:
        return EPOCH_KEY


class ClassicForm(msgspec.Struct, frozen=True, array_like=True):
    """Of a member that speaks the classic protocol within a consumer group, while the group moves from one to the
    other.
    """

    session_timeout_ms: int
    protocols: Protocols


class MemberStored(msgspec.Struct, frozen=True, tag=True, array_like=True):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topic_names: tuple[str, ...]
    topic_regex: str
    assignor: str | None
    classic: ClassicForm | None = None
    # Who it is, as `kind:name`: a regular expression finds only what its member may see.
    principal: str = ""

    @property
    def key(self) -> RecordKey:
        return member_key(self.member_id)


class TargetEpochStored(msgspec.Struct, frozen=True, tag=True, array_like=True):
    epoch: int

    @property
    def key(self) -> RecordKey:
        return TARGET_EPOCH_KEY


class TargetStored(msgspec.Struct, frozen=True, tag=True, array_like=True):
    member_id: str
    partitions: Assignment

    @property
    def key(self) -> RecordKey:
        return target_key(self.member_id)


class MemberState(StrEnum):
    """Where a member stands on its way to the target assignment."""

    STABLE = "stable"
    # It has been asked to give partitions up and has not said yet that it did.
    UNREVOKED = "unrevoked"
    # It shall get partitions that another member still holds.
    UNRELEASED = "unreleased"


class CurrentStored(msgspec.Struct, frozen=True, tag=True, array_like=True):
    member_id: str
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Assignment
    pending_revocation: Assignment = NO_PARTITIONS
    # From which of its epochs on the member has each of them, in their order; shorter than they are: from `epoch` on.
    since: tuple[int, ...] = ()

    @property
    def key(self) -> RecordKey:
        return current_key(self.member_id)

    def held_since(self) -> dict[Partition, int]:
        """The epoch from which on the member has each partition without a break (KIP-1251)."""
        held = (*self.assigned, *self.pending_revocation)
        since = self.since if len(self.since) == len(held) else (self.epoch,) * len(held)
        return dict(zip(held, since, strict=True))


class OffsetStored(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    # Set by clients that ask for a retention of their own (versions 2-4); NEVER_MS is the group's retention.
    expires_ms: int = NEVER_MS
    # A topic created again under its old name has another id and inherits nothing.
    topic_id: bytes = NO_TOPIC_ID
    # With a producer it counts only once that producer's transaction has committed.
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_EPOCH

    @property
    def key(self) -> RecordKey:
        if self.producer_id != NO_PRODUCER:
            return pending_key(self.producer_id, self.topic, self.partition)
        return offset_key(self.topic, self.partition)


class Removed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    key: RecordKey


ConsumerRecord = EpochStored | MemberStored | TargetEpochStored | TargetStored | CurrentStored
GroupRecord = ClassicGroupStored | GenerationStored | ConsumerRecord | OffsetStored | Removed
