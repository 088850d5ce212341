"""A compacted log on a disk that fails, driven by a seed, next to a plain list of what was appended.

Every step is random: appends (keys that come again, deletions, records without keys, compressed, idempotent, in
transactions that commit, abort or stay open), syncs, checkpoints, rolls, cleanings with all of that in between their
steps, deletion from the head, truncation, restarts, crashes of every kind at any operation, failed writes and syncs.
After each of them the log must be a legal history: see `compaction_check`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any, Final

from penstock.base.clock import ManualClock
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.control import EndMarker, build_marker
from penstock.codec.batch.header import BatchHeader, read_header
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.log.compaction import CompactionRules
from penstock.storage.cleaner.log_cleaner import LogCleaner
from penstock.storage.cleaner.work import LogCleaning
from penstock.storage.commit.checkpoint_work import CheckpointWork
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.errors import LogDamagedError, StorageError
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.swap import SegmentReplacement, SwapUnknownError
from penstock.storage.log.time_lookup import TimeLookup
from penstock.storage.repair.check import verify
from penstock.storage.segment.throttle import CleaningStopped
from penstock.storage.store import LogStore
from support.cleaner.compaction_check import CompactionCheck, InvariantBroken, expect
from support.cleaner.compaction_model import ModelBatch, ModelLog
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash

ROOT: Final = "/data"
TOPIC_ID: Final = bytes(range(16))
PLAIN_PRODUCERS: Final = (-1, -1, 7, 8)
TRANSACTIONAL_PRODUCERS: Final = (20, 21)
CODECS: Final = (Codec.NONE, Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD)
EXPIRATION_MS: Final = 1_000
# Operations of one cleaning, about: a crash may come at any of them.
CLEANING_OPERATIONS_MAX: Final = 90


class CompactionWorld:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = FaultyFiles(Random(seed + 1))
        self.files.uncached_chance = self.random.choice((0.0, 0.3))
        self.clock = ManualClock()
        self.model = ModelLog()
        self.store: LogStore
        self.log: PartitionLog
        self.cleaner: LogCleaner
        self.retention_ms = self.random.choice((0, 5_000, 60_000))
        self.keys = [b"key-%d" % number for number in range(self.random.choice((2, 5, 12)))]
        self.check = CompactionCheck(self)
        self.counts: dict[str, int] = {}
        self._leader_epoch = 0
        self._coordinator_epoch = 0
        self._dies_after_swap = False
        # Until the next cleaning writes it anew, every start reads all of the log.
        self._is_state_lost = False
        self._settings = StorageConfig(
            handles_max=self.random.choice((2, 16)),
            index_interval_bytes=self.random.choice((100, 400, 4096)),
            index_cache_segments_max=2,
            checkpoint_log_batches=1,
            inline_check_bytes_max=self.random.choice((200, 1 << 16)),
            free_bytes_min=0,
            sync_threads=1,
            # 2 keys, or all of them.
            cleaner_map_bytes=self.random.choice((128, 1 << 20)),
            cleaner_bytes_per_second=1 << 40,
        )
        self._config = LogConfig(
            segment_bytes=self.random.choice((500, 1_500, 6_000)),
            retention_ms=-1,
            compaction=CompactionRules(min_cleanable_dirty_ratio=0.0, delete_retention_ms=self.retention_ms),
        )

    # --- the run -------------------------------------------------------------------------------------------------

    def run(self, steps: int = 25) -> None:
        self._reopen()
        for _ in range(steps):
            self._step()
        self._sync()
        self.clock.advance_ms(1_000)
        self._clean()
        self._crash()
        self.check.content()

    def _step(self) -> None:
        actions: list[tuple[int, Callable[[], object]]] = [
            (34, self._append),
            (8, self._sync),
            (10, self._save),
            (4, self._pass_time),
            (1, self._expire),
            (18, self._clean),
            (6, self.check.content),
            (2, self._delete),
            (1, self._truncate),
            (3, self._restart),
            (4, self._crash),
            (8, self._crash_inside),
            (4, self._clean_on_failing_disk),
        ]
        action = self.random.choices([act for _, act in actions], [weight for weight, _ in actions])[0]
        self._count(action.__name__)
        action()
        self._bring_back()

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- writing -------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        for _ in range(self.random.choice((1, 2, 4))):
            if self.log.damage is not None or self.log.failure is not None:
                return
            self._append_batch(self._make_batch())
        if self.random.random() < 0.25:
            self.log.roll()

    def _append_batch(self, batch: ModelBatch) -> None:
        # In the list before it is written: a crash in between may leave it in the log.
        self.model.batches.append(batch)
        try:
            self.log.append(memoryview(bytearray(batch.data)), [batch.header])
        except StorageError:
            self.model.batches.pop()

    def _make_batch(self) -> ModelBatch:
        open_producers = sorted(self.model.open_transactions())
        if open_producers and self.random.random() < 0.4:
            return self._make_marker(self.random.choice(open_producers))
        chance = self.random.random()
        if chance < 0.07:
            # Of a transaction that was to write here, and never did.
            return self._make_marker(self.random.choice(TRANSACTIONAL_PRODUCERS))
        is_transactional = chance < 0.37
        producer = self.random.choice(TRANSACTIONAL_PRODUCERS if is_transactional else PLAIN_PRODUCERS)
        base = self.log.log_end
        records = [self._make_record() for _ in range(self.random.choice((1, 1, 3, 6)))]
        if self.random.random() < 0.05:
            self._leader_epoch += 1
        epoch, sequence = self.model.next_sequence(producer)
        data = build_batch(
            records,
            codec=self.random.choice(CODECS),
            base_offset=base,
            leader_epoch=self._leader_epoch,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        return ModelBatch(_header(data), bytes(data), list(enumerate(records, base)))

    def _make_record(self) -> Record:
        chance = self.random.random()
        key = None if chance < 0.03 else self.random.choice(self.keys)
        value = None if chance > 0.75 else self.random.randbytes(self.random.choice((4, 30, 120)))
        headers = (("name", b"value"),) if self.random.random() < 0.2 else ()
        timestamp = self.clock.now_ms() - self.random.randint(0, 3_000)
        return Record(value, key=key, timestamp_ms=timestamp, headers=headers)

    def _make_marker(self, producer: int) -> ModelBatch:
        is_commit = self.random.random() < 0.5
        epoch, _ = self.model.next_sequence(producer)
        if self.random.random() < 0.1:
            self._coordinator_epoch += 1
        data = build_marker(
            EndMarker(is_commit, self._coordinator_epoch),
            producer_id=producer,
            # The second version of the protocol: each transaction has an epoch of its own.
            producer_epoch=epoch + self.random.choice((0, 1)),
            timestamp_ms=self.clock.now_ms(),
            base_offset=self.log.log_end,
            leader_epoch=self._leader_epoch,
        )
        return ModelBatch(_header(data), bytes(data), [], is_commit=is_commit)

    def _sync(self) -> None:
        if self.log.failure is not None:
            return
        if self.store.group_commit.sync_now([self.log]):
            return  # of an error that nobody was told of yet: the log is offline, and is read again
        self.model.acked_end = self.log.durable_end
        self.log.advance_readable(self.log.durable_end)

    def _save(self) -> None:
        """A checkpoint; most of them right after a roll, so that there is something to clean."""
        if self.random.random() < 0.6:
            self.log.roll()
        self._sync()
        self._checkpoint()

    def _checkpoint(self) -> None:
        self.store.checkpoint_now(every_log=True)

    def _run_checkpoint(self, work: CheckpointWork) -> None:
        """One that was begun earlier: what it saves is of that moment."""
        work.leave_out(self.store.group_commit.sync_now([capture.log for capture in work.captures]))
        self.store.run_checkpoint(work)
        self.store.end_checkpoint(work)
        self.model.acked_end = max(self.model.acked_end, self.log.durable_end)

    def _pass_time(self) -> None:
        self.clock.advance_ms(self.random.choice((1, 6_000, 70_000)))

    def _expire(self) -> None:
        """Silent producers are forgotten, and may come back as if they were new ones."""
        log = self.log
        ongoing, sequences = set(log.transactions.ongoing), set(log.producers.as_dict())
        for _ in range(2):
            # By the first sweep they are seen to be silent.
            log.expire_producers(self.clock.now_ms(), expiration_ms=EXPIRATION_MS)
            self.clock.advance_ms(EXPIRATION_MS)
        are_known = set(log.transactions.ongoing) == ongoing and ongoing & sequences <= set(log.producers.as_dict())
        expect(are_known, "no open transaction is forgotten", ongoing)
        self.model.forgotten_end = log.log_end

    # --- cleaning ------------------------------------------------------------------------------------------------

    def _clean(self) -> None:
        """Step by step, with whatever else a node does in between."""
        cleaning = self.cleaner.begin()
        if cleaning is None:
            return
        self._count("cleaning")
        self.model.begin_cleaning(cleaning, self.clock.now_ms())
        try:
            cleaning.index()
            while (swap := cleaning.write_next()) is not None:
                self._between()
                held = self.check.hold()
                lookup = TimeLookup(self.log)
                work = self.store.begin_checkpoint(every_log=True) if self.random.random() < 0.2 else None
                is_applied = swap.apply()
                if work is not None:
                    self._run_checkpoint(work)
                if not is_applied:
                    self._count("swap refused")
                    swap.abandon()
                    return
                self._count("swap")
                self.check.held_read(held)
                self.check.old_lookup(lookup)
                self._between()
                swap.finish()
                self._note_aborts(swap)
                if self._dies_after_swap:
                    self.files.crash_after(self.random.randint(0, 3))
                self._between()
            report = cleaning.finish()
            self._is_state_lost = False
        except (CleaningStopped, OSError):
            self._count("cleaning ended early")
            return
        except LogDamagedError as error:
            raise InvariantBroken("no damage where there is none", str(error)) from error
        except SwapUnknownError as error:
            self.log.fail(str(error))
            return
        self.log.clean_end = max(self.log.clean_end, report.end_offset)
        self.check.content()
        self._clean_again(cleaning)
        if self.random.random() < 0.2:
            # While the swaps are known by their own file alone.
            self._truncate()

    def _clean_again(self, cleaning: LogCleaning) -> None:
        """At the same moment, all of it: nothing more may go."""
        if self.random.random() > 0.3 or self.log.clean_end < cleaning.part.end_offset:
            return
        self._checkpoint()
        before = self.check.content()
        rules = self.log.config.compaction
        assert rules is not None
        self.log.clean_end = 0
        part = self.cleaner.cleanable_part(self.log, rules)
        self.log.clean_end = cleaning.part.end_offset
        if part is None or part.end_offset != cleaning.part.end_offset:
            return
        again = self.cleaner.begin_with(self.log, part)
        self.model.begin_cleaning(again, self.clock.now_ms())
        again.index()
        while (swap := again.write_next()) is not None:
            expect(swap.apply(), "a swap that nothing disturbs is applied")
            swap.finish()
            self._note_aborts(swap)
        report = again.finish()
        if report.end_offset == part.end_offset and self.retention_ms > 0:
            expect(self.check.content() == before, "a second cleaning changes nothing", report)

    def _note_aborts(self, swap: SegmentReplacement) -> None:
        if swap.empty_aborts:
            self._count("aborted transaction with nothing left of it")
            self.model.dropped_aborts.update(swap.empty_aborts)

    def _between(self) -> None:
        if self._dies_after_swap or self.random.random() < 0.7:
            return
        action = self.random.choice((self._append, self._sync, self._save, self._delete, self.check.content))
        action()

    def _clean_on_failing_disk(self) -> None:
        kind = self.random.choice(("write", "sync", "rename", "sync_directory", "open"))
        self._save()
        for _ in range(self.random.choice((1, 1, 2))):
            self.files.fail_next(kind, self.random.choice((errno.EIO, errno.ENOSPC)))
        try:
            cleaning = self.cleaner.begin()
            if cleaning is None:
                return
            self.model.begin_cleaning(cleaning, self.clock.now_ms())
            self._clean_or_fail(cleaning)
        finally:
            self.files.forget_failures()

    def _clean_or_fail(self, cleaning: LogCleaning) -> None:
        try:
            cleaning.index()
            while (swap := cleaning.write_next()) is not None:
                if not swap.apply():
                    swap.abandon()
                    return
                try:
                    swap.finish()
                except OSError as error:
                    raise SwapUnknownError(str(error)) from error
                self._note_aborts(swap)
            report = cleaning.finish()
            self.log.clean_end = max(self.log.clean_end, report.end_offset)
        except (CleaningStopped, OSError):
            self._count("cleaning failed")
        except SwapUnknownError as error:
            self._count("swap unknown")
            self.log.fail(str(error))

    # --- the head and the end ------------------------------------------------------------------------------------

    def _delete(self) -> None:
        log = self.log
        if log.failure is not None or self.random.random() < 0.5:
            return
        stable_end = min(self.model.stable_end(log.readable_end), log.readable_end)
        offset = self.random.randint(log.log_start, max(log.log_start, stable_end))
        self.model.start_max = max(self.model.start_max, offset)
        removal = log.delete_before(offset)
        removal.run()
        self.model.start_min = offset

    def _truncate(self) -> None:
        if self.log.failure is not None:
            return
        ends = [batch.header.next_offset for batch in self.model.batches]
        # Only what no reader had seen is ever cut off: nothing that a cleaning went by.
        lowest = max(self.log.log_start, self.model.cleaned_readable)
        bounds = [end for end in ends if lowest <= end <= self.log.log_end]
        if bounds and not self.model.open_transactions():
            offset = self.random.choice(bounds[-3:])
            self.model.acked_end = min(self.model.acked_end, offset)
            self.store.truncate_log(self.log, offset)
            self.model.cut_end(offset)
            self.model.sequences_from = offset
            self.check.content()

    # --- ends and starts -----------------------------------------------------------------------------------------

    def _restart(self) -> None:
        self._sync()
        self._bring_back()
        self.store.close()
        self.files.life += 1
        self._reopen()
        if not self._is_state_lost:
            statistics = self.store.statistics
            expect(statistics.scanned_bytes == 0, "a clean start reads nothing", statistics)

    def _crash(self) -> None:
        modes = list(CrashMode)
        if self.log.durable_end < self.log.log_end:
            # Later writes without earlier ones look like damage, and are taken for it.
            modes.remove(CrashMode.SCATTERED)
        self.files.crash(self.random.choice(modes))
        if self.random.random() < 0.2:
            # What was saved of the producers is lost: it must be in the log.
            self.files.remove(f"{self.log.home.directory}/producers")
        elif self.random.random() < 0.1:
            self._flip_compaction_file()
        self._reopen()

    def _flip_compaction_file(self) -> None:
        path = f"{self.log.home.directory}/compaction"
        if self.files.exists(path):
            self._count("compaction file lost")
            self._is_state_lost = True
            self.files.flip_bit(path, self.random.randrange(8 * 20))

    def _crash_inside(self) -> None:
        """The machine dies in the middle of a cleaning, or of the recovery after it."""
        self._save()
        self._dies_after_swap = self.random.random() < 0.3
        if not self._dies_after_swap:
            self.files.crash_after(self.random.randint(0, CLEANING_OPERATIONS_MAX))
        try:
            self._clean()
            self._save()
        except SimulatedCrash:
            self._count("crash inside a cleaning")
            self._dies_after_swap = False
            self._crash()
        self._dies_after_swap = False
        self.files.steps_left = -1

    def _reopen(self) -> None:
        if self.random.random() < 0.15:
            self.files.crash_after(self.random.randint(0, 30))
        while True:
            try:
                self._open()
                break
            except SimulatedCrash:
                self._count("crash inside recovery")
                self.files.crash(self.random.choice((CrashMode.KILL, CrashMode.LOST, CrashMode.ORDERED)))
        self.check.content()
        self.check.producers()
        self.check.transactions()

    def _open(self) -> None:
        if not self._is_state_lost and self.random.random() < 0.2 and self.files.exists(f"{ROOT}/logs"):
            for report in verify(ROOT, files=self.files):
                kinds = {str(problem.kind) for problem in report.problems} - {"torn tail"}
                expect(not kinds, "verify finds no damage where there is none", report.problems)
        self.store = LogStore.open(self.files, ROOT, self._settings, self.clock)
        self.log = self.store.open_log("topic", TOPIC_ID, 0, self._config)
        self.files.steps_left = -1
        self.cleaner = LogCleaner(self.store, self.clock, seeds=(1, 2), sleep=lambda _: None)
        self._take_over()

    def _bring_back(self) -> None:
        while self.log.failure is not None:
            try:
                recovered = self.store.recover_log(self.log)
            except OSError:
                continue  # an error that nobody was told of yet: told once
            self.log.adopt(recovered)
            self._take_over()
            self.check.content()

    def _take_over(self) -> None:
        log, model = self.log, self.model
        expect(log.damage is None, "no damage where there is none", log.damage)
        expect(log.log_end >= model.acked_end, "acknowledged is there", (log.log_end, model.acked_end))
        expect(model.start_min <= log.log_start <= model.start_max, "log start moves by request only", log.log_start)
        model.start_min = model.start_max = log.log_start
        model.cut_end(log.log_end)
        model.acked_end = log.log_end


def _header(data: bytes | bytearray) -> BatchHeader:
    header: Any = read_header(data)
    assert isinstance(header, BatchHeader)
    return header
