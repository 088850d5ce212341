"""What a query's WHERE spares the source: offsets, times, partitions and topics that need not be read. Pure.

Spark evaluates every filter again, so this may be coarse; it must never leave out a row that is wanted. What is not
understood narrows nothing. A lower bound on the time moves the start of reading (the broker knows the first offset of a
moment); an upper one cannot move the end, because an older message may stand behind a younger one: it only leaves rows
out before they reach Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from penstock.pipeline.source.ranges import Position

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MIRRORED: Final = frozenset({"EqualTo", "EqualNullSafe"})


class Narrowing(msgspec.Struct, frozen=True):
    """Bounds, all of which hold. Lower ones are inclusive, upper ones (`_end`) are not; None is no bound."""

    offset_min: int | None = None
    offset_end: int | None = None
    time_ms_min: int | None = None
    time_ms_end: int | None = None
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None

    def kept(self, position: Position) -> Position:
        return {
            topic: {
                index: offset
                for index, offset in partitions.items()
                if self.partitions is None or index in self.partitions
            }
            for topic, partitions in position.items()
            if self.topics is None or topic in self.topics
        }

    def raised(self, start: Position) -> Position:
        low = self.offset_min
        return start if low is None else _each(start, lambda offset: max(offset, low))

    def lowered(self, end: Position) -> Position:
        high = self.offset_end
        return end if high is None else _each(end, lambda offset: min(offset, high))

    def within(self, other: Narrowing) -> Narrowing:
        """The bounds of both."""
        return Narrowing(
            offset_min=_larger(self.offset_min, other.offset_min),
            offset_end=_smaller(self.offset_end, other.offset_end),
            time_ms_min=_larger(self.time_ms_min, other.time_ms_min),
            time_ms_end=_smaller(self.time_ms_end, other.time_ms_end),
            partitions=_both(self.partitions, other.partitions),
            topics=_both(self.topics, other.topics),
        )


def _each(position: Position, change: Any) -> Position:
    return {
        topic: {index: change(offset) for index, offset in partitions.items()} for topic, partitions in position.items()
    }


def narrow(filters: Iterable[Any]) -> Narrowing:
    """`filters` are Spark's (`pyspark.sql.datasource.Filter`), known here by the names of their classes."""
    narrowing = Narrowing()
    for wanted in filters:
        # A longer path is a field of a column; a negation has none at all.
        path: tuple[str, ...] = getattr(wanted, "attribute", ("", ""))
        if len(path) == 1:
            narrowing = _narrow_by(narrowing, path[0], type(wanted).__name__, getattr(wanted, "value", None))
    return narrowing


def _narrow_by(known: Narrowing, column: str, comparison: str, value: Any) -> Narrowing:
    match column:
        case "offset":
            low, end = _number_bounds(comparison, value)
            return msgspec.structs.replace(
                known, offset_min=_larger(known.offset_min, low), offset_end=_smaller(known.offset_end, end)
            )
        case "timestamp":
            low, end = _time_bounds(comparison, value)
            return msgspec.structs.replace(
                known, time_ms_min=_larger(known.time_ms_min, low), time_ms_end=_smaller(known.time_ms_end, end)
            )
        case "partition":
            named = _both(known.partitions, _named(comparison, value, int))
            return msgspec.structs.replace(known, partitions=named)
        case "topic":
            return msgspec.structs.replace(known, topics=_both(known.topics, _named(comparison, value, str)))
        case _:
            return known


def _number_bounds(comparison: str, value: Any) -> tuple[int | None, int | None]:
    if comparison == "In":
        numbers = [number for number in value if number is not None]
        if not numbers or not all(_is_number(number) for number in numbers):
            return None, None
        return min(numbers), max(numbers) + 1
    if not _is_number(value):
        return None, None
    return _bounds(comparison, value, value + 1)


def _time_bounds(comparison: str, value: Any) -> tuple[int | None, int | None]:
    """Columns hold whole milliseconds, a filter may name microseconds between them."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None, None
    microseconds = (value - _EPOCH) // _MICROSECOND
    at_or_after, after = -(-microseconds // 1000), microseconds // 1000 + 1
    return _bounds(comparison, at_or_after, after)


def _bounds(comparison: str, at_or_after: int, after: int) -> tuple[int | None, int | None]:
    match comparison:
        case "GreaterThanOrEqual":
            return at_or_after, None
        case "GreaterThan":
            return after, None
        case "LessThan":
            return None, at_or_after
        case "LessThanOrEqual":
            return None, after
        case _ if comparison in _MIRRORED:
            return at_or_after, after
        case _:
            return None, None


def _named(comparison: str, value: Any, kind: type) -> frozenset[Any] | None:
    values = value if comparison == "In" else (value,) if comparison in _MIRRORED else None
    if values is None:
        return None
    # A null in the list matches nothing.
    found = [item for item in values if item is not None]
    return frozenset(found) if found and all(type(item) is kind for item in found) else None


def _is_number(value: Any) -> bool:
    return type(value) is int


def _larger(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else max(first, second)


def _smaller(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else min(first, second)


def _both(first: frozenset[Any] | None, second: frozenset[Any] | None) -> frozenset[Any] | None:
    return second if first is None else first if second is None else first & second
