"""What the journal of a partition's queues tells about one message: the few zones of it that name the message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.broker.trace.index import TraceIndex, Zone
from penstock.codec.batch.records import StoredRecord
from penstock.domain.queue.records import MoveDone, MoveDropped, MoveIntended, read_record
from penstock.domain.trace.events import PlaceFacts, TraceEvent
from penstock.domain.trace.queue import JournalRow, NameOf, queue_events
from penstock.domain.trace.words import moment
from penstock.domain.trace.zones import BUCKET_BITS, NARROW, NARROW_BUCKETS_MAX, WIDE, speaks_of
from penstock.storage.segment.zones import ZoneEntries

# The end of a move follows its intent at once, mostly; a target that was not to be had makes it wait.
MOVE_ZONES_MAX: Final = 64
ZONES_MAX: Final = 4_000


class QueueHistory:
    def __init__(self, index: TraceIndex, name_of: NameOf) -> None:
        self._index = index
        self._name_of = name_of

    async def strand(self, facts: PlaceFacts, notes: list[str]) -> list[TraceEvent]:
        """Its queues' events, in the order of their journal."""
        offset = facts.place.offset
        zones = await self._index.find(lambda entries: _zones_of(entries, offset))
        if len(zones) > ZONES_MAX:
            notes.append(f"the queues of {facts.place.topic} say more about it than can be read at once")
            zones = zones[:ZONES_MAX]
        rows = await self._index.rows(zones, lambda row: _about(row, offset))
        rows += await self._ends_of_moves(rows, zones)
        self._note_horizon(facts, notes)
        return queue_events(facts.place, sorted(rows, key=_position), since_ms=_since(facts), name_of=self._name_of)

    async def _ends_of_moves(self, rows: list[JournalRow], zones: list[Zone]) -> list[JournalRow]:
        """Of intents whose end the zones do not hold: the end names a number only, so it is looked for behind them."""
        ends = {(group, record.batch) for _, group, record in rows if isinstance(record, MoveDone | MoveDropped)}
        found: list[JournalRow] = []
        for position, group, record in rows:
            if not isinstance(record, MoveIntended) or (group, record.move.batch) in ends:
                continue
            behind = await self._index.find(lambda entries: range(len(entries.starts)))
            later = [zone for zone in behind if zone.end > position and zone not in zones][:MOVE_ZONES_MAX]
            batch = record.move.batch
            more = await self._index.rows(later, lambda row, batch=batch: _end_of(row, batch))  # type: ignore[misc]
            found += [row for row in more if row[1] == group and row[0] > position][:1]
        return found

    def _note_horizon(self, facts: PlaceFacts, notes: list[str]) -> None:
        log = self._index.shell.log
        if not log.log_start or not log.segments:
            return
        begins_ms = log.segments[0].begun_ms
        if facts.timestamp_ms is None or facts.timestamp_ms < begins_ms:
            notes.append(
                f"the journal of the queues of {facts.place.topic}-{facts.place.partition} begins at "
                f"{moment(begins_ms)}: what happened before is not known any more"
            )


def _zones_of(entries: ZoneEntries, offset: int) -> Iterator[int]:
    bucket = offset >> BUCKET_BITS
    low_min = max(bucket - NARROW_BUCKETS_MAX, 0)
    for key, first, last in ((NARROW, low_min, bucket), (WIDE, 0, bucket)):
        for _key, _low, high, zone in entries.find(key, key, low_min=first, low_max=last):
            if high >= bucket:
                yield zone


def _about(row: StoredRecord, offset: int) -> JournalRow | None:
    """In a thread. The end of a move names no message, so all of them are kept; there are few."""
    if row.key is None or row.value is None:
        return None
    try:
        record = read_record(row.value)
    except msgspec.DecodeError:
        return None
    is_end = isinstance(record, MoveDone | MoveDropped)
    return (row.offset, row.key.decode(errors="replace"), record) if is_end or speaks_of(record, offset) else None


def _end_of(row: StoredRecord, batch: int) -> JournalRow | None:
    found = _about(row, -1)
    is_end = found is not None and isinstance(found[2], MoveDone | MoveDropped) and found[2].batch == batch
    return found if is_end else None


def _position(row: JournalRow) -> int:
    return row[0]


def _since(facts: PlaceFacts) -> int | None:
    return facts.timestamp_ms
