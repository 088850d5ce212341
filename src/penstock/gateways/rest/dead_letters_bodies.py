"""What dead-letter routes are asked, and how what the broker knows becomes what they tell."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from penstock.broker.queue import redrive_scan as scan
from penstock.codec.http.dead_letters import (
    DeadLetter,
    DeadLetterSource,
    DeadLetterState,
    DeadLetterTopic,
    Redrive,
)
from penstock.codec.http.fields import TOPIC_TEXT, Body, MomentMs, readable_headers, text_or_base64
from penstock.domain.queue.redrive import CHOICES_MAX, RATE_MAX, REDRIVE_GROUP, RedriveTask, death_of
from penstock.domain.queue.values import HoldKind
from penstock.domain.topic_rules import NAME_CHARACTERS_MAX

# Reasons are single words; what is longer was not meant.
REASON_CHARACTERS_MAX: Final = 1_024
_STATES: Final[dict[HoldKind, DeadLetterState]] = {
    HoldKind.LEASED: "leased",
    HoldKind.WAITING: "ready",
    HoldKind.BLOCKED: "blocked",
    HoldKind.DYING: "moving",
}


PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
OffsetNumber = Annotated[int, Meta(ge=0, le=2**53)]


class RedriveRequest(Body, frozen=True):
    # Left out: each message goes back to the topic it came from.
    target: Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX, pattern=TOPIC_TEXT)] | None = None
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] | None = None
    key: str | None = None
    # Of the last failure; until_ms itself is outside.
    since_ms: MomentMs | None = None
    until_ms: MomentMs | None = None
    # Only these: partition, first and last offset of runs.
    offsets: (
        Annotated[list[tuple[PartitionNumber, OffsetNumber, OffsetNumber]], Meta(min_length=1, max_length=CHOICES_MAX)]
        | None
    ) = None
    # Messages in a second; 0: as fast as it goes.
    rate: Annotated[int, Meta(ge=0, le=RATE_MAX)] = 0
    # Only counts what would move.
    dry_run: bool = False
    # Another queue on the topic, whose pending messages are meant.
    group: Annotated[str, Meta(min_length=1, max_length=255)] = REDRIVE_GROUP


def topic_reply(found: scan.DeadLetterTopic) -> DeadLetterTopic:
    sources = [DeadLetterSource(name.topic, name.group) for name in found.sources]
    return DeadLetterTopic(found.topic, found.partition_count, found.pending_count, found.stored_count, sources)


def message_reply(letter: scan.PendingLetter) -> DeadLetter:
    value, value_base64 = text_or_base64(letter.record.value)
    key, key_base64 = text_or_base64(letter.record.key)
    death = death_of(letter.record.headers)
    return DeadLetter(
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


def task_reply(task: RedriveTask) -> Redrive:
    return Redrive(
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
        denied_count=task.denied_count,
        reason=task.reason,
        started_ms=task.started_ms,
        ended_ms=task.ended_ms,
    )
