"""What the schedule of a partition tells about one delayed message, and where in the topic it was released to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Final

import msgspec

from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.trace.index import TraceIndex
from penstock.broker.trace.log import count_holes, find_sequence
from penstock.codec.batch.records import StoredRecord
from penstock.domain.queue.receipt import MessageId, write_scheduled_id
from penstock.domain.schedule.records import (
    End,
    Ended,
    Move,
    MoveIntended,
    ProducerBatch,
    Scheduled,
    ScheduleRecord,
    read_entry_key,
)
from penstock.domain.schedule.rows import Message, Row, read_message, read_row
from penstock.domain.trace.events import Place, PlaceFacts, PlaceState, Producer, TraceEvent, TransactionState
from penstock.domain.trace.schedule import producer_of, schedule_events
from penstock.domain.trace.zones import BUCKET_BITS, NARROW, NARROW_BUCKETS_MAX, producer_key
from penstock.storage.log.time_lookup import TimestampOffset
from penstock.storage.segment.zones import ZoneEntries

# The clocks of producers, by which the log is searched, differ from the node's.
RELEASE_SLACK_MS: Final = 2_000

# A row about the message or an intent to release, and the message if the row holds it.
_Told = tuple[ScheduleRecord, Message | None]


class ScheduleHistory:
    """Of one message: `read`, then the rest."""

    def __init__(self, index: TraceIndex, shell: ScheduleShell, place: Place, readers: Executor, node: int) -> None:
        self._index = index
        self._shell = shell
        self._place = place
        self._readers = readers
        self._node = node
        self._told: list[_Told] = []

    async def read(self) -> None:
        origin = self._place.offset
        zones = await self._index.find(lambda entries: _zones_of(entries, origin))
        position = self._position_in(await self._index.rows(zones, lambda record: _about(record, origin)))
        if position >> BUCKET_BITS != origin >> BUCKET_BITS:
            # It was given another time, and released from its last place.
            zones += await self._index.find(lambda entries: _zones_of(entries, position))
            zones = sorted(set(zones), key=lambda zone: zone.start)
        self._told = await self._index.rows(zones, lambda record: _about(record, origin))

    def _position_in(self, told: list[_Told]) -> int:
        """Where its row was last."""
        return next(
            (record.position for record, _ in reversed(told) if isinstance(record, Scheduled)), self._place.offset
        )

    def facts(self, topic_id: bytes) -> PlaceFacts:
        place = self._place
        scheduled = [told for told in self._told if isinstance(told[0], Scheduled)]
        name = write_scheduled_id(MessageId(topic_id, place.partition, place.offset))
        if not scheduled:
            return PlaceFacts(place=place, id=name, state=self._state(), node=self._node)
        record, message = scheduled[0]
        assert isinstance(record, Scheduled)
        assert message is not None
        return PlaceFacts(
            place=place,
            id=name,
            state=self._state(),
            timestamp_ms=record.at_ms,
            has_log_append_time=True,
            key=None if message.key is None else message.key.decode(errors="backslashreplace")[:200],
            size_bytes=len(message.key or b"") + len(message.value or b""),
            producer=producer_of(record),
            transaction=self._transaction(record),
            is_durable=self._shell.companion.is_kept(place.offset),
            node=self._node,
            replica_count=1,
            replicas_in_sync=1,
        )

    def _state(self) -> PlaceState:
        ends = [record.end for record, _ in self._told if isinstance(record, Ended)]
        if ends:
            return PlaceState.RELEASED if ends[-1] is End.RELEASED else PlaceState.CANCELLED
        if self._place.offset >= self._shell.companion.readable_end:
            return PlaceState.AHEAD
        return PlaceState.PENDING if self._told else PlaceState.DELETED

    def _transaction(self, record: Scheduled) -> TransactionState:
        if not record.is_transactional or record.producer is None:
            return TransactionState.NONE
        if self._shell.machine.place_of(self._place.offset) is not None or self._state() is not PlaceState.PENDING:
            return TransactionState.COMMITTED
        is_open = self._shell.machine.is_held(self._place.offset)
        return TransactionState.OPEN if is_open else TransactionState.ABORTED

    async def strand(self) -> list[TraceEvent]:
        released_to = await self._released_to()
        return schedule_events(self._place, [record for record, _ in self._told], released_to)

    async def _released_to(self) -> Place | None:
        """Found by the producer's sequence that it was released with; where about, the times say."""
        position = self._position_in(self._told)
        due_ms = next((record.due_ms for record, _ in reversed(self._told) if isinstance(record, Scheduled)), 0)
        intents = [record for record, _ in self._told if isinstance(record, MoveIntended)]
        intent = next((each for each in intents if position in each.move.sources), None)
        if intent is None:
            return None
        for since_ms in (intent.at_ms - RELEASE_SLACK_MS, due_ms):
            offset = await self._search(intent.move, position, since_ms)
            if offset is not None:
                return Place(self._place.topic, self._place.partition, offset)
        return None

    async def _search(self, move: Move, position: int, since_ms: int) -> int | None:
        partition: PartitionShell = self._shell.partition
        found = await asyncio.to_thread(partition.offset_for_timestamp, since_ms)
        if not isinstance(found, TimestampOffset):
            return None
        sequence = (move.base_sequence + move.sources.index(position)) % (1 << 31)
        return await find_sequence(partition, found.offset, move.producer_id, sequence, self._readers)


def _zones_of(entries: ZoneEntries, origin: int) -> Iterator[int]:
    bucket = origin >> BUCKET_BITS
    low_min = max(bucket - NARROW_BUCKETS_MAX, 0)
    for _key, _low, high, zone in entries.find(NARROW, NARROW, low_min=low_min, low_max=bucket):
        if high >= bucket:
            yield zone


def _about(record: StoredRecord, origin: int) -> _Told | None:
    """In a thread. Intents to release are kept whatever they name: of a thousand messages there is one."""
    key = record.key or b""
    found = read_entry_key(key)
    row = Row(key, record.value, record.headers)
    try:
        if found is not None:
            if found[0] != origin:
                return None
            return read_message(row) if record.value is not None else (read_row(row), None)
        told = read_row(row)
    except msgspec.DecodeError:
        return None
    return (told, None) if isinstance(told, MoveIntended) else None


async def find_origin(
    index: TraceIndex, partition: PartitionShell, offset: int, producer: Producer, readers: Executor
) -> int | None:
    """The first place of a delayed message whose slot in the topic is empty.

    The schedule numbers the delayed messages of a batch; which of them this is the holes before it in the batch say.
    """
    key, sequence = producer_key(producer.id), producer.sequence

    def look(entries: ZoneEntries) -> list[int]:
        found = [(low, zone) for _key, low, _high, zone in entries.find(key, key, low_max=sequence)]
        lowest = max((low for low, _ in found), default=-1)
        return [zone for low, zone in found if low == lowest]

    def keep(record: StoredRecord) -> tuple[int, ProducerBatch] | None:
        origin, batch = read_entry_key(record.key or b"") or (-1, None)
        if batch is None or (batch.producer_id, batch.producer_epoch) != (producer.id, producer.epoch):
            return None
        return (origin, batch) if batch.base_sequence <= sequence else None

    found = await index.rows(await index.find(look), keep)
    base_sequence = max((batch.base_sequence for _, batch in found), default=-1)
    if base_sequence < 0:
        return None
    rank = await count_holes(partition, offset - (sequence - base_sequence), offset, readers)
    of_batch = {batch.index: origin for origin, batch in found if batch.base_sequence == base_sequence}
    return None if rank is None else of_batch.get(rank)
