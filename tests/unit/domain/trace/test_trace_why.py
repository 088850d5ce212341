"""One sentence for each obstacle that a message can meet, and the right one where there are several."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.domain.queue.machine import MessageView
from penstock.domain.queue.values import Cause, Failure, HoldKind, Ordering, QueueConfig
from penstock.domain.trace.events import Kind, Place, PlaceFacts, PlaceState, Producer, TraceEvent, TransactionState
from penstock.domain.trace.why import (
    GroupSituation,
    QueueSituation,
    Standing,
    group_reason,
    nobody_reads,
    queue_reason,
    schedule_reason,
)

NOW_MS = 1_700_000_000_000
PLACE = Place("orders", 0, 100)
FACTS = PlaceFacts(place=PLACE, id="x", state=PlaceState.STORED, timestamp_ms=NOW_MS - 1_000)


def facts(**fields: Any) -> PlaceFacts:
    return PlaceFacts(
        **{"place": PLACE, "id": "x", "state": PlaceState.STORED, "timestamp_ms": NOW_MS - 1_000, **fields}
    )


def view(kind: HoldKind, *, until_ms: int = 0, count: int = 1, failure: Failure | None = None) -> MessageView:
    return MessageView(kind, count, 4, 7, "ann", until_ms, None, failure)


def situation(**fields: Any) -> QueueSituation:
    usual = {
        "group": "workers",
        "facts": FACTS,
        "config": QueueConfig(),
        "now_ms": NOW_MS,
        "cursor": 50,
        "readable_end": 1_000,
        "last_stable_offset": 1_000,
        "waiting_count": 1,
    }
    return QueueSituation(**{**usual, **fields})


def event(kind: Kind, **fields: Any) -> TraceEvent:
    return TraceEvent(kind=kind, at_ms=NOW_MS - 500, place=PLACE, group="workers", **fields)


FAILURE = Failure(1, 2, Cause.RELEASED, "busy")

CASES: list[tuple[dict[str, Any], Standing, str]] = [
    ({"view": view(HoldKind.LEASED, until_ms=NOW_MS + 5_000)}, Standing.LEASED, "ann has it until"),
    (
        {"view": view(HoldKind.WAITING, until_ms=NOW_MS + 5_000, failure=FAILURE)},
        Standing.BACKING_OFF,
        '(another 5 s) after attempt 1: given back ("busy")',
    ),
    ({"view": view(HoldKind.WAITING, failure=FAILURE)}, Standing.READY, "the next consumer that asks"),
    ({"view": view(HoldKind.WAITING), "waiting_count": 0}, Standing.NO_CONSUMER, "nobody asks for messages"),
    ({"view": view(HoldKind.WAITING), "is_paused": True}, Standing.PAUSED, "resumed"),
    ({"view": view(HoldKind.BLOCKED), "blocked_by": 42}, Standing.KEY_ORDER, "waits for orders-0@42"),
    ({"view": view(HoldKind.DYING, failure=Failure(1, 2, Cause.REJECTED))}, Standing.DYING, "dead letters"),
    ({}, Standing.NOT_THERE_YET, "50 offsets are before it"),
    ({"cursor": 100}, Standing.NOT_THERE_YET, "it is the next one"),
    ({"waiting_count": 0}, Standing.NO_CONSUMER, "it is delivered when a consumer comes"),
    ({"waiting_count": 0, "is_share_group": True}, Standing.NO_CONSUMER, "no member is connected"),
    ({"waiting_count": 0, "is_share_group": True, "member_count": 2}, Standing.NOT_THERE_YET, "will get there"),
    ({"is_paused": True}, Standing.PAUSED, "paused"),
    ({"in_flight_count": 7, "config": QueueConfig(in_flight_max=7)}, Standing.QUEUE_FULL, "7 are allowed"),
    (
        {"blocked_count": 9, "config": QueueConfig(ordering=Ordering.KEY, key_lookahead_max=9)},
        Standing.KEYS_FULL,
        "looks no further ahead",
    ),
    ({"facts": facts(lane=1)}, Standing.NOT_THERE_YET, "with priority 1 nearly everything else goes first"),
    ({"facts": facts(lane=9)}, Standing.NOT_THERE_YET, "(priority 9)"),
    ({"facts": facts(ttl_ms=500)}, Standing.OUTLIVED, "time to live has ended"),
    ({"log_start": 200}, Standing.DELETED, "before the queue got to it"),
    ({"facts": facts(state=PlaceState.HOLE)}, Standing.NO_MESSAGE, "compacted away"),
    ({"facts": facts(state=PlaceState.UNREADABLE)}, Standing.UNREADABLE, "cannot be read"),
    ({"cursor": 200, "facts": facts(state=PlaceState.UNREADABLE)}, Standing.UNREADABLE, "one dead letter"),
    ({"facts": facts(transaction=TransactionState.ABORTED)}, Standing.ABORTED, "aborted"),
    (
        {"facts": facts(transaction=TransactionState.OPEN, producer=Producer(8, 0, 0, True))},
        Standing.IN_TRANSACTION,
        "of producer 8 has not ended",
    ),
    (
        {"last_stable_offset": 90, "first_open": (90, 8)},
        Standing.BEHIND_TRANSACTION,
        "producer 8, begun at offset 90",
    ),
    (
        {"last_stable_offset": 90, "first_open": (90, 8), "is_committed_only": False},
        Standing.NOT_THERE_YET,
        "offsets are before it",
    ),
    ({"readable_end": 100}, Standing.NOT_DURABLE, "not on disk"),
    ({"cursor": 200, "last_event": event(Kind.ACKED, consumer="ann")}, Standing.ACKED, "acked by ann at"),
    (
        {"cursor": 200, "last_event": event(Kind.DEAD_LETTERED, reason="rejected", target=Place("dlq", 0, 3))},
        Standing.DEAD_LETTERED,
        "dead letter in dlq-0@3: rejected",
    ),
    ({"cursor": 200, "last_event": event(Kind.SKIPPED, position=150)}, Standing.SKIPPED, "150"),
    ({"cursor": 200, "last_event": event(Kind.EXHAUSTED, attempt=5)}, Standing.FINISHED, "failed 5 times"),
    ({"cursor": 200, "facts": facts(ttl_ms=500)}, Standing.OUTLIVED, "before anybody asked"),
    ({"cursor": 200, "facts": facts(transaction=TransactionState.ABORTED)}, Standing.ABORTED, "aborted"),
    ({"cursor": 200, "facts": facts(state=PlaceState.CONTROL)}, Standing.NO_MESSAGE, "marker"),
    ({"cursor": 200}, Standing.FINISHED, "longer ago than the journal"),
]


@pytest.mark.parametrize(("fields", "standing", "words"), CASES)
def test_the_obstacle_is_named_and_what_would_change_it(fields: dict[str, Any], standing: Standing, words: str) -> None:
    reason = queue_reason(situation(**fields))
    assert reason.standing is standing
    assert words in reason.sentence
    assert reason.group == "workers"


def test_a_lease_says_when_it_ends_and_a_blocked_message_what_blocks_it() -> None:
    leased = queue_reason(situation(view=view(HoldKind.LEASED, until_ms=NOW_MS + 5_000)))
    assert leased.until_ms == NOW_MS + 5_000
    blocked = queue_reason(situation(view=view(HoldKind.BLOCKED), blocked_by=42))
    assert blocked.blocked_by == Place("orders", 0, 42)


@pytest.mark.parametrize(
    ("fields", "standing", "words"),
    [
        ({"position": 101, "last_event": event(Kind.PASSED)}, Standing.PASSED, "passed at 2023-11-14"),
        ({"position": 90, "log_start": 150}, Standing.DELETED, "lost it"),
        ({"position": None, "member_count": 1}, Standing.NOT_THERE_YET, "not committed any position yet"),
        ({"position": 90, "pending": ((8, 95), (9, 101))}, Standing.IN_TRANSACTION, "of producer 9 is committed"),
        ({"position": 90}, Standing.NO_CONSUMER, "10 before it, and no member is connected"),
        ({"position": 90, "facts": facts(state=PlaceState.UNREADABLE)}, Standing.UNREADABLE, "consumers stop there"),
        (
            {"position": 100, "member_count": 1, "owner": "member m"},
            Standing.NOT_THERE_YET,
            "member m has the partition",
        ),
        (
            {"position": 100, "member_count": 1, "last_stable_offset": 90, "first_open": (90, 8)},
            Standing.NOT_THERE_YET,
            "wait for the transaction of producer 8",
        ),
    ],
)
def test_a_groups_position_decides(fields: dict[str, Any], standing: Standing, words: str) -> None:
    usual = {"group": "readers", "facts": FACTS, "last_stable_offset": 1_000}
    reason = group_reason(GroupSituation(**{**usual, **fields}))
    assert reason.standing is standing
    assert words in reason.sentence
    assert reason.kind == "consumer group"


@pytest.mark.parametrize(
    ("fields", "standing", "words"),
    [
        ({"state": PlaceState.PENDING}, Standing.DELAYED, "another 1 min"),
        ({"state": PlaceState.CANCELLED}, Standing.CANCELLED, "nobody will get it"),
        (
            {"state": PlaceState.PENDING, "transaction": TransactionState.OPEN},
            Standing.IN_TRANSACTION,
            "scheduled when",
        ),
        ({"state": PlaceState.PENDING, "transaction": TransactionState.ABORTED}, Standing.ABORTED, "never scheduled"),
        ({"state": PlaceState.DELETED}, Standing.FINISHED, "longer ago"),
    ],
)
def test_a_delayed_message_waits_for_its_time(fields: dict[str, Any], standing: Standing, words: str) -> None:
    scheduled = event(Kind.SCHEDULED, until_ms=NOW_MS + 60_000)
    reason = schedule_reason(facts(**fields), [scheduled], NOW_MS)
    assert reason is not None
    assert reason.standing is standing
    assert words in reason.sentence


def test_a_released_message_is_told_of_at_its_place_in_the_topic() -> None:
    assert schedule_reason(facts(state=PlaceState.RELEASED), [], NOW_MS) is None
    due = schedule_reason(facts(state=PlaceState.PENDING), [event(Kind.SCHEDULED, until_ms=NOW_MS - 1)], NOW_MS)
    assert due is not None
    assert "about to be released" in due.sentence


def test_a_topic_without_readers_says_so() -> None:
    assert nobody_reads(FACTS).standing is Standing.NOBODY_READS
