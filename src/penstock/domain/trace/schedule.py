"""A delayed message in the schedule of its partition: the rows about it, as events."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.domain.schedule.records import NO_POSITION, End, Ended, MoveIntended, Scheduled, ScheduleRecord
from penstock.domain.trace.events import Kind, Place, Producer, TraceEvent


def schedule_events(place: Place, records: Iterable[ScheduleRecord], released_to: Place | None) -> list[TraceEvent]:
    """Of the records about the message that was first written at `place`, in the order of the log. `released_to`: where
    it lies in the topic, if that was found."""
    events: list[TraceEvent] = []
    position, intended_ms = place.offset, None
    for record in records:
        match record:
            case MoveIntended() if position in record.move.sources:
                intended_ms = record.at_ms
            case Scheduled() if _origin_of(record) == place.offset:
                position = record.position
                events.append(_scheduled(place, record))
            case Ended() if record.origin == place.offset:
                is_release = record.end is End.RELEASED
                events.append(
                    TraceEvent(
                        kind=Kind.RELEASED if is_release else Kind.CANCELLED,
                        # When it was sent off: others may have seen it before it was written down that it came.
                        at_ms=intended_ms if is_release and intended_ms is not None else record.at_ms,
                        place=place,
                        target=released_to if is_release else None,
                    )
                )
            case _:
                pass
    return events


def _scheduled(place: Place, record: Scheduled) -> TraceEvent:
    is_first = record.origin == NO_POSITION
    return TraceEvent(
        kind=Kind.SCHEDULED if is_first else Kind.RESCHEDULED,
        at_ms=record.at_ms,
        place=place,
        until_ms=record.due_ms,
        reason=record.cron,
        producer=producer_of(record) if is_first else None,
    )


def producer_of(record: Scheduled) -> Producer | None:
    batch = record.producer
    if batch is None:
        return None
    # Of its batch: which of the batch's messages were delayed, beside this one, is not written down.
    return Producer(batch.producer_id, batch.producer_epoch, batch.base_sequence, record.is_transactional)


def _origin_of(record: Scheduled) -> int:
    return record.position if record.origin == NO_POSITION else record.origin
