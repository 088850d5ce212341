"""One partition as the doors see it: append batches, read batches, wait for more.

The shell checks what a client sent, asks the pure rules (producer sequences), has the log write it, and says by a
commitment when the topic's promise is kept: by this node's disk, or by all replicas in sync (`commits`).

No lock anywhere: there is no `await` between checking a batch and having written it.
"""

from __future__ import annotations

from penstock.base.clock import Clock
from penstock.broker.partition.acks import ALL, Acks
from penstock.broker.partition.batch_look import BatchLook
from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.commits import Commits
from penstock.broker.partition.delivery_search import DeliverySearch
from penstock.broker.partition.disk_commits import DiskCommits
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.log_config import log_config
from penstock.broker.partition.outcome import (
    Appended,
    AppendOutcome,
    AppendRefused,
    DelayPossible,
    Refusal,
    VerificationNeeded,
)
from penstock.broker.partition.read import PartitionRead, ReadProblem, located
from penstock.broker.partition.reads import PartitionReads
from penstock.broker.partition.recompression import Recompression, recompression_of
from penstock.broker.partition.refusals import (
    is_ordinary,
    refuse_batch,
    refuse_producer,
    refuse_unreadable,
    refuse_unsequenced,
    refuse_unwritten,
)
from penstock.broker.partition.replicated_commits import ReplicatedCommits
from penstock.broker.partition.role import Idle, Leading, Role, is_replicated
from penstock.broker.partition.waiting import WaitingRoom
from penstock.codec.batch.header import (
    ATTRIBUTE_TRANSACTIONAL,
    NO_TIMESTAMP,
    BatchHeader,
    BatchProblem,
    check_batch,
    patch,
    patch_log_append_time,
)
from penstock.codec.batch.rewrite import header_of
from penstock.domain.config.topic import TopicConfig
from penstock.domain.log.producer_sequence import NO_MARKER, Accept, Duplicate
from penstock.domain.topic_rules import is_internal
from penstock.domain.transaction.partition import Admitted, NotVerified
from penstock.domain.transaction.partition import VerificationNeeded as MustVerify
from penstock.domain.transaction.verification import NO_GUARD
from penstock.storage.errors import Damage, StorageError
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.recovered import RecoveredLog
from penstock.storage.log.refusals import refusal_of
from penstock.storage.log.time_lookup import TimestampOffset
from penstock.storage.store import LogStore


class PartitionShell:
    __slots__ = (
        "_clock",
        "_commits",
        "_dates_records",
        "_epoch_start",
        "_has_transactions",
        "_is_synced",
        "_reads",
        "_store",
        "batch_look",
        "config",
        "has_lost",
        "index",
        "is_closed",
        "is_leading",
        "log",
        "readers",
        "recompression",
        "role",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        log: PartitionLog,
        *,
        store: LogStore,
        clock: Clock,
        config: TopicConfig,
        role: Role,
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.readers = WaitingRoom()
        # Replaced by `take_role` alone.
        self.role = role
        # Asked for every batch.
        self.is_leading = isinstance(role, Leading)
        self._reads = PartitionReads(log)
        self._clock = clock
        self._store = store
        self._commits: Commits = self._commits_for(role)
        # Where the log ended when this node took the lead.
        self._epoch_start = 0
        self.begin_epoch()
        # Recovery found less than was acknowledged: a person has to look at it.
        self.has_lost = False
        self.is_closed = False
        # Whether the log may know of any.
        self._has_transactions = len(log.transactions) > 0
        self.batch_look = BatchLook(None if is_internal(topic) else DeliverySearch(topic, index, clock=clock))
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        # Read for every batch.
        self._is_synced = config.is_synced
        self._dates_records = config.uses_log_append_time
        self._commits.configure(config)
        # None: batches stay as they were sent; those of our own topics do.
        self.recompression = None if is_internal(self.topic) else recompression_of(config)
        self.batch_look.configure(config)
        self.log.config = log_config(config)

    @property
    def log_start(self) -> int:
        return self.log.log_start

    @property
    def readable_end(self) -> int:
        return self.log.readable_end

    @property
    def last_stable_offset(self) -> int:
        """As far as readers of committed records may read."""
        return self.log.last_stable_offset

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # Leading

    def take_role(self, role: Role) -> None:
        """From now on. Whoever has lost the lead keeps no promise that he has not kept yet, and those who wait for more
        to read are woken to learn who leads."""
        self.role = role
        self.is_leading = isinstance(role, Leading)
        if not self.is_leading:
            self._commits.give_up(Loss.LEADERSHIP)
        # At this very moment: a batch taken by the wrong one would be confirmed by this disk alone.
        if not isinstance(role, Idle) and is_replicated(role) != (self.replicated is not None):
            commits = self._commits_for(role)
            commits.configure(self.config)
            self._commits.hand_over(commits)
            self._commits = commits
        self.begin_epoch()
        self.readers.wake_all()

    def begin_epoch(self) -> None:
        """Notes where it begins, if this node has begun to lead others. Again after the end of the log was cut off,
        which may come to its end when the node leads already."""
        self.log.is_replicated = self.replicated is not None
        epoch = self.role.epoch
        if self.is_leading and self.log.is_replicated and self.log.epochs.latest < epoch:
            self.log.note_epoch(epoch)
            self._epoch_start = self.log.log_end

    @property
    def epoch_start(self) -> int:
        """What lies below was there when this node took the lead: whether it is committed it learns from the others."""
        return self._epoch_start

    def _commits_for(self, role: Role) -> Commits:
        kind = DiskCommits if isinstance(role, Leading) and not role.is_replicated else ReplicatedCommits
        return kind(self.log, self._store.group_commit, self.readers)

    @property
    def replicated(self) -> ReplicatedCommits | None:
        """For the replica group of a partition that has one."""
        return self._commits if isinstance(self._commits, ReplicatedCommits) else None

    @property
    def may_look(self) -> bool:
        """Asked when a reply that rests on no write is ready: whether what this node knows may be told. Who was paused,
        or cut off, may not know yet that another leads."""
        return self.is_leading and self._commits.may_look

    @property
    def leadership(self) -> Leadership:
        """For whoever begins to decide for this partition now."""
        return Leadership(self.topic, self.index, self.role.epoch)

    def refuse_leadership(self, leadership: Leadership) -> AppendRefused | None:
        """Of what was decided under another leadership than this one."""
        is_own = self.is_leading and leadership.epoch == self.role.epoch
        return None if is_own else self._not_leader(decided=leadership)

    def _not_leader(self, *, decided: Leadership | None = None) -> AppendRefused:
        why = self.role.why_not or f"is led in another epoch, {self.role.epoch}, than this was decided in: {decided}"
        return AppendRefused(Refusal.NOT_LEADER, f"{self.topic}-{self.index} {why}")

    # Append

    def append(self, records: memoryview | None, *, guard: int = NO_GUARD, acks: Acks = ALL) -> AppendOutcome:
        """One batch. It is patched in place and written before this returns."""
        outcome = self._take(records, guard, acks, is_produced=False)
        assert not isinstance(outcome, DelayPossible), "nobody has looked for delays"
        return outcome

    def append_decided(self, records: memoryview, leadership: Leadership) -> AppendOutcome:
        """The same of what was decided here, under that leadership."""
        return self.refuse_leadership(leadership) or self.append(records)

    def produce(
        self, records: memoryview | None, *, guard: int = NO_GUARD, acks: Acks = ALL
    ) -> AppendOutcome | DelayPossible:
        """The same for a batch of a Kafka producer, who may have made it of anything, and whose records may say when
        they are to be delivered."""
        return self._take(records, guard, acks, is_produced=True)

    def _take(
        self, records: memoryview | None, guard: int, acks: Acks, *, is_produced: bool
    ) -> AppendOutcome | DelayPossible:
        if not self.is_leading or not self._commits.has_enough:
            refused = self.refuse_any(acks)
            if refused is not None:
                return refused
        if records is None:
            return AppendRefused(Refusal.INVALID, "the request holds no batch")
        header = check_batch(records)
        if isinstance(header, BatchProblem):
            return refuse_unreadable(records, header)
        if not is_ordinary(header, len(records), self.config):
            refused = refuse_batch(header, len(records), self.config)
            if refused is not None:
                return refused
        if self.recompression is not None and self.recompression.changes(header):
            return self._take_recompressed(self.recompression, records, header, guard, acks, is_produced=is_produced)
        if header.producer_id >= 0:
            answer = self.check_producer(header, guard=guard, acks=acks)
            if answer is not None:
                return answer
        now_ms = self._clock.now_ms()
        if is_produced:
            seen = self.batch_look.look(records, header, now_ms)
            if seen is not False:
                return seen if isinstance(seen, AppendRefused) else DelayPossible(header)
        else:
            refused = self.batch_look.refuse_own(records, header, now_ms)
            if refused is not None:
                return refused
        return self._write(records, header, acks)

    def _take_recompressed(
        self,
        codec: Recompression,
        records: memoryview,
        header: BatchHeader,
        guard: int,
        acks: Acks,
        *,
        is_produced: bool,
    ) -> AppendOutcome | DelayPossible:
        """The producer is asked about with what would be written: by its checksum a batch is known again."""
        taken = codec.take(self.batch_look, records, header, self._clock.now_ms(), is_produced=is_produced)
        if isinstance(taken, AppendRefused):
            return taken
        stored = header if taken is None else header_of(taken)
        answer = self.check_producer(stored, guard=guard, acks=acks) if stored.producer_id >= 0 else None
        if taken is None:
            # All else is asked when it is known what is written.
            return answer if isinstance(answer, VerificationNeeded) else DelayPossible(header)
        return self._write(taken, stored, acks) if answer is None else answer

    def check_producer(self, header: BatchHeader, *, guard: int = NO_GUARD, acks: Acks = ALL) -> AppendOutcome | None:
        """What is to be answered to a producer with an id instead of writing; None: its batch may be written."""
        if header.base_sequence < 0 or header.producer_epoch < 0:
            return refuse_unsequenced(header)
        log = self.log
        must_verify = False
        marker_offset = NO_MARKER
        # Where no transaction ever was, an ordinary batch has nothing to ask about them.
        if header.attributes & ATTRIBUTE_TRANSACTIONAL or self._has_transactions:
            self._has_transactions = True
            admission = log.transactions.check(header, guard=guard)
            must_verify = isinstance(admission, MustVerify)
            if not isinstance(admission, Admitted | MustVerify):
                return refuse_producer(admission)
            marker_offset = log.transactions.marker_offset_of(header.producer_id)
        verdict = log.producers.check(header, marker_offset=marker_offset)
        if isinstance(verdict, Duplicate):
            return self._repeat(verdict, acks)
        if not isinstance(verdict, Accept):
            return refuse_producer(verdict)
        return VerificationNeeded(header) if must_verify else None

    def append_checked(
        self, records: memoryview, *, guard: int = NO_GUARD, acks: Acks = ALL
    ) -> Appended | AppendRefused:
        """A batch of `produce` that had to wait, with or without holes. What else its producer has done meanwhile
        counts, and so does the end of its transaction."""
        refused = self.refuse_any(acks)
        if refused is not None:
            return refused
        header = header_of(records)
        if header.producer_id >= 0:
            answer = self.check_producer(header, guard=guard, acks=acks)
            if isinstance(answer, VerificationNeeded):
                return refuse_producer(NotVerified())
            if answer is not None:
                return answer
        return self._write(records, header, acks)

    def append_released(self, batch: bytearray, leadership: Leadership) -> Appended | AppendRefused:
        """Messages whose time has come. They were taken when they came: none of the rules for clients is asked again,
        or what was made stricter since would hold up all that are behind them. Their sequence is the mover's matter."""
        refused = self.refuse_leadership(leadership) or self.refuse_any()
        return refused or self._write(memoryview(batch), header_of(batch), ALL)

    def refuse_any(self, acks: Acks = ALL) -> AppendRefused | None:
        """Before anything is looked at: who may not be served here, whatever he sends."""
        if not self.is_leading:
            return self._not_leader()
        if acks.is_all and not self._commits.has_enough:
            reason = f"{self.topic}-{self.index} has {Loss.REPLICAS.value}"
            return AppendRefused(Refusal.NOT_ENOUGH_REPLICAS, reason)
        return None

    def _write(self, records: memoryview, header: BatchHeader, acks: Acks) -> Appended | AppendRefused:
        log = self.log
        base_offset = log.log_end
        header = patch(records, 0, header, base_offset=base_offset, leader_epoch=self.role.epoch)
        append_time_ms = NO_TIMESTAMP
        if self._dates_records:
            append_time_ms = self._clock.now_ms()
            # Without a record there is nothing to be dated, and nothing of this time to be found.
            if header.record_count:
                header = patch_log_append_time(records, 0, header, append_time_ms)
        try:
            log.append(records, (header,))
        except StorageError as error:
            return refuse_unwritten(error, self.replicated)
        return Appended(base_offset, append_time_ms, log.log_start, self._commits.promise(acks))

    def begin_verification(self, header: BatchHeader, *, version: int) -> int:
        """After VerificationNeeded, and before the coordinator is asked: the guard for the append that follows."""
        return self.log.transactions.begin_verification(header, version=version, now_ms=self._clock.now_ms())

    def withdraw_verification(self, header: BatchHeader, guard: int) -> None:
        """The coordinator refused."""
        self.log.transactions.withdraw_verification(header, guard)

    def refusal(self) -> AppendRefused | None:
        """What is known to be in the way of any write."""
        log = self.log
        if log.is_healthy and not log.context.is_full:
            return self.refuse_any()
        return refuse_unwritten(refusal_of(log), self.replicated) if self.is_leading else self._not_leader()

    def refuse_offline(self) -> AppendRefused:
        return AppendRefused(Refusal.OFFLINE, f"{self.topic}-{self.index} is offline: {self.log.failure}")

    def _repeat(self, duplicate: Duplicate, acks: Acks) -> Appended | AppendRefused:
        """A batch that is in the log already: its first offset again, and not before its sender may be told."""
        log = self.log
        if log.failure is not None:
            return self.refuse_offline()
        append_time_ms = duplicate.timestamp_ms if self._dates_records else NO_TIMESTAMP
        offset = duplicate.base_offset
        commitment = None if offset < log.readable_end else self._commits.promise(acks)
        return Appended(offset, append_time_ms, log.log_start, commitment)

    def commitment_of(self, offset: int) -> Commitment | None:
        """What the acknowledgement of a batch waits for that was written before; None: everybody may read it."""
        return None if offset < self.log.readable_end else self.commit()

    def commit_if_unsynced(self) -> Commitment | None:
        """Of a topic that acknowledges before the disk has it: for what the disk has not yet."""
        return None if self._is_synced else self.commit_unless_kept()

    def commit_unless_kept(self) -> Commitment | None:
        """None: everything written so far is kept."""
        return None if self._commits.kept_end >= self.log.log_end else self.commit()

    def is_kept(self, offset: int) -> bool:
        """Whatever becomes of a node."""
        return offset < self._commits.kept_end

    def promise(self, acks: Acks = ALL) -> Commitment | None:
        """What the acknowledgement of a batch that was just written waits for."""
        return self._commits.promise(acks)

    def commit(self) -> Commitment:
        """Has everything written so far kept, whatever the topic promises."""
        return self._commits.commit()

    # Read

    def read(
        self,
        offset: int,
        *,
        bytes_max: int,
        must_fit: bool = False,
        leader_epoch: int = -1,
        is_committed_only: bool = False,
    ) -> PartitionRead:
        """Whole batches from `offset` on. `must_fit`: nothing at all rather than a first batch over `bytes_max`.
        `is_committed_only`: below the last stable offset, and with the aborted transactions that the reader leaves out.
        """
        if leader_epoch >= 0 or not self.is_leading:
            problem = self.check_epoch(leader_epoch)
            if problem is not None:
                return PartitionRead(problem=problem)
        if is_committed_only:
            return self._reads.read_committed(offset, bytes_max, must_fit)
        return self._reads.read(offset, bytes_max, must_fit)

    def read_from_disk(self, offset: int, *, bytes_max: int, is_committed_only: bool) -> PartitionRead:
        """The same for a reader to whom memory gave something that is no batch: a thread reads and checks it."""
        if not self.is_leading:
            return PartitionRead(problem=ReadProblem.NOT_LEADER)
        return self._reads.read_from_disk(offset, bytes_max, is_committed_only)

    def damage_end(self, offset: int) -> int | None:
        """Where the log goes on behind damage at the offset; None: there is none, or the log ends with it."""
        damage = self.log.damage_at(offset)
        return None if damage is None or damage.is_end_lost else damage.offset_end

    def has_later_segment(self, offset: int, *, is_committed_only: bool = False) -> bool:
        """There is more to read than the segment of `offset` holds."""
        end = self.log.last_stable_offset if is_committed_only else self.log.readable_end
        return self.log.segment_of(offset).next_offset < end

    def take_loaded(self, read: PartitionRead, loaded: memoryview | Damage, *, bytes_max: int) -> PartitionRead:
        """What a cold read brought; it may be another one."""
        return self._reads.take_loaded(read, loaded, bytes_max)

    def check_epoch(self, leader_epoch: int) -> ReadProblem | None:
        """What a client believes about the leader; -1: it does not say. Who knows better or worse than we do is told so
        first, as Kafka does: it decides what the client does next."""
        epoch = self.role.epoch
        if leader_epoch >= 0 and leader_epoch != epoch:
            return ReadProblem.FENCED_EPOCH if leader_epoch < epoch else ReadProblem.UNKNOWN_EPOCH
        return None if self.is_leading else ReadProblem.NOT_LEADER

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is not over this one, and where it ends."""
        # With several replicas in what was written, readable or not: a new leader knows of a lower watermark than its
        # clients have read up to, and they would take that for a log that was cut.
        end = self.log.readable_end if self.replicated is None else self.log.log_end
        if epoch == self.role.epoch:
            # Also before its first batch, when the log has no entry for it yet.
            return epoch, end
        return self.log.epochs.end_offset_for(epoch, end)

    def check_end(self) -> ReadProblem | None:
        """Whether a reader can be told where the log ends: not before this leader knows what those before it told."""
        return ReadProblem.END_UNKNOWN if self.log.readable_end < self._epoch_start else None

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | ReadProblem | None:
        """Blocking: for a thread."""
        return located(self.log.offset_for_timestamp(timestamp_ms))

    def offset_of_max_timestamp(self) -> TimestampOffset | ReadProblem | None:
        """Blocking: for a thread."""
        return located(self.log.offset_of_max_timestamp())

    # The rest

    @property
    def is_offline(self) -> bool:
        return self.log.failure is not None

    def adopt(self, recovered: RecoveredLog) -> None:
        """The log is what recovery has read from the disk (`comeback`)."""
        self.log.adopt(recovered)
        self._has_transactions |= len(self.log.transactions) > 0
        self.begin_epoch()
        self.readers.wake_all()

    def close(self) -> None:
        """The topic is gone, or the node stops: whoever waits for it learns so at once."""
        self.is_closed = True
        self._commits.close()
        self.readers.wake_all()
