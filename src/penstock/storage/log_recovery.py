"""Brings a log back from its files. Blocking.

After a clean shutdown nothing is read but names and sizes. Otherwise everything past the checkpoint is read, batch by
batch, with checksums:

    segments below the checkpoint    believed: their sizes are compared, their bytes checked when they are first read
    past it, all batches good        the log
    a bad place, nothing good after  the torn end of the last write: cut, and said how many bytes
    a bad place, a good batch after  damage: nothing is cut, nothing past it is served, nothing is appended

A power cut may keep the second page of an unsynced write and lose the first, which looks like damage although nobody
was promised those bytes. No mark on disk could tell the two apart without a second sync in every turn, so it counts
as damage: an operator decides about bytes, never we.

What was read may be in the system's memory only: a process that was killed leaves unsynced bytes behind, which look
durable to the next one. They are synced before anybody may read them.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from penstock.base.log_events import get_logger
from penstock.codec.record_batch import BatchHeader, BatchProblem
from penstock.domain.producer_sequence import ProducerSequences
from penstock.storage.batch_scan import BatchScan
from penstock.storage.checkpoint_file import LogCheckpoint, SegmentCheckpoint
from penstock.storage.file_protocols import File
from penstock.storage.index_file import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.log_files import read_epochs, read_log_start, read_producers
from penstock.storage.log_home import LogHome
from penstock.storage.segment import LOG_SUFFIX, Segment, base_offset_of
from penstock.storage.segment_recovery import any_holds_a_batch, holds_a_batch_after, scan_segment
from penstock.storage.storage_errors import Damage
from penstock.storage.store_context import StoreContext

_log = get_logger("storage")

# The saved producers are missing, bad or too old: their state is read out of the log itself.
_PRODUCERS_LOST = -1


class RecoveredLog(msgspec.Struct):
    segments: list[Segment]
    log_start: int
    log_end: int
    producers: ProducerSequences
    epochs: LeaderEpochs
    damage: Damage | None
    # Past the checkpoint: what the next one has to save.
    scanned_bytes: int
    scanned_batches: int
    torn_bytes: int


class LogRecovery:
    """One recovery of one log; use once."""

    def __init__(
        self,
        context: StoreContext,
        home: LogHome,
        checkpoint: LogCheckpoint | None,
        *,
        is_clean: bool,
        drops_cache: bool = False,
    ) -> None:
        self._context = context
        self._files = context.files
        self._home = home
        self._facts = {facts.base_offset: facts for facts in checkpoint.segments} if checkpoint else {}
        self._checkpoint = checkpoint
        self._is_clean = is_clean and checkpoint is not None and checkpoint.is_clean
        self._drops_cache = drops_cache
        self._sizes: dict[int, int] = {}
        self._segments: list[Segment] = []
        self._log_start = 0
        self._next_offset = 0
        self._damage: Damage | None = None
        self._producers = ProducerSequences(context.config.producers_max)
        self._producers_offset = 0
        self._epochs = LeaderEpochs()
        self._scanned_bytes = 0
        self._scanned_batches = 0
        self._torn_bytes = 0
        self._has_changed = False

    def run(self) -> RecoveredLog:
        self._list_segments()
        self._read_small_files()
        for base_offset in sorted(self._sizes.keys() | self._facts.keys()):
            if self._damage is None:
                self._recover_segment(base_offset)
        self._sync_directories()
        self._settle_start()
        self._settle_epochs()
        self._settle_producers()
        if self._segments:
            self._segments[-1].is_active = True
        return RecoveredLog(
            self._segments,
            self._log_start,
            self._next_offset,
            self._producers,
            self._epochs,
            self._damage,
            self._scanned_bytes,
            self._scanned_batches,
            self._torn_bytes,
        )

    # --- what is there -------------------------------------------------------------------------------------------

    def _list_segments(self) -> None:
        directory = self._home.directory
        for name, size in self._files.file_sizes(directory).items():
            base_offset = base_offset_of(name)
            if base_offset is not None:
                self._sizes[base_offset] = size
        self._log_start = max(read_log_start(self._files, directory), min(self._facts, default=0))
        bases = sorted(self._sizes)
        # A segment that ends at or below the start was retired, and the crash came before it was removed.
        for base_offset, next_base in pairwise(bases):
            if next_base <= self._log_start:
                self._remove(base_offset)
        self._facts = {base: facts for base, facts in self._facts.items() if self._is_held(facts)}
        self._log_start = max(self._log_start, min(self._sizes, default=0))
        self._next_offset = min(self._sizes.keys() | self._facts.keys(), default=self._log_start)

    def _is_held(self, facts: SegmentCheckpoint) -> bool:
        return facts.base_offset in self._sizes or facts.next_offset > self._log_start

    def _read_small_files(self) -> None:
        directory = self._home.directory
        self._epochs = read_epochs(self._files, directory)
        saved = read_producers(self._files, directory, self._context.config.producers_max)
        checkpoint = self._checkpoint
        needed = -1
        if checkpoint is not None:
            # No producers at the checkpoint: only a later file counts, an older one is of producers long forgotten.
            needed = checkpoint.producers_offset if checkpoint.producers_offset >= 0 else checkpoint.end_offset
        if saved is not None and saved[0] >= needed:
            self._producers_offset, self._producers = saved
        elif checkpoint is not None:
            self._producers_offset = needed if checkpoint.producers_offset < 0 else _PRODUCERS_LOST

    # --- one segment after the other -----------------------------------------------------------------------------

    def _recover_segment(self, base_offset: int) -> None:
        facts = self._facts.get(base_offset)
        size = self._sizes.get(base_offset)
        if facts is None and size is None:
            return  # removed with the torn end before it
        if base_offset != self._next_offset:
            self._judge_gap(base_offset)
            return
        if size is None:
            assert facts is not None
            self._note_damage(base_offset, 0, f"the file is missing; {facts.size_bytes} bytes were in it")
            return
        segment = Segment(self._home.directory, base_offset, begun_ms=self._context.clock.now_ms())
        self._segments.append(segment)
        is_short = facts is not None and size < facts.size_bytes
        if facts is not None and not is_short:
            _believe(segment, facts)
            self._next_offset = segment.next_offset
            is_last = base_offset == max(self._facts)
            if not is_last or self._is_clean or size == facts.size_bytes:
                return
        self._scan(segment, size)
        if is_short and self._damage is None:
            assert facts is not None
            reason = f"the file ends at byte {size}; {facts.size_bytes} bytes were in it"
            self._note_damage(base_offset, segment.size, reason)

    def _scan(self, segment: Segment, size: int) -> None:
        file = self._files.open(segment.path)
        if self._drops_cache:
            file.drop_cache()
        scan = scan_segment(self._context, segment, file, file_bytes=size, on_batch=self._take)
        self._scanned_bytes += scan.scanned_bytes
        self._next_offset = segment.next_offset
        if scan.problem is not None:
            self._judge(segment, file, size, scan.problem)
        file.sync()
        self._has_changed = True

    def _take(self, header: BatchHeader) -> None:
        self._scanned_batches += 1
        self._epochs.assign(header.leader_epoch, header.base_offset)
        if 0 <= self._producers_offset <= header.base_offset:
            self._producers.apply(header)

    def _judge(self, segment: Segment, file: File, size: int, problem: BatchProblem) -> None:
        facts = self._facts.get(segment.base_offset)
        later = self._files_from(segment.base_offset + 1)
        is_damage = (facts is not None and segment.size < facts.size_bytes) or holds_a_batch_after(
            self._files, segment, file, file_bytes=size, problem=problem, later=later
        )
        if is_damage:
            self._note_damage(segment.base_offset, segment.size, problem.reason)
        else:
            file.truncate(segment.size)
            self._cut_tail(size - segment.size, segment.base_offset + 1, problem.reason)

    def _judge_gap(self, base_offset: int) -> None:
        """A segment that does not begin where the one before it ends."""
        reason = f"offsets {self._next_offset} to {base_offset - 1} are missing before segment {base_offset}"
        is_known = any(base >= base_offset for base in self._facts)
        if not is_known and not any_holds_a_batch(self._files, self._files_from(base_offset), self._next_offset):
            self._cut_tail(0, base_offset, reason)
        elif self._segments:
            self._note_damage(self._segments[-1].base_offset, self._segments[-1].size, reason)
        else:
            self._note_damage(self._next_offset, 0, reason)

    def _cut_tail(self, torn_bytes: int, base_offset: int, reason: str) -> None:
        """Removes all files from `base_offset` on, which hold nothing whole."""
        later = self._files_from(base_offset)
        torn_bytes += sum(size for _, size in later)
        for base in [base for base in self._sizes if base >= base_offset]:
            self._remove(base)
        if torn_bytes == 0:
            return
        self._torn_bytes += torn_bytes
        _log.warning(
            "torn tail cut",
            topic=self._home.topic,
            partition=self._home.partition,
            log_end=self._next_offset,
            bytes=torn_bytes,
            reason=reason,
        )

    def _files_from(self, base_offset: int) -> list[tuple[str, int]]:
        return [(self._path(base), size) for base, size in sorted(self._sizes.items()) if base >= base_offset]

    def _note_damage(self, segment_base_offset: int, position: int, reason: str) -> None:
        self._damage = Damage(self._next_offset, segment_base_offset, position, reason)

    # --- afterwards ----------------------------------------------------------------------------------------------

    def _sync_directories(self) -> None:
        """Names that a killed process left behind are as little durable as its bytes."""
        if self._has_changed:
            self._files.sync_directory(self._home.directory)
            if self._checkpoint is None:
                self._files.sync_directory(self._home.topic_directory)
                self._files.sync_directory(self._home.logs_directory)

    def _settle_start(self) -> None:
        if self._next_offset < self._log_start and self._damage is None:
            # Records were deleted up to the log's end, and that end was lost in the crash: the deletion stands.
            for segment in self._segments:
                self._remove(segment.base_offset)
            self._segments = []
            self._next_offset = self._log_start

    def _settle_epochs(self) -> None:
        checkpoint = self._checkpoint
        if checkpoint is not None and self._epochs.latest < checkpoint.latest_epoch:
            _log.warning("leader epochs rebuilt", topic=self._home.topic, partition=self._home.partition)
            self._epochs = LeaderEpochs()
            for header in self._all_headers():
                self._epochs.assign(header.leader_epoch, header.base_offset)
        self._epochs.truncate_end(self._next_offset)
        self._epochs.truncate_start(self._log_start)

    def _settle_producers(self) -> None:
        if self._producers_offset != _PRODUCERS_LOST and self._producers_offset <= self._next_offset:
            return
        _log.warning("producers rebuilt", topic=self._home.topic, partition=self._home.partition)
        self._producers = ProducerSequences(self._context.config.producers_max)
        for header in self._all_headers():
            self._producers.apply(header)

    def _all_headers(self) -> list[BatchHeader]:
        headers: list[BatchHeader] = []
        for segment in self._segments:
            scan = BatchScan(
                self._files.open(segment.path),
                start=0,
                end=segment.size,
                next_offset=segment.base_offset,
                checks_checksums=False,
            )
            headers.extend(header for _, header in scan)
        return headers

    def _remove(self, base_offset: int) -> None:
        prefix = self._path(base_offset).removesuffix(LOG_SUFFIX)
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self._files.remove(prefix + suffix)
        self._sizes.pop(base_offset, None)
        self._has_changed = True

    def _path(self, base_offset: int) -> str:
        return f"{self._home.directory}/{base_offset:020}{LOG_SUFFIX}"


def _believe(segment: Segment, facts: SegmentCheckpoint) -> None:
    segment.begun_ms = facts.begun_ms
    segment.next_offset = facts.next_offset
    segment.size = facts.size_bytes
    segment.record_count = facts.record_count
    segment.max_timestamp = facts.max_timestamp
    segment.verified.forget_below(facts.size_bytes)
