"""One cleaning of one log, step by step, in a thread.

    index        the dirty part is read: which offset is the last one of each key
    write_next   a group of segments is read from the log's head on, and what stays of it is written anew; the swap
                 that is returned is applied on the loop and finished in the thread before the next one is asked for
    finish       how far the log is clean now

What is read was sealed, readable, durable and saved when the cleaning began, so nobody changes it; retention may take
it away, and then the cleaning ends. At any moment each step may stop for good, and the log is a legal one: whatever was
dropped was dropped because something later with its key stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.codec.batch.control import EndMarker, read_marker
from penstock.codec.batch.records import read_payload
from penstock.codec.batch.rewrite import empty_batch, horizon_of, rebuild_batch
from penstock.codec.columns.keys import read_keys
from penstock.codec.columns.read import Batch
from penstock.domain.log.compaction import (
    AbortedRanges,
    BatchFate,
    CleanablePart,
    CleaningRules,
    CompactionRules,
    SealedSegment,
    joins_group,
)
from penstock.domain.log.producer_sequence import ProducerState
from penstock.domain.transaction.partition import ProducerTransaction
from penstock.storage.cleaner.chunks import StoredBatch, open_portions, read_batches
from penstock.storage.cleaner.key_offsets import KeyOffsets
from penstock.storage.cleaner.sift import Sifted, sift
from penstock.storage.files.protocols import File
from penstock.storage.log.files import read_producers
from penstock.storage.log.producers import LogProducers
from penstock.storage.log.swap import CompactionState, SegmentReplacement, write_state
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.throttle import CleaningStopped, Throttle
from penstock.storage.segment.writer import CLEANED_SUFFIX, SegmentWriter

if TYPE_CHECKING:
    from penstock.storage.log.partition_log import PartitionLog


# Written before others have the interpreter: some ten microseconds each.
_BATCHES_AT_ONCE: Final = 64


class KnownProducers(msgspec.Struct, frozen=True):
    """By their ids, as they were at one moment."""

    sequences: list[tuple[int, ProducerState]]
    transactions: list[tuple[int, ProducerTransaction]]

    @classmethod
    def of(cls, producers: LogProducers) -> KnownProducers:
        return cls(producers.sequences.states(), producers.transactions.states())


class CleaningReport(msgspec.Struct, frozen=True):
    # The log is clean below it.
    end_offset: int
    read_bytes: int
    saved_bytes: int
    swap_count: int


class LogCleaning:
    def __init__(
        self,
        log: PartitionLog,
        part: CleanablePart,
        throttle: Throttle,
        *,
        now_ms: int,
        seeds: tuple[int, int],
    ) -> None:
        """On the loop: everything that the thread may not ask the log for later is taken now."""
        assert log.config.compaction is not None
        self.log = log
        self._context = log.context
        self.part = part
        self._throttle = throttle
        self._rules_of_topic: CompactionRules = log.config.compaction
        self._segment_bytes = log.config.segment_bytes
        self._now_ms = now_ms
        self._log_start = log.log_start
        self._generation = log.generation
        self._segments = log.segments[: part.segment_count]
        self._producers = KnownProducers.of(log.known_producers)
        self._aborted = log.transactions.aborted.copy()
        self._latest = KeyOffsets(bytes_max=self._context.config.cleaner_map_bytes, seeds=seeds)
        self._rules: CleaningRules | None = None
        self._unwritten: deque[Segment] = deque()
        self._end_offset = part.clean_end
        # After the last tombstone or marker that goes.
        self._tombstone_horizon = 0
        self._read_bytes = 0
        self._saved_bytes = 0
        self._swap_count = 0

    # --- the dirty part ------------------------------------------------------------------------------------------

    def index(self) -> None:
        """Blocking: the first step."""
        self._void_leftovers()
        aborted = self._aborted.entries()
        self._end_offset = self._read_dirty(AbortedRanges(aborted))
        self._latest.seal()
        known = self._last_known()
        self._rules = CleaningRules(
            log_start=self._log_start,
            end_offset=self._end_offset,
            now_ms=self._now_ms,
            delete_retention_ms=self._rules_of_topic.delete_retention_ms,
            aborted=aborted,
            last_batches={producer: state.batches[-1][2] for producer, state in known.sequences if state.batches},
            last_markers={producer: state.marker_offset for producer, state in known.transactions},
        )
        self._unwritten = deque(segment for segment in self._segments if segment.base_offset < self._end_offset)

    def _last_known(self) -> KnownProducers:
        """As they were saved: what came since may be lost in a crash, and then the batch or marker before is the last
        again."""
        producers_max = self._context.config.producers_max
        saved = read_producers(self._context.files, self.log.home.directory, producers_max)
        return self._producers if saved is None else KnownProducers.of(saved[1])

    def _void_leftovers(self) -> None:
        """Of a cleaning that ended half-way: no swap must be believed in whose files are written anew now."""
        directory = self.log.home.directory
        leftovers = [name for name in self._context.files.list_directory(directory) if name.endswith(CLEANED_SUFFIX)]
        if leftovers:
            self._write_state(self.part.clean_end)
            for name in leftovers:
                self._context.files.remove(f"{directory}/{name}")

    def _read_dirty(self, aborted: AbortedRanges) -> int:
        """The offset after the last batch whose keys are noted."""
        end_offset = self.part.clean_end
        for segment in self._segments:
            if segment.next_offset <= end_offset:
                continue
            for portion in self._portions(segment, from_offset=end_offset):
                self._note_keys([batch for batch in portion if not aborted.hold(batch.header)], end_offset)
                end_offset = portion[-1].header.next_offset
                if self._latest.is_full:
                    return end_offset
        return end_offset

    def _note_keys(self, portion: list[StoredBatch], from_offset: int) -> None:
        batches = [
            Batch(0, batch.header, batch.payload)
            for batch in portion
            if batch.payload is not None and batch.header.next_offset > from_offset
        ]
        if batches:
            frame = read_keys(batches).frame
            keyed = frame.filter(frame["key"].is_not_null() & (frame["offset"] >= self._log_start))
            self._latest.add(keyed["key"], keyed["offset"])

    # --- writing anew --------------------------------------------------------------------------------------------

    def write_next(self) -> SegmentReplacement | None:
        """Blocking: the next swap, committed, to be applied and finished; None: there is none left."""
        while self._unwritten:
            swap = self._write_group()
            if swap is not None:
                self._saved_bytes += swap.saved_bytes
                self._swap_count += 1
                return swap
        return None

    def _write_group(self) -> SegmentReplacement | None:
        first = self._unwritten[0]
        segment = Segment(self.log.home.directory, first.base_offset, begun_ms=first.begun_ms)
        interval = self._context.config.index_interval_bytes
        writer = SegmentWriter(self._context.files, self._throttle, segment, index_interval_bytes=interval)
        group: list[Segment] = []
        held: list[File] = []
        assert self._rules is not None
        self._rules.empty_aborts.clear()
        try:
            while self._has_room(writer, group):
                group.append(self._unwritten.popleft())
                held.append(self._open(group[-1]))
                for portion in self._portions(group[-1], from_offset=group[-1].base_offset):
                    self._write_portion(writer, portion)
            writer.close_gap()
            segment.begun_ms = group[-1].begun_ms
            if len(group) == 1 and not writer.is_changed:
                writer.discard()
                return None
            writer.close()
            swap = SegmentReplacement(
                self.log,
                group,
                segment,
                held=held,
                empty_aborts=self._rules.empty_aborts,
                tombstone_horizon=self._tombstone_horizon,
            )
            assert segment.next_offset == group[-1].next_offset, "no offset is lost"
            swap.commit()
        except (OSError, CleaningStopped):
            # Not after a doubtful commit: recovery may need them.
            writer.discard()
            raise
        return swap

    def _has_room(self, writer: SegmentWriter, group: Sequence[Segment]) -> bool:
        """By what is left of the group so far: the next one may be dropped almost whole."""
        return bool(self._unwritten) and (
            not group
            or joins_group(
                sealed(self._unwritten[0]),
                base_offset=group[0].base_offset,
                size_bytes=writer.segment.size,
                segment_count=len(group),
                segment_bytes_max=self._segment_bytes,
            )
        )

    def _write_portion(self, writer: SegmentWriter, portion: list[StoredBatch]) -> None:
        assert self._rules is not None
        fates = [self._fate_of(batch) for batch in portion]
        sifted: dict[int, Sifted | None] = {}
        places = [place for place, fate in enumerate(fates) if fate is BatchFate.SIFT]
        if places:
            batches = [Batch(0, portion[place].header, portion[place].payload or b"") for place in places]
            sifted = dict(zip(places, sift(batches, self._latest, self._rules), strict=True))
        for place, (batch, fate) in enumerate(zip(portion, fates, strict=True)):
            if place % _BATCHES_AT_ONCE == 0:
                self._throttle.breathe()
            if fate is BatchFate.KEEP:
                writer.copy(batch.header, batch.data)
            elif fate is BatchFate.EMPTY:
                self._write_emptied(writer, batch)
            elif fate is BatchFate.DATE:
                self._write_dated_marker(writer, batch)
            else:
                self._write_sifted(writer, batch, sifted[place])

    def _fate_of(self, batch: StoredBatch) -> BatchFate:
        assert self._rules is not None
        header = batch.header
        if header.is_control:
            marker = read_marker(batch.data) if header.record_count else None
            if isinstance(marker, EndMarker):
                horizon_ms = horizon_of(header)
                fate = self._rules.fate_of_marker(header, horizon_ms=horizon_ms, is_commit=marker.is_commit)
                if fate is BatchFate.EMPTY:
                    self._tombstone_horizon = max(self._tombstone_horizon, header.next_offset)
                return fate
            # Emptied before; or a kind that later versions may know.
            return BatchFate.EMPTY if header.record_count == 0 else BatchFate.KEEP
        fate = self._rules.fate_of(header)
        if fate is BatchFate.SIFT and batch.payload is None:
            # Without records; or they cannot be read, and what is not understood is not touched.
            return BatchFate.EMPTY if header.record_count == 0 else BatchFate.KEEP
        return fate

    def _write_emptied(self, writer: SegmentWriter, batch: StoredBatch) -> None:
        assert self._rules is not None
        if not self._rules.is_kept_empty(batch.header):
            writer.skip(batch.header)
        elif batch.header.record_count == 0:
            writer.copy(batch.header, batch.data)
        else:
            writer.replace(empty_batch(batch.header))

    def _write_dated_marker(self, writer: SegmentWriter, batch: StoredBatch) -> None:
        assert self._rules is not None
        header = batch.header
        payload = read_payload(batch.data, 0, header)
        assert isinstance(payload, bytes | memoryview), "the marker was read before"
        writer.replace(
            rebuild_batch(
                header,
                [payload],
                record_count=header.record_count,
                newest_ms=header.max_timestamp,
                horizon_ms=self._rules.horizon_ms,
            )
        )

    def _write_sifted(self, writer: SegmentWriter, batch: StoredBatch, sifted: Sifted | None) -> None:
        assert self._rules is not None
        assert batch.payload is not None
        header = batch.header
        if sifted is None:
            writer.copy(header, batch.data)
            return
        if sifted.record_count < header.record_count and not self._rules.keeps_tombstones(horizon_of(header)):
            # What went may have been replaced by later records as well: the horizon is rather too high than too low.
            self._tombstone_horizon = max(self._tombstone_horizon, header.next_offset)
        if sifted.record_count == 0:
            self._write_emptied(writer, batch)
            return
        needs_horizon = sifted.tombstone_count > 0 and horizon_of(header) < 0
        if sifted.record_count == header.record_count and not needs_horizon:
            writer.copy(header, batch.data)
            return
        payload = memoryview(batch.payload)
        writer.replace(
            rebuild_batch(
                header,
                [payload[start:end] for start, end in sifted.runs],
                record_count=sifted.record_count,
                newest_ms=sifted.newest_ms,
                horizon_ms=self._rules.horizon_ms if needs_horizon else -1,
            )
        )

    # --- the end -------------------------------------------------------------------------------------------------

    def finish(self) -> CleaningReport:
        """Blocking, after the last swap. Then, on the loop, the log's `clean_end` is the report's end offset."""
        self._write_state(self._end_offset)
        return CleaningReport(
            self._end_offset,
            self._read_bytes,
            self._saved_bytes,
            self._swap_count,
        )

    def _write_state(self, clean_end: int) -> None:
        log = self.log
        with log.swap_lock:
            if log.failure is not None or log.generation != self._generation:
                raise CleaningStopped
            state = CompactionState(clean_end, tuple(log.swaps), log.tombstone_horizon)
            write_state(self._context.files, log.home.directory, state)

    # --- reading -------------------------------------------------------------------------------------------------

    def _portions(self, segment: Segment, *, from_offset: int) -> Iterator[list[StoredBatch]]:
        file = self._open(segment)
        start, next_offset = 0, segment.base_offset
        if from_offset > segment.base_offset:
            index = self._context.indexes.index_of(segment, file)
            relative, start, _ = index.floor(from_offset - segment.base_offset)
            next_offset = segment.base_offset + relative
        breathe = self._throttle.breathe
        for batches in read_batches(file, segment, start=start, next_offset=next_offset, breathe=breathe):
            for portion in open_portions(batches, breathe):
                yield portion
                size_bytes = sum(len(batch.data) for batch in portion)
                self._read_bytes += size_bytes
                self._throttle.take(size_bytes)
                if self.log.maintenance.is_wanted:
                    raise CleaningStopped

    def _open(self, segment: Segment) -> File:
        try:
            return self._context.files.open(segment.path)
        except FileNotFoundError as error:
            raise CleaningStopped from error  # retention took it


def sealed(segment: Segment) -> SealedSegment:
    newest_ms = segment.max_timestamp if segment.max_timestamp >= 0 else segment.begun_ms
    return SealedSegment(segment.base_offset, segment.next_offset, segment.size, newest_ms, segment.begun_ms)
