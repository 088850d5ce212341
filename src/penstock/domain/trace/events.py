"""A message's journey as values: where it lay, what happened to it there, and what cannot be told.

Everything is derived from logs that exist anyway. What is a fact without a time, such as that a message is on disk,
stands with its place; what happened at a time is an event.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

NOT_KNOWN: Final = -1


class Kind(StrEnum):
    """Shown to people and programs: never renamed."""

    SCHEDULED = "scheduled"
    RESCHEDULED = "rescheduled"
    CANCELLED = "cancelled"
    RELEASED = "released"
    APPENDED = "appended"
    COMMITTED = "transaction-committed"
    ABORTED = "transaction-aborted"
    # In a queue.
    BLOCKED = "blocked"
    LEASED = "leased"
    EXTENDED = "extended"
    EXPIRED = "lease-expired"
    NACKED = "nacked"
    RETURNED = "returned"
    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    OUTLIVED = "outlived"
    DROPPED = "dropped"
    ACKED = "acked"
    PICKED = "picked"
    DEAD_LETTERED = "dead-lettered"
    REDRIVEN = "redriven"
    # To the queue as a whole.
    OPENED = "queue-opened"
    PAUSED = "queue-paused"
    RESUMED = "queue-resumed"
    SKIPPED = "skipped"
    REWOUND = "rewound"
    CLOSED = "queue-deleted"
    # In a consumer group.
    PASSED = "passed"
    SET_BACK = "set-back"


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """An offset of a topic's log, or of the schedule beside it."""

    topic: str
    partition: int
    offset: int
    is_schedule: bool = False

    def __str__(self) -> str:
        name = f"{self.topic}-{self.partition}@{self.offset}"
        return f"schedule of {name}" if self.is_schedule else name


class Producer(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int
    epoch: int
    sequence: int
    is_transactional: bool = False


class TraceEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    kind: Kind
    # Not known of a message whose producer did not date it.
    at_ms: int | None
    place: Place
    # A queue's group, or a consumer group.
    group: str = ""
    consumer: str = ""
    # Of a lease: how often the message was delivered with it; 0: it is not known.
    attempt: int = 0
    # The lease's end, the time of the next try, or when it is due.
    until_ms: int | None = None
    # In one word of ours, or in the consumer's words.
    reason: str = ""
    text: str = ""
    # Where the copy is that this has made, or shall be made.
    target: Place | None = None
    # Committed positions, before and after.
    position_before: int | None = None
    position: int | None = None
    producer: Producer | None = None
    # Whether the time is the producer's, not the node's.
    is_producers_time: bool = False
    # The same in plain words.
    sentence: str = ""


class PlaceState(StrEnum):
    STORED = "stored"
    # In the schedule: it waits for its time, has come to its topic, or was taken back.
    PENDING = "pending"
    RELEASED = "released"
    CANCELLED = "cancelled"
    # The log has lost it by retention, or somebody deleted it.
    DELETED = "deleted"
    # There is nothing at that offset: compacted away, or the slot of a delayed message.
    HOLE = "hole"
    # A marker of a transaction.
    CONTROL = "control"
    # Not written yet.
    AHEAD = "ahead"
    UNREADABLE = "unreadable"
    GONE = "topic-deleted"


class TransactionState(StrEnum):
    NONE = "none"
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class PlaceFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is known of one place without any time."""

    place: Place
    id: str
    state: PlaceState
    timestamp_ms: int | None = None
    has_log_append_time: bool = False
    key: str | None = None
    size_bytes: int = 0
    # As the queue sees it; None: no lane of its own.
    lane: int | None = None
    producer: Producer | None = None
    transaction: TransactionState = TransactionState.NONE
    transaction_end_ms: int | None = None
    is_durable: bool = False
    node: int = 0
    leader_epoch: int = NOT_KNOWN
    replica_count: int = 0
    replicas_in_sync: int = 0
    # The first place, where it tells one; and where it died, of a dead letter.
    first_id: str = ""
    origin: Place | None = None
    ttl_ms: int | None = None


class Journey(msgspec.Struct, frozen=True, omit_defaults=True):
    # The name of the first place.
    id: str
    places: tuple[PlaceFacts, ...]
    events: tuple[TraceEvent, ...]
    # What cannot be told, and why.
    notes: tuple[str, ...] = ()


class JourneyList(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of messages that were looked for."""

    journeys: list[Journey]
    notes: list[str] = []
