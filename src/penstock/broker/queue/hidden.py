"""Delayed messages that were pending when their queue was purged: released to everybody else, and not to this queue.

A purge remembers, for each partition, the end of its schedule's log. A released message tells its place there in its
id; what comes from before the mark is passed over as a hole would be. A copy of such a message, which was redriven from
the dead letters, is not hidden: it does not have the header that only a release gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.broker.schedule.values import NotScheduled
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.batch.records import StoredRecord
from penstock.domain.queue.definition import QueueDefinition
from penstock.domain.queue.receipt import read_scheduled_id
from penstock.domain.schedule.headers import MESSAGE_ID_HEADER, WRITTEN_AT_HEADER


class Delays(Protocol):
    """What a queue must know of the schedules of its topic."""

    def pending_count(self, topic: ServedTopic, since: Sequence[int] = ()) -> int:
        """`since`, by partition: only those from these places on."""

    def damage_of(self, topic: ServedTopic) -> str | None:
        """Why nobody can say what is delayed; None: it is known."""

    async def purge_marker(self, topic: ServedTopic) -> tuple[int, ...] | NotScheduled:
        """By partition: the ends of the schedules' logs."""


def hidden_below(definition: QueueDefinition, partition: int) -> int:
    """Of the schedule's places; 0: nothing is hidden."""
    return definition.hidden_below[partition] if partition < len(definition.hidden_below) else 0


def visible(records: list[StoredRecord], definition: QueueDefinition, partition: int) -> list[StoredRecord]:
    below = hidden_below(definition, partition)
    if not below:
        return records
    return [record for record in records if not _is_hidden(record, definition.topic_id, partition, below)]


def _is_hidden(record: StoredRecord, topic_id: bytes, partition: int, below: int) -> bool:
    headers = dict(record.headers)
    if WRITTEN_AT_HEADER not in headers:
        return False
    place = read_scheduled_id((headers.get(MESSAGE_ID_HEADER) or b"").decode(errors="replace"))
    return place is not None and (place.topic_id, place.partition) == (topic_id, partition) and place.offset < below


def marks_after(before: Sequence[int], found: Sequence[int]) -> tuple[int, ...]:
    """By partition; a mark never goes back."""
    older = [*before, *[0] * len(found)]
    return tuple(max(mark, known) for mark, known in zip(found, older, strict=False))
