"""What a schedule remembers, and how records change it: live and at recovery alike, without looking at a clock.

    pending     the places of messages that wait: one bit each
    places      of those that were given another time: from their first place to the present one
    origins     and back
    held        messages whose transaction is open: not pending yet
    producers   of every producer its last batches with delayed messages: what comes again is known by them
    move        the mover's last intent
    crons       what makes messages by itself: see `cron_book`
    buckets     when pending messages are due; follows from the rest

The log may have been compacted: of the rows of one message any but the last may be missing.
"""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from penstock.domain.schedule.buckets import Buckets
from penstock.domain.schedule.cron_book import CronBook, Zones
from penstock.domain.schedule.positions import PositionMap, PositionSet
from penstock.domain.schedule.records import (
    NO_POSITION,
    CronDefined,
    CronDeleted,
    CronFired,
    Ended,
    Move,
    MoveDone,
    MoveIntended,
    ProducerBatch,
    Scheduled,
    ScheduleRecord,
    Stored,
    StoredBatch,
    TransactionEnded,
)

# As many as a Kafka producer has on its way at once: older ones are not repeated any more.
BATCHES_PER_PRODUCER_MAX: Final = 5
# Those that sent a delayed message last. By number and not by age: a clock that jumps a day must not make a batch that
# is sent again a new one.
PRODUCERS_MAX: Final = 10_000


class _Held:
    __slots__ = ("entries", "producer_epoch")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        # Place and due time.
        self.entries: list[tuple[int, int]] = []


class ScheduleState:
    __slots__ = (
        "buckets",
        "crons",
        "held",
        "is_moving",
        "last_position",
        "move",
        "moving",
        "origins",
        "pending",
        "places",
        "producers",
    )

    def __init__(self, zones: Zones) -> None:
        self.pending = PositionSet()
        self.places = PositionMap()
        self.origins = PositionMap()
        self.held: dict[int, _Held] = {}
        self.producers: dict[int, list[StoredBatch]] = {}
        self.crons = CronBook(zones)
        self.move: Move | None = None
        self.is_moving = False
        self.moving: frozenset[int] = frozenset()
        self.last_position = NO_POSITION
        # Asked for millions of places: the set itself.
        self.buckets = Buckets(self.pending.__contains__)

    # ------------------------------------------------------------------ views

    def is_pending(self, position: int) -> bool:
        return position in self.pending

    def place_of(self, origin: int) -> int:
        """Where the message of that id is now; it need not be pending."""
        return self.places.get(origin, origin)

    def origin_of(self, position: int) -> int:
        """The first place of the message that is there now."""
        return self.origins.get(position, position)

    def repeated_count(self, producer: ProducerBatch) -> int:
        """How many delayed messages of this batch are here already."""
        for batch in reversed(self.producers.get(producer.producer_id, ())):
            # From before there were checksums, nobody knows.
            is_same = batch.checksum == producer.checksum or not (batch.checksum and producer.checksum)
            if is_same and _place_of(batch) == _place_of(producer):
                return batch.count
        return 0

    # ------------------------------------------------------------------ records

    def apply(self, record: ScheduleRecord) -> None:
        """Never refuses."""
        match record:
            case Scheduled():
                self._apply_scheduled(record)
            case Ended():
                self._end(record.origin, record.position)
            case MoveIntended():
                self.move = record.move
                self.is_moving = True
                self.moving = frozenset(record.move.sources)
            case MoveDone():
                self._apply_done(record)
            case TransactionEnded():
                self._apply_transaction_end(record)
            case CronDefined() | CronDeleted() | CronFired():
                if isinstance(record, CronDefined):
                    self.last_position = max(self.last_position, record.position)
                self.crons.apply(record)
            case Stored():
                self._apply_stored(record)
            case _:
                assert_never(record)

    def _apply_scheduled(self, record: Scheduled) -> None:
        self.last_position = max(self.last_position, record.position)
        if record.producer is not None:
            self._note_batch(record.producer)
            if record.is_transactional:
                self._hold(record, record.producer)
                return
        if record.replaces != NO_POSITION:
            self._end(record.origin, record.replaces)
            self.places.set(record.origin, record.position)
            self.origins.set(record.position, record.origin)
        if record.cron:
            self.crons.note_fired(record.cron, record.due_ms)
        self.pending.add(record.position)
        self.buckets.place(record.due_ms, record.position, from_ms=record.at_ms)

    def _end(self, origin: int, position: int) -> None:
        self.pending.discard(position)
        # Compaction may have taken the rows in between: then the message waits where it was before them.
        self.pending.discard(self.place_of(origin))

    def _note_batch(self, producer: ProducerBatch) -> None:
        # To the end of the dictionary: the first one is who has been silent for longest.
        batches = self.producers.pop(producer.producer_id, [])
        self.producers[producer.producer_id] = batches
        if len(self.producers) > PRODUCERS_MAX:
            del self.producers[next(iter(self.producers))]
        for place, batch in enumerate(batches):
            if _place_of(batch) == _place_of(producer) and batch.checksum == producer.checksum:
                batches[place] = msgspec.structs.replace(batch, count=batch.count + 1)
                return
        batches.append(StoredBatch(producer.producer_epoch, producer.base_sequence, 1, producer.checksum))
        del batches[:-BATCHES_PER_PRODUCER_MAX]

    def _hold(self, record: Scheduled, producer: ProducerBatch) -> None:
        held = self.held.get(producer.producer_id)
        if held is None or held.producer_epoch < producer.producer_epoch:
            # A newer epoch: whatever is left of an older one was fenced, and its transaction is aborted.
            held = self.held[producer.producer_id] = _Held(producer.producer_epoch)
        held.entries.append((record.position, record.due_ms))

    def _apply_transaction_end(self, record: TransactionEnded) -> None:
        held = self.held.get(record.producer_id)
        if held is None or held.producer_epoch > record.producer_epoch:
            return
        del self.held[record.producer_id]
        if record.is_commit:
            for position, due_ms in held.entries:
                self.pending.add(position)
                self.buckets.place(due_ms, position, from_ms=record.at_ms)
        else:
            # What the log did not take before the abort may come again as something else: there are producers that go
            # on with the sequence that they had. What it did take, it knows by itself.
            self.producers.pop(record.producer_id, None)

    def _apply_done(self, record: MoveDone) -> None:
        for position in record.move.sources:
            self.pending.discard(position)
        self.move = record.move
        self.is_moving = False
        self.moving = frozenset()

    # ------------------------------------------------------------------ snapshots

    def store(self, position: int) -> Stored:
        """After `buckets.take_spill`. Lets go of what is needed no more."""
        self.places.keep(lambda _origin, position: self.is_pending(position))
        self.origins.keep(lambda position, _origin: self.is_pending(position))
        return Stored(
            next_position=position,
            pending=self.pending.store(),
            places=self.places.store(),
            origins=self.origins.store(),
            held=tuple(
                (producer_id, held.producer_epoch, tuple(held.entries))
                for producer_id, held in sorted(self.held.items())
            ),
            producers=tuple((producer_id, tuple(batches)) for producer_id, batches in self.producers.items()),
            crons=self.crons.store(),
            move=self.move,
            is_moving=self.is_moving,
            buckets=self.buckets.store(),
            next_bucket=self.buckets.next_number,
        )

    def _apply_stored(self, record: Stored) -> None:
        self.pending = PositionSet(record.pending)
        self.places = PositionMap(record.places)
        self.origins = PositionMap(record.origins)
        self.held = {}
        for producer_id, producer_epoch, entries in record.held:
            self.held[producer_id] = _Held(producer_epoch)
            self.held[producer_id].entries = list(entries)
        self.producers = {producer_id: list(batches) for producer_id, batches in record.producers}
        self.crons.restore(record.crons)
        self.move = record.move
        self.is_moving = record.is_moving
        self.moving = frozenset(record.move.sources) if record.move is not None and record.is_moving else frozenset()
        self.last_position = record.next_position - 1
        self.buckets = Buckets(self.pending.__contains__)
        self.buckets.restore(record.buckets, next_number=record.next_bucket)


def _place_of(batch: ProducerBatch | StoredBatch) -> tuple[int, int]:
    """In all that its producer sends."""
    return batch.producer_epoch, batch.base_sequence
