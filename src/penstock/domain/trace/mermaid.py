"""A journey as a Mermaid sequence diagram: places and groups as those who take part, events as arrows between them."""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import Final

from penstock.domain.trace.events import Journey, Kind, TraceEvent
from penstock.domain.trace.words import moment, printable, sentence_of

# What brings a message to a consumer, and what a consumer says of it.
_TO_CONSUMER: Final = frozenset({Kind.LEASED})
_FROM_CONSUMER: Final = frozenset({Kind.ACKED, Kind.NACKED, Kind.REJECTED, Kind.EXTENDED})


def mermaid_of(journey: Journey, zone: tzinfo = UTC) -> str:
    names: dict[str, str] = {}
    lines: list[str] = []
    for event in journey.events:
        lines.append(_line(event, names, zone))
    people = [f"    participant {name} as {_plain(label)}" for label, name in names.items()]
    notes = [f"    Note over {next(iter(names.values()), 'p0')}: {_plain(note)}" for note in journey.notes]
    return "\n".join(["sequenceDiagram", *people, *lines, *notes]) + "\n"


def _line(event: TraceEvent, names: dict[str, str], zone: tzinfo) -> str:
    here = _name(names, str(event.place))
    told = _plain(f"{_when(event, zone)} {sentence_of(event, zone)}")
    if event.target is not None and event.kind is not Kind.PICKED:
        return f"    {here}->>{_name(names, str(event.target))}: {told}"
    if event.group:
        consumer = f"{event.group}: {event.consumer}" if event.consumer else event.group
        there = _name(names, consumer)
        if event.kind in _TO_CONSUMER:
            return f"    {here}->>{there}: {told}"
        if event.kind in _FROM_CONSUMER:
            return f"    {there}-->>{here}: {told}"
        return f"    Note over {here},{there}: {told}"
    return f"    Note over {here}: {told}"


def _name(names: dict[str, str], label: str) -> str:
    return names.setdefault(label, f"p{len(names)}")


def _when(event: TraceEvent, zone: tzinfo) -> str:
    return "" if event.at_ms is None else moment(event.at_ms, zone).split(" ")[1]


def _plain(text: str) -> str:
    """Semicolons and hashes end a statement in Mermaid, and a line is one line."""
    return printable(" ".join(text.replace(";", ",").replace("#", "no. ").split()))
