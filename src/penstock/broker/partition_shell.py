"""One partition as the doors see it: append batches, read batches, wait for more.

The shell checks what a client sent, asks the pure rules (producer sequences), has the log write it, and says when the
topic's promise is kept:

    durability=fsync      readable, and acknowledged, when the disk has it (one turn of the group commit)
    durability=interval   readable, and acknowledged, when the kernel has it; the disk follows within the interval

No lock anywhere: there is no `await` between checking a batch and having written it.
"""

from __future__ import annotations

import asyncio
import enum
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.broker.append_outcome import Appended, AppendRefused, Refusal
from penstock.broker.waiting import WaitingRoom
from penstock.codec.batch_rewrite import begins_without_records, skip_empty_batches
from penstock.codec.columns_keys import holds_null_key
from penstock.codec.record_batch import (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    BatchProblem,
    check_batch,
    patch,
    patch_log_append_time,
)
from penstock.codec.records import read_payload
from penstock.domain.compaction import CompactionRules
from penstock.domain.producer_sequence import Accept, Duplicate, InvalidProducerEpoch, OutOfOrderSequence
from penstock.domain.topic_config import TopicConfig
from penstock.storage.group_commit import Turn
from penstock.storage.log_recovery import RecoveredLog
from penstock.storage.log_store import LogStore
from penstock.storage.partition_log import PartitionLog
from penstock.storage.read_plan import ReadPlan
from penstock.storage.storage_config import UNLIMITED, Durability, LogConfig
from penstock.storage.storage_errors import Damage, Damaged, DiskFullError, Offline, OutOfRange, StorageError
from penstock.storage.time_lookup import TimestampOffset

log_events = get_logger("partition")

# One node leads every partition until the cluster hands out epochs.
LEADER_EPOCH: Final = 0
CODEC_LAST: Final = 4
# In every format that ever was, so that the format can be told.
MAGIC_AT: Final = 16
# A client whose broken disk or bug sends one bad batch after another must not fill our log with them.
_UNUSUAL: Final = ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL


class ReadProblem(enum.Enum):
    UNKNOWN_PARTITION = "unknown partition"
    UNKNOWN_TOPIC_ID = "unknown topic id"
    FORBIDDEN = "forbidden"
    OUT_OF_RANGE = "out of range"
    FENCED_EPOCH = "fenced epoch"
    UNKNOWN_EPOCH = "unknown epoch"
    DAMAGED = "damaged"
    OFFLINE = "offline"
    POLICY = "policy"


class PartitionRead(msgspec.Struct, frozen=True):
    """What one read found: whole batches, a problem, or a plan for the disk whose bytes are not in memory."""

    records: bytes | bytearray | memoryview = b""
    problem: ReadProblem | None = None
    cold: ReadPlan | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.records)


_EMPTY: Final = PartitionRead()


class PartitionShell:
    __slots__ = (
        "_after_ms_max",
        "_before_ms_max",
        "_clock",
        "_config",
        "_dates_records",
        "_is_compacted",
        "_is_synced",
        "_store",
        "_sync_alarm",
        "_turn",
        "has_lost",
        "index",
        "is_closed",
        "leader_epoch",
        "log",
        "readers",
        "topic",
    )

    def __init__(
        self, topic: str, index: int, log: PartitionLog, *, store: LogStore, clock: Clock, config: TopicConfig
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.leader_epoch = LEADER_EPOCH
        self.readers = WaitingRoom()
        self._store = store
        self._clock = clock
        # The last turn of the disk that an append of ours joined.
        self._turn: Turn | None = None
        self._sync_alarm: asyncio.TimerHandle | None = None
        # Recovery found less than was acknowledged: a person has to look at it.
        self.has_lost = False
        self.is_closed = False
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self._config = config
        # Read for every batch.
        self._is_synced = config.durability == "fsync"
        self._dates_records = config.uses_log_append_time
        self._after_ms_max = config.message_timestamp_after_max_ms
        self._before_ms_max = config.message_timestamp_before_max_ms
        self._is_compacted = config.is_compacted
        self.log.config = log_config(config)

    @property
    def log_start(self) -> int:
        return self.log.log_start

    @property
    def readable_end(self) -> int:
        return self.log.readable_end

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    # Append

    def append(self, records: memoryview | None) -> Appended | AppendRefused:
        """One batch, as a client sent it. It is patched in place and written before this returns."""
        if records is None:
            return AppendRefused(Refusal.INVALID, "the request holds no batch")
        header = check_batch(records)
        if isinstance(header, BatchProblem):
            return _refuse_unreadable(records, header)
        if not self._is_ordinary(header, len(records)):
            refused = self._refuse(header, len(records))
            if refused is not None:
                return refused
        if self._is_compacted:
            refused = _refuse_keyless(records, header)
            if refused is not None:
                return refused
        log = self.log
        if header.producer_id >= 0:
            if header.base_sequence < 0 or header.producer_epoch < 0:
                return _refuse_unsequenced(header)
            verdict = log.producers.check(header)
            if isinstance(verdict, Duplicate):
                return self._repeat(verdict)
            if not isinstance(verdict, Accept):
                return _sequence_refused(verdict)
        base_offset = log.log_end
        header = patch(records, 0, header, base_offset=base_offset, leader_epoch=self.leader_epoch)
        append_time_ms = NO_TIMESTAMP
        if self._dates_records:
            append_time_ms = self._clock.now_ms()
            header = patch_log_append_time(records, 0, header, append_time_ms)
        try:
            log.append(records, (header,))
        except DiskFullError as error:
            return AppendRefused(Refusal.DISK_FULL, str(error))
        except StorageError as error:
            return AppendRefused(Refusal.OFFLINE, str(error))
        return Appended(base_offset, append_time_ms, log.log_start, self._promise())

    def _is_ordinary(self, header: BatchHeader, size_bytes: int) -> bool:
        """One look for the batch that is as it should be, which is nearly every one; else `_refuse` says why not."""
        return (
            header.length + LENGTH_PREFIX_BYTES == size_bytes <= self._config.max_message_bytes
            and header.record_count == header.last_offset_delta + 1 > 0
            and 0 <= header.attributes <= CODEC_LAST
            and -self._before_ms_max <= header.max_timestamp - self._clock.now_ms() <= self._after_ms_max
        )

    def _refuse(self, header: BatchHeader, size_bytes: int) -> AppendRefused | None:
        """Everything that a batch must be, apart from its checksum and its sequence."""
        if header.size_bytes != size_bytes:
            return AppendRefused(Refusal.INVALID, f"one batch is expected, {size_bytes} bytes hold {header.size_bytes}")
        if header.record_count != header.last_offset_delta + 1 or header.record_count == 0:
            return AppendRefused(
                Refusal.INVALID,
                f"{header.record_count} records with a last offset delta of {header.last_offset_delta}",
            )
        config = self._config
        if size_bytes > config.max_message_bytes:
            return AppendRefused(
                Refusal.TOO_LARGE,
                f"batch of {size_bytes} bytes, max.message.bytes is {config.max_message_bytes}",
            )
        if header.attributes & _UNUSUAL:
            return _refuse_unusual(header)
        if header.attributes & ATTRIBUTE_CODEC_MASK > CODEC_LAST:
            return AppendRefused(Refusal.UNSUPPORTED_CODEC, f"compression codec {header.codec} is not known")
        if not self._dates_records:
            return self._refuse_timestamp(header)
        return None

    def _refuse_timestamp(self, header: BatchHeader) -> AppendRefused | None:
        if header.max_timestamp < 0:
            return None
        ahead_ms = header.max_timestamp - self._clock.now_ms()
        if ahead_ms > self._config.message_timestamp_after_max_ms:
            return AppendRefused(
                Refusal.BAD_TIMESTAMP,
                f"timestamp {header.max_timestamp} lies {ahead_ms} ms ahead, "
                f"message.timestamp.after.max.ms is {self._config.message_timestamp_after_max_ms}",
            )
        if -ahead_ms > self._config.message_timestamp_before_max_ms:
            return AppendRefused(
                Refusal.BAD_TIMESTAMP,
                f"timestamp {header.max_timestamp} lies {-ahead_ms} ms back, "
                f"message.timestamp.before.max.ms is {self._config.message_timestamp_before_max_ms}",
            )
        return None

    def _repeat(self, duplicate: Duplicate) -> Appended | AppendRefused:
        """A batch that is in the log already: its first offset again, and not before it is durable."""
        log = self.log
        if log.failure is not None:
            return AppendRefused(Refusal.OFFLINE, f"{self.topic}-{self.index} is offline: {log.failure}")
        turn = None if duplicate.base_offset < log.readable_end else self._store.group_commit.join(log)
        append_time_ms = duplicate.timestamp_ms if self._dates_records else NO_TIMESTAMP
        return Appended(duplicate.base_offset, append_time_ms, log.log_start, turn)

    def _promise(self) -> Turn | None:
        """What the acknowledgement of the batch just written waits for."""
        log = self.log
        if not self._is_synced:
            self._sync_within_interval()
            self._make_readable(log.log_end)
            return None
        turn = self._store.group_commit.join(log)
        if turn is not self._turn:
            self._turn = turn
            turn.add_done_callback(self._on_synced)
        return turn

    def _sync_within_interval(self) -> None:
        # The first write after a sync sets the alarm: an idle partition costs nothing, a busy one is synced on time.
        if self._sync_alarm is None:
            delay_seconds = self._config.durability_interval_ms / 1000
            self._sync_alarm = asyncio.get_running_loop().call_later(delay_seconds, self._sync_now)

    def _sync_now(self) -> None:
        self._sync_alarm = None
        self._store.group_commit.join(self.log)

    def _on_synced(self, _turn: Turn) -> None:
        # Of a log that the sync failed, nothing past the readable end was promised to anybody; its readers are woken
        # to learn that it is offline.
        self._make_readable(self.log.durable_end)

    def _make_readable(self, offset: int) -> None:
        self.log.advance_readable(offset)
        self.readers.wake_all()

    # Read

    def read(self, offset: int, *, bytes_max: int, must_fit: bool = False, leader_epoch: int = -1) -> PartitionRead:
        """Whole batches from `offset` on. `must_fit`: nothing at all rather than a first batch over `bytes_max`."""
        if leader_epoch >= 0:
            problem = self.check_epoch(leader_epoch)
            if problem is not None:
                return PartitionRead(problem=problem)
        read = self._read_at(offset, bytes_max, must_fit)
        return self._past_empty(read, bytes_max, must_fit) if begins_without_records(read.records) else read

    def _read_at(self, offset: int, bytes_max: int, must_fit: bool) -> PartitionRead:
        log = self.log
        if offset == log.readable_end and log.failure is None:
            return _EMPTY
        plan = log.plan_read(offset, bytes_max=bytes_max)
        if plan is None:
            return _EMPTY
        if not isinstance(plan, ReadPlan):
            return PartitionRead(problem=_problem_of(plan))
        plan.must_fit = must_fit
        loaded = plan.load_cached()
        if loaded is None:
            return PartitionRead(cold=plan)
        if must_fit and len(loaded) > bytes_max:
            return _EMPTY
        return PartitionRead(records=loaded)

    def _past_empty(self, read: PartitionRead, bytes_max: int, must_fit: bool) -> PartitionRead:
        """Compaction leaves batches without records. A client that was given nothing else would ask for it again, at
        once and for ever (kafkajs does): it is given what follows, or has to wait."""
        while begins_without_records(read.records):
            rest, next_offset = skip_empty_batches(read.records)
            if len(rest):
                return PartitionRead(records=rest)
            read = self._read_at(next_offset, bytes_max, must_fit)
        return read

    def has_later_segment(self, offset: int) -> bool:
        """There is more to read than the segment of `offset` holds."""
        return self.log.segment_of(offset).next_offset < self.log.readable_end

    def take_loaded(self, loaded: memoryview | Damage, *, bytes_max: int, must_fit: bool) -> PartitionRead:
        """What a cold read brought; it may be another one."""
        if isinstance(loaded, Damage):
            return PartitionRead(problem=ReadProblem.DAMAGED)
        return self._past_empty(PartitionRead(records=loaded), bytes_max, must_fit)

    def check_epoch(self, leader_epoch: int) -> ReadProblem | None:
        """What a client believes about the leader; -1: it does not say."""
        if leader_epoch < 0 or leader_epoch == self.leader_epoch:
            return None
        if leader_epoch < self.leader_epoch:
            return ReadProblem.FENCED_EPOCH
        return ReadProblem.UNKNOWN_EPOCH

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        return self.log.epochs.end_offset_for(epoch, self.log.readable_end)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | ReadProblem | None:
        """Blocking: for a thread."""
        return _located(self.log.offset_for_timestamp(timestamp_ms))

    def offset_of_max_timestamp(self) -> TimestampOffset | ReadProblem | None:
        """Blocking: for a thread."""
        return _located(self.log.offset_of_max_timestamp())

    # The rest

    async def delete_before(self, offset: int) -> int | ReadProblem:
        """Moves the start of the log, -1: to its end. The start as it is then, durably."""
        log = self.log
        if log.failure is not None:
            return ReadProblem.OFFLINE
        if "delete" not in self._config.cleanup_policy:
            return ReadProblem.POLICY
        wanted = log.readable_end if offset == -1 else offset
        if not 0 <= wanted <= log.readable_end:
            return ReadProblem.OUT_OF_RANGE
        if wanted > log.log_start:
            try:
                await asyncio.to_thread(log.delete_before(wanted).run)
            except StorageError as error:
                log_events.error("records not deleted", topic=self.topic, partition=self.index, error=str(error))
                return ReadProblem.OFFLINE
        return log.log_start

    @property
    def is_offline(self) -> bool:
        return self.log.failure is not None

    def come_back(self, recovered: RecoveredLog) -> None:
        """Recovery has read the log from the disk again: serve it, unless something that was promised is gone."""
        if self.is_closed:
            return  # its topic was deleted while it was read
        readable_end = self.log.readable_end
        if recovered.log_end < readable_end or recovered.damage is not None:
            self.has_lost = True
            log_events.error(
                "acknowledged records are gone",
                topic=self.topic,
                partition=self.index,
                promised_end=readable_end,
                found_end=recovered.log_end,
                advice="stop the node and look at it with `penstock log verify`",
            )
            return
        self.log.adopt(recovered)
        log_events.info("log back online", topic=self.topic, partition=self.index, log_end=self.log.log_end)
        self.readers.wake_all()

    def close(self) -> None:
        """The topic is gone, or the node stops: whoever waits for it learns so at once."""
        self.is_closed = True
        if self._sync_alarm is not None:
            self._sync_alarm.cancel()
            self._sync_alarm = None
        self.readers.wake_all()


def log_config(config: TopicConfig) -> LogConfig:
    """What the disk needs to know of a topic's settings."""
    common = LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        durability=Durability(config.durability),
    )
    return _compacted(common, config) if config.is_compacted else common


def _compacted(common: LogConfig, config: TopicConfig) -> LogConfig:
    is_deleted = "delete" in config.cleanup_policy
    return msgspec.structs.replace(
        common,
        # Only sealed segments are compacted, so none may stay open for longer than a record may wait for it.
        segment_ms=min(config.segment_ms, config.max_compaction_lag_ms),
        retention_ms=config.retention_ms if is_deleted else UNLIMITED,
        retention_bytes=config.retention_bytes if is_deleted else UNLIMITED,
        compaction=CompactionRules(
            min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            max_compaction_lag_ms=config.max_compaction_lag_ms,
            delete_retention_ms=config.delete_retention_ms,
        ),
    )


def _refuse_keyless(records: memoryview, header: BatchHeader) -> AppendRefused | None:
    """Without a key nothing says which record replaces which."""
    payload = read_payload(records, 0, header)
    if isinstance(payload, BatchProblem):
        return AppendRefused(Refusal.INVALID, payload.reason)
    match holds_null_key(header, payload):
        case True:
            return AppendRefused(Refusal.INVALID, "a compacted topic takes no record without a key")
        case None:
            return AppendRefused(Refusal.INVALID, "the records cannot be read")
        case False:
            return None


def _sequence_refused(verdict: OutOfOrderSequence | InvalidProducerEpoch) -> AppendRefused:
    if isinstance(verdict, OutOfOrderSequence):
        reason = f"sequence {verdict.actual} where {verdict.expected} follows"
        return AppendRefused(Refusal.OUT_OF_ORDER_SEQUENCE, reason)
    reason = f"producer epoch {verdict.actual}, a newer producer wrote with epoch {verdict.current}"
    return AppendRefused(Refusal.PRODUCER_FENCED, reason)


def _refuse_unreadable(records: memoryview, problem: BatchProblem) -> AppendRefused:
    # Not CORRUPT, which clients take for a fault on the way and answer by sending the same bytes again.
    if len(records) > MAGIC_AT and records[MAGIC_AT] != MAGIC:
        return AppendRefused(Refusal.INVALID, problem.reason)
    return AppendRefused(Refusal.CORRUPT, problem.reason)


def _refuse_unsequenced(header: BatchHeader) -> AppendRefused:
    reason = (
        f"producer {header.producer_id} without a place in its order: "
        f"epoch {header.producer_epoch}, sequence {header.base_sequence}"
    )
    return AppendRefused(Refusal.INVALID, reason)


def _refuse_unusual(header: BatchHeader) -> AppendRefused:
    if header.is_control:
        return AppendRefused(Refusal.INVALID, "control batches are written by the broker alone")
    return AppendRefused(Refusal.NOT_TRANSACTIONAL, "transactions are not served yet")


def _problem_of(plan: OutOfRange | Damaged | Offline) -> ReadProblem:
    if isinstance(plan, OutOfRange):
        return ReadProblem.OUT_OF_RANGE
    return ReadProblem.DAMAGED if isinstance(plan, Damaged) else ReadProblem.OFFLINE


def _located(found: TimestampOffset | Damaged | Offline | None) -> TimestampOffset | ReadProblem | None:
    if found is None or isinstance(found, TimestampOffset):
        return found
    return _problem_of(found)
