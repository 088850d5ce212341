"""A cleaned segment takes the place of those it was made of, such that a crash at any moment loses nothing.

    thread   commit    the new files are durable; then a small file names them, and what they replace: from here on
                       every start completes the swap
    loop     apply     new files are renamed over the first old one's, and the log serves them: one step, so nobody
                       sees half of it. Who had planned a read holds the old file and reads on in it
    thread   finish    the renames are made durable; only then the other old files go

The node's checkpoint still tells the sizes of the old segments then. Recovery corrects it by the small file, which
therefore names every swap since the log's last checkpoint. It also holds how far the log is clean.

    <partition>/compaction    magic · length · CRC-32C · clean end, swaps in MessagePack (`files/small`)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.storage.errors import StorageError
from penstock.storage.files.protocols import File, Files
from penstock.storage.files.small import TEMPORARY_SUFFIX, read_small_file, write_temporary
from penstock.storage.log.checkpoint_file import SegmentCheckpoint
from penstock.storage.log.removal import remove_segment_files
from penstock.storage.segment.facts import LOG_SUFFIX, Segment
from penstock.storage.segment.index_file import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from penstock.storage.segment.side_files import remove_side_files
from penstock.storage.segment.throttle import CleaningStopped
from penstock.storage.segment.writer import CLEANED_SUFFIX, SEGMENT_SUFFIXES, remove_cleaned

if TYPE_CHECKING:
    from penstock.storage.log.partition_log import PartitionLog

_log = get_logger("storage")

COMPACTION_FILE: Final = "compaction"
COMPACTION_MAGIC: Final = b"pscompa1"


class SegmentSwap(msgspec.Struct, frozen=True, array_like=True):
    """One segment in the place of others: (base offset, size) of each."""

    replaced: tuple[tuple[int, int], ...]
    facts: SegmentCheckpoint
    # Offsets of abort markers in it of whose transactions nothing is left (see CleaningRules.empty_aborts). Whoever
    # tells readers of aborted transactions forgets them with the swap, and after a crash by what stands here.
    empty_aborts: tuple[int, ...] = ()


class CompactionState(msgspec.Struct, frozen=True, array_like=True):
    clean_end: int = 0
    # Since the log's last checkpoint, in their order. At most the last of them is not complete.
    swaps: tuple[SegmentSwap, ...] = ()
    # Below it tombstones or markers are gone for good: see PartitionLog.
    tombstone_horizon: int = 0


# Made here, before there are threads: see base/typed_values.
_decode_state: Final = msgspec.msgpack.Decoder(CompactionState).decode


class SwapUnknownError(StorageError):
    """The disk failed at the very step that decides: only recovery can say whether the swap happened."""


class SegmentReplacement:
    """One swap under way."""

    def __init__(
        self,
        log: PartitionLog,
        replaced: Sequence[Segment],
        segment: Segment,
        *,
        held: Sequence[File],
        empty_aborts: Sequence[int] = (),
        tombstone_horizon: int = 0,
    ) -> None:
        self.log = log
        self._tombstone_horizon = max(log.tombstone_horizon, tombstone_horizon)
        self.segment = segment
        self._generation = log.generation
        self._replaced = list(replaced)
        # The old files, open: when the last handle of a removed file closes, the system frees its blocks, and that
        # must not happen on the loop.
        self._held = list(held)
        facts = SegmentCheckpoint(
            segment.base_offset,
            segment.next_offset,
            segment.size,
            segment.record_count,
            segment.max_timestamp,
            segment.begun_ms,
        )
        sizes = tuple((gone.base_offset, gone.size) for gone in replaced)
        self._swap = SegmentSwap(sizes, facts, tuple(empty_aborts))

    @property
    def empty_aborts(self) -> tuple[int, ...]:
        return self._swap.empty_aborts

    @property
    def saved_bytes(self) -> int:
        return sum(gone.size for gone in self._replaced) - self.segment.size

    def commit(self) -> None:
        """Blocking. On an OSError nothing has happened."""
        log = self.log
        log.context.files.sync_directory(log.home.directory)
        # Before the first of them goes: after a crash, too, nobody must take what is left for all there was.
        self._write(CompactionState(log.clean_end, (*log.swaps, self._swap), self._tombstone_horizon))

    def _write(self, state: CompactionState) -> None:
        # Recovery of a log that failed removes what was not committed when it looked, so nothing may be committed
        # after it has looked.
        with self.log.swap_lock:
            if self.log.failure is not None or self.log.generation != self._generation:
                raise CleaningStopped
            write_state(self.log.context.files, self.log.home.directory, state)

    def apply(self) -> bool:
        """On the loop. False: the log has changed meanwhile; then `abandon`."""
        log = self.log
        if log.generation != self._generation or not log.is_healthy or not self._are_held():
            return False
        log.context.indexes.part_with(self._replaced)
        try:
            for suffix in SEGMENT_SUFFIXES:
                path = self.segment.prefix + suffix
                log.context.files.rename(path + CLEANED_SUFFIX, path)
        except OSError as error:
            log.fail(f"{self.segment.path}: a cleaned segment could not take its place: {error}")
            return False
        log.replace_segments(self._replaced, self.segment)
        # In one step with the swap, which may have taken these markers out of the log.
        log.transactions.forget_aborts(self._swap.empty_aborts)
        log.swaps.append(self._swap)
        log.tombstone_horizon = self._tombstone_horizon
        return True

    def _are_held(self) -> bool:
        segments = self.log.segments
        if self._replaced[0] not in segments:
            return False
        place = segments.index(self._replaced[0])
        return segments[place : place + len(self._replaced)] == self._replaced

    def finish(self) -> None:
        """Blocking. An OSError says that the renames may not be durable: the log must be read again."""
        files = self.log.context.files
        files.sync_directory(self.log.home.directory)
        for gone in self._replaced[1:]:
            remove_segment_files(files, gone.prefix)
        # It would not be believed any more: it was made of what the segment was before.
        remove_side_files(files, self.segment.prefix)
        self._held.clear()

    def abandon(self) -> None:
        """Blocking. First the word that decides, then the files that it speaks of. Of a log that has failed since, or
        was read again, recovery has settled it, or will."""
        with contextlib.suppress(CleaningStopped):
            self._write(CompactionState(self.log.clean_end, tuple(self.log.swaps), self.log.tombstone_horizon))
            remove_cleaned(self.log.context.files, self.segment.prefix)


# --- the small file --------------------------------------------------------------------------------------------------


def write_state(files: Files, directory: str, state: CompactionState) -> None:
    """Durable when it returns. OSError: it is as it was; SwapUnknownError: it may be either."""
    payload = msgspec.msgpack.encode(state)
    write_temporary(files, directory, COMPACTION_FILE, COMPACTION_MAGIC, payload).sync()
    path = f"{directory}/{COMPACTION_FILE}"
    try:
        files.rename(path + TEMPORARY_SUFFIX, path)
        files.sync_directory(directory)
    except OSError as error:
        raise SwapUnknownError(f"{path}: {error}") from error


def read_state(files: Files, directory: str) -> CompactionState | None:
    """None when it is missing or bad."""
    payload = read_small_file(files, directory, COMPACTION_FILE, COMPACTION_MAGIC)
    return None if payload is None else _decode_state(payload)


def corrected(facts: Iterable[SegmentCheckpoint], swaps: Iterable[SegmentSwap]) -> list[SegmentCheckpoint]:
    """What a checkpoint from before, or after, the swaps says of the segments as they are now."""
    held = {fact.base_offset: fact for fact in facts}
    for swap in swaps:
        if any(base_offset in held for base_offset, _ in swap.replaced):
            for base_offset, _ in swap.replaced:
                held.pop(base_offset, None)
            held[swap.facts.base_offset] = swap.facts
    return [held[base_offset] for base_offset in sorted(held)]


def forget_swaps(files: Files, directory: str, log_end: int) -> None:
    """Blocking, before the log is cut: other segments may come where replaced ones were, and must not be taken for
    them. The checkpoint knows of the swaps by now."""
    if files.exists(f"{directory}/{COMPACTION_FILE}"):
        state = read_state(files, directory) or CompactionState()
        horizon = min(state.tombstone_horizon, log_end)
        write_state(files, directory, CompactionState(min(state.clean_end, log_end), (), horizon))


# --- after a crash ---------------------------------------------------------------------------------------------------


class SettledSwaps(msgspec.Struct, frozen=True):
    state: CompactionState
    # The small file is bad: which segments were replaced must be seen by reading all of the log.
    is_lost: bool = False
    # Files were renamed or removed.
    has_changed: bool = False


def settle_swaps(files: Files, directory: str, sizes: dict[str, int]) -> SettledSwaps:
    """Blocking. Completes what was committed and removes what was not; `sizes` are of the directory's files."""
    leftovers = [name for name in sizes if name.endswith(CLEANED_SUFFIX)]
    if COMPACTION_FILE not in sizes and not leftovers:
        return SettledSwaps(CompactionState())
    state = read_state(files, directory)
    is_lost = state is None and COMPACTION_FILE in sizes
    state = state or CompactionState()
    if state.swaps and not _is_possible(state.swaps[-1], sizes):
        _log.info("swap of segments given up", directory=directory, base_offset=state.swaps[-1].facts.base_offset)
        state = CompactionState(state.clean_end, state.swaps[:-1], state.tombstone_horizon)
        write_state(files, directory, state)
        is_given_up = True
    else:
        is_given_up = is_lost
        if state.swaps:
            _rename_all(files, directory, state.swaps[-1].facts.base_offset, leftovers)
    gone = {base for swap in state.swaps for base, _ in swap.replaced if base != swap.facts.base_offset}
    removed = sorted(base for base in gone if _name(base) in sizes)
    if leftovers or removed:
        files.sync_directory(directory)
    for base_offset in removed:
        remove_segment_files(files, _prefix(directory, base_offset))
    for name in leftovers:
        if is_given_up:
            # Renames become durable in any order: the index may be the new one already. It is made anew from the log.
            _remove_index(files, f"{directory}/{name[:20]}")
        files.remove(f"{directory}/{name}")
    return SettledSwaps(state, is_lost, bool(leftovers or removed))


def _is_possible(swap: SegmentSwap, sizes: dict[str, int]) -> bool:
    """False: the log has gone on without it."""
    name = _name(swap.facts.base_offset)
    if name + CLEANED_SUFFIX not in sizes:
        # Renamed, unless nothing of it is there any more.
        return sizes.get(name) == swap.facts.size_bytes
    is_whole = sizes[name + CLEANED_SUFFIX] == swap.facts.size_bytes
    return is_whole and all(sizes.get(_name(base_offset)) == size for base_offset, size in swap.replaced)


def _rename_all(files: Files, directory: str, base_offset: int, leftovers: Sequence[str]) -> None:
    for suffix in SEGMENT_SUFFIXES:
        name = _name(base_offset, suffix)
        if name + CLEANED_SUFFIX in leftovers:
            files.rename(f"{directory}/{name}{CLEANED_SUFFIX}", f"{directory}/{name}")


def _remove_index(files: Files, prefix: str) -> None:
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        files.remove(prefix + suffix)


def _name(base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    return f"{base_offset:020}{suffix}"


def _prefix(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020}"
