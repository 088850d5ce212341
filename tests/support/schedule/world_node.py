"""The node of a schedule's world: the machine, its log, its bucket files, its checkpoints, and the log it releases to.

Everything on disk has a part that would survive: rows up to `durable`, bytes of a file up to its `synced`. A crash
keeps any part of the rest, the beginning of a decision too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from penstock.domain.schedule.buckets import ENTRY_BYTES
from penstock.domain.schedule.commands import (
    AppendMove,
    BucketName,
    BucketWrite,
    Checkpoint,
    Decision,
    FinishMove,
    FireCrons,
    Release,
    ScheduleCommand,
    ScheduleReply,
)
from penstock.domain.schedule.cron_book import FIRED_MAX
from penstock.domain.schedule.machine import PartitionSchedule, ScheduleConfig
from penstock.domain.schedule.records import (
    CronDefined,
    CronDeleted,
    CronFired,
    Ended,
    Move,
    MoveDone,
    MoveIntended,
    Scheduled,
    ScheduleRecord,
    Stored,
    read_record,
    write_record,
)
from support.schedule.world_check import (
    COUNT,
    CRON,
    DUE_ORDER,
    FILES,
    NEVER_EARLY,
    NOT_LOST,
    PINNED,
    SAME_STATE,
    SEQUENCE,
    Book,
    Model,
    check,
)

Then = Callable[[ScheduleReply], None]
PRODUCER_ID: Final = 900
# Of a bucket file, at a time.
READ_BYTES: Final = 4 * ENTRY_BYTES


@dataclass(slots=True)
class SimFile:
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0


@dataclass(slots=True)
class Row:
    value: bytes
    # The message itself.
    payload: str = ""


class SimNode:
    def __init__(self, rng: Random, book: Book, config: ScheduleConfig, target: SimTarget) -> None:
        self._rng = rng
        self._book = book
        self._config = config
        self.target = target
        # None: compacted away, or cut off.
        self.rows: list[Row | None] = []
        # All of them, for the model.
        self._archive: list[bytes] = []
        self.durable = 0
        self._answers: deque[tuple[Decision, Then | None]] = deque()
        self.files: dict[int, SimFile] = {}
        self.stored: Stored | None = None
        self._checkpoint: Checkpoint | None = None
        # Parts of files on their way from the disk.
        self._reads: deque[tuple[BucketName, bytes, bool]] = deque()
        self.network: list[Move] = []
        self.now_ms = 0
        self.releases: list[tuple[int, int]] = []
        self.schedule = PartitionSchedule(config)
        self.model = Model()
        self.epoch = 0
        self.producer_id = PRODUCER_ID

    # ------------------------------------------------------------------ deciding

    @property
    def end(self) -> int:
        return len(self.rows)

    def submit(self, command: ScheduleCommand, payloads: tuple[str, ...] = (), then: Then | None = None) -> Decision:
        decision = self.schedule.decide(command, self.now_ms)
        # A producer that repeats a batch of which a part is here writes the rest of it.
        names = iter(payloads[len(payloads) - len(decision.records) :] if payloads else ())
        for record in decision.records:
            self._check_record(record)
            self.schedule.apply(record)
            self.model.apply(record)
            payload = next(names, "")
            if isinstance(record, Scheduled):
                check(SAME_STATE, record.position == self.end, f"{record} is to be written at {self.end}")
                payload = f"{record.cron}@{record.due_ms}" if record.cron else payload
            self._archive.append(write_record(record))
            self.rows.append(Row(self._archive[-1], payload))
        self._answers.append((decision, then))
        check(COUNT, self.schedule.pending_count == len(self.model.pending), f"after {command}")
        return decision

    def _check_record(self, record: ScheduleRecord) -> None:
        if isinstance(record, Scheduled) and record.cron:
            self.model.check_fired(record, self.now_ms)
        if not isinstance(record, MoveIntended):
            return
        pending = self.model.pending
        dues = [pending.get(position, -1) for position in record.move.sources]
        check(NOT_LOST, -1 not in dues, f"{record.move} takes what does not wait")
        check(NEVER_EARLY, max(dues) <= self.now_ms, f"{dues} at {self.now_ms}")
        left = min((due for place, due in pending.items() if place not in record.move.sources), default=None)
        check(DUE_ORDER, dues == sorted(dues) and (left is None or left >= dues[-1]), f"{dues}, and {left} is left")

    def sync(self) -> None:
        self.durable = self.end
        while self._answers:
            decision, then = self._answers.popleft()
            if then is not None:
                then(decision.reply)
            for effect in decision.effects:
                assert isinstance(effect, AppendMove)
                self.send(effect.move)

    # ------------------------------------------------------------------ the clock

    def ring(self) -> bool:
        """What a shell does when its alarm rings; whether it was due."""
        deadline_ms = self.schedule.next_deadline_ms(self.now_ms)
        if deadline_ms is None or deadline_ms > self.now_ms:
            return False
        for read in self.schedule.open_near(self.now_ms):
            file = self.files.get(read.name.number, SimFile())
            data = bytes(file.data[: read.count * ENTRY_BYTES])
            check(FILES, len(data) == read.count * ENTRY_BYTES, f"{read}: {len(data)} bytes")
            parts = [data[first : first + READ_BYTES] for first in range(0, len(data), READ_BYTES)]
            self._reads += [(read.name, part, place == len(parts) - 1) for place, part in enumerate(parts)]
        fired = self.submit(FireCrons(self.end))
        if len(fired.records) < FIRED_MAX:
            self.model.check_none_left(self.now_ms)
        if self.schedule.pending_move() is None:
            self.release()
        return True

    def release(self) -> None:
        for record in self.submit(Release(self.producer_id, self.epoch)).records:
            assert isinstance(record, MoveIntended)
            self.releases.append((self.now_ms, len(record.move.sources)))

    def read_some(self, count_max: int) -> None:
        for _part in range(min(count_max, len(self._reads))):
            name, entries, is_last = self._reads.popleft()
            self.schedule.load(name, entries, is_last=is_last, now_ms=self.now_ms)

    @property
    def is_reading(self) -> bool:
        return bool(self._reads)

    # ------------------------------------------------------------------ files

    def spill(self) -> None:
        # All of it, or no more than so many bytes, which need not be whole entries.
        self._write(self.schedule.take_spill(self._rng.choice((None, 40, 100, 1_000))))

    def _write(self, writes: tuple[BucketWrite, ...]) -> None:
        for write in writes:
            self.files.setdefault(write.name.number, SimFile()).data.extend(write.entries)

    def begin_checkpoint(self) -> None:
        self._checkpoint = self.schedule.checkpoint(self.end)
        self._write(self._checkpoint.writes)

    def end_checkpoint(self) -> None:
        """Not before every row that it rests on is durable."""
        if self._checkpoint is None:
            return
        self.sync()
        for file in self.files.values():
            file.synced = len(file.data)
        self.stored = self._checkpoint.stored
        self._checkpoint = None
        self._delete_others(self.stored)

    def _delete_others(self, stored: Stored) -> None:
        """Files that were begun since are not old ones."""
        named = {bucket.number for bucket in stored.buckets}
        for number in [number for number in self.files if number not in named and number < stored.next_bucket]:
            # Still read from: an open file outlives its name.
            del self.files[number]

    # ------------------------------------------------------------------ the log's own upkeep

    def compact(self, busy: frozenset[str]) -> None:
        """Only the last row of a key stays; but not those that a producer may still repeat."""
        last: dict[object, int] = {}
        keys: dict[int, object] = {}
        for place in range(self.durable):
            row = self.rows[place]
            if row is None:
                continue
            record = read_record(row.value)
            key = _key(record)
            if key is not None:
                keys[place] = key
                last[key] = place
        for place, key in keys.items():
            row = self.rows[place]
            if last[key] != place and row is not None and row.payload not in busy:
                self.rows[place] = None
            is_tombstone = row is not None and isinstance(read_record(row.value), Ended)
            # They go some day, but not while a checkpoint knows their message as one that waits.
            if is_tombstone and not busy and self.stored is not None and place < self.stored.next_position:
                self.rows[place] = None

    def trim(self) -> None:
        """Everything that is not needed goes, as far as a checkpoint replaces it."""
        needed_from = self.schedule.needed_from
        needed = self.model.needed()
        is_right = needed_from is None or needed_from <= min(needed, default=needed_from)
        check(PINNED, is_right and (needed_from is not None or not needed), f"{needed_from} of {sorted(needed)[:5]}")
        if self.stored is None:
            return
        upto = self.stored.next_position if needed_from is None else min(needed_from, self.stored.next_position)
        for place in range(upto):
            self.rows[place] = None

    @property
    def is_trimmed(self) -> bool:
        return bool(self.rows) and self.rows[0] is None

    # ------------------------------------------------------------------ the mover

    def on_their_way(self) -> list[str]:
        move = self.schedule.pending_move()
        rows = [] if move is None else [self.rows[position] for position in move.sources]
        return [row.payload for row in rows if row is not None]

    def send(self, move: Move) -> None:
        if move not in self.network:
            self.network.append(move)

    def send_again(self) -> None:
        move = self.schedule.pending_move()
        if move is not None and self.durable == self.end:
            self.send(move)

    def deliver(self, *, may_repeat: bool) -> None:
        if not self.network:
            return
        move = self._rng.choice(self.network)
        if not may_repeat or self._rng.random() < 0.7:
            self.network.remove(move)
        self.target.append(move, [self._message(position) for position in move.sources])

    def _message(self, position: int) -> tuple[str, int]:
        row = self.rows[position]
        if row is None:
            # Its tombstone was written, and not the end of its batch: the log has it, so nobody will look at this.
            return "gone", 0
        record = read_record(row.value)
        assert isinstance(record, Scheduled), record
        return row.payload, record.due_ms

    def settle(self) -> None:
        self.target.sync()
        move = self.schedule.pending_move()
        if move is not None and self.target.has(move):
            self.submit(FinishMove(move.batch))
        elif move is not None and move.batch > 1 and self._rng.random() < 0.3:
            # Once more, and late.
            self.submit(FinishMove(move.batch - 1))

    def check_fired(self) -> None:
        records = [read_record(value) for value in self._archive]
        made = {(record.cron, record.due_ms) for record in records if isinstance(record, Scheduled)}
        for record in records:
            if isinstance(record, CronFired):
                check(CRON, (record.name, record.due_ms) in made, f"{record} made no message")
        for name, due_ms in sorted(made):
            check(NOT_LOST, not name or f"{name}@{due_ms}" in self._book.seen, f"{name} of {due_ms}")

    # ------------------------------------------------------------------ crashes

    def crash(self, *, is_snapshot_lost: bool) -> None:
        rng = self._rng
        kept = rng.randint(self.durable, self.end)
        has_lost = kept < self.end
        before = self.model
        del self.rows[kept:], self._archive[kept:]
        self.durable = kept
        self._answers.clear()
        self._reads.clear()
        self._checkpoint = None
        for file in self.files.values():
            del file.data[rng.randint(file.synced, len(file.data)) :]
            # What a disk leaves where nothing was synced.
            file.data += bytes(rng.choice((0, 0, 5, 48)))
        if is_snapshot_lost:
            self.stored = None
        self._rebuild()
        check(SAME_STATE, has_lost or before == self.model, "the journal tells another story")
        self.network.clear()
        move = self.schedule.pending_move()
        if move is not None:
            self.send(move)

    def _rebuild(self) -> None:
        schedule = PartitionSchedule(self._config)
        model = Model()
        if self.stored is None:
            self.files.clear()
        else:
            for bucket in self.stored.buckets:
                file = self.files.get(bucket.number, SimFile())
                check(FILES, len(file.data) >= bucket.count * ENTRY_BYTES, bucket)
                del file.data[bucket.count * ENTRY_BYTES :]
                file.synced = len(file.data)
            named = {bucket.number for bucket in self.stored.buckets}
            self.files = {number: file for number, file in self.files.items() if number in named}
            schedule.apply(read_record(write_record(self.stored)))
        start = 0 if self.stored is None else self.stored.next_position
        for value in self._archive:
            model.apply(read_record(value))
        for row in self.rows[start:]:
            if row is not None:
                schedule.apply(read_record(row.value))
        self.schedule, self.model = schedule, model
        self._check_same()

    def _check_same(self) -> None:
        schedule, model = self.schedule, self.model
        places = schedule.pending_since(0, 1_000_000)
        check(SAME_STATE, places == sorted(model.pending), f"{places} wait, not {sorted(model.pending)}")
        check(SAME_STATE, schedule.pending_count == len(places), schedule.pending_count)
        check(SAME_STATE, schedule.pending_move() == (model.move if model.is_moving else None), model.move)
        check(SEQUENCE, schedule.last_move() == model.move, model.move)
        held = sum(len(entries) for _epoch, entries in model.held.values())
        check(SAME_STATE, schedule.held_count == held, model.held)
        crons = {cron.name: (cron.position, cron.fired_ms, cron.missed) for cron in schedule.crons()}
        check(SAME_STATE, crons == model.crons, f"{crons}, not {model.crons}")
        for origin, position in model.places.items():
            if position in model.pending:
                check(SAME_STATE, schedule.place_of(origin) == position, f"{origin} is at {position}")


class SimTarget:
    """The partition's log: takes a producer's batches in sequence, and each once."""

    def __init__(self, rng: Random, book: Book) -> None:
        self._rng = rng
        self._book = book
        self._batches: list[Move] = []
        self._synced = 0

    def append(self, move: Move, messages: list[tuple[str, int]]) -> None:
        mine = [batch for batch in self._batches if batch.producer_id == move.producer_id]
        if any(batch.base_sequence == move.base_sequence for batch in mine):
            known = next(batch for batch in mine if batch.base_sequence == move.base_sequence)
            check(SEQUENCE, known == move, f"{move} is taken for {known}")
            return
        expected = mine[-1].base_sequence + len(mine[-1].sources) if mine else 0
        check(SEQUENCE, move.base_sequence == expected, f"{move} comes where {expected} should")
        self._batches.append(move)
        for name, due_ms in messages:
            check(NOT_LOST, name != "gone", f"a message of {move} is not in the log any more")
            self._book.release(name, due_ms)

    def has(self, move: Move) -> bool:
        return move in self._batches[: self._synced]

    def sync(self) -> None:
        self._synced = len(self._batches)

    def crash(self) -> None:
        kept = self._rng.randint(self._synced, len(self._batches))
        self._book.forget(sum(len(batch.sources) for batch in self._batches[kept:]))
        del self._batches[kept:]


def _key(record: ScheduleRecord) -> object:
    match record:
        case Ended():
            return record.origin
        case Scheduled():
            return record.origin if record.replaces >= 0 else record.position
        case MoveIntended() | MoveDone():
            return "move"
        case CronDefined() | CronDeleted():
            return f"cron {record.name}"
        case CronFired():
            return f"fired {record.name}"
        case _:
            return None
