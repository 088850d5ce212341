"""What clients saw, compared with what was promised: small, linear, and without a search.

Offsets are the order, so there is nothing to guess. Each rule has a name, and a unit test in which it is broken:

    acked-lost        what was acknowledged is not there            moved       it is not where that was said
    phantom           there is something that nobody sent           duplicate   something is there twice
    reorder           a producer's messages changed places          real-time   it is behind what began after its ack

Times are of one monotonic clock: `began_at` is before the request was made, `at` after its answer was there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

# The first so many of each kind are told; a broken rule is often broken a thousand times.
TOLD_MAX = 5


class Violation(msgspec.Struct, frozen=True):
    rule: str
    detail: str


class Sent(msgspec.Struct, frozen=True):
    producer: str
    # Of this producer's messages to this partition: rising.
    number: int
    began_at: float


class Acked(msgspec.Struct, frozen=True):
    partition: int
    # None: it is there, and the client does not know where. So after a repetition that the broker knew again.
    offset: int | None
    at: float


def told(violations: Iterable[Violation]) -> str:
    """For people: every rule that was broken, with its first cases. Empty: none was."""
    by_rule: dict[str, list[str]] = {}
    for violation in violations:
        by_rule.setdefault(violation.rule, []).append(violation.detail)
    return "\n".join(
        f"{rule} ({len(details)}): {'; '.join(details[:TOLD_MAX])}" for rule, details in sorted(by_rule.items())
    )


def check_log(
    sent: Mapping[str, Sent],
    acked: Mapping[str, Acked],
    logs: Mapping[int, Sequence[tuple[int, str]]],
) -> list[Violation]:
    """`logs` are the partitions as they were read at the end: offset and value."""
    places: dict[str, tuple[int, int]] = {}
    found: list[Violation] = []
    for partition, entries in sorted(logs.items()):
        found += _check_order(partition, entries, sent, acked)
        for offset, value in entries:
            if value not in sent:
                found.append(Violation("phantom", f"{value!r} at {partition}/{offset}"))
            if value in places:
                found.append(Violation("duplicate", f"{value!r} at {places[value]} and {(partition, offset)}"))
            places[value] = (partition, offset)
    for value, ack in acked.items():
        place = places.get(value)
        if place is None:
            found.append(Violation("acked-lost", f"{value!r}, acknowledged at {ack.partition}/{ack.offset}"))
        elif place != (ack.partition, place[1] if ack.offset is None else ack.offset):
            found.append(Violation("moved", f"{value!r}: told {(ack.partition, ack.offset)}, is at {place}"))
    return found


def _check_order(
    partition: int, entries: Sequence[tuple[int, str]], sent: Mapping[str, Sent], acked: Mapping[str, Acked]
) -> list[Violation]:
    found: list[Violation] = []
    last: dict[str, tuple[int, str]] = {}
    latest_begin, latest_value = float("-inf"), ""
    for offset, value in sorted(entries):
        message, ack = sent.get(value), acked.get(value)
        if message is None:
            continue
        before = last.get(message.producer)
        if before is not None and before[0] > message.number:
            found.append(Violation("reorder", f"{value!r} at {partition}/{offset} is behind {before[1]!r}"))
        last[message.producer] = (message.number, value)
        # Whoever stands before it began later than this one was acknowledged.
        if ack is not None and ack.at < latest_begin:
            found.append(Violation("real-time", f"{value!r} at {partition}/{offset} is behind {latest_value!r}"))
        if message.began_at > latest_begin:
            latest_begin, latest_value = message.began_at, value
    return found
