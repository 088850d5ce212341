"""The bodies of the dead-letter routes."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock.broker.queue_redrive_scan import DeadLetterTopic, PendingLetter
from penstock.domain.queue_values import HoldKind
from penstock.domain.redrive import RATE_MAX, REDRIVE_GROUP, RedriveTask, death_of
from penstock.domain.topic_rules import NAME_CHARACTERS_MAX
from penstock.gateways.http_messages import TOPIC_TEXT, Body, MomentMs, readable_headers, text_or_base64

# Reasons are single words; what is longer was not meant.
REASON_CHARACTERS_MAX: Final = 1_024
StateText = Literal["ready", "leased", "blocked", "moving"]
_STATES: dict[HoldKind, StateText] = {
    HoldKind.LEASED: "leased",
    HoldKind.WAITING: "ready",
    HoldKind.BLOCKED: "blocked",
    HoldKind.DYING: "moving",
}


class DeadLetterSource(msgspec.Struct, frozen=True):
    topic: str
    group: str


class DeadLetterTopicReply(msgspec.Struct, frozen=True):
    topic: str
    partition_count: int
    # Not redriven and not purged.
    pending_count: int
    # What the log holds, all told.
    stored_count: int
    # The queues whose dead letters come here.
    sources: list[DeadLetterSource]


class DeadLetterList(msgspec.Struct, frozen=True):
    dead_letters: list[DeadLetterTopicReply]


class DeadLetterMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    partition: int
    offset: int
    timestamp_ms: int
    state: StateText
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
    messages: list[DeadLetterMessage]


class RedriveRequest(Body, frozen=True):
    # Left out: each message goes back to the topic it came from.
    target: Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX, pattern=TOPIC_TEXT)] | None = None
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] | None = None
    key: str | None = None
    # Of the last failure; until_ms itself is outside.
    since_ms: MomentMs | None = None
    until_ms: MomentMs | None = None
    # Messages in a second; 0: as fast as it goes.
    rate: Annotated[int, Meta(ge=0, le=RATE_MAX)] = 0
    # Only counts what would move.
    dry_run: bool = False
    # Another queue on the topic, whose pending messages are meant.
    group: Annotated[str, Meta(min_length=1, max_length=255)] = REDRIVE_GROUP


class DryRunReply(msgspec.Struct, frozen=True):
    topic: str
    pending_count: int
    fitting_count: int


class RedriveTaskReply(msgspec.Struct, frozen=True):
    id: str
    topic: str
    group: str
    target: str | None
    state: Literal["running", "cancelling", "completed", "cancelled", "failed"]
    rate: int
    # In the queue when the task began; of those: looked at, moved, left because they did not fit, left because there is
    # no topic to bring them to.
    pending_count: int
    looked_count: int
    moved_count: int
    skipped_count: int
    lost_count: int
    reason: str
    started_ms: int
    # 0: not yet.
    ended_ms: int


class RedriveTaskList(msgspec.Struct, frozen=True):
    redrives: list[RedriveTaskReply]


class PurgeReply(msgspec.Struct, frozen=True):
    purged_count: int


def topic_reply(found: DeadLetterTopic) -> DeadLetterTopicReply:
    sources = [DeadLetterSource(name.topic, name.group) for name in found.sources]
    return DeadLetterTopicReply(found.topic, found.partition_count, found.pending_count, found.stored_count, sources)


def message_reply(letter: PendingLetter) -> DeadLetterMessage:
    value, value_base64 = text_or_base64(letter.record.value)
    key, key_base64 = text_or_base64(letter.record.key)
    death = death_of(letter.record.headers)
    return DeadLetterMessage(
        partition=letter.partition,
        offset=letter.record.offset,
        timestamp_ms=letter.record.timestamp_ms,
        state="ready" if letter.state is None else _STATES[letter.state],
        reason=death.reason,
        error=death.error,
        origin_topic=death.topic,
        origin_partition=death.partition,
        origin_offset=death.offset,
        origin_group=death.group,
        delivery_count=death.delivery_count,
        first_failure_ms=death.first_failure_ms,
        last_failure_ms=death.last_failure_ms,
        value=value,
        value_base64=value_base64,
        key=key,
        key_base64=key_base64,
        headers=readable_headers(letter.record.headers),
    )


def task_reply(task: RedriveTask) -> RedriveTaskReply:
    return RedriveTaskReply(
        id=task.id,
        topic=task.source.topic,
        group=task.source.group,
        target=task.target,
        state=task.state.value,
        rate=task.rate,
        pending_count=task.pending_count,
        looked_count=task.looked_count,
        moved_count=task.moved_count,
        skipped_count=task.skipped_count,
        lost_count=task.lost_count,
        reason=task.reason,
        started_ms=task.started_ms,
        ended_ms=task.ended_ms,
    )
