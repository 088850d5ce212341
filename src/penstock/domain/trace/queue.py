"""One message in the queues of its partition: their journal's records about it, as events.

A record names messages by ranges, and says what became of them; who held the message, and which delivery it was, is
known from the records before it. Where the journal does not reach back that far, the attempt is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from penstock.domain.queue.records import (
    Closed,
    Died,
    Finished,
    Leased,
    Move,
    MoveDone,
    MoveDropped,
    MoveIntended,
    Opened,
    Passed,
    Paused,
    QueueRecord,
    Renewed,
    Resumed,
    Returned,
    StartMoved,
    Take,
)
from penstock.domain.queue.redrive import read_place
from penstock.domain.queue.values import Cause, Range
from penstock.domain.trace.events import NOT_KNOWN, Kind, Place, TraceEvent

# Position in the journal, group, record.
JournalRow = tuple[int, str, QueueRecord]
NameOf = Callable[[bytes], str | None]

_RETURNS: Final = {Cause.LEASE_EXPIRED: Kind.EXPIRED, Cause.RELEASED: Kind.NACKED}
_DEATHS: Final = {
    Cause.REJECTED: Kind.REJECTED,
    Cause.DELIVERIES_EXHAUSTED: Kind.EXHAUSTED,
    Cause.TIME_TO_LIVE_EXPIRED: Kind.OUTLIVED,
    Cause.MOVED: Kind.PICKED,
}
_ENDS: Final = {
    Cause.ACCEPTED: Kind.ACKED,
    Cause.REJECTED: Kind.REJECTED,
    Cause.DELIVERIES_EXHAUSTED: Kind.EXHAUSTED,
    Cause.TIME_TO_LIVE_EXPIRED: Kind.OUTLIVED,
}


@dataclass(slots=True)
class _Fate:
    """What is known of the message in one queue, up to the record at hand."""

    consumer: str = ""
    # 0: not delivered yet; None: its first deliveries are told by nobody any more.
    attempt: int | None = 0
    is_over: bool = False
    is_in_flight: bool = False
    death: Cause | None = None
    move: Move | None = None
    move_at_ms: int = 0
    paused: TraceEvent | None = None


def queue_events(
    place: Place, rows: Iterable[JournalRow], *, since_ms: int | None, name_of: NameOf
) -> list[TraceEvent]:
    """In the order of the journal. `since_ms`: before that the message was not there."""
    fates: dict[str, _Fate] = {}
    events: list[TraceEvent] = []
    for _position, group, record in rows:
        fate = fates.setdefault(group, _Fate())
        event = _event(place, group, fate, record, since_ms, name_of)
        if event is None:
            continue
        if fate.paused is not None and event.kind is not Kind.PAUSED:
            events.append(fate.paused)
            fate.paused = None
        events.append(event)
    events += [fate.paused for fate in fates.values() if fate.paused is not None]
    return events


def _event(
    place: Place, group: str, fate: _Fate, record: QueueRecord, since_ms: int | None, name_of: NameOf
) -> TraceEvent | None:
    match record:
        case Leased():
            return _leased(place, group, fate, record)
        case Passed():
            return _passed(place, group, fate, record)
        case Returned() if _holds(record.ranges, place):
            return _returned(place, group, fate, record)
        case Renewed() if _holds(record.ranges, place):
            return TraceEvent(
                kind=Kind.EXTENDED,
                at_ms=record.at_ms,
                place=place,
                group=group,
                consumer=fate.consumer,
                attempt=fate.attempt or 0,
                until_ms=record.until_ms,
            )
        case Died() if _holds(record.ranges, place):
            return _died(place, group, fate, record)
        case Finished() if _holds(record.ranges, place):
            return _finished(place, group, fate, record)
        case MoveIntended() if _holds(record.move.sources, place):
            fate.move, fate.move_at_ms = record.move, record.at_ms
            return None
        case MoveDone() | MoveDropped():
            return _moved(place, group, fate, record, name_of)
        case Opened() | Closed() | Paused() | Resumed() | StartMoved():
            return _of_all(place, group, fate, record, since_ms)
        case _:
            return None


def _holds(ranges: Iterable[Range], place: Place) -> bool:
    return any(first <= place.offset <= last for first, last in ranges)


def _leased(place: Place, group: str, fate: _Fate, record: Leased) -> TraceEvent | None:
    if _holds(record.again, place):
        is_known = fate.attempt is not None and fate.is_in_flight
        fate.attempt = (fate.attempt or 0) + 1 if is_known else None
    elif any(_holds(take.ranges, place) for take in record.takes):
        fate.attempt = 1
    else:
        return _seen(place, group, fate, record.takes, record.at_ms)
    fate.consumer, fate.is_over, fate.is_in_flight = record.consumer, False, True
    return TraceEvent(
        kind=Kind.LEASED,
        at_ms=record.at_ms,
        place=place,
        group=group,
        consumer=record.consumer,
        attempt=fate.attempt or 0,
        until_ms=record.until_ms,
    )


def _passed(place: Place, group: str, fate: _Fate, record: Passed) -> TraceEvent | None:
    return _seen(place, group, fate, record.takes, record.at_ms)


def _seen(place: Place, group: str, fate: _Fate, takes: Iterable[Take], at_ms: int) -> TraceEvent | None:
    """Looked at and not delivered."""
    for take in takes:
        if any(offset == place.offset for offset, _key in take.blocked):
            fate.is_in_flight = True
            return TraceEvent(kind=Kind.BLOCKED, at_ms=at_ms, place=place, group=group, reason="key-order")
        if _holds(take.dying, place):
            fate.is_in_flight, fate.death = True, Cause.TIME_TO_LIVE_EXPIRED
            return TraceEvent(
                kind=Kind.OUTLIVED, at_ms=at_ms, place=place, group=group, reason=Cause.TIME_TO_LIVE_EXPIRED.value
            )
    return None


def _returned(place: Place, group: str, fate: _Fate, record: Returned) -> TraceEvent:
    event = TraceEvent(
        kind=_RETURNS.get(record.cause, Kind.RETURNED),
        at_ms=record.at_ms,
        place=place,
        group=group,
        consumer=fate.consumer,
        attempt=fate.attempt or 0,
        until_ms=record.available_ms or None,
        reason=record.cause.value,
        text=record.text,
    )
    if not record.is_counted:
        fate.attempt = None if fate.attempt is None else max(fate.attempt - 1, 0)
    fate.is_in_flight = True
    return event


def _died(place: Place, group: str, fate: _Fate, record: Died) -> TraceEvent:
    fate.death = record.cause
    target = None
    text = record.text
    if record.cause is Cause.MOVED:
        wanted = read_place(record.text)
        target = None if wanted is None else Place(wanted.topic, wanted.partition, NOT_KNOWN)
        text = ""
    return TraceEvent(
        kind=_DEATHS.get(record.cause, Kind.DROPPED),
        at_ms=record.at_ms,
        place=place,
        group=group,
        consumer=fate.consumer,
        attempt=fate.attempt or 0,
        reason=record.cause.value,
        text=text,
        target=target,
    )


def _finished(place: Place, group: str, fate: _Fate, record: Finished) -> TraceEvent:
    fate.is_over, fate.is_in_flight = True, False
    return TraceEvent(
        kind=_ENDS.get(record.cause, Kind.DROPPED),
        at_ms=record.at_ms,
        place=place,
        group=group,
        consumer=fate.consumer,
        attempt=fate.attempt or 0,
        reason=record.cause.value,
    )


def _moved(place: Place, group: str, fate: _Fate, record: MoveDone | MoveDropped, name_of: NameOf) -> TraceEvent | None:
    move = fate.move
    if move is None or move.batch != record.batch:
        return None
    fate.move = None
    if isinstance(record, MoveDropped):
        return None
    fate.is_over, fate.is_in_flight = True, False
    topic = name_of(move.target_topic_id)
    offset = NOT_KNOWN if record.base_offset < 0 else record.base_offset + _index_of(move.sources, place.offset)
    is_redrive = fate.death is Cause.MOVED
    return TraceEvent(
        kind=Kind.REDRIVEN if is_redrive else Kind.DEAD_LETTERED,
        # When it was sent off: that it has come is journalled only after others may have seen it there.
        at_ms=fate.move_at_ms,
        place=place,
        group=group,
        reason="" if fate.death is None else fate.death.value,
        target=Place(topic or f"deleted topic {move.target_topic_id.hex()}", move.target_partition, offset),
    )


def _index_of(sources: Iterable[Range], offset: int) -> int:
    before = 0
    for first, last in sources:
        if first <= offset <= last:
            return before + offset - first
        before += last - first + 1
    raise AssertionError(f"{offset} is none of the sources")


def _of_all(
    place: Place,
    group: str,
    fate: _Fate,
    record: Opened | Closed | Paused | Resumed | StartMoved,
    since_ms: int | None,
) -> TraceEvent | None:
    """What happens to a queue matters to a message that waits in it, and not before there was one."""
    is_before = since_ms is not None and record.at_ms < since_ms
    match record:
        case Opened(start_offset, _number, at_ms):
            fate.is_over = place.offset < start_offset
            if not fate.is_over:
                return None
            return _whole(Kind.OPENED, at_ms, place, group, position=start_offset)
        case StartMoved(start_offset, at_ms):
            was_over, was_in_flight = fate.is_over, fate.is_in_flight
            is_skipped = place.offset < start_offset
            fate.is_over, fate.is_in_flight, fate.attempt = is_skipped, False, 0
            if is_skipped and not was_over:
                return _whole(Kind.SKIPPED, at_ms, place, group, position=start_offset)
            if not is_skipped and (was_over or was_in_flight):
                return _whole(Kind.REWOUND, at_ms, place, group, position=start_offset)
            return None
        case Closed(at_ms):
            fate.is_in_flight = False
            return None if is_before else _whole(Kind.CLOSED, at_ms, place, group)
        case Paused(at_ms):
            event = _whole(Kind.PAUSED, at_ms, place, group)
            if is_before:
                # It matters only if it still holds when the message comes.
                fate.paused = event
                return None
            return None if fate.is_over else event
        case Resumed(at_ms):
            if is_before:
                fate.paused = None
            return None if is_before or fate.is_over else _whole(Kind.RESUMED, at_ms, place, group)


def _whole(kind: Kind, at_ms: int, place: Place, group: str, *, position: int | None = None) -> TraceEvent:
    return TraceEvent(kind=kind, at_ms=at_ms, place=place, group=group, position=position)
