"""What must hold of a compacted log at any moment. A broken promise raises `InvariantBroken` with its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.codec.batch.control import EndMarker, read_marker
from penstock.codec.batch.header import BatchHeader, check_batch
from penstock.codec.batch.records import Record, StoredRecord, read_records
from penstock.storage.errors import Damage
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.log.time_lookup import SegmentReplaced, TimeLookup, TimestampOffset

if TYPE_CHECKING:
    from support.cleaner.compaction_world import CompactionWorld

LOOKS_MAX: Final = 3


class InvariantBroken(AssertionError):  # noqa: N818  the name of what happened
    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


def expect(holds: bool, invariant: str, detail: object = "") -> None:
    if not holds:
        raise InvariantBroken(invariant, str(detail))


class ReadBatch:
    def __init__(self, header: BatchHeader, data: bytes) -> None:
        self.header = header
        self.data = data
        records = read_records(data)
        assert isinstance(records, list), records
        self.records: list[StoredRecord] = records


class CompactionCheck:
    def __init__(self, world: CompactionWorld) -> None:
        self._world = world

    # --- everything that can be read -----------------------------------------------------------------------------

    def content(self) -> list[StoredRecord]:
        """Reads all of the log, and compares; the records of users that are in it."""
        log = self._world.log
        if log.failure is not None:
            return []
        batches = self._read_all()
        self._facts(batches)
        self._appended_there(batches)
        self._epochs(batches)
        present = {
            record.offset: record for batch in batches if not batch.header.is_control for record in batch.records
        }
        self._last_of_each_key(set(present))
        self._once_below_clean_end(batches)
        self._markers(batches)
        self._committed_reader(batches)
        self._last_batches(batches)
        self._moments(batches)
        return [present[offset] for offset in sorted(present) if offset >= log.log_start]

    def _read_all(self) -> list[ReadBatch]:
        log = self._world.log
        batches: list[ReadBatch] = []
        offset = log.log_start
        while offset < log.readable_end:
            plan = log.plan_read(offset, bytes_max=self._world.random.choice((1, 700, 1 << 20)))
            expect(isinstance(plan, ReadPlan), "what is readable is served", (offset, log.readable_end, plan))
            assert isinstance(plan, ReadPlan)
            batches += self._load(plan, offset)
            offset = batches[-1].header.next_offset
        expect(offset == log.readable_end or offset == log.log_start, "the log ends with a batch", offset)
        return batches

    def _load(self, plan: ReadPlan, offset: int) -> list[ReadBatch]:
        loaded: Any = plan.load_cached()
        if loaded is None:
            loaded = plan.load()
        expect(not isinstance(loaded, Damage), "no damage where there is none", loaded)
        data = bytes(loaded)
        batches: list[ReadBatch] = []
        position = 0
        while position < len(data):
            header = check_batch(data, position)
            expect(isinstance(header, BatchHeader), "what is served is whole", (offset, header))
            assert isinstance(header, BatchHeader)
            if batches:
                follows = header.base_offset == batches[-1].header.next_offset
                expect(follows, "batches follow without a gap", (offset, header.base_offset))
            else:
                holds = header.base_offset <= offset < header.next_offset
                expect(holds, "a read begins with the batch of its offset", (offset, header.base_offset))
            batches.append(ReadBatch(header, data[position : position + header.size_bytes]))
            position += header.size_bytes
        expect(bool(batches), "a read makes progress", offset)
        return batches

    def _facts(self, batches: list[ReadBatch]) -> None:
        log = self._world.log
        expect(log.size_bytes == sum(segment.size for segment in log.segments), "bytes are counted")
        first_offset = log.segments[0].base_offset if log.segments else 0
        if log.readable_end != log.log_end or not batches or first_offset != batches[0].header.base_offset:
            return
        expect(log.size_bytes == sum(len(batch.data) for batch in batches), "bytes are counted", log)
        expect(log.record_count == sum(batch.header.record_count for batch in batches), "records are counted", log)
        newest = max((batch.header.max_timestamp for batch in batches), default=-1)
        expect(log.max_timestamp == newest, "the newest time is known", (log.max_timestamp, newest))

    def _appended_there(self, batches: list[ReadBatch]) -> None:
        appended = {offset: record for batch in self._world.model.batches for offset, record in batch.records}
        for batch in batches:
            if not batch.header.is_control:
                for record in batch.records:
                    same = _is_same(record, appended.get(record.offset))
                    expect(same, "a record stands where it was appended", (record, appended.get(record.offset)))

    def _epochs(self, batches: list[ReadBatch]) -> None:
        """If what was saved of them is lost, they are read off the log."""
        read = LeaderEpochs()
        for batch in batches:
            read.assign(batch.header.leader_epoch, batch.header.base_offset)
        if not batches:
            return
        first_offset = batches[0].header.base_offset
        for model_batch in self._world.model.batches:
            header = model_batch.header
            if first_offset <= header.base_offset < self._world.log.readable_end:
                epoch = read.epoch_at(header.base_offset)
                expect(epoch == header.leader_epoch, "leader epochs are known from the log", (header, epoch))

    def _last_of_each_key(self, present: set[int]) -> None:
        world = self._world
        log, model = world.log, world.model
        aborted = model.aborted_offsets()
        stable_end = model.stable_end(log.readable_end)
        last: dict[bytes, tuple[int, Record]] = {}
        for batch in model.batches:
            for offset, record in batch.records:
                if not log.log_start <= offset < log.readable_end:
                    continue
                if offset >= model.cleaned_max:
                    expect(offset in present, "what no cleaning has seen is there", offset)
                is_decided = batch.header.base_offset not in aborted and offset < stable_end
                if record.key is not None and is_decided:
                    last[record.key] = (offset, record)
        for key, (offset, record) in last.items():
            is_gone_rightly = record.value is None and model.may_be_gone(offset, world.retention_ms)
            name = "the last value of each key is there" if record.value is not None else "a deletion stays its time"
            expect(offset in present or is_gone_rightly, name, (key, offset, log.clean_end))

    def _once_below_clean_end(self, batches: list[ReadBatch]) -> None:
        log = self._world.log
        aborted = self._world.model.aborted_offsets()
        seen: dict[bytes, int] = {}
        for batch in batches:
            if batch.header.is_control or batch.header.next_offset > log.clean_end:
                continue
            if batch.records:
                expect(batch.header.base_offset not in aborted, "what was aborted goes", batch.header)
            for record in batch.records:
                expect(record.key is not None, "records without a key go", record)
                assert record.key is not None
                if record.offset >= log.log_start:
                    place = (seen.get(record.key), record.offset, log.clean_end)
                    expect(record.key not in seen, "the clean part has each key once", place)
                    seen[record.key] = record.offset

    # --- transactions --------------------------------------------------------------------------------------------

    def _markers(self, batches: list[ReadBatch]) -> None:
        held = {batch.header.base_offset: batch for batch in batches}
        for transaction in self._world.model.transactions():
            marker_offset = transaction.marker_offset
            if marker_offset is None or marker_offset >= self._world.log.readable_end:
                continue
            is_left = any(
                offset in held and held[offset].header.producer_id == transaction.producer
                for offset in transaction.batch_offsets
            )
            marker = held.get(marker_offset)
            is_there = marker is not None and isinstance(read_marker(marker.data), EndMarker) if marker else False
            expect(is_there or not is_left, "a marker stays while its transaction does", transaction.batch_offsets)
        log = self._world.log
        for producer, state in log.transactions.producers.items():
            if log.log_start <= state.marker_offset < log.readable_end:
                marker = held.get(state.marker_offset)
                stays = marker is not None and isinstance(read_marker(marker.data), EndMarker)
                expect(stays, "the last marker of a producer stays", (producer, state))

    def _committed_reader(self, batches: list[ReadBatch]) -> None:
        """As clients do it: told of aborted transactions by their first offsets, they wait for the markers."""
        log, model = self._world.log, self._world.model
        stable_end = model.stable_end(log.readable_end)
        place = (log.last_stable_offset, stable_end)
        expect(log.last_stable_offset == stable_end, "the last stable offset is below what is undecided", place)
        self._aborted_index()
        told = log.transactions.aborted.between(log.log_start, stable_end)
        left_out: set[int] = set()
        seen: set[int] = set()
        held: set[int] = set()
        aborted = model.aborted_offsets()
        for batch in batches:
            header = batch.header
            if header.next_offset > stable_end:
                break
            while told and told[0].first_offset <= header.last_offset:
                left_out.add(told.pop(0).producer_id)
            if header.is_control:
                left_out.discard(header.producer_id)
                continue
            offsets = {record.offset for record in batch.records}
            if not (header.is_transactional and header.producer_id in left_out):
                seen |= offsets
            if header.base_offset not in aborted:
                held |= offsets
        expect(seen == held, "a reader of committed records sees them and no others", seen ^ held)

    def _aborted_index(self) -> None:
        model = self._world.model
        aborted = {
            (each.producer, each.marker_offset): each for each in model.transactions() if each.is_commit is False
        }
        for entry in self._world.log.transactions.aborted.entries():
            transaction = aborted.get((entry.producer_id, entry.last_offset))
            is_one = transaction is not None and transaction.first_offset <= entry.first_offset < entry.last_offset
            expect(is_one, "an entry of the aborted index is an aborted transaction", entry)
            is_out = entry.last_offset not in model.dropped_aborts
            expect(is_out, "what left the aborted index stays out", entry)

    def transactions(self) -> None:
        """After a start: by what was saved, or by what is left of the log, it must come to the same."""
        log, model = self._world.log, self._world.model
        first_offset = log.segments[0].base_offset if log.segments else log.log_end
        known = log.transactions.producers
        for producer, expected in model.producers().items():
            last_offset = max(expected.first_offset, expected.marker_offset)
            if last_offset < max(first_offset, model.sequences_from, model.forgotten_end):
                continue
            found = known.get(producer)
            if found is not None and expected.marker_offset < max(first_offset, model.forgotten_end):
                found = msgspec.structs.replace(
                    found, coordinator_epoch=expected.coordinator_epoch, marker_offset=expected.marker_offset
                )
            expect(found == expected, "what is known of a transaction survives", (producer, found, expected))

    # --- producers -----------------------------------------------------------------------------------------------

    def _last_batches(self, batches: list[ReadBatch]) -> None:
        """If what was saved of producers is lost, it is read off the log."""
        log = self._world.log
        held = {batch.header.base_offset: batch.header for batch in batches}
        for producer, (_epoch, entries) in log.producers.as_dict().items():
            first, _last, base_offset, _timestamp, _checksum = entries[-1]
            if log.log_start <= base_offset < log.readable_end:
                header = held.get(base_offset)
                stays = header is not None and (header.producer_id, header.base_sequence) == (producer, first)
                expect(stays, "the last batch of a producer stays", (producer, base_offset, header))

    def producers(self) -> None:
        """After a start."""
        log, model = self._world.log, self._world.model
        first_offset = log.segments[0].base_offset if log.segments else log.log_end
        expected: dict[int, tuple[int, int, int]] = {}
        for batch in model.batches:
            header = batch.header
            if header.producer_id >= 0 and not batch.is_marker and header.base_offset >= first_offset:
                last = (header.base_sequence + header.last_offset_delta) & (2**31 - 1)
                expected[header.producer_id] = (header.base_sequence, last, header.base_offset)
        known = log.producers.as_dict()
        for producer, entry in expected.items():
            if entry[2] < max(model.sequences_from, model.forgotten_end):
                continue
            found = known[producer][1][-1][:3] if producer in known else None
            expect(found == entry, "a producer's last sequence is known", (producer, found, entry))

    # --- moments -------------------------------------------------------------------------------------------------

    def _moments(self, batches: list[ReadBatch]) -> None:
        world = self._world
        for _ in range(LOOKS_MAX):
            moment = world.clock.now_ms() - world.random.choice((0, 1_000, 3_000, 8_000, 80_000))
            self._compare_moment(world.log.offset_for_timestamp(moment), batches, moment)
        newest = max((record.timestamp_ms for record in self._records(batches)), default=None)
        found = world.log.offset_of_max_timestamp()
        found_ms = found.timestamp_ms if isinstance(found, TimestampOffset) else None
        expect(found_ms == newest, "the newest record is found", (found, newest))

    def _compare_moment(self, found: object, batches: list[ReadBatch], moment: int) -> None:
        wanted = next((record.offset for record in self._records(batches) if record.timestamp_ms >= moment), None)
        found_offset = found.offset if isinstance(found, TimestampOffset) else None
        expect(found_offset == wanted, "a moment finds its record", (moment, found, wanted))

    def _records(self, batches: list[ReadBatch]) -> list[StoredRecord]:
        log_start = self._world.log.log_start
        return [record for batch in batches for record in batch.records if record.offset >= log_start]

    # --- readers that were under way -----------------------------------------------------------------------------

    def hold(self) -> list[tuple[int, ReadPlan]]:
        """Reads that are planned now and done later."""
        log = self._world.log
        held: list[tuple[int, ReadPlan]] = []
        for _ in range(LOOKS_MAX):
            offset = self._world.random.randint(log.log_start, log.readable_end)
            plan = log.plan_read(offset, bytes_max=self._world.random.choice((1, 2_000)))
            if isinstance(plan, ReadPlan):
                held.append((offset, plan))
        return held

    def held_read(self, held: list[tuple[int, ReadPlan]]) -> None:
        for offset, plan in held:
            self._appended_there(self._load(plan, offset))

    def old_lookup(self, lookup: TimeLookup) -> None:
        """It was begun before the swap: it asks again, or it answers by what was there."""
        damage = self._world.log.damage
        try:
            lookup.first_at_or_after(self._world.clock.now_ms() - 2_000)
        except SegmentReplaced:
            return
        expect(self._world.log.damage is damage, "no damage where there is none", self._world.log.damage)


def _is_same(stored: StoredRecord, record: Record | None) -> bool:
    return record is not None and (stored.timestamp_ms, stored.key, stored.value, stored.headers) == (
        record.timestamp_ms,
        record.key,
        record.value,
        record.headers,
    )
