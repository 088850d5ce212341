"""Events of several logs in one order, and the forms that they are shown in."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import timedelta, timezone

import pytest

from penstock.domain.trace.events import Journey, Kind, Place, PlaceFacts, PlaceState, Producer, TraceEvent
from penstock.domain.trace.journey import Visit, merge
from penstock.domain.trace.mermaid import mermaid_of
from penstock.domain.trace.picture import FORMATS, render
from penstock.domain.trace.svg import svg_of
from penstock.domain.trace.text import facts_line, text_of
from penstock.domain.trace.words import duration, moment, sentence_of, title_of

FIRST = Place("orders", 0, 5)
COPY = Place("orders-dlq", 0, 1)
START_MS = 1_700_000_000_000


def facts(place: Place) -> PlaceFacts:
    return PlaceFacts(
        place=place, id=f"id-{place.topic}", state=PlaceState.STORED, key="<k & 'k'>", is_durable=True, replica_count=1
    )


def event(kind: Kind, at_ms: int | None, place: Place = FIRST, **fields: object) -> TraceEvent:
    return TraceEvent(kind=kind, at_ms=None if at_ms is None else START_MS + at_ms, place=place, **fields)  # type: ignore[arg-type]


def test_a_message_comes_before_what_happened_to_it_whatever_its_producers_clock_said() -> None:
    appended = event(Kind.APPENDED, 60_000)
    leased, acked, passed = event(Kind.LEASED, 10), event(Kind.ACKED, 20), event(Kind.PASSED, 15)
    visit = Visit(facts(FIRST), appended, ((leased, acked), (passed,)))
    assert merge([visit]) == (appended, leased, passed, acked)


def test_each_log_keeps_its_own_order_though_its_clock_went_back() -> None:
    leased, acked, passed = event(Kind.LEASED, 100), event(Kind.ACKED, 90), event(Kind.PASSED, 95)
    visit = Visit(facts(FIRST), None, ((leased, acked), (passed,)))
    assert merge([visit]) == (passed, leased, acked)


def test_a_copy_comes_after_what_made_it() -> None:
    buried = event(Kind.DEAD_LETTERED, 30, target=COPY)
    arrived = event(Kind.APPENDED, 30, COPY)
    seen = event(Kind.LEASED, 29, COPY)
    visits = [
        Visit(facts(FIRST), event(Kind.APPENDED, 0), ((buried,),)),
        Visit(facts(COPY), arrived, ((seen,),), made_by=buried),
    ]
    assert [each.kind for each in merge(visits)] == [Kind.APPENDED, Kind.DEAD_LETTERED, Kind.APPENDED, Kind.LEASED]
    assert visits[0].targets == [(buried, COPY)]


def journey() -> Journey:
    events = (
        event(Kind.APPENDED, 0, producer=Producer(7, 0, 3), is_producers_time=True),
        event(Kind.LEASED, 5, group="billing", consumer="ann", attempt=1, until_ms=START_MS + 30_000),
        event(Kind.REJECTED, 90_000, group="billing", consumer="ann", text='broken "; #1\x00'),
        event(Kind.DEAD_LETTERED, 90_001, group="billing", reason="rejected", target=COPY),
        event(Kind.APPENDED, None, COPY),
    )
    return Journey("the-id", (facts(FIRST), facts(COPY)), events, ("the journal begins at noon",))


def test_text_has_one_line_for_each_event_with_the_time_between_them() -> None:
    lines = text_of(journey()).splitlines()
    assert lines[0] == "message the-id"
    assert "orders-0@5 · on disk" in lines[1]
    assert lines[4].startswith("2023-11-14 22:13:20.000 UTC")
    assert "by producer 7 (epoch 0, sequence 3) (by the producer's clock)" in lines[4]
    assert "+1 min 29 s" in lines[6]
    assert "[billing]" in lines[6]
    assert lines[-1] == "note: the journal begins at noon"


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_nothing_in_a_journey_moves_the_cursor_of_who_reads_it(form: str) -> None:
    """Names of consumers and the words of a nack are anybody's."""
    evil = "\x1b[2J\x1b]0;owned\x07\x9b1m\u202e"
    event = TraceEvent(kind=Kind.NACKED, at_ms=0, place=Place("t", 0, 0), group=evil, consumer=evil, text=evil)
    drawn = render(Journey("id", (), (event,), (evil,)), form)
    assert all(character.isprintable() or character == "\n" for character in drawn)


def test_the_picture_is_well_formed_and_tells_everything() -> None:
    drawn = svg_of(journey())
    root = ET.fromstring(drawn)
    told = " ".join(root.itertext())
    for words in (
        "Journey of a message",
        "leased, attempt 1",
        "billing",
        "dead letter in orders-dlq-0@1",
        "noon",
        "<k &",
    ):
        assert words in told
    assert ET.fromstring(svg_of(Journey("empty", (), ()))) is not None


def test_the_diagram_has_those_who_take_part_and_no_character_that_ends_a_statement() -> None:
    drawn = mermaid_of(journey())
    assert drawn.startswith("sequenceDiagram\n")
    assert "participant p1 as billing: ann" in drawn
    assert "p0->>p1: 22:13:20.005 leased to ann" in drawn
    assert ";" not in drawn
    assert "#" not in drawn


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_every_form_can_be_drawn(form: str) -> None:
    assert render(journey(), form)


def test_every_kind_has_words() -> None:
    for kind in Kind:
        assert sentence_of(event(kind, 0))
        assert title_of(event(kind, 0))


def test_every_state_has_words() -> None:
    for state in PlaceState:
        assert facts_line(PlaceFacts(place=FIRST, id="x", state=state))


def test_durations_are_of_two_units_at_the_most() -> None:
    told = [duration(ms) for ms in (7, 1_500, 61_000, 3_600_000, 90_061_000)]
    assert told == ["7 ms", "1.5 s", "1 min 1 s", "1 h", "1 d 1 h"]


def test_moments_name_their_zone() -> None:
    assert moment(START_MS) == "2023-11-14 22:13:20.000 UTC"
    assert moment(START_MS, timezone(timedelta(hours=1))) == "2023-11-14 23:13:20.000 UTC+01:00"
    for far_ms in (253_402_300_800_000, 2**53, 2**62):
        assert moment(far_ms, timezone(timedelta(hours=14))) == "after 9999 UTC"
