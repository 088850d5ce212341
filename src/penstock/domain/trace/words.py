"""Events in plain words, one sentence each."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Final

from penstock.domain.trace.events import Kind, Place, Producer, TraceEvent

_SECOND_MS: Final = 1_000
# The year 9999, wherever.
_MOMENT_MS_MAX: Final = 253_402_000_000_000
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))

_CAUSES: Final = {
    "accepted": "acked",
    "released": "given back",
    "rejected": "rejected",
    "lease-expired": "its lease ran out",
    "consumer-gone": "its consumer went away",
    "deliveries-exhausted": "delivered as often as the queue allows",
    "time-to-live-expired": "older than its time to live",
    "gap": "there is no such message",
    "deleted": "the log no longer holds it",
    "moved": "picked by a redrive",
}


def printable(text: str) -> str:
    """What moves a cursor or recolours a terminal is shown as a box: names and words are anybody's."""
    return "".join(character if character.isprintable() else "\N{WHITE SQUARE}" for character in text)


def moment(at_ms: int, zone: tzinfo = UTC) -> str:
    """As `2026-11-15 10:00:00.123`, with the zone's name if it is not UTC. A delay may be longer than calendars are."""
    if at_ms > _MOMENT_MS_MAX:
        return "after 9999 UTC"
    local = datetime.fromtimestamp(at_ms / _SECOND_MS, zone)
    return f"{local:%Y-%m-%d %H:%M:%S}.{at_ms % _SECOND_MS:03} {local.tzname()}"


def duration(milliseconds: int) -> str:
    """`350 ms`, `12.3 s`, `4 min 5 s`, `1 d 2 h`: two units at the most."""
    if milliseconds < _SECOND_MS:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / _SECOND_MS:.1f} s".replace(".0 s", " s")
    parts: list[str] = []
    left = milliseconds
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    parts.append(f"{left // _SECOND_MS} s" if left >= _SECOND_MS else "")
    return " ".join(part for part in parts[:2] if part)


def cause_words(reason: str) -> str:
    return _CAUSES.get(reason, reason)


def title_of(event: TraceEvent) -> str:
    """A word or two."""
    if event.kind is Kind.LEASED:
        return f"leased, attempt {event.attempt}" if event.attempt else "leased"
    return event.kind.value.replace("-", " ")


def sentence_of(event: TraceEvent, zone: tzinfo = UTC) -> str:
    """Without its time and its group, which stand beside it."""
    return _SENTENCES[event.kind](event, zone)


def _scheduled(event: TraceEvent, zone: tzinfo) -> str:
    return f"stored in the {event.place}, due at {_until(event, zone)}{_of_cron(event)}"


def _of_cron(event: TraceEvent) -> str:
    return f", by the cron schedule {event.reason}" if event.reason else ""


def _rescheduled(event: TraceEvent, zone: tzinfo) -> str:
    return f"given another time: due at {_until(event, zone)}"


def _cancelled(event: TraceEvent, _zone: tzinfo) -> str:
    return f"cancelled in the {event.place}: it will not be delivered"


def _released(event: TraceEvent, _zone: tzinfo) -> str:
    return f"due, and released to {_where(event.target)}"


def _appended(event: TraceEvent, _zone: tzinfo) -> str:
    whose = " (by the producer's clock)" if event.is_producers_time else ""
    return f"appended to {event.place}{_by(event.producer)}{whose}"


def _by(producer: Producer | None) -> str:
    if producer is None:
        return ""
    kind = "transaction of producer" if producer.is_transactional else "producer"
    return f" by {kind} {producer.id} (epoch {producer.epoch}, sequence {producer.sequence})"


def _committed(event: TraceEvent, _zone: tzinfo) -> str:
    return f"the transaction{_of_producer(event)} was committed: visible to readers of committed messages"


def _aborted(event: TraceEvent, _zone: tzinfo) -> str:
    return f"the transaction{_of_producer(event)} was aborted: readers of committed messages never see it"


def _of_producer(event: TraceEvent) -> str:
    return "" if event.producer is None else f" of producer {event.producer.id}"


def _leased(event: TraceEvent, zone: tzinfo) -> str:
    attempt = f"attempt {event.attempt}" if event.attempt else "attempt not known"
    return f"leased to {event.consumer or 'a consumer'} until {_until(event, zone)} ({attempt})"


def _extended(event: TraceEvent, zone: tzinfo) -> str:
    return f"{event.consumer or 'the consumer'} keeps it until {_until(event, zone)}"


def _expired(event: TraceEvent, zone: tzinfo) -> str:
    return f"the lease of {event.consumer or 'its consumer'} ran out{_again(event, zone)}"


def _nacked(event: TraceEvent, zone: tzinfo) -> str:
    return f"given back by {event.consumer or 'its consumer'}{_quoted(event)}{_again(event, zone)}"


def _returned(event: TraceEvent, zone: tzinfo) -> str:
    return f"came back because {cause_words(event.reason)}{_again(event, zone)}"


def _again(event: TraceEvent, zone: tzinfo) -> str:
    return ", may be delivered again at once" if event.until_ms is None else f", again from {_until(event, zone)} on"


def _rejected(event: TraceEvent, _zone: tzinfo) -> str:
    return f"rejected by {event.consumer or 'its consumer'}{_quoted(event)}"


def _exhausted(event: TraceEvent, _zone: tzinfo) -> str:
    return f"failed {_times(event)}, which is as often as the queue allows{_quoted(event)}"


def _times(event: TraceEvent) -> str:
    return f"{event.attempt} times" if event.attempt > 1 else "once" if event.attempt else "the last time"


def _outlived(_event: TraceEvent, _zone: tzinfo) -> str:
    return "its time to live is over: not delivered any more"


def _dropped(event: TraceEvent, _zone: tzinfo) -> str:
    return f"left out: {cause_words(event.reason)}"


def _acked(event: TraceEvent, _zone: tzinfo) -> str:
    return f"acked by {event.consumer}" if event.consumer else "acked"


def _picked(event: TraceEvent, _zone: tzinfo) -> str:
    return f"picked by a redrive, to go to {_where(event.target)}"


def _dead_lettered(event: TraceEvent, _zone: tzinfo) -> str:
    return f"dead letter in {_where(event.target)}: {cause_words(event.reason)}"


def _redriven(event: TraceEvent, _zone: tzinfo) -> str:
    return f"redriven to {_where(event.target)}"


def _blocked(_event: TraceEvent, _zone: tzinfo) -> str:
    return "seen, and waits for an earlier message of its key"


def _opened(event: TraceEvent, _zone: tzinfo) -> str:
    return f"the queue begins at offset {event.position}, behind this message"


def _paused(_event: TraceEvent, _zone: tzinfo) -> str:
    return "the queue was paused"


def _resumed(_event: TraceEvent, _zone: tzinfo) -> str:
    return "the queue was resumed"


def _skipped(event: TraceEvent, _zone: tzinfo) -> str:
    return f"skipped: the queue was purged, or its start was moved to offset {event.position}"


def _rewound(event: TraceEvent, _zone: tzinfo) -> str:
    return f"to be delivered anew: the queue's start was moved back to offset {event.position}"


def _closed(_event: TraceEvent, _zone: tzinfo) -> str:
    return "the queue was deleted"


def _passed(event: TraceEvent, _zone: tzinfo) -> str:
    before = "" if event.position_before is None else f", before it was {event.position_before}"
    return f"the group passed it: committed position {event.position}{before}"


def _set_back(event: TraceEvent, _zone: tzinfo) -> str:
    return (
        f"the group was set back before it: committed position {event.position}, before it was {event.position_before}"
    )


def _until(event: TraceEvent, zone: tzinfo) -> str:
    return "?" if event.until_ms is None else moment(event.until_ms, zone)


def _quoted(event: TraceEvent) -> str:
    return f' ("{event.text}")' if event.text else ""


def _where(target: Place | None) -> str:
    if target is None:
        return "another topic"
    return str(target) if target.offset >= 0 else f"{target.topic}-{target.partition}"


_SENTENCES: Final = {
    Kind.SCHEDULED: _scheduled,
    Kind.RESCHEDULED: _rescheduled,
    Kind.CANCELLED: _cancelled,
    Kind.RELEASED: _released,
    Kind.APPENDED: _appended,
    Kind.COMMITTED: _committed,
    Kind.ABORTED: _aborted,
    Kind.BLOCKED: _blocked,
    Kind.LEASED: _leased,
    Kind.EXTENDED: _extended,
    Kind.EXPIRED: _expired,
    Kind.NACKED: _nacked,
    Kind.RETURNED: _returned,
    Kind.REJECTED: _rejected,
    Kind.EXHAUSTED: _exhausted,
    Kind.OUTLIVED: _outlived,
    Kind.DROPPED: _dropped,
    Kind.ACKED: _acked,
    Kind.PICKED: _picked,
    Kind.DEAD_LETTERED: _dead_lettered,
    Kind.REDRIVEN: _redriven,
    Kind.OPENED: _opened,
    Kind.PAUSED: _paused,
    Kind.RESUMED: _resumed,
    Kind.SKIPPED: _skipped,
    Kind.REWOUND: _rewound,
    Kind.CLOSED: _closed,
    Kind.PASSED: _passed,
    Kind.SET_BACK: _set_back,
}
assert set(_SENTENCES) == set(Kind), "every kind has its sentence"
