"""Events from several logs put in one order.

Each log is in its own order, whatever its clock said; a copy comes after what made it; and a message comes before
everything that happened to it, although it is dated by its producer, whose clock may be wrong. Between logs the
times decide, and where they are the same, the earlier place.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.domain.trace.events import Place, PlaceFacts, TraceEvent


class Visit(msgspec.Struct, frozen=True):
    """One place on the way, and what its logs tell. `strands`: of each log in its own order."""

    facts: PlaceFacts
    arrival: TraceEvent | None
    strands: tuple[tuple[TraceEvent, ...], ...]
    # What brought it here, if that is known.
    made_by: TraceEvent | None = None

    @property
    def targets(self) -> list[tuple[TraceEvent, Place]]:
        """Copies that were made of it, and by what."""
        return [
            (event, event.target)
            for strand in self.strands
            for event in strand
            if event.target is not None and event.target.offset >= 0
        ]


def merge(visits: Sequence[Visit]) -> tuple[TraceEvent, ...]:
    """Visits in the order in which they were made: a copy after its origin."""
    keyed: list[tuple[tuple[int, int, int, int], TraceEvent]] = []
    orders: dict[TraceEvent, int] = {}
    for number, visit in enumerate(visits):
        begin_ms = orders.get(visit.made_by, 0) if visit.made_by is not None else 0
        firsts = [strand[0].at_ms for strand in visit.strands if strand and strand[0].at_ms is not None]
        if visit.arrival is not None:
            dated_ms = visit.arrival.at_ms
            arrived_ms = max(begin_ms, min([*firsts, *([] if dated_ms is None else [dated_ms])], default=begin_ms))
            keyed.append(((arrived_ms, number, -1, 0), visit.arrival))
            orders[visit.arrival] = begin_ms = arrived_ms
        for strand_number, strand in enumerate(visit.strands):
            order_ms = begin_ms
            for place, event in enumerate(strand):
                order_ms = max(order_ms, order_ms if event.at_ms is None else event.at_ms)
                keyed.append(((order_ms, number, strand_number, place), event))
                orders[event] = order_ms
    return tuple(event for _order, event in sorted(keyed, key=lambda pair: pair[0]))
