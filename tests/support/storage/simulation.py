"""A node's logs on a disk that fails, driven by a seed, next to a plain list of what was appended.

Every step is random: appends (idempotent or not, in transactions, markers, one or several batches), turns of group
commit with appends in between, checkpoints, rolls, retention, deletion, truncation, clean restarts, crashes of every
kind at any operation, failed and short writes, failed syncs, flipped bits. After each of them the log must be what the
list says it may be. A broken promise raises `InvariantBroken` with the name of the promise.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import combinations
from random import Random
from typing import Any, Final

from penstock.base.clock import ManualClock
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import Record, build_batch
from support.storage import transactions
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash
from support.storage.model import ModelBatch, ModelLog, Storage, expect

ROOT: Final = "/data"
PARTITIONS: Final = 3
# This one is read before it is synced, as a topic of durability `interval`.
INTERVAL_PARTITION: Final = 2
TOPIC_ID: Final = bytes(range(16))
HOUR_MS: Final = 3_600_000


class Simulation:
    def __init__(self, seed: int, storage: Storage | None = None) -> None:
        self.random = Random(seed)
        self.storage = storage or Storage()
        self.files = FaultyFiles(Random(seed + 1))
        self.files.uncached_chance = self.random.choice((0.0, 0.3))
        self.files.can_sync_all = self.random.random() < 0.8
        self.clock = ManualClock()
        self.models = [ModelLog() for _ in range(PARTITIONS)]
        self.store: Any = None
        self.logs: list[Any] = []
        # A crash that keeps later writes and loses earlier ones may look like damage.
        self.may_look_damaged = False
        # A small file of ours was hit: what it said may be rebuilt from what is left.
        self.lost_small_file = ""
        # A repair that leaves damage is followed by another.
        self._repair_depth = 0
        self._epoch = 0
        self._settings = self.storage.config.StorageConfig(
            handles_max=self.random.choice((2, 3, 16)),
            index_interval_bytes=self.random.choice((100, 400, 4096)),
            index_cache_segments_max=2,
            checkpoint_log_bytes=2_000,
            checkpoint_log_batches=self.random.choice((1, 8)),
            inline_check_bytes_max=self.random.choice((200, 1 << 16)),
            free_bytes_min=0,
            # One after another: a seed must give the same run twice.
            sync_threads=1,
        )
        self._log_config = self.storage.config.LogConfig(
            segment_bytes=self.random.choice((700, 3_000, 10_000)),
            segment_ms=HOUR_MS,
            retention_ms=self.random.choice((-1, 10 * HOUR_MS)),
            retention_bytes=self.random.choice((-1, 4_000, 12_000)),
            # By the seed and not by chance: the runs of all others stay what they were.
            file_delete_delay_ms=HOUR_MS if seed % 3 == 0 else 0,
        )

    # --- the run -------------------------------------------------------------------------------------------------

    def run(self, steps: int = 30) -> None:
        ways: Any = self.storage.sync_ways
        settings = (ways.WHOLE_DISK_SECONDS_MAX, ways.STEPS_ONE_BY_ONE_MAX)
        # How long a sync takes must not matter: a seed must give the same run twice.
        ways.WHOLE_DISK_SECONDS_MAX = float("inf")
        ways.STEPS_ONE_BY_ONE_MAX = self.random.choice((0, 4))
        try:
            self._reopen()
            for _ in range(steps):
                self._step()
            self._crash_and_reopen()
        finally:
            ways.WHOLE_DISK_SECONDS_MAX, ways.STEPS_ONE_BY_ONE_MAX = settings

    def _step(self) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (30, self._append),
            (14, self._turn),
            (8, self._checkpoint),
            (12, self._read),
            (4, self._read_committed),
            (3, self._look_up_time),
            (3, self._roll),
            (4, self._retain),
            (3, self._delete),
            (2, self._truncate),
            (3, self._restart_cleanly),
            (6, self._crash_and_reopen),
            (4, self._crash_inside),
            (2, self._flip_log),
            (1, self._flip_small_file),
        ]
        action = self.random.choices([act for _, act in actions], [weight for weight, _ in actions])[0]
        action()
        self._bring_back()
        for log, model in zip(self.logs, self.models, strict=True):
            if log.damage is None and model.flipped is None:
                transactions.check_stable_end(log, model)

    # --- writing -------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        partition = self.random.randrange(PARTITIONS)
        log, model = self.logs[partition], self.models[partition]
        batches = self._make_batches(model, log.log_end)
        # Not where records are read and deleted before they are durable: nobody could say what is left of them.
        fault = self.random.random() if partition != INTERVAL_PARTITION else 1.0
        if fault < 0.04:
            self.files.fail_next("write", self.random.choice((errno.ENOSPC, errno.EIO)))
        elif fault < 0.1:
            self.files.shorten_next_write(self.random.randint(1, 200))
            if self.random.random() < 0.7:
                self.files.fail_next("write", errno.ENOSPC)
        before = self._facts_of(log)
        # In the list before it is written: a crash in between may leave it in the log.
        model.batches.extend(batches)
        data = memoryview(bytearray(b"".join(batch.data for batch in batches)))
        try:
            log.append(data, [batch.header for batch in batches])
        except self.storage.errors.StorageError:
            expect(before == self._facts_of(log), "a failed append changes nothing", (before, self._facts_of(log)))
            del model.batches[-len(batches) :]
            # Cut back in the cache. Only a crash that loses the cut, and keeps what was cut off, brings it back.
            model.refused.extend(batches)
            if log.failure is None and self.random.random() < 0.5:
                log.roll()
        finally:
            self.files.forget_failures()
        if partition == INTERVAL_PARTITION:
            log.advance_readable(log.log_end)

    def _facts_of(self, log: Any) -> tuple[object, ...]:
        known = log.known_producers.to_bytes()
        return log.log_end, log.size_bytes, log.producers.as_dict(), known, log.epochs.entries()

    def _make_batches(self, model: ModelLog, base: int) -> list[ModelBatch]:
        if self.random.random() < 0.4:
            return transactions.make_batches(
                self.random, model.batches, base=base, leader_epoch=self._epoch, now_ms=self.clock.now_ms()
            )
        batches = []
        producer = self.random.choice((-1, -1, 7, 8, 9))
        if self.random.random() < 0.03:
            self._epoch += 1
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            count = self.random.choice((1, 1, 2, 5))
            size = self.random.choice((5, 40, 300, 1500))
            stamps = [self.clock.now_ms() - self.random.randint(0, 5_000) for _ in range(count)]
            records = [Record(value=self.random.randbytes(size), timestamp_ms=stamp) for stamp in stamps]
            sequence = model.sequences.get(producer, 0) if producer >= 0 else -1
            data = build_batch(
                records,
                base_offset=base,
                leader_epoch=self._epoch,
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                base_sequence=sequence,
            )
            if producer >= 0:
                model.sequences[producer] = sequence + count
            batches.append(ModelBatch(bytes(data), list(zip(range(base, base + count), stamps, strict=True))))
            base += count
        return batches

    def _turn(self) -> None:
        """Group commit, step by step: appends may come between its start and its end."""
        commit = self.store.group_commit
        chosen = [place for place in range(PARTITIONS) if self.random.random() < 0.7]
        syncs = [self.logs[place].begin_sync() for place in chosen]
        for _ in range(self.random.choice((0, 0, 1))):
            self._append()
        if self.random.random() < 0.08:
            self.files.fail_next(self.random.choice(("sync", "sync_all", "sync_all", "sync_directory")), errno.EIO)
        failed = commit.settle(syncs, commit.run_syncs(syncs))
        self.files.forget_failures()
        for place, sync in zip(chosen, syncs, strict=True):
            log, model = self.logs[place], self.models[place]
            if log not in failed:
                model.acked_end = max(model.acked_end, sync.end_offset)
                log.advance_readable(log.durable_end)
            if place != INTERVAL_PARTITION:
                # What somebody may have read must not vanish either.
                model.acked_end = max(model.acked_end, log.readable_end)

    def _checkpoint(self) -> None:
        work = self.store.begin_checkpoint(every_log=self.random.random() < 0.5)
        if work is None:
            return
        failed = self.store.group_commit.sync_now([capture.log for capture in work.captures])
        for capture in work.captures:
            if capture.log not in failed:
                self._model_of(capture.log).acked_end = capture.log.durable_end
                capture.log.advance_readable(capture.log.durable_end)
        work.leave_out(failed)
        for _ in range(self.random.choice((0, 0, 2))):
            self._append()
        if self.random.random() < 0.1:
            kind = self.random.choice(("write", "sync", "sync_all", "rename"))
            self.files.fail_next(kind, self.random.choice((errno.EIO, errno.ENOSPC)))
        self.store.run_checkpoint(work)
        self.files.forget_failures()
        self.store.end_checkpoint(work)

    def _roll(self) -> None:
        self.random.choice(self.logs).roll()

    # --- the head and the end ------------------------------------------------------------------------------------

    def _retain(self) -> None:
        self.clock.advance_ms(self.random.choice((0, HOUR_MS, 12 * HOUR_MS)))
        for place, log in enumerate(self.logs):
            before = log.log_start
            removal = log.apply_retention(self.clock.now_ms())
            if removal is None:
                expect(log.log_start == before, "log start moves by request only", log.log_start)
                continue
            expect(log.log_start <= log.readable_end, "retention takes what was readable", log.log_start)
            self._run_removal(place, log, removal)
        self.store.free_space_check()

    def _delete(self) -> None:
        place = self.random.randrange(PARTITIONS)
        log = self.logs[place]
        if log.failure is None:
            offset = self.random.choice((self.random.randint(log.log_start, log.readable_end), log.readable_end))
            self._run_removal(place, log, log.delete_before(offset))

    def _run_removal(self, place: int, log: Any, removal: Any) -> None:
        model = self.models[place]
        model.start_max = log.log_start
        model.epochs_from = max(model.epochs_from, log.log_start)
        if self.random.random() < 0.1:
            kind = self.random.choice(("write", "sync", "rename", "sync_directory"))
            self.files.fail_next(kind, self.random.choice((errno.EIO, errno.ENOSPC)))
        try:
            removal.run()
            model.start_min = log.log_start
        except self.storage.errors.StorageError:
            pass
        finally:
            self.files.forget_failures()

    def _truncate(self) -> None:
        place = self.random.randrange(PARTITIONS)
        log, model = self.logs[place], self.models[place]
        bounds = [batch.next for batch in model.batches if log.log_start <= batch.next <= log.log_end]
        if not bounds or not log.is_healthy:
            return
        offset = self.random.choice(bounds[-4:])
        model.acked_end = min(model.acked_end, offset)
        model.may_forget_producers = True
        model.stable_end = 0
        try:
            self.store.truncate_log(log, offset)
        except self.storage.errors.LogFailedError:
            return
        expect(log.log_end == offset, "truncation ends where it was told to", (log.log_end, offset))
        self._take_over(place)

    # --- reading -------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        place = self.random.randrange(PARTITIONS)
        log = self.logs[place]
        offset = self.random.randint(max(0, log.log_start - 2), log.log_end + 2)
        bytes_max = self.random.choice((1, 300, 3_000, 1 << 20))
        up_to = self.random.choice((None, None, self.random.randint(0, log.log_end + 1)))
        self._check_read(place, offset, bytes_max, up_to)

    def _read_committed(self) -> None:
        """From the start on, answer by answer."""
        place = self.random.randrange(PARTITIONS)
        log, model = self.logs[place], self.models[place]
        offset = log.log_start
        while log.is_healthy and model.flipped is None and offset < log.last_stable_offset:
            bytes_max = self.random.choice((1, 600, 1 << 20))
            after = self._check_read(place, offset, bytes_max, log.last_stable_offset)
            expect(after is not None, "what is readable is served", (place, offset, log.last_stable_offset))
            assert after is not None
            data = b"".join(batch.data for batch in model.batches if batch.next > offset and batch.next <= after)
            transactions.check_answer(log, model, data)
            offset = after

    def _check_read(self, place: int, offset: int, bytes_max: int, up_to: int | None) -> int | None:
        """The offset after what was read, or None if nothing was."""
        log, model = self.logs[place], self.models[place]
        errors = self.storage.errors
        plan = log.plan_read(offset, bytes_max=bytes_max, up_to=up_to)
        if isinstance(plan, errors.OutOfRange):
            expect(not log.log_start <= offset <= log.log_end, "what is in range is served", offset)
            return None
        if isinstance(plan, errors.Damaged):
            self._expect_damage(place, plan.damage, offset)
            return None
        if plan is None or isinstance(plan, errors.Offline):
            is_due = log.failure is None and offset < min(log.readable_end, up_to or log.readable_end)
            expect(not is_due or up_to == 0, "what is readable is served", (offset, log.readable_end))
            return None
        loaded = plan.load_cached()
        if loaded is None:
            loaded = plan.load()
        if isinstance(loaded, errors.Damage):
            self._expect_damage(place, loaded, offset)
            return None
        end = min(log.readable_end, log.log_end if up_to is None else up_to)
        return self._check_bytes(model, bytes(loaded), offset, bytes_max, end)

    def _check_bytes(self, model: ModelLog, data: bytes, offset: int, bytes_max: int, end: int) -> int | None:
        found = [(header.base_offset, header.next_offset) for _, header in walk_headers(data)]
        wanted = [batch for batch in model.batches if batch.next > offset]
        size = 0
        for batch in wanted[: len(found)]:
            piece = data[size : size + len(batch.data)]
            expect(piece == batch.data, "bytes come back as they were appended", (offset, batch.base, found))
            expect(batch.next <= end, "nothing past the readable end is served", (batch.next, end))
            size += len(batch.data)
        expect(size == len(data), "nothing is served that was never appended", (offset, found))
        expect(len(found) <= 1 or size <= bytes_max, "a read keeps to its limit", (size, bytes_max))
        is_first_due = bool(wanted) and wanted[0].next <= end
        expect(bool(found) or not is_first_due, "a read makes progress", (offset, end))
        return found[-1][1] if found else None

    def _expect_damage(self, place: int, damage: Any, offset: int) -> None:
        model = self.models[place]
        expect(model.flipped is not None, "no damage where there is none", (place, damage, offset))
        hit = [batch.base for batch in model.batches if damage.offset <= batch.base < damage.offset_end]
        expect(hit == [model.flipped], "damage is found where it is", (damage, model.flipped))

    def _look_up_time(self) -> None:
        place = self.random.randrange(PARTITIONS)
        log, model = self.logs[place], self.models[place]
        if not log.is_healthy or model.flipped is not None:
            return
        moment = self.clock.now_ms() - self.random.choice((0, 2_000, 5_000, HOUR_MS, 13 * HOUR_MS))
        records = [
            record
            for batch in model.batches
            if batch.next <= log.readable_end
            for record in batch.records
            if record[0] >= log.log_start
        ]
        wanted = next((record for record in records if record[1] >= moment), None)
        found = log.offset_for_timestamp(moment)
        expect((found and (found.offset, found.timestamp_ms)) == wanted, "time finds its record", (found, wanted))
        newest = max(records, key=lambda record: (record[1], -record[0]), default=None)
        found = log.offset_of_max_timestamp()
        expect((found and (found.offset, found.timestamp_ms)) == newest, "time finds its record", (found, newest))

    # --- ends and starts -----------------------------------------------------------------------------------------

    def _restart_cleanly(self) -> None:
        unhealthy = any(not log.is_healthy for log in self.logs)
        self.store.close()
        unhealthy |= any(log.unsaved_batches for log in self.logs)
        self.files.life += 1
        for log, model in zip(self.logs, self.models, strict=True):
            if log.damage is None and log.durable_end == log.log_end:
                model.acked_end = log.log_end
        self._reopen()
        statistics = self.store.statistics
        is_quiet = not statistics.was_clean or unhealthy or statistics.scanned_bytes == 0
        expect(is_quiet, "a clean start reads nothing", statistics)

    def _crash_and_reopen(self) -> None:
        mode = self.random.choice(list(CrashMode))
        # A failed sync loses what was dirty in one file, and keeps what was written to the next.
        self.may_look_damaged = mode is CrashMode.SCATTERED or self.files.loss_count > 0
        self.files.crash(mode)
        self._reopen()

    def _crash_inside(self) -> None:
        """The machine dies in the middle of something, recovery among it."""
        self.files.crash_after(self.random.randint(0, 40))
        inner = (self._append, self._turn, self._checkpoint, self._retain, self._delete, self._truncate)
        try:
            for action in self.random.choices((*inner, self._restart_cleanly), k=3):
                action()
                self._bring_back()
        except SimulatedCrash:
            self._crash_and_reopen()
        self.files.steps_left = -1

    def _reopen(self) -> None:
        while True:
            try:
                self._open_all()
                return
            except SimulatedCrash:
                self.files.crash(self.random.choice((CrashMode.KILL, CrashMode.LOST, CrashMode.ORDERED)))

    def _open_all(self) -> None:
        self.store = self.storage.log_store.LogStore.open(self.files, ROOT, self._settings, self.clock)
        self.logs = [self.store.open_log("topic", TOPIC_ID, place, self._log_config) for place in range(PARTITIONS)]
        steps_left, self.files.steps_left = self.files.steps_left, -1
        self._bring_back()
        for place in range(PARTITIONS):
            self._take_over(place)
        self.lost_small_file = ""
        self.may_look_damaged = self.files.loss_count > 0
        self.files.steps_left = steps_left

    def _bring_back(self) -> None:
        """Offline logs are read again from the disk."""
        for place, log in enumerate(self.logs):
            while log.failure is not None:
                try:
                    recovered = self.store.recover_log(log)
                except OSError:
                    continue  # an error that nobody was told of yet: told once
                log.adopt(recovered)
                self._take_over(place)

    # --- what must hold after every start ------------------------------------------------------------------------

    def _take_over(self, place: int) -> None:
        """The log was read from the disk: it must be what the model says it may be, and then the model is that."""
        log, model = self.logs[place], self.models[place]
        self._admit_refused(place)
        if log.damage is not None:
            self._take_over_damaged(place)
            return
        expect(log.log_end >= model.acked_end, "acknowledged is there", (place, log.log_end, model.acked_end))
        start_min = 0 if self.lost_small_file.endswith("log_start") else model.start_min
        expect(start_min <= log.log_start <= model.start_max, "log start moves by request only", (
            place, log.log_start, model.start_min, model.start_max))  # fmt: skip
        if place == INTERVAL_PARTITION or log.log_start < model.start_max:
            # What was read is lost, or a deletion that was not answered, and it was what had decided.
            model.stable_end = 0
        model.start_min = model.start_max = log.log_start
        expect(
            log.log_end == log.log_start or any(batch.next == log.log_end for batch in model.batches),
            "the log ends with a batch",
            (log.log_end, [batch.next for batch in model.batches]),
        )
        model.lost_from = min(model.acked_end, log.log_start)
        model.cut_end(log.log_end)
        model.acked_end = log.log_end
        model.stable_moment = ()
        self._check_content(place)
        self._check_state(place)

    def _admit_refused(self, place: int) -> None:
        """A batch that was refused may be in the log nevertheless, unless it would displace one that was promised."""
        model = self.models[place]
        if not model.refused:
            return
        for segment in self.logs[place].segments:
            data = self.files.content(segment.path)[: segment.size]
            for position, header in walk_headers(data):
                piece = data[position : position + header.size_bytes]
                found = next((batch for batch in model.refused if batch.data == piece), None)
                if found is not None and found.base >= model.acked_end:
                    model.batches = [batch for batch in model.batches if batch.next <= found.base]
                    model.batches.append(found)
        # Only a sync makes the cut durable.
        model.refused = [batch for batch in model.refused if batch.base >= model.acked_end]

    def _check_content(self, place: int) -> None:
        log = self.logs[place]
        offset = log.log_start
        while offset < log.readable_end:
            after = self._check_read(place, offset, self.random.choice((300, 2_000, 1 << 20)), None)
            if after is None:
                model = self.models[place]
                expect(model.flipped is not None, "no gap", (place, offset, log.readable_end))
                return
            offset = after

    def _check_state(self, place: int) -> None:
        log, model = self.logs[place], self.models[place]
        first = log.segments[0].base_offset if log.segments else log.log_end
        may_forget = model.may_forget_producers or self.lost_small_file.endswith("producers")
        self._drop_lost(place)
        if may_forget and not self._is_replay(log, model.batches, model.producers_from):
            model.producers_from = first
        replayed = self._replay(model.batches, model.producers_from)
        model.may_forget_producers = False
        model.sequences = {}
        for batch in model.batches:
            if batch.header.base_sequence >= 0:
                sequence = batch.header.base_sequence + batch.header.last_offset_delta + 1
                model.sequences[batch.header.producer_id] = sequence
        expect(log.producers.as_dict() == replayed.as_dict(), "producers are as replayed from the log", (
            place, log.producers.as_dict(), replayed.as_dict()))  # fmt: skip
        different = transactions.differences(log, model.batches, model.producers_from)
        expect(different is None, "transactions are as replayed from the log", (place, different))
        if log.log_start > model.lost_from:
            return  # what was lost of the records below the start, nobody can say
        held = [batch for batch in model.batches if batch.base >= first]
        expect(log.record_count == sum(batch.header.record_count for batch in held), "records are counted", place)
        expect(log.size_bytes == sum(len(batch.data) for batch in held), "bytes are counted", place)
        newest = max((batch.header.max_timestamp for batch in held), default=-1)
        expect(log.max_timestamp == newest, "the newest time is known", (place, log.max_timestamp, newest))
        for batch in model.batches:
            if batch.base >= model.epochs_from and batch.header.record_count:
                epoch = log.epochs.epoch_at(batch.base)
                expect(epoch == batch.header.leader_epoch, "leader epochs are known", (place, batch.base, epoch))

    def _drop_lost(self, place: int) -> None:
        """Records that were deleted before they were synced: a crash may have lost any of them."""
        log, model = self.logs[place], self.models[place]
        unsynced = [
            batch
            for batch in model.batches
            if model.lost_from <= batch.base < log.log_start and batch.header.producer_id >= 0
        ][-10:]
        for count in range(len(unsynced) + 1):
            for lost in combinations(unsynced, count):
                kept = [batch for batch in model.batches if batch not in lost]
                if self._is_replay(log, kept, model.producers_from):
                    model.batches = kept
                    return

    def _is_replay(self, log: Any, batches: list[ModelBatch], offset: int) -> bool:
        is_same = self._replay(batches, offset).as_dict() == log.producers.as_dict()
        return bool(is_same and transactions.differences(log, batches, offset) is None)

    def _replay(self, batches: list[ModelBatch], offset: int) -> Any:
        replayed = self.storage.sequence.ProducerSequences()
        for batch in batches:
            if batch.base >= offset and batch.is_commit is None:
                replayed.apply(batch.header)
        return replayed

    # --- damage --------------------------------------------------------------------------------------------------

    def _take_over_damaged(self, place: int) -> None:
        log, model = self.logs[place], self.models[place]
        if model.flipped is None:
            expect(self.may_look_damaged, "no damage where there is none", (place, log.damage))
            expect(log.damage.offset >= model.acked_end, "acknowledged is there", (place, log.damage))
        else:
            expect(log.damage.offset <= model.flipped, "damage is found where it is", (log.damage, model.flipped))
        self._check_around_damage(place)
        self._repair()

    def _check_around_damage(self, place: int) -> None:
        """Everything before it and behind it is served, and the log goes on."""
        log, model = self.logs[place], self.models[place]
        expect(log.lost_end is None, "damage does not take the log off", log.lost_end)
        for batch in model.batches:
            if batch.base < log.log_start or batch.next > log.readable_end:
                continue
            if log.damage_at(batch.base) is None:
                self._check_read(place, batch.base, 1, None)
        batch = self._make_batches(model, log.log_end)[0]
        log.append(memoryview(bytearray(batch.data)), [batch.header])
        model.batches = [known for known in model.batches if known.base < batch.base] + [batch]

    def _flip_log(self) -> None:
        """One bit of an acknowledged batch that is not the last one changes on the disk of a stopped node."""
        place = self.random.randrange(PARTITIONS)
        log, model = self.logs[place], self.models[place]
        acked = [batch for batch in model.batches if batch.next <= model.acked_end and batch.base >= log.log_start]
        if len(acked) < 2 or not all(log.is_healthy for log in self.logs):
            return
        batch = self.random.choice(acked[:-1])
        segment = next(segment for segment in reversed(log.segments) if segment.base_offset <= batch.base)
        position = sum(len(b.data) for b in model.batches if segment.base_offset <= b.base < batch.base)
        is_clean = self.random.random() < 0.5
        if is_clean:
            self.store.close()
            model.acked_end = max(model.acked_end, log.durable_end)
        self.files.crash(CrashMode.KILL)
        # The leader epoch (bytes 12 to 15) is the one field that nothing covers.
        byte = self.random.choice([place for place in range(len(batch.data)) if not 12 <= place < 16])
        self.files.flip_bit(segment.path, (position + byte) * 8 + self.random.randrange(8))
        model.flipped = batch.base
        reports = self.storage.check.verify(ROOT, files=self.files)
        problems = [problem for report in reports if report.place.partition == place for problem in report.problems]
        expect(any(p.offset_start == batch.base for p in problems), "verify finds damage", (batch.base, problems))
        self._reopen()
        if model.flipped is not None:
            self._meet_damage(place)

    def _meet_damage(self, place: int) -> None:
        """Whoever reads the damaged batch is told; everybody else gets what he asks for."""
        log, model = self.logs[place], self.models[place]
        assert model.flipped is not None
        self._check_read(place, model.flipped, 1 << 20, None)
        expect(log.damage is not None, "damage is reported, not served", (place, model.flipped))
        for offset in range(log.damage.offset, log.damage.offset_end):
            plan = log.plan_read(offset, bytes_max=1 << 20)
            expect(isinstance(plan, self.storage.errors.Damaged), "damage is reported, not served", offset)
        self._check_around_damage(place)
        self._repair()

    def _repair(self) -> None:
        """The operator's word: only what was damaged is lost, and the log goes on."""
        self._repair_depth += 1
        expect(self._repair_depth <= PARTITIONS, "no damage where there is none", "after a repair")
        self.store.close(clean=self.random.random() < 0.5)
        self.files.crash(CrashMode.KILL)
        for report in self.storage.check.repair(ROOT, files=self.files):
            model = self.models[report.place.partition]
            for repair in report.repairs:
                self._replace_lost(model, repair.problem)
            model.flipped = None
            model.producers_from = -1
            model.stable_end = 0
        for report in self.storage.check.verify(ROOT, files=self.files):
            expect(not report.problems, "repair leaves nothing damaged", report)
            model = self.models[report.place.partition]
            model.cut_end(report.log_end)
            if model.producers_from == -1:
                names = self.files.file_sizes(report.place.directory)
                model.producers_from = min(int(name[:20]) for name in names if name.endswith(".log"))
        self._reopen()
        self._repair_depth -= 1

    def _replace_lost(self, model: ModelLog, problem: Any) -> None:
        if problem.is_before_first_segment:
            # Nothing holds the first offsets any more: the log starts after them.
            model.start_max = model.epochs_from = problem.offset_end
            model.batches = [b for b in model.batches if b.base >= problem.offset_end]
            return
        lost = [b for b in model.batches if problem.offset_start <= b.base < problem.offset_end]
        # Without a flipped bit only unacknowledged batches may be lost: that is checked before the repair.
        if model.flipped is not None:
            expect([b.base for b in lost] == [model.flipped], "repair loses only what was damaged", (problem, lost))
        kept = [b for b in model.batches if b not in lost]
        filler = self.storage.repair.filler_for(problem)
        if filler:
            kept.append(ModelBatch(filler, []))
        model.batches = sorted(kept, key=lambda b: b.base)

    def _flip_small_file(self) -> None:
        """An index, a snapshot or the checkpoint is hit while the node is down."""
        paths = [
            path
            for path in sorted(self.files.paths())
            if path.endswith(("index", "producers", "leader_epochs", "log_start", "checkpoint", "clean_shutdown"))
        ]
        if not paths or not all(log.is_healthy for log in self.logs):
            return
        path = self.random.choice(paths)
        if self.random.random() < 0.5:
            self.store.close()
            for log, model in zip(self.logs, self.models, strict=True):
                model.acked_end = max(model.acked_end, log.durable_end)
        self.files.crash(CrashMode.KILL)
        self.files.flip_bit(path, self.random.randrange(8 * 200))
        self.lost_small_file = path
        self._reopen()

    def _model_of(self, log: Any) -> ModelLog:
        partition: int = log.home.partition
        return self.models[partition]
