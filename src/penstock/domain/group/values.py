"""What every part of a consumer group shares: its errors, its settings, its clock work, what it knows of topics.

A partition is `(topic id, number)`; an assignment is a sorted tuple of them, so that equal assignments are equal
values and a seed gives the same run twice.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import Enum, StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol

import msgspec

Partition = tuple[bytes, int]
Assignment = tuple[Partition, ...]

NO_PARTITIONS: Final[Assignment] = ()
NO_TOPIC_ID: Final = bytes(16)

# The protocol type of ordinary consumers. Connect and others bring their own, whose bytes we do not read.
CONSUMER_PROTOCOL_TYPE: Final = "consumer"


def by_topic(assignment: Assignment) -> Iterator[tuple[bytes, list[int]]]:
    """Each topic's id with its partitions: they are sorted, so a topic's stand together."""
    for topic_id, partitions in groupby(assignment, key=itemgetter(0)):
        yield topic_id, [number for _, number in partitions]


class GroupError(Enum):
    """Named as Kafka names them; the gateway maps them to numbers by name."""

    # Never decided by a group: its shell says it. No client tries this one again by itself, and none takes it for an
    # answer: it is told to whoever runs the client.
    UNKNOWN_SERVER_ERROR = "what is known of the group is damaged: the node's log names the repair"
    COORDINATOR_LOAD_IN_PROGRESS = "this node has begun to look after the group, and reads what is known of it"
    COORDINATOR_NOT_AVAILABLE = "the group is being removed: find its coordinator and try again"
    NOT_COORDINATOR = "this node no longer looks after the group"
    ILLEGAL_GENERATION = "the group is at another generation"
    INCONSISTENT_GROUP_PROTOCOL = "no protocol of this member suits the group"
    INVALID_GROUP_ID = "the group id is not legal"
    UNKNOWN_MEMBER_ID = "the group has no such member"
    INVALID_SESSION_TIMEOUT = "the session timeout is outside what this node allows"
    REBALANCE_IN_PROGRESS = "the group is rebalancing: join again"
    INVALID_REQUEST = "the request contradicts itself"
    UNSUPPORTED_VERSION = "members of this protocol commit with version 9 or above"
    NON_EMPTY_GROUP = "the group has members"
    GROUP_ID_NOT_FOUND = "no such group, or it is of another kind"
    MEMBER_ID_REQUIRED = "join again with the member id given here"
    GROUP_MAX_SIZE_REACHED = "the group is full"
    FENCED_INSTANCE_ID = "another member has taken over this instance id"
    GROUP_SUBSCRIBED_TO_TOPIC = "the group is subscribed to the topic"
    OFFSET_METADATA_TOO_LARGE = "the text kept with the offset is too long"
    UNSTABLE_OFFSET_COMMIT = "a transaction has not ended yet that commits this offset"
    INVALID_PRODUCER_EPOCH = "a newer producer has taken over the transactional id"
    INVALID_TXN_STATE = "the transaction has ended"
    FENCED_MEMBER_EPOCH = "the member is at another epoch: it must give up its partitions and join again"
    UNRELEASED_INSTANCE_ID = "the instance id is in use by a member that has not left"
    UNSUPPORTED_ASSIGNOR = "no such assignor on this node"
    STALE_MEMBER_EPOCH = "the member has moved on to another epoch"
    INVALID_REGULAR_EXPRESSION = "the subscription's regular expression cannot be compiled"


class GroupKind(StrEnum):
    """As ListGroups names them. A group that only holds offsets counts as classic, without a protocol type."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Migration(StrEnum):
    """Which way a group with members may change its protocol. One without members always may."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"


class GroupConfig(msgspec.Struct, frozen=True):
    """Kafka's names are in the comments; Kafka's defaults hold unless a reason is given."""

    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    session_timeout_ms_min: int = 6_000  # group.min.session.timeout.ms
    session_timeout_ms_max: int = 1_800_000  # group.max.session.timeout.ms
    # A member that has never been answered cannot heartbeat, so only this removes it if it is gone.
    new_member_join_timeout_ms: int = 300_000
    # Kafka has no limit (2^31 - 1). A classic leader gets every member in one answer, so there is one.
    classic_members_max: int = 10_000  # group.max.size
    consumer_members_max: int = 10_000  # group.consumer.max.size
    # Of a member's subscriptions: 10,000 topics by two protocols. Kafka stops at the offsets topic's max.message.bytes.
    member_bytes_max: int = 1024 * 1024
    # Of the subscriptions and assignments of a group: 10,000 members with 1.6 KB each. A leader gets all in one answer.
    group_bytes_max: int = 16 * 1024 * 1024
    # Of all groups of one partition of __consumer_offsets, of which there are 8.
    groups_bytes_max: int = 32 * 1024 * 1024
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    # Kafka's is 5 s. Members learn of a change at their next heartbeat, and half a second lets 100 members
    # change hands within a second; beyond `heartbeat_members` the interval grows with the group, so that one
    # group never costs more than 400 heartbeats a second.
    heartbeat_interval_ms: int = 500  # group.consumer.heartbeat.interval.ms
    heartbeat_members: int = 200
    # A third of the session: two heartbeats may be lost.
    heartbeat_interval_ms_max: int = 15_000
    # Longer than any subscription that a person writes: a match costs time for each topic.
    regex_characters_max: int = 1_024
    assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors, the first is the default
    migration: Migration = Migration.BIDIRECTIONAL  # group.consumer.migration.policy
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    offset_metadata_bytes_max: int = 4_096  # offset.metadata.max.bytes
    # How long commits are gathered before they are written together; 0: for one turn of the loop. Each is answered
    # when it is on disk, so this is what a commit waits at the most for a disk with fewer and larger writes.
    offsets_flush_ms: int = 0


class TopicFact(msgspec.Struct, frozen=True):
    topic_id: bytes
    partition_count: int


class TopicFacts(Protocol):
    """What the caller knows of topics; consumer groups look it up while they decide, never while they apply."""

    @property
    def revision(self) -> int:
        """Grows whenever a topic is created, deleted or gets partitions: a cheap "has anything changed?"."""

    def find(self, name: str) -> TopicFact | None: ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def matching(self, expression: str, principal: str) -> tuple[str, ...] | None:
        """The names that the whole expression matches, without internal topics and those that the principal may not
        see; None if it cannot be compiled. What somebody may see changes the revision too.
        """


class Deadlines:
    """Many alarms of which only the earliest is asked for, and nearly all of which are moved before they ring.

    `next_ms` is a lower bound: moving an alarm later does not look for the new earliest one (a heartbeat would cost
    as much as the group has members), so the caller may be woken in vain once per round, and `due` finds out.
    """

    __slots__ = ("_alarms", "next_ms")

    def __init__(self) -> None:
        self._alarms: dict[Hashable, int] = {}
        self.next_ms: int | None = None

    def __contains__(self, key: Hashable) -> bool:
        return key in self._alarms

    def set(self, key: Hashable, at_ms: int) -> None:
        self._alarms[key] = at_ms
        if self.next_ms is None or at_ms < self.next_ms:
            self.next_ms = at_ms

    def cancel(self, key: Hashable) -> None:
        self._alarms.pop(key, None)
        if not self._alarms:
            self.next_ms = None

    def due(self, now_ms: int) -> list[Hashable]:
        """Takes out what is due, in the order it was first set; everything else waits on."""
        if self.next_ms is None or now_ms < self.next_ms:
            return []
        due = [key for key, at_ms in self._alarms.items() if at_ms <= now_ms]
        for key in due:
            del self._alarms[key]
        self.next_ms = min(self._alarms.values(), default=None)
        return due


def heartbeat_interval_ms(config: GroupConfig, member_count: int) -> int:
    scaled = config.heartbeat_interval_ms * member_count // config.heartbeat_members
    return min(max(config.heartbeat_interval_ms, scaled), config.heartbeat_interval_ms_max)
