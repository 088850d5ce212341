"""The log cleaner: finds the log that needs compaction most and cleans it, one at a time, in a thread of its own.

    loop     choose a log ─► begin            ┌──────── apply ─────────┐          note the clean end
    thread                    index ─► write_next                      finish ─► …  ─► finish

Everything that decides about a log or changes it happens on the loop, in single steps; reading, deciding about records
and writing happen in the thread, natively, within bounds of memory and of speed. A log is cleaned again only after a
checkpoint has saved what the cleaning before it has swapped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.domain.log.compaction import CleanablePart, CompactionRules, find_cleanable, most_due
from penstock.storage.cleaner.work import CleaningReport, LogCleaning, sealed
from penstock.storage.errors import LogDamagedError
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.swap import SegmentReplacement, SwapUnknownError
from penstock.storage.segment.patient_thread import PatientThread
from penstock.storage.segment.throttle import CleaningStopped, Throttle
from penstock.storage.store import LogStore

_log = get_logger("cleaner")


class LogCleaner:
    def __init__(
        self,
        store: LogStore,
        clock: Clock,
        *,
        seeds: tuple[int, int],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`seeds` are random numbers that nobody else knows."""
        self._store = store
        self._clock = clock
        self._seeds = seeds
        self._throttle = Throttle(clock, sleep, bytes_per_second=store.context.config.cleaner_bytes_per_second)
        self._thread = PatientThread("penstock-cleaner", self._throttle)

    # --- for the event loop --------------------------------------------------------------------------------------

    async def run(self) -> CleaningReport | None:
        """Cleans the log that needs it most; None: none does, or it was not to be. Cancelled, it stops the thread."""
        cleaning = self.begin()
        if cleaning is None:
            return None
        started_ms = self._clock.monotonic_ms()
        maintenance = cleaning.log.maintenance
        is_joined = maintenance.join()
        assert is_joined, "it would not have been chosen"
        try:
            report = await self._clean(cleaning)
        finally:
            maintenance.leave()
        if report is not None:
            metrics = self._store.context.metrics
            metrics.cleaned_bytes.inc(report.read_bytes)
            # Negative where deletions were dated: their times take some more bytes.
            metrics.compacted_bytes.inc(max(report.saved_bytes, 0))
            home = cleaning.log.home
            _log.info(
                "log cleaned",
                topic=home.topic,
                partition=home.partition,
                clean_end=report.end_offset,
                read_bytes=report.read_bytes,
                saved_bytes=report.saved_bytes,
                swaps=report.swap_count,
                milliseconds=self._clock.monotonic_ms() - started_ms,
            )
        return report

    async def _clean(self, cleaning: LogCleaning) -> CleaningReport | None:
        log = cleaning.log
        try:
            await self._thread.run(cleaning.index)
            while (swap := await self._thread.run(cleaning.write_next)) is not None:
                if not swap.apply():
                    await self._thread.run(swap.abandon)
                    return None
                await self._finish_swap(swap)
            return self._end(cleaning, await self._thread.run(cleaning.finish))
        except CleaningStopped:
            return None
        except LogDamagedError as error:
            # The next cleaning leaves it alone.
            await self._thread.run(partial(log.note_damage, error.damage))
        except SwapUnknownError as error:
            log.fail(str(error))
        except OSError as error:
            # A full disk among them: what was there is there, and the next attempt begins anew.
            _log.warning("log not cleaned", topic=log.home.topic, partition=log.home.partition, error=str(error))
        return None

    async def _finish_swap(self, swap: SegmentReplacement) -> None:
        try:
            await self._thread.run(swap.finish)
        except OSError as error:
            raise SwapUnknownError(f"{swap.segment.path}: {error}") from error

    # --- without a loop, for tests and tools ---------------------------------------------------------------------

    def begin(self) -> LogCleaning | None:
        """On the loop."""
        if self._store.is_full:
            return None
        chosen = most_due(
            (log, part, rules)
            for log in self._store.logs
            if (rules := log.config.compaction) is not None and (part := self.cleanable_part(log, rules)) is not None
        )
        return None if chosen is None else self.begin_with(*chosen)

    def begin_with(self, log: PartitionLog, part: CleanablePart) -> LogCleaning:
        return LogCleaning(log, part, self._throttle, now_ms=self._clock.now_ms(), seeds=self._seeds)

    def cleanable_part(self, log: PartitionLog, rules: CompactionRules) -> CleanablePart | None:
        """On the loop. None: nothing is dirty, or the log is not to be touched now."""
        if not log.is_healthy or log.swaps or log.maintenance.is_wanted:
            return None
        # Below it is what everybody may read, and every transaction has decided about.
        offset_limit = min(log.last_stable_offset, log.durable_end)
        if log.damages:
            # Behind damage nothing is dropped: what cannot be read may be the value that a deletion there has deleted,
            # and without the deletion it would be back as soon as the place is mended.
            offset_limit = min(offset_limit, log.damages.places[0].segment_base_offset)
            # Nor what a transaction holds whose end is lost: it may have been committed.
            ended = [log.transactions.aborted.between(place.offset, place.offset_end) for place in log.damages.places]
            offset_limit = min([offset_limit, *(entry.first_offset for entries in ended for entry in entries)])
        part = self._find_cleanable(log, rules, offset_limit)
        if part is None or part.end_offset <= log.saved_end:
            return part
        # The saved producers must know what goes. What is due is saved at the next checkpoint, and cleaned after it.
        log.is_save_wanted |= part.is_due(rules)
        return self._find_cleanable(log, rules, min(offset_limit, log.saved_end))

    def _find_cleanable(self, log: PartitionLog, rules: CompactionRules, offset_limit: int) -> CleanablePart | None:
        return find_cleanable(
            [sealed(segment) for segment in log.segments[:-1]],
            rules,
            clean_end=max(log.clean_end, log.log_start),
            offset_limit=offset_limit,
            now_ms=self._clock.now_ms(),
        )

    def _end(self, cleaning: LogCleaning, report: CleaningReport) -> CleaningReport:
        log = cleaning.log
        log.clean_end = max(log.clean_end, report.end_offset)
        return report
