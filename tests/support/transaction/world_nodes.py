"""The shells of the simulated world: a coordinator with its log, partitions with theirs. They keep the duties that
the machines' documents name, and they may stop at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.domain.log.producer_sequence import Accept, Duplicate, ProducerSequences
from penstock.domain.transaction.commands import (
    AddPartitions,
    Decision,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    PartitionsAdded,
    PartitionsVerified,
    ProducerIdNeeded,
    TimePassed,
    TransactionCommand,
    TransactionReply,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.domain.transaction.machine import TransactionCoordinator
from penstock.domain.transaction.partition import (
    Admitted,
    MarkerStored,
    PartitionTransactions,
    VerificationNeeded,
    WriteMarker,
)
from penstock.domain.transaction.state import VERSION_TWO, TopicPartition, TransactionRecord

if TYPE_CHECKING:
    from support.transaction.world import World

NO_SEQUENCE: Final = -1


class Asker(msgspec.Struct, frozen=True):
    """Who sent a request, in the world's own terms, of which the machines know nothing."""

    incarnation: int
    transaction: int = -1


NOBODY: Final = Asker(-1)

# (transactional id, when its end was decided, partition)
MarkerKey = tuple[str, int, TopicPartition]


class Entry(msgspec.Struct):
    """A decision on its way to the coordinator's disk."""

    decision: Decision
    command: TransactionCommand
    asker: Asker
    reply: Callable[[TransactionReply], None]


class SimCoordinator:
    def __init__(self, world: World, first_records: list[TransactionRecord]) -> None:
        self.world = world
        self.epoch = 0
        # Replies to an earlier life of the coordinator are nobody's.
        self.life = 0
        self.durable = list(first_records)
        self.pending: list[Entry] = []
        self.to_write: dict[MarkerKey, WriteMarkers] = {}
        self.under_way: set[MarkerKey] = set()
        # How many copies of each marker were sent: an answer to one that was given up does not count.
        self.copies: dict[MarkerKey, int] = {}
        self.machine = self._replay()

    def _replay(self) -> TransactionCoordinator:
        machine = TransactionCoordinator(self.world.settings, coordinator_epoch=self.epoch)
        for record in self.durable:
            machine.apply(record)
        return machine

    def submit(
        self, command: TransactionCommand, reply: Callable[[TransactionReply], None], asker: Asker = NOBODY
    ) -> None:
        decision = self.machine.decide(command, self.world.now_ms)
        if isinstance(decision.reply, ProducerIdNeeded):
            assert isinstance(command, InitProducer | EndTransaction)
            command = msgspec.structs.replace(command, spare_producer_id=self.world.next_producer_id())
            decision = self.machine.decide(command, self.world.now_ms)
        for record in decision.records:
            self.machine.apply(record)
        self.pending.append(Entry(decision, command, asker, reply))

    def commit(self) -> None:
        """The disk has everything: replies and markers may leave."""
        entries, self.pending = self.pending, []
        for entry in entries:
            self._keep(entry)
            for markers in entry.decision.effects:
                self._want(markers)
            entry.reply(entry.decision.reply)

    def _keep(self, entry: Entry) -> None:
        self.durable.extend(entry.decision.records)
        self.world.ledger.decided(entry.command, entry.decision, entry.asker)

    def _want(self, markers: WriteMarkers) -> None:
        for partition in markers.partitions:
            self.to_write[markers.transactional_id, markers.ended_ms, partition] = markers

    def crash(self) -> None:
        """Loses what the disk does not have. A crash on the same node takes what it had sent along, one that moves
        the coordinator to another node does not, and raises its epoch.
        """
        world = self.world
        before = self.machine.as_dict()
        kept = world.rng.randint(0, len(self.pending))
        is_whole = kept == len(self.pending)
        for entry in self.pending[:kept]:
            self._keep(entry)
        self.pending.clear()
        self.to_write.clear()
        self.life += 1
        self.under_way.clear()
        moves = world.story.moves
        if moves or (moves is None and world.rng.random() < 0.5):
            self.epoch += 1
        else:
            world.forget("marker")
        if world.rng.random() < 0.5:
            self._compact()
        self.machine = self._replay()
        if is_whole:
            world.check("restart keeps the coordinator's state", self.machine.as_dict() == before)
        for markers in self.machine.pending_markers():
            self._want(markers)

    def _compact(self) -> None:
        last = {record.transactional_id: record for record in self.durable}
        self.durable = [record for record in last.values() if record.metadata is not None]

    def send_markers(self) -> None:
        for key, markers in list(self.to_write.items()):
            # With version 1 a second copy under way could end the next transaction: see WriteMarkers.
            sends_again = markers.version >= VERSION_TWO and self.world.rng.random() < 0.1
            if key not in self.under_way or sends_again:
                self._send_marker(key, markers)

    def _send_marker(self, key: MarkerKey, markers: WriteMarkers) -> None:
        world, life = self.world, self.life
        partition = world.partitions[key[2]]
        self.under_way.add(key)
        copy = self.copies[key] = self.copies.get(key, 0) + 1

        def arrived() -> None:
            world.send("marker", lambda: self._written(life, key, copy), may_repeat=True, lost=gone)

        def gone() -> None:
            if life == self.life:
                self.under_way.discard(key)

        world.send(
            "marker",
            lambda: partition.on_marker(markers, arrived, gone),
            may_repeat=markers.version >= VERSION_TWO,
            lost=gone,
        )

    def _written(self, life: int, key: MarkerKey, copy: int) -> None:
        if life != self.life or copy != self.copies[key]:
            return
        self.under_way.discard(key)
        self.to_write.pop(key, None)
        self.submit(MarkersWritten(key[0], key[1], (key[2],)), lambda _reply: None)

    def look_at_the_clock(self) -> None:
        deadline = self.machine.next_deadline_ms()
        if deadline is not None and deadline <= self.world.now_ms:
            self.submit(TimePassed(), lambda _reply: None)


class Batch(msgspec.Struct, frozen=True):
    """A batch in a simulated log: what the machines see of it, and what a reader sees."""

    base_offset: int
    last_offset_delta: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    value: str = ""
    is_transactional: bool = True
    max_timestamp: int = 0
    # Of a marker.
    is_control: bool = False
    is_commit: bool = False
    coordinator_epoch: int = -1

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def checksum_as_sent(self) -> int:
        return crc32c(self.value.encode()) or 1


class Produce(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    sequence: int
    value: str
    version: int
    asker: Asker


def width_of(value: str) -> int:
    """How many offsets and sequence numbers its batch takes: the same each time that it is sent."""
    return int(value.rpartition("/")[2]) % 3 + 1


class Stored(msgspec.Struct, frozen=True):
    pass


PRODUCED: Final = Stored()


class Snapshot(msgspec.Struct, frozen=True):
    log_end: int
    transactions: bytes
    sequences: bytes


class SimPartition:
    def __init__(self, world: World, name: TopicPartition) -> None:
        self.world = world
        self.name = name
        self.log: list[Batch] = []
        self.log_start = 0
        self.transactions = PartitionTransactions()
        self.sequences = ProducerSequences()
        self.snapshots: list[Snapshot] = []
        # (offset that must be durable, what happens then, what happens when it is lost)
        self.waiting: list[tuple[int, Callable[[], None], Callable[[], None]]] = []
        self.life = 0

    @property
    def log_end(self) -> int:
        return self.log[-1].next_offset if self.log else 0

    # --- append --------------------------------------------------------------------------------------------------

    def on_produce(self, produce: Produce, reply: Callable[[object], None], *, guard: int = 0) -> None:
        batch = Batch(
            self.log_end,
            width_of(produce.value) - 1,
            produce.producer_id,
            produce.producer_epoch,
            produce.sequence,
            produce.value,
        )
        verdict = self.transactions.check(batch, guard=guard)
        if not isinstance(verdict, Admitted | VerificationNeeded):
            reply(verdict)
            return
        if produce.sequence != NO_SEQUENCE:
            marker_offset = self.transactions.marker_offset_of(batch.producer_id)
            order = self.sequences.check(batch, marker_offset=marker_offset)
            if isinstance(order, Duplicate):
                self.when_durable(order.base_offset, lambda: reply(PRODUCED))
                return
            if not isinstance(order, Accept):
                reply(order)
                return
        if isinstance(verdict, VerificationNeeded):
            self._verify(produce, batch, reply)
            return
        self.append(batch)
        self.when_durable(batch.base_offset, lambda: reply(PRODUCED))

    def _verify(self, produce: Produce, batch: Batch, reply: Callable[[object], None]) -> None:
        world, life = self.world, self.life
        guard = self.transactions.begin_verification(batch, version=produce.version, now_ms=world.now_ms)

        def answered(answer: TransactionReply) -> None:
            if life != self.life:
                return
            if answer in (PartitionsAdded(), PartitionsVerified()):
                self.on_produce(produce, reply, guard=guard)
            else:
                reply(answer)

        asked = (produce.transactional_id, produce.producer_id, produce.producer_epoch, (self.name,))
        command: TransactionCommand
        if produce.version >= VERSION_TWO:
            command = AddPartitions(*asked, version=VERSION_TWO)
        else:
            command = VerifyPartitions(*asked)
        reply_later = world.answering("verification", answered)
        world.send("verification", lambda: world.coordinator.submit(command, reply_later, produce.asker))

    def on_marker(self, markers: WriteMarkers, done: Callable[[], None], gone: Callable[[], None]) -> None:
        verdict = self.transactions.check_marker(
            markers.producer_id,
            markers.producer_epoch,
            coordinator_epoch=markers.coordinator_epoch,
            version=markers.version,
        )
        if isinstance(verdict, MarkerStored):
            self.when_durable(verdict.offset, done, gone)
        elif isinstance(verdict, WriteMarker):
            batch = Batch(
                self.log_end,
                0,
                markers.producer_id,
                markers.producer_epoch,
                NO_SEQUENCE,
                is_control=True,
                is_commit=markers.is_commit,
                coordinator_epoch=markers.coordinator_epoch,
            )
            self.append(batch)
            self.when_durable(batch.base_offset, done, gone)
        else:
            # Fenced: the partition has no transaction of that coordinator or epoch.
            done()

    def append(self, batch: Batch) -> None:
        self.log.append(batch)
        self._apply(self.transactions, self.sequences, batch)

    @staticmethod
    def _apply(transactions: PartitionTransactions, sequences: ProducerSequences, batch: Batch) -> None:
        if batch.is_control:
            transactions.apply_marker(batch, is_commit=batch.is_commit, coordinator_epoch=batch.coordinator_epoch)
            return
        transactions.apply(batch)
        if batch.base_sequence != NO_SEQUENCE:
            sequences.apply(batch)

    def when_durable(self, offset: int, done: Callable[[], None], gone: Callable[[], None] = lambda: None) -> None:
        if offset < self.transactions.high_watermark:
            done()
        else:
            self.waiting.append((offset, done, gone))

    # --- disk ----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """The disk has everything, or only a part of it so far."""
        before = self.transactions.high_watermark
        ends = [batch.next_offset for batch in self.log if batch.base_offset >= before]
        if not ends:
            return
        high_watermark = ends[-1] if self.world.rng.random() < 0.7 else self.world.rng.choice(ends)
        self.transactions.advance(high_watermark)
        waiting, self.waiting = self.waiting, []
        for offset, done, gone in waiting:
            self.when_durable(offset, done, gone)
        if self.world.rng.random() < 0.2:
            self.snapshots.append(Snapshot(self.log_end, self.transactions.to_bytes(), self.sequences.to_bytes()))
            del self.snapshots[:-3]

    def _cut(self) -> int:
        """Loses a part of what was never said to be durable; the new end."""
        high_watermark = self.transactions.high_watermark
        loose = [batch.base_offset for batch in self.log if batch.base_offset >= high_watermark]
        end = self.world.rng.choice([*loose, self.log_end])
        self.log = [batch for batch in self.log if batch.base_offset < end]
        # A snapshot of what was lost would be taken for one of what comes to stand in its place.
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot.log_end <= end]
        waiting, self.waiting = self.waiting, []
        for _offset, _done, gone in waiting:
            gone()
        return end

    def crash(self) -> None:
        before, was_end = self.transactions, self.log_end
        self.life += 1
        end = self._cut()
        scratch, scratch_sequences = self._rebuild(None)
        snapshot = self.world.rng.choice(self.snapshots) if self.snapshots else None
        self.transactions, self.sequences = self._rebuild(snapshot)
        self.world.check_same_partition(self, self.transactions, scratch)
        self.world.check("restart keeps the sequences", self.sequences.as_dict() == scratch_sequences.as_dict())
        if end == was_end:
            before.advance(end)
            self.world.check_same_partition(self, self.transactions, before)

    def cut_back(self) -> None:
        """A follower whose leader never had its last batches: no restart."""
        end = self._cut()
        self.world.check("a cut above the high watermark is undone", self.transactions.truncate_to(end))
        scratch, self.sequences = self._rebuild(None)
        self.transactions.advance(end)
        self.world.check_same_partition(self, self.transactions, scratch)

    def _rebuild(self, snapshot: Snapshot | None) -> tuple[PartitionTransactions, ProducerSequences]:
        transactions, sequences, start = PartitionTransactions(), ProducerSequences(), 0
        if snapshot is not None:
            start = snapshot.log_end
            transactions = PartitionTransactions.from_bytes(snapshot.transactions, log_end=start)
            sequences = ProducerSequences.from_bytes(snapshot.sequences)
        for batch in self.log:
            if batch.base_offset >= start:
                self._apply(transactions, sequences, batch)
        transactions.move_log_start(self.log_start)
        # What is left of the log was read and synced, so it is readable.
        transactions.advance(self.log_end)
        return transactions, sequences

    def delete_before(self, offset: int) -> None:
        self.log_start = offset
        self.transactions.move_log_start(offset)
