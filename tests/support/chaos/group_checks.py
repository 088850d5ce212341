"""Positions of a group, as they were committed and as they were seen: they never go back, and never run ahead.

offset-regress    less was seen than had been confirmed before anybody looked
offset-ahead      more was seen than anybody had committed by then
unread            what was acknowledged to a producer was read by no member
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from support.chaos.checks import Violation


class Committed(msgspec.Struct, frozen=True):
    partition: int
    # What is to be read next.
    offset: int
    began_at: float
    # None: no answer, or one that leaves it open.
    confirmed_at: float | None


class Seen(msgspec.Struct, frozen=True):
    """By whoever asked for the group's positions, or began to read at one."""

    partition: int
    offset: int
    began_at: float
    at: float


def check_positions(commits: Sequence[Committed], seen: Sequence[Seen]) -> list[Violation]:
    found: list[Violation] = []
    for partition in sorted({each.partition for each in seen}):
        of_it = [each for each in commits if each.partition == partition]
        looks = [each for each in seen if each.partition == partition]
        found += _regressed(partition, of_it, looks)
        found += _ahead(partition, of_it, looks)
    return found


def check_read(acked: Iterable[str], read: Collection[str]) -> list[Violation]:
    return [Violation("unread", repr(value)) for value in acked if value not in read]


def _regressed(partition: int, commits: list[Committed], looks: list[Seen]) -> list[Violation]:
    """Two lists in the order of time, walked together: what was confirmed before a look began must be in it."""
    found: list[Violation] = []
    confirmed = sorted((each.confirmed_at, each.offset) for each in commits if each.confirmed_at is not None)
    highest, place = 0, 0
    for look in sorted(looks, key=lambda each: each.began_at):
        while place < len(confirmed) and confirmed[place][0] <= look.began_at:
            highest = max(highest, confirmed[place][1])
            place += 1
        if look.offset < highest:
            found.append(Violation("offset-regress", f"partition {partition}: {look.offset} after {highest}"))
    return found


def _ahead(partition: int, commits: list[Committed], looks: list[Seen]) -> list[Violation]:
    found: list[Violation] = []
    begun = sorted((each.began_at, each.offset) for each in commits)
    highest, place = 0, 0
    for look in sorted(looks, key=lambda each: each.at):
        while place < len(begun) and begun[place][0] <= look.at:
            highest = max(highest, begun[place][1])
            place += 1
        if look.offset > highest:
            found.append(Violation("offset-ahead", f"partition {partition}: {look.offset}, at most {highest} by then"))
    return found
