"""Records of a journal as events of one message."""

from __future__ import annotations

from penstock.domain.queue.lanes import DEFAULT_LANE
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
from penstock.domain.queue.values import Cause, Range
from penstock.domain.trace.events import Kind, Place, TraceEvent
from penstock.domain.trace.queue import queue_events

PLACE = Place("orders", 0, 10)
TARGET = b"d" * 16


def leased(at_ms: int, *ranges: Range, again: tuple[Range, ...] = (), consumer: str = "ann") -> Leased:
    return Leased(at_ms, consumer, at_ms + 30, at_ms, (Take(DEFAULT_LANE, 100, ranges),), again)


def events(*records: QueueRecord, since_ms: int | None = None) -> list[TraceEvent]:
    rows = [(position, "workers", record) for position, record in enumerate(records)]
    return queue_events(PLACE, rows, since_ms=since_ms, name_of={TARGET: "orders-dlq"}.get)


def kinds(*records: QueueRecord, since_ms: int | None = None) -> list[Kind]:
    return [event.kind for event in events(*records, since_ms=since_ms)]


def test_attempts_are_counted_from_the_first_lease_on() -> None:
    told = events(
        leased(1, (5, 20)),
        Returned(((10, 10),), 0, Cause.LEASE_EXPIRED, 31),
        leased(40, again=((10, 10),), consumer="ben"),
        Renewed(((10, 10),), 90, 50),
        Returned(((10, 10),), 99, Cause.RELEASED, 60, "later"),
        leased(100, again=((9, 11),), consumer="cat"),
        Finished(((10, 10),), Cause.ACCEPTED, 110),
    )
    assert [(event.kind, event.attempt, event.consumer) for event in told] == [
        (Kind.LEASED, 1, "ann"),
        (Kind.EXPIRED, 1, "ann"),
        (Kind.LEASED, 2, "ben"),
        (Kind.EXTENDED, 2, "ben"),
        (Kind.NACKED, 2, "ben"),
        (Kind.LEASED, 3, "cat"),
        (Kind.ACKED, 3, "cat"),
    ]
    assert (told[4].until_ms, told[4].text) == (99, "later")


def test_of_a_history_without_its_beginning_the_attempt_is_not_known() -> None:
    told = events(
        leased(1, again=((10, 10),)), Returned(((10, 10),), 0, Cause.RELEASED, 2), leased(3, again=((10, 10),))
    )
    assert [event.attempt for event in told] == [0, 0, 0]


def test_a_delivery_that_nobody_counts_is_not_counted() -> None:
    told = events(
        leased(1, (10, 10)),
        Returned(((10, 10),), 0, Cause.CONSUMER_GONE, 2, "", is_counted=False),
        leased(3, again=((10, 10),)),
    )
    assert [(event.kind, event.attempt) for event in told] == [(Kind.LEASED, 1), (Kind.RETURNED, 1), (Kind.LEASED, 1)]


def test_other_messages_are_not_told_of() -> None:
    assert (
        kinds(leased(1, (11, 20)), Finished(((11, 20),), Cause.ACCEPTED, 2), Died(((1, 9),), Cause.REJECTED, 3)) == []
    )


def test_a_dead_letter_is_where_its_move_has_put_it() -> None:
    move = Move(4, TARGET, 2, 7, 0, 0, ((8, 8), (10, 11)))
    told = events(
        leased(1, (8, 11)),
        Died(((10, 10),), Cause.REJECTED, 2, "bad"),
        MoveIntended(move, 3),
        MoveDone(4, 5, 40),
    )
    assert [event.kind for event in told] == [Kind.LEASED, Kind.REJECTED, Kind.DEAD_LETTERED]
    assert told[-1].target == Place("orders-dlq", 2, 41)
    # When it was sent off, not when that was written down: others may have seen the copy in between.
    assert told[-1].at_ms == 3


def test_a_move_that_was_dropped_is_told_by_the_one_that_was_not() -> None:
    first, second = (Move(batch, TARGET, 0, 7, 0, 0, ((10, 10),)) for batch in (1, 2))
    told = kinds(
        Died(((10, 10),), Cause.DELIVERIES_EXHAUSTED, 1),
        MoveIntended(first, 2),
        MoveDropped(1, 3),
        MoveIntended(second, 4),
        MoveDone(2, 5, 0),
    )
    assert told == [Kind.EXHAUSTED, Kind.DEAD_LETTERED]


def test_a_redrive_is_told_as_one() -> None:
    move = Move(1, b"x" * 16, 3, 7, 0, 0, ((10, 10),))
    told = events(Died(((10, 10),), Cause.MOVED, 1, "orders/3"), MoveIntended(move, 2), MoveDone(1, 3, 5))
    assert [event.kind for event in told] == [Kind.PICKED, Kind.REDRIVEN]
    assert told[0].target == Place("orders", 3, -1)
    assert "deleted topic" in str(told[1].target)


def test_what_waits_for_its_key_is_told_when_it_is_seen() -> None:
    take = Take(DEFAULT_LANE, 100, (), (), ((10, 77),))
    told = events(Passed((take,), 1), leased(2, again=((10, 10),)))
    assert [(event.kind, event.attempt) for event in told] == [(Kind.BLOCKED, 0), (Kind.LEASED, 1)]


def test_what_is_too_old_is_told_when_the_queue_meets_it() -> None:
    take = Take(DEFAULT_LANE, 100, (), dying=((10, 10),))
    assert kinds(Passed((take,), 1)) == [Kind.OUTLIVED]
    assert kinds(Finished(((10, 10),), Cause.TIME_TO_LIVE_EXPIRED, 1)) == [Kind.OUTLIVED]
    assert kinds(Finished(((10, 10),), Cause.GAP, 1)) == [Kind.DROPPED]


def test_a_pause_matters_only_while_the_message_waits() -> None:
    assert kinds(Paused(1), Resumed(2), leased(10, (10, 10)), since_ms=5) == [Kind.LEASED]
    assert kinds(Paused(1), Resumed(7), leased(10, (10, 10)), since_ms=5) == [Kind.PAUSED, Kind.RESUMED, Kind.LEASED]
    assert kinds(Paused(1), since_ms=5) == [Kind.PAUSED]
    finished = Finished(((10, 10),), Cause.ACCEPTED, 11)
    assert kinds(leased(10, (10, 10)), finished, Paused(12), Resumed(13), since_ms=5) == [Kind.LEASED, Kind.ACKED]


def test_a_queue_that_begins_behind_the_message_says_so() -> None:
    assert kinds(Opened(0, 1, 1)) == []
    assert [(event.kind, event.position) for event in events(Opened(50, 1, 1))] == [(Kind.OPENED, 50)]


def test_a_purge_skips_what_waits_and_a_rewind_delivers_anew() -> None:
    assert kinds(StartMoved(50, 1)) == [Kind.SKIPPED]
    finished = Finished(((10, 10),), Cause.ACCEPTED, 2)
    assert kinds(leased(1, (10, 10)), finished, StartMoved(50, 3)) == [Kind.LEASED, Kind.ACKED]
    told = events(leased(1, (10, 10)), finished, StartMoved(0, 3), leased(4, (10, 10)), Closed(5))
    assert [event.kind for event in told] == [Kind.LEASED, Kind.ACKED, Kind.REWOUND, Kind.LEASED, Kind.CLOSED]
    assert told[3].attempt == 1
