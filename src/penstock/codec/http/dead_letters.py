"""What the HTTP door tells of dead letters: bodies that a node writes and a client reads."""

from __future__ import annotations

from typing import Literal

import msgspec

DeadLetterState = Literal["ready", "leased", "blocked", "moving"]
RedriveState = Literal["running", "cancelling", "completed", "cancelled", "failed"]


class DeadLetterSource(msgspec.Struct, frozen=True):
    topic: str
    group: str


class DeadLetterTopic(msgspec.Struct, frozen=True):
    topic: str
    partition_count: int
    # Not redriven and not purged.
    pending_count: int
    # What the log holds, all told.
    stored_count: int
    # The queues whose dead letters come here.
    sources: list[DeadLetterSource]


class DeadLetterList(msgspec.Struct, frozen=True):
    dead_letters: list[DeadLetterTopic]


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    partition: int
    offset: int
    timestamp_ms: int
    state: DeadLetterState
    # As its headers tell; of a message that came here some other way there may be nothing.
    reason: str | None = None
    error: str | None = None
    origin_topic: str | None = None
    origin_partition: int | None = None
    origin_offset: int | None = None
    origin_group: str | None = None
    delivery_count: int | None = None
    first_failure_ms: int | None = None
    last_failure_ms: int | None = None
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] = {}


class DeadLetterMessages(msgspec.Struct, frozen=True):
    messages: list[DeadLetter]


class DryRun(msgspec.Struct, frozen=True):
    topic: str
    pending_count: int
    fitting_count: int


class Redrive(msgspec.Struct, frozen=True):
    id: str
    topic: str
    group: str
    target: str | None
    state: RedriveState
    rate: int
    # In the queue when the task began; of those: looked at, moved, left because they did not fit, left because there is
    # no topic to bring them to.
    pending_count: int
    looked_count: int
    moved_count: int
    skipped_count: int
    lost_count: int
    # Would have gone where whoever asked for this may not write.
    denied_count: int
    reason: str
    started_ms: int
    # 0: not yet.
    ended_ms: int


class RedriveList(msgspec.Struct, frozen=True):
    redrives: list[Redrive]


class Purged(msgspec.Struct, frozen=True):
    purged_count: int
