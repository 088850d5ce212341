"""A journey as lines of text: for a terminal, and for whoever pastes it into a ticket."""

from __future__ import annotations

from datetime import UTC, tzinfo

from penstock.domain.trace.events import Journey, PlaceFacts, PlaceState, TransactionState
from penstock.domain.trace.words import duration, moment, printable, sentence_of


def text_of(journey: Journey, zone: tzinfo = UTC) -> str:
    lines = [f"message {journey.id}"]
    for facts in journey.places:
        lines.append(f"  {facts_line(facts)}")
    lines.append("")
    rows = event_rows(journey, zone)
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for when, later, group, told in rows:
        cells = (when.ljust(widths[0]), later.rjust(widths[1]), group.ljust(widths[2]), told)
        lines.append("  ".join(cell for cell, width in zip(cells, (*widths, 1), strict=True) if width))
    lines += [f"note: {note}" for note in journey.notes]
    return "\n".join(map(printable, lines)) + "\n"


def event_rows(journey: Journey, zone: tzinfo = UTC) -> list[tuple[str, str, str, str]]:
    """Time, how long after the one before, the queue or group, what happened."""
    rows: list[tuple[str, str, str, str]] = []
    before: int | None = None
    for event in journey.events:
        when = "-" if event.at_ms is None else moment(event.at_ms, zone)
        later = ""
        if event.at_ms is not None:
            later = "" if before is None else f"+{duration(max(event.at_ms - before, 0))}"
            before = event.at_ms
        group = f"[{event.group}]" if event.group else ""
        rows.append((when, later, group, sentence_of(event, zone)))
    return rows


def facts_line(facts: PlaceFacts) -> str:
    """What is known of a place without a time."""
    parts = [str(facts.place), state_words(facts)]
    if facts.key is not None:
        parts.append(f"key {facts.key!r}")
    if facts.state is PlaceState.STORED:
        parts.append(f"{facts.size_bytes} bytes")
    if facts.lane is not None:
        parts.append(f"priority {facts.lane}")
    if facts.ttl_ms is not None:
        parts.append(f"time to live {duration(facts.ttl_ms)}")
    return " · ".join(parts)


def state_words(facts: PlaceFacts) -> str:
    match facts.state:
        case PlaceState.STORED:
            durable = "on disk" if facts.is_durable else "not on disk yet"
            transaction = "" if facts.transaction is TransactionState.NONE else f", transaction {facts.transaction}"
            return (
                f"{durable}, {facts.replicas_in_sync} of {facts.replica_count} replicas, node {facts.node}{transaction}"
            )
        case PlaceState.PENDING:
            return "waits in the schedule"
        case PlaceState.RELEASED:
            return "was released"
        case PlaceState.CANCELLED:
            return "was cancelled"
        case PlaceState.DELETED:
            return "the log no longer holds it: retention, or somebody deleted it"
        case PlaceState.HOLE:
            return "nothing at that offset: compacted away, or the slot of a delayed message"
        case PlaceState.CONTROL:
            return "no message: a marker of a transaction"
        case PlaceState.AHEAD:
            return "not written yet"
        case PlaceState.UNREADABLE:
            return "the log cannot be read there"
        case PlaceState.GONE:
            return "its topic was deleted"
