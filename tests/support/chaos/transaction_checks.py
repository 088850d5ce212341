"""Transactions, as whoever reads committed records saw them.

aborted-read       something of a transaction that was aborted can be read
torn-read          a part of a transaction can be read, and a part cannot
committed-lost     a transaction was confirmed, and nothing of it can be read
copy-twice         an input was copied more than once by what can be read
copy-lost          an input has no copy
transaction-order  of one producer a later transaction stands before an earlier one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from support.chaos.checks import Violation


class Fate(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Transaction(msgspec.Struct, frozen=True):
    """`name` is its producer's and its number among that producer's, `values` is all that was sent in it."""

    producer: str
    number: int
    values: tuple[str, ...]
    fate: Fate


class Copy(msgspec.Struct, frozen=True):
    """What was read: in the order of a partition."""

    partition: int
    offset: int
    value: str
    producer: str
    number: int


def check_transactions(transactions: Iterable[Transaction], copies: Sequence[Copy]) -> list[Violation]:
    """Linear: what was read is put beside its transaction by producer and number."""
    read: dict[tuple[str, int], Counter[str]] = {}
    for copy in copies:
        read.setdefault((copy.producer, copy.number), Counter())[copy.value] += 1
    found: list[Violation] = []
    for each in transactions:
        name, wanted = f"{each.producer}/{each.number}", Counter(each.values)
        seen = read.pop((each.producer, each.number), Counter())
        if seen and each.fate is Fate.ABORTED:
            found.append(Violation("aborted-read", f"{name}: {sorted(seen)[:3]}"))
        elif not seen and each.fate is Fate.COMMITTED:
            found.append(Violation("committed-lost", f"{name}: {sorted(wanted)[:3]}"))
        elif seen and seen != wanted:
            found.append(Violation("torn-read", f"{name}: {seen.total()} of {wanted.total()}"))
    found += [Violation("phantom", f"{producer}/{number}") for producer, number in read]
    return found + _check_order(copies)


def check_copies(inputs: Iterable[str], copies: Sequence[Copy]) -> list[Violation]:
    times = Counter(copy.value for copy in copies)
    found = [Violation("copy-twice", f"{value!r}: {count}") for value, count in times.items() if count > 1]
    return found + [Violation("copy-lost", repr(value)) for value in inputs if value not in times]


def _check_order(copies: Sequence[Copy]) -> list[Violation]:
    found: list[Violation] = []
    last: dict[tuple[str, int], int] = {}
    for copy in sorted(copies, key=lambda each: (each.partition, each.offset)):
        before = last.get((copy.producer, copy.partition), -1)
        if copy.number < before:
            found.append(Violation("transaction-order", f"{copy.producer}/{copy.number} is behind {before}"))
        last[(copy.producer, copy.partition)] = copy.number
    return found


def fates_of(transactions: Iterable[Transaction]) -> Mapping[Fate, int]:
    return Counter(each.fate for each in transactions)
