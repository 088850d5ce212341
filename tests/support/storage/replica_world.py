"""One follower's log on a disk that fails, and a leader that is a plain list. Every step is drawn from a seed.

Batches come, become durable and committed; leaders change, and with them what is not committed; the follower cuts its
log to what the new one has; its start follows; it begins anew; it stops, is killed, loses power. After each start the
log must be what the list says it may be. A broken promise raises `InvariantBroken` with the name of the promise.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from penstock.base.clock import ManualClock
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import Record, build_batch
from support.storage import transactions
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash
from support.storage.model import ModelBatch, Storage, expect

ROOT: Final = "/data"
TOPIC_ID: Final = bytes(range(16))
# Not the one that keeps later writes and loses earlier ones: that may look like damage, which is another simulation's.
CRASHES: Final = (CrashMode.KILL, CrashMode.LOST, CrashMode.ORDERED)


class ReplicaWorld:
    def __init__(self, seed: int, storage: Storage | None = None) -> None:
        self.random = Random(seed)
        self.storage = storage or Storage()
        self.files = FaultyFiles(Random(seed + 1))
        self.clock = ManualClock()
        self.epoch = 0
        # What the leader has, from offset 0 on, and what of it is committed.
        self.leader: list[ModelBatch] = []
        self.leader_start = 0
        self.committed = 0
        self.has_diverged = False
        # What was ever in the follower's log, and how much of it must be there after a crash.
        self.held: list[ModelBatch] = []
        self.durable_end = 0
        self.start_min = self.start_max = 0
        # The watermark of the last checkpoint that is known to be there.
        self.saved_watermark = 0
        self.producers_from = 0
        self.may_forget_producers = False
        # Begun anew, or perhaps: offset 0 with nothing in it.
        self.may_be_empty = False
        self.store: Any = None
        self.log: Any = None
        self._settings = self.storage.config.StorageConfig(
            handles_max=3,
            index_interval_bytes=self.random.choice((100, 400, 4096)),
            index_cache_segments_max=2,
            free_bytes_min=0,
            sync_threads=1,
        )
        self._config = self.storage.config.LogConfig(segment_bytes=self.random.choice((700, 3_000, 10_000)))

    def run(self, steps: int = 40) -> None:
        self._open()
        for _ in range(steps):
            self._step()
        self._crash()

    def _step(self) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (30, self._replicate),
            (14, self._sync),
            (8, self._checkpoint),
            (8, self._change_leader),
            (6, self._follow_start),
            (2, self._begin_anew_at_start),
            (3, self._restart),
            (6, self._crash),
            (5, self._crash_inside),
            (6, self._check_served),
            (3, self._leave_out_a_batch),
        ]
        self.random.choices([act for _, act in actions], [weight for weight, _ in actions])[0]()

    # --- following -----------------------------------------------------------------------------------------------

    def _replicate(self) -> None:
        if self.has_diverged:
            self._agree()
        log = self.log
        end = log.log_end
        if end < min((each.base for each in self.leader if each.next > self.leader_start), default=self.leader_start):
            self._begin_anew(self.leader_start)
            return
        if not self.leader or self.leader[-1].next == end:
            self.leader += self._make_batches()
        sent = [batch for batch in self.leader if batch.next > end][: self.random.choice((1, 2, 3))]
        # In the list before it is written: a crash in between may leave it in the log.
        self.held += sent
        data = memoryview(b"".join(batch.data for batch in sent))
        outcome = log.append_replicated(data, leader_epoch=self.epoch)
        if outcome is not None and log.log_start == log.log_end:
            # The start lies inside of a batch.
            self._begin_anew(outcome.base_offset)
            return
        expect(outcome is None, "what the leader sends is taken", outcome)

    def _leave_out_a_batch(self) -> None:
        """What comes does not begin where the log ends: nobody takes it."""
        if self.has_diverged:
            return
        self.leader += self._make_batches()
        self.leader += self._make_batches()
        end = self.log.log_end
        later = next((each for each in self.leader if each.base > end), None)
        if later is not None:
            outcome = self.log.append_replicated(memoryview(later.data), leader_epoch=self.epoch, may_skip=True)
            is_refused = outcome is not None and self.log.log_end == end
            expect(is_refused, "a gap in a log without compaction is refused", (end, later.base))

    def _make_batches(self) -> list[ModelBatch]:
        base = self.leader[-1].next if self.leader else 0
        now_ms = self.clock.now_ms()
        if self.random.random() < 0.4:
            return transactions.make_batches(
                self.random, self.leader, base=base, leader_epoch=self.epoch, now_ms=now_ms
            )
        producer = self.random.choice((-1, 7, 8))
        sequence = max(
            (each.header.base_sequence + each.header.record_count for each in self.leader
             if each.header.producer_id == producer >= 0), default=0
        )  # fmt: skip
        count = self.random.choice((1, 3))
        data = build_batch(
            [Record(self.random.randbytes(self.random.choice((5, 300))), timestamp_ms=now_ms) for _ in range(count)],
            base_offset=base,
            leader_epoch=self.epoch,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
        )
        return [ModelBatch(bytes(data), [(base + place, now_ms) for place in range(count)])]

    def _sync(self) -> None:
        """What is durable here may become committed, and is readable when the leader says so."""
        failed = self.store.group_commit.sync_now([self.log])
        expect(not failed, "a sound disk fails nothing", failed)
        self.durable_end = self.log.durable_end
        if self.has_diverged:
            return  # what it holds counts for nothing
        ends = [each.next for each in self.held if self.committed <= each.next <= self.durable_end]
        self.committed = max(self.committed, self.random.choice([self.committed, *ends]))
        before = self.log.readable_end
        self.log.advance_readable(min(self.committed, self.log.log_end))
        expect(before <= self.log.readable_end <= self.committed, "the watermark never falls", before)

    def _checkpoint(self) -> None:
        self._sync()
        watermark = self.log.readable_end
        self.store.checkpoint_now(every_log=True)
        if self.log.segments:
            self.saved_watermark = max(self.saved_watermark, watermark)

    def _change_leader(self) -> None:
        """The next leader has everything that is committed, and of the rest what it has."""
        ends = [each.next for each in self.leader if each.next >= self.committed]
        keeps = self.random.choice(ends) if ends else self.committed
        self.leader = [each for each in self.leader if each.next <= keeps]
        self.epoch += self.random.choice((1, 2))
        if self.random.random() < 0.7:
            self.leader += self._make_batches()
        # It might have led in between, without a batch.
        self.log.note_epoch(self.epoch - 1)
        self.has_diverged = True
        self._agree()

    def _agree(self) -> None:
        """Cuts off what the leader does not have."""
        log = self.log
        agreed = log.log_start
        theirs = [each for each in self.leader if each.next > log.log_start]
        for ours, other in zip(self._in_log(), theirs, strict=False):
            if ours.data != other.data:
                break
            agreed = ours.next
        self._cut(min(max(agreed, log.readable_end), log.log_end))
        self.has_diverged = False

    def _cut(self, offset: int) -> None:
        self.durable_end = min(self.durable_end, offset)
        self.may_forget_producers |= offset < self.log.log_end
        self.store.truncate_log(self.log, offset)
        expect(self.log.log_end == offset, "a cut ends where it was told to", (self.log.log_end, offset))
        self.held = [each for each in self.held if each.next <= offset]
        self._check_all()

    def _in_log(self) -> list[ModelBatch]:
        return [each for each in self.held if each.next > self.log.log_start]

    def _follow_start(self) -> None:
        self.leader_start = self.random.randint(self.leader_start, self.committed)
        log = self.log
        removal = log.follow_log_start(self.leader_start)
        self.start_max = log.log_start
        if removal is not None:
            removal.run()
            self.start_min = log.log_start

    def _begin_anew_at_start(self) -> None:
        self._begin_anew(self.leader_start)

    def _begin_anew(self, offset: int) -> None:
        self.may_be_empty = True
        self.durable_end = self.start_min = self.saved_watermark = 0
        self.start_max = max(self.start_max, offset)
        anew = self.storage.log_anew.LogAnew(
            self.store.context, self.store.checkpoints, self.log, offset, self.storage.set_aside.Aside.DROPPED
        )
        anew.begin()
        try:
            anew.save()
            anew.run()
        finally:
            anew.end()
        self._begun_at(offset)

    def _begun_at(self, offset: int) -> None:
        self.held = []
        self.may_be_empty = False
        self.durable_end = self.start_min = self.start_max = self.producers_from = self.saved_watermark = offset
        self._check_all()

    # --- ends and starts -----------------------------------------------------------------------------------------

    def _restart(self) -> None:
        watermark = self.log.readable_end
        self.store.close()
        self.files.life += 1
        if self.log.segments:
            self.durable_end, self.saved_watermark = self.log.log_end, max(self.saved_watermark, watermark)
        self._open()

    def _crash(self) -> None:
        self.files.steps_left = -1
        self.files.crash(self.random.choice(CRASHES))
        self._open()

    def _crash_inside(self) -> None:
        self.files.crash_after(self.random.randint(0, 40))
        inner = (self._replicate, self._checkpoint, self._change_leader, self._follow_start, self._begin_anew_at_start)
        try:
            for action in self.random.choices((*inner, self._restart), k=3):
                action()
        except SimulatedCrash:
            self._crash()
        self.files.steps_left = -1

    def _open(self) -> None:
        self.store = self.storage.log_store.LogStore.open(self.files, ROOT, self._settings, self.clock)
        self.store.remove_strays()
        self.log = self.store.open_log("topic", TOPIC_ID, 0, self._config, is_replicated=True)
        log = self.log
        expect(log.damage is None, "no damage where there is none", log.damage)
        # Or it is the one before, of which everything was deleted.
        is_blank = not log.epochs.entries() and log.known_producers.is_empty
        if self.may_be_empty and log.log_start == log.log_end and is_blank:
            self._begun_at(log.log_start)
        self.may_be_empty = False
        expect(self.start_min <= log.log_start <= self.start_max, "the start moves by request only", log.log_start)
        self.start_min = self.start_max = log.log_start
        expect(log.log_end >= self.durable_end, "durable is there", (log.log_end, self.durable_end))
        expect(log.readable_end >= min(self.saved_watermark, log.log_end), "the saved watermark holds", (
            log.readable_end, self.saved_watermark))  # fmt: skip
        self.held = [each for each in self.held if each.next <= log.log_end]
        self.durable_end = log.log_end
        self._check_all()

    # --- what must hold ------------------------------------------------------------------------------------------

    def _check_all(self) -> None:
        log = self.log
        expect(log.log_start <= log.readable_end <= log.log_end, "the readable end lies in the log", log)
        expect(log.readable_end <= max(self.committed, log.log_start), "only what is committed is readable", (
            log.readable_end, self.committed))  # fmt: skip
        self._check_served()
        for each in self._in_log():
            epoch = log.epochs.epoch_at(max(each.base, log.log_start))
            expect(epoch == each.header.leader_epoch, "leader epochs are those of the batches", (each.base, epoch))
        # Of records that are all deleted the last epoch may still be known, or not.
        written = [each.header.leader_epoch for each in self.held[-1:]]
        known = {*written, *([] if self._in_log() else [-1])}
        expect(log.epochs.latest in known, "no epoch without a batch is left by a cut or a start", log.epochs.entries())
        self._check_producers()

    def _check_producers(self) -> None:
        first = self.log.segments[0].base_offset if self.log.segments else self.log.log_end
        if self.may_forget_producers and not self._is_replay(self.producers_from):
            self.producers_from = first
        self.may_forget_producers = False
        expect(self._is_replay(self.producers_from), "producers are as replayed from the log", (
            self.log.producers.as_dict(), self.producers_from))  # fmt: skip

    def _is_replay(self, offset: int) -> bool:
        replayed = self.storage.sequence.ProducerSequences()
        for each in self.held:
            if each.base >= offset and each.is_commit is None:
                replayed.apply(each.header)
        is_same = bool(replayed.as_dict() == self.log.producers.as_dict())
        return is_same and transactions.differences(self.log, self.held, offset) is None

    def _check_served(self) -> None:
        """Readers are served up to the readable end, replicas up to the end of the log, and both what was sent."""
        log = self.log
        for is_replica, end in ((False, log.readable_end), (True, log.log_end)):
            offset = log.log_start
            while (plan := log.plan_read(offset, bytes_max=2_000, is_replica=is_replica)) is not None:
                expect(hasattr(plan, "load_cached"), "all of it is served", plan)
                loaded = plan.load_cached()
                data = bytes(loaded if loaded is not None else plan.load())
                wanted = [each for each in self.held if each.next > offset]
                for (position, header), batch in zip(walk_headers(data), wanted, strict=False):
                    piece = data[position : position + header.size_bytes]
                    expect(piece == batch.data, "bytes come back as they were sent", (offset, batch.base))
                    expect(header.next_offset <= end, "nothing past its end is served", (header.next_offset, end))
                    offset = header.next_offset
            expect(offset == end, "all of it is served", (is_replica, offset, end))
