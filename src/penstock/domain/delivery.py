"""Which records of a producer's batch wait, and until when.

A producer that repeats a batch gets the same answer again, whatever the clock says by then: a record that was put into
the schedule the first time must not be delivered a second time because it has become due meanwhile. How many of the
batch were put there is known. They are the ones with the latest times, since a record waits if its time is after the
arrival, and a delay, which counts from the arrival, has not got shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.domain.schedule_headers import DELAY_HEADER, DELIVER_AT_HEADER, BadDelivery, Header, due_of

_NAMES = frozenset({DELAY_HEADER, DELIVER_AT_HEADER})


class Candidate(msgspec.Struct, frozen=True):
    """A record with a delivery header that makes sense."""

    # In its batch.
    number: int
    # Not before the arrival.
    due_ms: int
    # As it says itself, however long ago.
    wanted_ms: int


class BadRecords(msgspec.Struct, frozen=True):
    """Nobody knows when these are wanted."""

    numbers: tuple[int, ...]
    # About the first of them.
    reason: str


def find_candidates(records: Iterable[tuple[int, Sequence[Header]]], arrived_ms: int) -> list[Candidate] | BadRecords:
    candidates: list[Candidate] = []
    bad: list[tuple[int, BadDelivery]] = []
    for number, headers in records:
        if not any(name in _NAMES for name, _value in headers):
            continue  # the name stood in its key or value
        # From the beginning of time every header counts: what is past, too.
        wanted = due_of(((name, value) for name, value in headers if name == DELIVER_AT_HEADER), 0)
        due = due_of(headers, arrived_ms)
        if isinstance(due, BadDelivery):
            bad.append((number, due))
            continue
        assert not isinstance(wanted, BadDelivery), "its headers have been read"
        candidates.append(Candidate(number, arrived_ms if due is None else due, (wanted or 0) if due is None else due))
    if bad:
        number, problem = bad[0]
        reason = f"record {number}: header {problem.header}: {problem.detail}"
        return BadRecords(tuple(number for number, _problem in bad), reason)
    return candidates


def choose_delayed(candidates: Sequence[Candidate], arrived_ms: int, *, repeated_count: int) -> list[Candidate]:
    """Those that wait, in the order of the batch. `repeated_count`: so many of the batch are in the schedule already,
    from an earlier attempt; 0: none."""
    if not repeated_count:
        return [candidate for candidate in candidates if candidate.due_ms > arrived_ms]
    latest = sorted(candidates, key=lambda candidate: candidate.wanted_ms, reverse=True)[:repeated_count]
    return sorted(latest, key=lambda candidate: candidate.number)
