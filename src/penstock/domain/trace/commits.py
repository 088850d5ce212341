"""When consumer groups passed a message: their committed positions, of which only a few records are read.

A group has passed a message when the position that it committed lies behind it. Between two commits a position grows,
unless somebody sets it back; so of each zone of `__consumer_offsets` the lowest and the highest position of a group
tell whether anything changed in it for one message, and only such zones are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.domain.group.records import OffsetStored
from penstock.domain.group.values import NO_TOPIC_ID
from penstock.domain.trace.events import Kind, Place, TraceEvent

_LOWER_BITS: Final = 0xFFFF_FFFF

# Group and what it committed, in the order of the log.
Commit = tuple[str, OffsetStored]


class CommitSearch:
    """Asked about one segment after the other, in the order of the log: what was before decides what is news."""

    def __init__(self, key: int, offset: int) -> None:
        self.key_first = key
        self.key_last = key | _LOWER_BITS
        self._offset = offset
        # By group's key, whether its position lies behind the message. None: its last zone had both, and only the
        # records say how it ended.
        self._has_passed: dict[int, bool | None] = {}

    def news_in(self, entries: Iterable[tuple[int, int, int, int]]) -> list[int]:
        """Zones of a segment to be read, of its entries about the partition: key, lowest, highest, zone."""
        # A zone that was looked through in pieces has several entries, in no order of time: they are put together.
        bounds: dict[tuple[int, int], tuple[int, int]] = {}
        for key, low, high, zone in entries:
            known_low, known_high = bounds.get((zone, key), (low, high))
            bounds[zone, key] = min(low, known_low), max(high, known_high)
        zones: list[int] = []
        for (zone, key), (low, high) in sorted(bounds.items()):
            had_passed = self._has_passed.get(key, False)
            is_above, is_below = low > self._offset, high <= self._offset
            if had_passed is None or (had_passed and not is_above) or (not had_passed and not is_below):
                zones.append(zone)
            self._has_passed[key] = is_above if is_above or is_below else None
        return zones


def commit_events(place: Place, topic_id: bytes, commits: Iterable[Commit]) -> list[TraceEvent]:
    """Of commits of that partition, all that `CommitSearch` wants read and perhaps more: where a group passed the
    message, and where it was set back before it."""
    before: dict[str, int] = {}
    events: list[TraceEvent] = []
    for group, stored in commits:
        if stored.topic_id not in (NO_TOPIC_ID, topic_id):
            continue  # of a topic of the same name that is gone
        last = before.get(group)
        had_passed = last is not None and last > place.offset
        has_passed = stored.offset > place.offset
        before[group] = stored.offset
        if has_passed == had_passed:
            continue
        events.append(
            TraceEvent(
                kind=Kind.PASSED if has_passed else Kind.SET_BACK,
                at_ms=stored.committed_ms,
                place=place,
                group=group,
                position_before=last,
                position=stored.offset,
                text=stored.metadata,
            )
        )
    return events
