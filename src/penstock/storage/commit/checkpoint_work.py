"""One checkpoint: what is to be written is taken on the loop, written in a thread, and settled on the loop.

    loop      capture: end, facts of the segments, new index entries, producers, leader epochs
    turn      group commit makes everything captured durable; logs that fail are left out
    thread    run: index files, producers, leader epochs, one sync for all, then the node's checkpoint
    loop      settle: what was saved need not be saved again

The node's checkpoint comes last and by itself decides: until it is there, recovery believes the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from penstock.storage.config import StorageConfig
from penstock.storage.files.protocols import File, Files, WholeDiskSync
from penstock.storage.files.small import TEMPORARY_SUFFIX, write_temporary
from penstock.storage.log.checkpoint_file import (
    LogCheckpoint,
    LogKey,
    SegmentCheckpoint,
    pack_entry,
    write_checkpoint,
)
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.files import (
    EPOCHS_FILE,
    EPOCHS_MAGIC,
    PRODUCERS_FILE,
    PRODUCERS_MAGIC,
    pack_producers,
)
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.index_file import IndexDelta, note_saved, take_delta

Done = TypeVar("Done")

# Logs whose files are open at the same time: four each at the most, far below what a process may have.
_LOGS_AT_ONCE: Final = 8
# Taken on the loop in one piece, about 10 µs each; the rest is taken next time, those with the most unsaved first.
LOGS_MAX: Final = 1_000


class SavedState(msgspec.Struct, frozen=True):
    """What of a log's small files is on disk; of another generation it says nothing."""

    generation: int = -1
    producers_offset: int = -1
    producers_change_count: int = -1
    epochs: bytes = b""


class LogCapture(msgspec.Struct):
    """One log as it was at one moment."""

    log: PartitionLog
    generation: int
    entry: LogCheckpoint
    deltas: list[tuple[Segment, IndexDelta]]
    producers: bytes | None
    epochs: bytes | None
    saved: SavedState
    unsaved_bytes: int
    unsaved_batches: int
    swap_count: int

    @property
    def key(self) -> LogKey:
        return self.entry.key


def key_of(log: PartitionLog) -> LogKey:
    return log.home.topic_id, log.home.partition


def logs_due(config: StorageConfig, logs: Iterable[PartitionLog], *, every_log: bool) -> list[PartitionLog]:
    """Logs with enough unsaved; all that have any, when what they have together would make for a slow start."""
    changed = [
        log
        for log in logs
        if log.segments
        and (log.unsaved_batches or log.is_save_wanted or log.swaps or log.has_unsaved_watermark)
        and log.is_healthy
        and not log.is_being_cut
    ]
    every_log = (
        every_log
        or sum(log.unsaved_bytes for log in changed) >= config.checkpoint_sum_bytes
        or sum(log.unsaved_batches for log in changed) >= config.checkpoint_sum_batches
    )
    return [
        log
        for log in changed
        if every_log
        or log.is_save_wanted
        or log.swaps
        or log.unsaved_bytes >= config.checkpoint_log_bytes
        or log.unsaved_batches >= config.checkpoint_log_batches
    ]


def capture_log(log: PartitionLog, saved: SavedState) -> LogCapture:
    if saved.generation != log.generation:
        saved = SavedState()
    deltas = []
    for segment in reversed(log.segments):
        index = segment.index
        # Segments were sealed in order: the first one that is saved ends the search.
        if index is None or index.covered_bytes == segment.size:
            if not segment.is_active:
                break
            continue
        delta = take_delta(
            index,
            segment.prefix,
            covered_bytes=segment.size,
            covered_records=segment.record_count,
            max_timestamp=segment.max_timestamp,
        )
        deltas.append((segment, delta))
    producers = None
    producers_offset = -1
    if not log.known_producers.is_empty:
        producers_offset = saved.producers_offset
        if saved.producers_change_count != log.known_producers.change_count:
            producers_offset = log.log_end
            producers = pack_producers(log.known_producers, log.log_end)
    epochs = log.epochs.to_bytes()
    return LogCapture(
        log,
        log.generation,
        LogCheckpoint(
            log.home.topic_id,
            log.home.partition,
            tuple(facts_of(segment) for segment in log.segments),
            producers_offset,
            # Not of an epoch that has no batch yet: it is not kept over a restart.
            log.epochs.epoch_at(log.log_end - 1),
            readable_end=log.readable_end,
        ),
        deltas,
        producers,
        epochs if epochs != saved.epochs else None,
        SavedState(log.generation, producers_offset, log.known_producers.change_count, epochs),
        log.unsaved_bytes,
        log.unsaved_batches,
        len(log.swaps),
    )


def shortened(entry: LogCheckpoint, offset: int, epochs: LeaderEpochs) -> LogCheckpoint:
    """What is still true of the entry when the log is cut at `offset`: at least how far it was readable."""
    # An empty segment that begins at the cut goes with it: the one before it is written to again.
    kept = tuple(facts for facts in entry.segments if facts.next_offset <= offset and facts.base_offset < offset)
    # Saved after the cut they are of no use any more: offset 0 with no file makes recovery read them from the log.
    producers_offset = entry.producers_offset if entry.producers_offset <= offset else 0
    latest_epoch = -1
    if kept:
        latest_epoch = min(entry.latest_epoch, epochs.epoch_at(kept[-1].next_offset - 1))
    else:
        # All of it is read, and they with it.
        producers_offset = -1
    return msgspec.structs.replace(
        entry,
        segments=kept,
        producers_offset=producers_offset,
        latest_epoch=latest_epoch,
        is_clean=False,
        readable_end=min(entry.readable_end, offset),
    )


def facts_of(segment: Segment) -> SegmentCheckpoint:
    return SegmentCheckpoint(
        segment.base_offset,
        segment.next_offset,
        segment.size,
        segment.record_count,
        segment.max_timestamp,
        segment.begun_ms,
    )


class CheckpointWork:
    def __init__(self, files: Files, root: str, captures: Iterable[LogCapture], packed: Mapping[LogKey, bytes]) -> None:
        self._files = files
        self._root = root
        self.captures = list(captures)
        self.is_written = False
        self._packed = dict(packed)

    def leave_out(self, failed: Iterable[PartitionLog]) -> None:
        """Logs whose captured state did not become durable."""
        lost = set(failed)
        self.captures = [capture for capture in self.captures if capture.log not in lost]

    def run(self, whole_disk: WholeDiskSync | None) -> None:
        """Blocking. Raises OSError; then the checkpoint before it still holds."""
        # Over a share of logs one sync of the whole disk is cheaper, and no file has to stay open for its own.
        if whole_disk is not None and len(self.captures) <= _LOGS_AT_ONCE:
            whole_disk = None
        files = self._files
        shares = [self.captures[start : start + _LOGS_AT_ONCE] for start in range(0, len(self.captures), _LOGS_AT_ONCE)]
        for share in shares:
            written = [file for capture in share for file in self._step(capture, _write_files) or ()]
            if whole_disk is None:
                for file in written:
                    file.sync()
        if whole_disk is not None:
            whole_disk.sync()
        renamed = [capture for capture in self.captures if self._step(capture, _rename_files)]
        if whole_disk is not None:
            whole_disk.sync()
        else:
            for capture in renamed:
                self._step(capture, _sync_directory)
        for capture in self.captures:
            self._packed[capture.key] = pack_entry(capture.entry)
        write_checkpoint(files, self._root, self._packed.values())
        self.is_written = True

    def _step(self, capture: LogCapture, step: Callable[[Files, LogCapture], Done]) -> Done | None:
        """None: its topic was deleted meanwhile, and there is nothing to be saved any more."""
        try:
            return step(self._files, capture)
        except FileNotFoundError:
            if not capture.log.is_closed:
                raise
            self.captures = [other for other in self.captures if other is not capture]
            self._packed.pop(capture.key, None)
            return None


def _small_files(capture: LogCapture) -> list[tuple[str, bytes, bytes]]:
    """Name, magic and payload of those that changed."""
    small_files = (
        (PRODUCERS_FILE, PRODUCERS_MAGIC, capture.producers),
        (EPOCHS_FILE, EPOCHS_MAGIC, capture.epochs),
    )
    return [(name, magic, payload) for name, magic, payload in small_files if payload is not None]


def _write_files(files: Files, capture: LogCapture) -> list[File]:
    directory = capture.log.home.directory
    written = [file for _, delta in capture.deltas for file in delta.write(files)]
    for name, magic, payload in _small_files(capture):
        written.append(write_temporary(files, directory, name, magic, payload))
    return written


def _rename_files(files: Files, capture: LogCapture) -> bool:
    """Whether names have changed in its directory: index files that are new count too."""
    directory = capture.log.home.directory
    small_files = _small_files(capture)
    for name, _, _ in small_files:
        files.rename(f"{directory}/{name}{TEMPORARY_SUFFIX}", f"{directory}/{name}")
    return bool(small_files) or any(delta.position == 0 for _, delta in capture.deltas)


def _sync_directory(files: Files, capture: LogCapture) -> None:
    files.sync_directory(capture.log.home.directory)


def settle_capture(capture: LogCapture) -> bool:
    """On the loop, after `run`: False if the log was cut or read again meanwhile, so that nothing may be concluded."""
    log = capture.log
    if log.generation != capture.generation:
        return False
    for segment, delta in capture.deltas:
        if segment.index is not None:
            note_saved(segment.index, delta)
            log.context.indexes.keep(segment)
    log.saved_end = capture.entry.end_offset
    log.saved_readable_end = capture.entry.readable_end
    log.is_save_wanted = False
    del log.swaps[: capture.swap_count]
    log.unsaved_bytes -= capture.unsaved_bytes
    log.unsaved_batches -= capture.unsaved_batches
    return True
