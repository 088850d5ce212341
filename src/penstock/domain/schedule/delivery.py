"""Which records of a producer's batch wait, and until when.

What is due already when it comes is published like any other. But a producer that can repeat a batch must get the same
answer again, whatever the clock says by then, or a record that was put into the schedule the first time would be
delivered a second time because it has become due meanwhile. So in its batches every record with a time goes through
the schedule, and one whose time is past is due at once: the choice depends on the batch alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.domain.schedule.headers import DELIVER_AT_HEADER, BadDelivery, Header, due_of


class Delayed(msgspec.Struct, frozen=True):
    # Of the record, in its batch.
    number: int
    due_ms: int


class BadRecords(msgspec.Struct, frozen=True):
    """Nobody knows when these are wanted."""

    numbers: tuple[int, ...]
    # About the first of them.
    reason: str


def find_delayed(
    records: Iterable[tuple[int, Sequence[Header]]], arrived_ms: int, *, is_repeatable: bool
) -> list[Delayed] | BadRecords:
    """In the order of the batch. `is_repeatable`: its producer has an id, and sends it again if it is not answered."""
    delayed: list[Delayed] = []
    bad: list[tuple[int, BadDelivery]] = []
    for number, headers in records:
        due = due_of(headers, arrived_ms)
        if isinstance(due, BadDelivery):
            bad.append((number, due))
        elif due is not None:
            delayed.append(Delayed(number, due))
        elif is_repeatable and any(name == DELIVER_AT_HEADER for name, _value in headers):
            delayed.append(Delayed(number, arrived_ms))
    if bad:
        number, problem = bad[0]
        reason = f"record {number}: header {problem.header}: {problem.detail}"
        return BadRecords(tuple(number for number, _problem in bad), reason)
    return delayed
