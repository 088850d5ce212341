"""The scrubber: reads all logs from the disk, slowly and one after the other, to find what has rotted.

    <root>/scrub      magic · length · CRC-32C · when this pass began and how far it has come

Readers check what comes from the disk. But what nobody reads nobody checks, and what is read again and again comes from
memory: only here is it seen that the bytes below have changed. Where memory still has them as they were, they are
written anew; where it has not, the place is damaged, and everybody is told.

What is read is what readers may see: sealed segments, and of the last one what is readable when the scrubber comes by.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.storage.commit.checkpoint_work import key_of
from penstock.storage.context import StoreContext
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import File, Files, ReadableFile
from penstock.storage.files.small import read_small_file, write_fully, write_small_file
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.segment.damage_search import Boundary, is_mended, scan_past_damage
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.patient_thread import PatientThread
from penstock.storage.segment.throttle import CleaningStopped, Throttle
from penstock.storage.store import LogStore

_log = get_logger("scrubber")

SCRUB_FILE: Final = "scrub"
SCRUB_MAGIC: Final = b"psscrub1"
# A crash costs so much reading once more.
_SAVE_MS: Final = 60_000
# Looked at before others have the interpreter: some microseconds each.
_BATCHES_AT_ONCE: Final = 256

# A log's key and the base offset of one of its segments, in the order of a pass.
Place = tuple[bytes, int, int]


class ScrubProgress(msgspec.Struct, frozen=True, array_like=True):
    began_ms: int
    # The segment that was read last; None: this pass is over.
    place: Place | None
    read_bytes: int = 0


_FIRST: Final[Place] = (b"", -1, -1)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ScrubProgress)


class LogScrubber:
    def __init__(self, store: LogStore, clock: Clock, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store = store
        self._clock = clock
        config = store.context.config
        self._throttle = Throttle(clock, sleep, bytes_per_second=max(config.scrub_bytes_per_second, 1))
        self._thread = PatientThread("penstock-scrubber", self._throttle)
        self._progress: ScrubProgress | None = None
        self._saved_ms = 0

    async def run(self) -> int | None:
        """One pass over all logs, or the rest of one, if it is time; how many bytes it read."""
        config = self._store.context.config
        if config.scrub_bytes_per_second == 0:
            return None
        if self._progress is None:
            self._progress = await self._thread.run(self._read_progress)
        now_ms = self._clock.now_ms()
        if self._progress.place is None:
            if now_ms - self._progress.began_ms < config.scrub_interval_ms:
                return None
            self._progress = ScrubProgress(now_ms, _FIRST)
        return await self._pass(self._progress)

    async def _pass(self, progress: ScrubProgress) -> int | None:
        assert progress.place is not None
        logs = sorted(self._store.logs, key=key_of)
        for log in logs:
            if key_of(log) < progress.place[:2]:
                continue
            # A list of now: what is retired or rolled meanwhile is the next pass's matter.
            for segment in list(log.segments):
                end = log.readable_part(segment)
                place = (*key_of(log), segment.base_offset)
                if place <= progress.place or not self._holds(log, segment):
                    continue
                if not log.maintenance.join():
                    break  # somebody changes it: the next pass reads it
                scrub = SegmentScrub(log, segment, end, self._throttle)
                try:
                    await self._thread.run(scrub.run)
                except CleaningStopped:
                    return None
                except OSError as error:
                    _log.warning("segment not scrubbed", segment=segment.path, error=str(error))
                    log.note_unreadable(_unread(segment, error), error)
                finally:
                    log.maintenance.leave()
                progress = self._progress = ScrubProgress(progress.began_ms, place, progress.read_bytes + end[0])
                await self._save(progress)
        self._progress = ScrubProgress(progress.began_ms, None, progress.read_bytes)
        await self._save(self._progress, is_due=True)
        if progress.read_bytes:
            seconds = (self._clock.now_ms() - progress.began_ms) // 1000
            _log.info("logs scrubbed", bytes=progress.read_bytes, logs=len(logs), seconds=seconds)
        return progress.read_bytes

    def _holds(self, log: PartitionLog, segment: Segment) -> bool:
        return log.failure is None and not segment.is_replaced and segment in log.segments

    async def _save(self, progress: ScrubProgress, *, is_due: bool = False) -> None:
        now_ms = self._clock.monotonic_ms()
        if not is_due and now_ms - self._saved_ms < _SAVE_MS:
            return
        self._saved_ms = now_ms
        try:
            await self._thread.run(partial(_write_progress, self._store.context.files, self._store.root, progress))
        except OSError as error:
            _log.warning("scrub progress not saved", error=str(error))

    def _read_progress(self) -> ScrubProgress:
        payload = read_small_file(self._store.context.files, self._store.root, SCRUB_FILE, SCRUB_MAGIC)
        if payload is not None:
            return _decoder.decode(payload)
        # Nothing was ever scrubbed: the first pass begins one interval after the first start, however often the node
        # is started until then.
        progress = ScrubProgress(self._clock.now_ms(), None)
        try:
            _write_progress(self._store.context.files, self._store.root, progress)
        except OSError as error:
            _log.warning("scrub progress not saved", error=str(error))
        return progress


def _unread(segment: Segment, error: OSError) -> Damage:
    return Damage(segment.base_offset, segment.base_offset, 0, f"cannot be read: {error}", is_proven=False)


def _write_progress(files: Files, root: str, progress: ScrubProgress) -> None:
    write_small_file(files, root, SCRUB_FILE, SCRUB_MAGIC, _encoder.encode(progress))


class SegmentScrub:
    """Blocking: one segment, up to a place where a batch ends."""

    def __init__(self, log: PartitionLog, segment: Segment, end: Boundary, throttle: Throttle) -> None:
        self._log = log
        self._segment = segment
        self._end = end
        self._throttle = throttle
        self._context: StoreContext = log.context

    def run(self) -> None:
        """Raises CleaningStopped, OSError."""
        segment = self._segment
        try:
            file = _SlowFile(self._context.files.open_uncached(segment.path), self._throttle, self._context)
        except FileNotFoundError:
            return  # retention took it
        start = (0, segment.base_offset)
        found = scan_past_damage(
            file, segment, segment.index, start=start, end=self._end, on_damage=partial(self._judge, file)
        )
        for count, _ in enumerate(found):
            if count % _BATCHES_AT_ONCE == 0:
                self._throttle.breathe()
                if self._log.maintenance.is_wanted:
                    return

    def _judge(self, file: ReadableFile, damage: Damage) -> None:
        log, segment = self._log, self._segment
        # Once more: what went wrong on the way from the disk need not be wrong on the disk.
        if segment.is_replaced or is_mended(file, damage) or self._is_gone():
            return
        if log.damage_at(damage.offset) is None and self._mend(file, damage):
            self._context.metrics.scrub_mended.inc()
            _log.warning("rot mended from memory", segment=segment.path, position=damage.position)
            return
        log.note_damage(damage)

    def _is_gone(self) -> bool:
        """A file that was removed, or whose log is closed, is nobody's damage."""
        return self._log.failure is not None or self._segment not in self._log.segments

    def _mend(self, file: ReadableFile, damage: Damage) -> bool:
        """The system's memory may have the bytes as they were written: then the disk gets them again."""
        cached = self._context.files.open(self._segment.path)
        size = damage.position_end - damage.position
        if size <= 0 or not is_mended(cached, damage):
            return False
        write_fully(cached, cached.read_at(damage.position, size), damage.position)
        cached.sync()
        return is_mended(file, damage)


class _SlowFile:
    """A file that is read no faster than the throttle allows, and counts what is read."""

    def __init__(self, file: File, throttle: Throttle, context: StoreContext) -> None:
        self._file = file
        self._throttle = throttle
        self._context = context

    def read_at(self, position: int, size: int) -> bytes:
        data = self._file.read_at(position, size)
        self._context.metrics.scrubbed_bytes.inc(len(data))
        self._throttle.take(len(data))
        return data

    def size(self) -> int:
        return self._file.size()
