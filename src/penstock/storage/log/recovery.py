"""Brings a log back from its files. Blocking.

After a clean shutdown nothing is read but names and sizes. Otherwise everything past the checkpoint is read, batch by
batch, with checksums:

    segments below the checkpoint    believed: their sizes are compared, their bytes checked when they are read
    past it, all batches good        the log
    a bad place, nothing good after  the torn end of the last write: cut, kept in a file beside the log, and said
    a bad place, a good batch after  damage: nothing is cut, it alone is not served, the log goes on behind it
    a bad place that is remembered   damage, whatever comes after it
    known to the checkpoint, gone    damage; if it was the log's end, nothing is appended before `penstock log repair`

A power cut may keep the second page of an unsynced write and lose the first, which looks like damage although nobody
was promised those bytes. No mark on disk could tell the two apart without a second sync in every turn, so it counts
as damage: an operator decides about bytes, never we. Only after a failed sync, when the process still knows how far it
had promised, is the rest cut without a question.

What is read here is on the disk, not only in the system's memory: see `_scan`. Everybody may read it afterwards.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from penstock.base.log_events import get_logger
from penstock.codec.batch.header import BatchHeader, BatchProblem
from penstock.storage.context import StoreContext
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import File
from penstock.storage.files.retired import RETIRED_SUFFIX
from penstock.storage.log.checkpoint_file import LogCheckpoint, SegmentCheckpoint
from penstock.storage.log.cut_bytes import keep_cut
from penstock.storage.log.damage import is_head_missing, read_places, with_place, write_places
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.files import (
    read_epochs,
    read_log_start,
    write_log_start,
)
from penstock.storage.log.home import LogHome
from penstock.storage.log.producer_recovery import OnBatch, OnDamage, ProducerRecovery
from penstock.storage.log.readable_marks import Mark, find_marks
from penstock.storage.log.recovered import RecoveredLog
from penstock.storage.log.removal import remove_segment_files
from penstock.storage.log.segment_recovery import any_holds_a_batch, begin_scan, believe, judge, scan_on
from penstock.storage.log.swap import (
    CompactionState,
    SettledSwaps,
    corrected,
    settle_swaps,
)
from penstock.storage.segment.damage_search import find_damage, is_mended, scan_past_damage
from penstock.storage.segment.facts import LOG_SUFFIX, Segment, base_offset_of
from penstock.storage.segment.index import SegmentIndex
from penstock.storage.segment.index_file import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from penstock.storage.segment.scan import BatchScan
from penstock.storage.segment.side_files import SIDE_SUFFIXES

_log = get_logger("storage")


class LogRecovery:
    """One recovery of one log; use once."""

    def __init__(
        self,
        context: StoreContext,
        home: LogHome,
        checkpoint: LogCheckpoint | None,
        *,
        is_clean: bool,
        is_synced: bool = False,
        durable_end: int | None = None,
        readable_end: int | None = None,
    ) -> None:
        """`is_synced`: the whole disk was, since the process before this one died. `durable_end`: no process died, and
        this one knows how far it has promised. `readable_end`: not everything that is found may be read at once."""
        self._context = context
        self._files = context.files
        self._home = home
        self._facts = {facts.base_offset: facts for facts in checkpoint.segments} if checkpoint else {}
        self._checkpoint = checkpoint
        self._saved_end = checkpoint.end_offset if checkpoint is not None else 0
        self._is_clean = is_clean and checkpoint is not None and checkpoint.is_clean
        self._is_synced = is_synced
        self._durable_end = durable_end
        self._readable_end = readable_end
        self._sizes: dict[int, int] = {}
        self._segments: list[Segment] = []
        self._log_start = 0
        self._next_offset = 0
        self._damages: tuple[Damage, ...] = ()
        self._lost_end: Damage | None = None
        self._remembered: tuple[Damage, ...] = ()
        self._producers = ProducerRecovery(
            context.files, home, producers_max=context.config.producers_max, readable_end=readable_end
        )
        self._epochs = LeaderEpochs()
        self._are_epochs_lost = False
        # By segment: where it was read from, with checksums.
        self._scan_starts: dict[int, int] = {}
        self._scanned_bytes = 0
        self._scanned_batches = 0
        self._torn_bytes = 0
        self._has_changed = False
        self._cleaned = SettledSwaps(CompactionState())

    def run(self) -> RecoveredLog:
        self._read_small_files()
        self._list_segments()
        for base_offset in sorted(self._sizes.keys() | self._facts.keys()):
            if self._lost_end is None:
                self._recover_segment(base_offset)
        self._sync_directories()
        self._settle_start()
        self._settle_epochs()
        self._settle_producers()
        self._settle_damages()
        if self._segments:
            self._segments[-1].is_active = True
        log_end = max(self._next_offset, self._log_start)
        return RecoveredLog(
            self._segments,
            self._log_start,
            log_end,
            self._producers.known,
            self._epochs,
            self._damages,
            self._lost_end,
            self._saved_end,
            self._scanned_bytes,
            self._scanned_batches,
            self._torn_bytes,
            min(self._cleaned.state.clean_end, self._next_offset),
            self._cleaned.state.swaps,
            # Where nobody knows what a cleaning has dropped, it may have been anything.
            log_end if self._cleaned.is_lost else self._cleaned.state.tombstone_horizon,
            self._find_marks(log_end),
        )

    def _find_marks(self, log_end: int) -> tuple[Mark, ...]:
        readable_end = self._readable_end
        if readable_end is None or readable_end >= log_end:
            return ()
        return find_marks(self._context, self._segments, readable_end=readable_end, log_start=self._log_start)

    # --- what is there -------------------------------------------------------------------------------------------

    def _list_segments(self) -> None:
        directory = self._home.directory
        sizes = self._settle_swaps()
        for name, size in sizes.items():
            base_offset = base_offset_of(name)
            if base_offset is not None:
                self._sizes[base_offset] = size
        for name in sizes:
            # A checkpoint may have saved the index of a segment that retention removed at the same time.
            if name.endswith(RETIRED_SUFFIX) or (
                name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX, *SIDE_SUFFIXES))
                and f"{name.partition('.')[0]}{LOG_SUFFIX}" not in sizes
            ):
                self._files.remove(f"{directory}/{name}")
        if sizes and not self._is_clean and not self._is_synced:
            # A killed process may have made, renamed or removed files and not come to the sync. What is seen here must
            # not go back after somebody was told of it.
            self._files.sync_directory(directory)
        bases = sorted(self._sizes)
        first_offset = bases[0] if bases else 0
        saved_start = read_log_start(self._files, directory)
        known_start = first_offset if saved_start is None else saved_start
        first_known = min(self._facts, default=0)
        self._log_start = (
            known_start if is_head_missing(self._remembered, first_known) else max(known_start, first_known)
        )
        if self._log_start != saved_start and sizes:
            # Known by the checkpoint alone: to save it failed, or did not come to it. What lies below goes only now.
            # Or what was saved is bad, and removed segments may come back: the next start must not go by them.
            write_log_start(self._files, directory, self._log_start)
        # A segment that ends at or below the start was retired, and the crash came before it was removed. Past the
        # checkpoint it is read before it goes: the saved producers do not know it yet.
        for base_offset, next_base in pairwise(bases):
            if next_base <= min(self._log_start, self._saved_end):
                self._remove(base_offset)
        self._facts = {base: facts for base, facts in self._facts.items() if self._is_held(facts)}
        # A first segment past the start is a gap like any other: the start is saved before segments are removed.
        first_offset = min(self._sizes.keys() | self._facts.keys(), default=self._log_start)
        self._next_offset = min(first_offset, self._log_start)

    def _settle_swaps(self) -> dict[str, int]:
        """Before anything is believed: a crash may have come while a cleaned segment took the place of others."""
        directory = self._home.directory
        sizes = self._files.file_sizes(directory)
        self._cleaned = settle_swaps(self._files, directory, sizes)
        facts = corrected(self._facts.values(), self._cleaned.state.swaps)
        self._facts = {fact.base_offset: fact for fact in facts}
        if self._cleaned.is_lost:
            _log.warning("compaction state lost", topic=self._home.topic, partition=self._home.partition)
            self._facts, self._checkpoint, self._saved_end, self._is_clean = {}, None, 0, False
            self._producers.replay()
        # Nearly always there was nothing to settle, and one look at the directory is enough.
        return self._files.file_sizes(directory) if self._cleaned.has_changed else sizes

    def _is_held(self, facts: SegmentCheckpoint) -> bool:
        return facts.base_offset in self._sizes or facts.next_offset > self._log_start

    def _read_small_files(self) -> None:
        self._remembered = read_places(self._files, self._home.directory)
        self._epochs = read_epochs(self._files, self._home.directory)
        checkpoint = self._checkpoint
        self._are_epochs_lost = checkpoint is not None and self._epochs.latest < checkpoint.latest_epoch
        # Past the checkpoint the batches themselves tell: what was saved of them may be of batches that were lost.
        self._epochs.truncate_end(checkpoint.end_offset if checkpoint is not None else 0)
        self._producers.load(checkpoint)
        if self._producers.is_lost:
            # Nothing may leave the head before they are saved again: with it would go what they are made of.
            self._saved_end = 0

    # --- one segment after the other -----------------------------------------------------------------------------

    def _recover_segment(self, base_offset: int) -> None:
        facts = self._facts.get(base_offset)
        size = self._sizes.get(base_offset)
        if facts is None and size is None:
            return  # removed with the torn end before it
        if self._cleaned.is_lost and base_offset < self._next_offset:
            self._remove(base_offset)  # the segment before it holds what a cleaning kept of it
            return
        if base_offset != self._next_offset and base_offset <= self._log_start:
            self._begin_anew(base_offset)
        if base_offset != self._next_offset and not self._step_over_gap(base_offset):
            return
        if size is None:
            assert facts is not None
            self._miss(base_offset, 0, facts, f"the file is missing; {facts.size_bytes} bytes were in it")
            return
        segment = Segment(self._home.directory, base_offset, begun_ms=self._context.clock.now_ms())
        self._segments.append(segment)
        is_short = facts is not None and size < facts.size_bytes
        if facts is not None and not is_short:
            believe(segment, facts)
            self._next_offset = segment.next_offset
            is_last = base_offset == max(self._facts)
            if not is_last or self._is_clean:
                return
            if size == facts.size_bytes:
                # It may have been longer on disk, and cut by the process that was killed before it came to the sync.
                if not self._is_synced:
                    self._files.open(segment.path).sync()
                return
        self._scan(segment)
        if is_short:
            assert facts is not None
            reason = f"the file ends at byte {size}; {facts.size_bytes} bytes were in it"
            self._miss(base_offset, segment.size, facts, reason)

    def _miss(self, base_offset: int, position: int, facts: SegmentCheckpoint, reason: str) -> None:
        """The checkpoint knows of more than there is."""
        offset_end = max(facts.next_offset, self._next_offset)
        damage = Damage(self._next_offset, base_offset, position, reason, offset_end=offset_end, position_end=position)
        is_last = not any(base > base_offset for base in self._sizes.keys() | self._facts.keys())
        if is_last:
            # What was written after the checkpoint is gone too, and how much that was nobody knows.
            self._lost_end = msgspec.structs.replace(damage, is_end_lost=True)
        elif damage.offset_end > damage.offset:
            self._add_damage(damage)
            self._producers.pass_damage(damage, None)
            self._next_offset = offset_end

    def _begin_anew(self, base_offset: int) -> None:
        """Everything so far lies below the start: its records are deleted, so its damage is nobody's."""
        self._drop_segments(base_offset)
        self._damages = ()

    def _drop_segments(self, next_offset: int) -> None:
        """The log goes on at `next_offset`; what only these segments knew of producers is saved before they go."""
        checkpoint = self._checkpoint
        is_all_scanned = checkpoint is None or next_offset >= checkpoint.end_offset
        if self._producers.is_lost and is_all_scanned:
            self._producers.rebuild(self._walk)
        if not self._producers.is_lost:
            self._producers.save(next_offset)
        for segment in self._segments:
            self._remove(segment.base_offset)
        self._segments = []
        self._next_offset = next_offset

    def _scan(self, segment: Segment) -> None:
        file = self._files.open(segment.path)
        # A process that was killed leaves bytes in the system's memory that are not on disk, and after a failed sync
        # bytes that never will be. So they are written out, forgotten, and read from the disk itself.
        if not self._is_synced:
            file.sync()
        file.drop_cache()
        size = file.size()
        start = self._scan_starts[segment.base_offset] = begin_scan(self._context, segment)
        self._scanned_bytes += size - start
        while True:
            problem = scan_on(self._context, segment, file, file_bytes=size, on_batch=self._take)
            self._next_offset = segment.next_offset
            damage = None if problem is None else self._judge(segment, file, size, problem)
            if damage is None:
                break
            self._add_damage(damage)
            self._producers.pass_damage(damage, file)
            segment.skip(damage.position_end, damage.offset_end)
        self._has_changed = self._has_changed or not self._is_synced

    def _take(self, header: BatchHeader, scan: BatchScan) -> None:
        self._scanned_batches += 1
        self._epochs.assign(header.leader_epoch, header.base_offset)
        self._producers.take(header, scan)

    def _judge(self, segment: Segment, file: File, size: int, problem: BatchProblem) -> Damage | None:
        """The damage at the segment's new end, if it goes on behind it; if it does not, it ends there."""
        facts = self._facts.get(segment.base_offset)
        position, offset = segment.size, segment.next_offset
        known = next((place for place in self._remembered if place.offset == offset), None)
        if known is not None and known.position == position < known.position_end <= size:
            return known
        if facts is not None and position < facts.size_bytes:
            end = (facts.size_bytes, facts.next_offset)
            damage = find_damage(
                file, segment, segment.index, position=position, offset=offset, end=end, reason=problem.reason
            )
            return damage if damage.position_end <= size else None  # None: the file is short, which is told
        if self._is_unpromised():
            self._cut(segment, file, size, problem.reason)
            return None
        later = [
            (base, self._path(base), size) for base, size in sorted(self._sizes.items()) if base > segment.base_offset
        ]
        verdict = judge(self._files, segment, file, file_bytes=size, problem=problem, later=later)
        if verdict.is_end_lost:
            self._lost_end = Damage(offset, segment.base_offset, position, problem.reason, is_end_lost=True)
        elif verdict.damage is None and self._durable_end is not None:
            # It was promised, so it is no torn write: its offsets must not be given out again.
            end = (size, self._durable_end)
            return find_damage(file, segment, None, position=position, offset=offset, end=end, reason=problem.reason)
        elif verdict.damage is None:
            self._cut(segment, file, size, problem.reason)
        return verdict.damage

    def _cut(self, segment: Segment, file: File, size: int, reason: str) -> None:
        kept = self._keep_cut(file, segment.base_offset, segment.size, size)
        file.truncate(segment.size)
        file.sync()
        self._cut_tail(size - segment.size, segment.base_offset + 1, reason, kept)

    def _step_over_gap(self, base_offset: int) -> bool:
        """The segment does not begin where the one before it ends; False: it is gone, and so is all behind it."""
        if self._sizes.get(base_offset) == 0 and base_offset not in self._facts:
            self._remove(base_offset)
            return False
        last = self._segments[-1] if self._segments else None
        before, position = (last.base_offset, last.size) if last is not None else (self._next_offset, 0)
        if base_offset < self._next_offset:
            reason = f"segment {base_offset} begins before offset {self._next_offset}, where the one before it ends"
            self._lost_end = Damage(self._next_offset, before, position, reason, is_end_lost=True)
            return False
        reason = f"offsets {self._next_offset} to {base_offset - 1} are missing before segment {base_offset}"
        is_known = any(base >= base_offset for base in self._facts)
        later = self._files_from(base_offset)
        is_torn = self._durable_end is None and not any_holds_a_batch(self._files, later, self._next_offset)
        if not is_known and (self._is_unpromised() or is_torn):
            self._cut_tail(0, base_offset, reason, None)
            return False
        damage = Damage(self._next_offset, before, position, reason, offset_end=base_offset, position_end=position)
        self._add_damage(damage)
        self._producers.pass_damage(damage, None)
        self._next_offset = base_offset
        return True

    def _is_unpromised(self) -> bool:
        """What follows was never promised to anybody: known only while the process that wrote it lives."""
        return self._durable_end is not None and self._next_offset >= self._durable_end

    def _cut_tail(self, torn_bytes: int, base_offset: int, reason: str, kept: str | None) -> None:
        """Removes all files from `base_offset` on, which hold nothing whole."""
        later = self._files_from(base_offset)
        torn_bytes += sum(size for _, size in later)
        for base in [base for base in self._sizes if base >= base_offset]:
            if self._sizes[base] > 0:
                kept = self._keep_cut(self._files.open(self._path(base)), base, 0, self._sizes[base]) or kept
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
            kept_in=f"{self._home.directory}/{kept}" if kept is not None else "nothing: all of it is zeros",
            reason=reason,
        )

    def _keep_cut(self, file: File, base_offset: int, start: int, end: int) -> str | None:
        try:
            directory = self._home.directory
            return keep_cut(self._files, directory, file, base_offset=base_offset, start=start, end=end)
        except OSError as error:
            # A full disk must not keep the node from starting.
            _log.warning("cut bytes not kept", path=file.path, position=start, bytes=end - start, error=str(error))
            return None

    def _files_from(self, base_offset: int) -> list[tuple[str, int]]:
        return [(self._path(base), size) for base, size in sorted(self._sizes.items()) if base >= base_offset]

    def _add_damage(self, damage: Damage) -> None:
        self._damages = with_place(self._damages, damage)

    # --- afterwards ----------------------------------------------------------------------------------------------

    def _sync_directories(self) -> None:
        """Names that a killed process left behind are as little durable as its bytes, and what was done here too."""
        if self._has_changed:
            self._files.sync_directory(self._home.directory)
            if self._checkpoint is None:
                self._files.sync_directory(self._home.topic_directory)
                self._files.sync_directory(self._home.logs_directory)

    def _settle_start(self) -> None:
        if self._next_offset < self._log_start and self._lost_end is None:
            # Records were deleted up to the log's end, and that end was lost in the crash: the deletion stands.
            self._drop_segments(self._log_start)
            # An empty segment, whose name says where the log ends: one small file alone must not.
            segment = Segment(self._home.directory, self._log_start, begun_ms=self._context.clock.now_ms())
            segment.index = SegmentIndex()
            self._files.open(segment.path, create=True)
            self._files.sync_directory(self._home.directory)
            self._segments = [segment]

    def _settle_epochs(self) -> None:
        if self._are_epochs_lost:
            _log.warning("leader epochs rebuilt", topic=self._home.topic, partition=self._home.partition)
            self._epochs = LeaderEpochs()
            self._walk(lambda header, _scan: self._epochs.assign(header.leader_epoch, header.base_offset))
        self._epochs.truncate_end(self._next_offset)
        self._epochs.truncate_start(self._log_start)

    def _settle_producers(self) -> None:
        empty_aborts = [offset for swap in self._cleaned.state.swaps for offset in swap.empty_aborts]
        if not self._producers.settle(self._next_offset, self._walk, empty_aborts):
            self._saved_end = 0

    def _walk(self, on_batch: OnBatch, on_damage: OnDamage = lambda _damage, _file: None) -> None:
        """Everything that is left; damage below the checkpoint, which nobody has read yet, may show here."""
        for segment in self._segments:
            file = self._files.open(segment.path)
            for gap in [place for place in self._damages if place.offset_end == segment.base_offset]:
                on_damage(gap, None)

            def meet(damage: Damage, file: File = file) -> None:
                self._add_damage(damage)
                on_damage(damage, file)

            for _, header, scan in scan_past_damage(
                file,
                segment,
                None,
                start=(0, segment.base_offset),
                end=(segment.size, segment.next_offset),
                on_damage=meet,
            ):
                on_batch(header, scan)

    def _settle_damages(self) -> None:
        """What is remembered and still true counts, and is remembered together with what was found."""
        segments = {segment.base_offset: segment for segment in self._segments}
        for damage in self._remembered:
            segment = segments.get(damage.segment_base_offset)
            # A gap is found anew by whoever finds the segments before and after it.
            if segment is None or not damage.position < damage.position_end <= segment.size:
                continue
            if damage.position >= self._scan_starts.get(segment.base_offset, segment.size):
                # Read just now: if it is still true, it was found. After a repair that was interrupted before it came
                # to the file that remembers, other bytes stand there.
                continue
            if is_mended(self._files.open(segment.path), damage):
                _log.info("damage mended", topic=self._home.topic, partition=self._home.partition, offset=damage.offset)
            else:
                self._add_damage(damage)
        self._damages = tuple(damage for damage in self._damages if damage.offset_end > self._log_start)
        if self._damages != self._remembered:
            try:
                write_places(self._files, self._home.directory, self._damages)
            except OSError as error:
                # On a full disk, or one that takes no writes, the log is served all the same.
                _log.warning("damage not saved", directory=self._home.directory, error=str(error))

    def _remove(self, base_offset: int) -> None:
        remove_segment_files(self._files, self._path(base_offset).removesuffix(LOG_SUFFIX))
        self._sizes.pop(base_offset, None)
        self._has_changed = True

    def _path(self, base_offset: int) -> str:
        return f"{self._home.directory}/{base_offset:020}{LOG_SUFFIX}"
