"""Why a batch is not taken: everything that it must be, apart from its checksum, and how each refusal is worded."""

from __future__ import annotations

from typing import Final

from penstock.broker.partition.outcome import AppendRefused, Refusal
from penstock.broker.partition.replicated_commits import ReplicatedCommits
from penstock.codec.batch.header import (
    ATTRIBUTE_CODEC_MASK,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    BatchProblem,
)
from penstock.codec.batch.records import parse_records
from penstock.codec.columns.keys import null_keys
from penstock.domain.config.definition import LONG_MAX
from penstock.domain.config.topic import TopicConfig
from penstock.domain.log.producer_sequence import InvalidProducerEpoch, OutOfOrderSequence, SequenceReused
from penstock.domain.transaction.partition import (
    CoordinatorFenced,
    NotTransactional,
    NotVerified,
    TransactionOpen,
)
from penstock.storage.errors import DiskFullError, LogDamagedError, StorageError

CODEC_LAST: Final = 4
# In every format that ever was, so that the format can be told.
MAGIC_AT: Final = 16

ProducerVerdict = (
    OutOfOrderSequence
    | SequenceReused
    | InvalidProducerEpoch
    | NotTransactional
    | NotVerified
    | TransactionOpen
    | CoordinatorFenced
)


def is_ordinary(header: BatchHeader, size_bytes: int, config: TopicConfig) -> bool:
    """One look for the batch that is as it should be, which is nearly every one; else `refuse_batch` says why."""
    return (
        header.length + LENGTH_PREFIX_BYTES == size_bytes <= config.max_message_bytes
        and header.record_count == header.last_offset_delta + 1 > 0
        and 0 <= header.attributes <= CODEC_LAST
    )


def refuse_batch(header: BatchHeader, size_bytes: int, config: TopicConfig) -> AppendRefused | None:
    """Of a batch that is not quite as nearly every one is; None: there is nothing wrong with its header."""
    if header.size_bytes != size_bytes:
        return AppendRefused(Refusal.INVALID, f"one batch is expected, {size_bytes} bytes hold {header.size_bytes}")
    if header.record_count != header.last_offset_delta + 1 or header.record_count == 0:
        return AppendRefused(
            Refusal.INVALID,
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}",
        )
    if size_bytes > config.max_message_bytes:
        return AppendRefused(
            Refusal.TOO_LARGE,
            f"batch of {size_bytes} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if header.is_control:
        return AppendRefused(Refusal.INVALID, "control batches are written by the broker alone")
    if header.is_transactional and header.producer_id < 0:
        return AppendRefused(Refusal.INVALID, "a transactional batch without a producer id")
    if header.attributes & ATTRIBUTE_CODEC_MASK > CODEC_LAST:
        return AppendRefused(Refusal.UNSUPPORTED_CODEC, f"compression codec {header.codec} is not known")
    return None


def refuse_timestamps(
    header: BatchHeader, payload: memoryview, config: TopicConfig, now_ms: int
) -> AppendRefused | None:
    """Of plain records, which are read only where the header cannot tell: it knows the youngest, and not the oldest."""
    if config.uses_log_append_time:
        return None
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    earliest_ms = now_ms - config.message_timestamp_before_max_ms
    if header.max_timestamp <= latest_ms and config.message_timestamp_before_max_ms == LONG_MAX:
        return None
    found = parse_records(header, payload)
    if isinstance(found, BatchProblem):
        return AppendRefused(Refusal.INVALID, found.reason)
    outside = [
        (place, record.timestamp_ms)
        for place, record in enumerate(found)
        if record.timestamp_ms != NO_TIMESTAMP and not earliest_ms <= record.timestamp_ms <= latest_ms
    ]
    if not outside:
        return None
    timestamp_ms = outside[0][1]
    name, limit_ms = (
        ("after", config.message_timestamp_after_max_ms)
        if timestamp_ms > latest_ms
        else ("before", config.message_timestamp_before_max_ms)
    )
    reason = (
        f"timestamp {timestamp_ms} lies {abs(timestamp_ms - now_ms)} ms {'ahead' if name == 'after' else 'back'}, "
        f"message.timestamp.{name}.max.ms is {limit_ms}"
    )
    return AppendRefused(Refusal.BAD_TIMESTAMP, reason, tuple(place for place, _ in outside))


def refuse_keyless(payload: memoryview, header: BatchHeader) -> AppendRefused | None:
    """Without a key nothing says which record replaces which."""
    keyless = null_keys(header, payload)
    if keyless is None:
        return AppendRefused(Refusal.INVALID, "the records cannot be read")
    if keyless:
        return AppendRefused(Refusal.INVALID, "a compacted topic takes no record without a key", keyless)
    return None


def refuse_unreadable(records: memoryview, problem: BatchProblem) -> AppendRefused:
    # Not CORRUPT, which clients take for a fault on the way and answer by sending the same bytes again.
    if problem.is_truncated or records[MAGIC_AT] != MAGIC:
        return AppendRefused(Refusal.INVALID, problem.reason)
    return AppendRefused(Refusal.CORRUPT, problem.reason)


def refuse_unsequenced(header: BatchHeader) -> AppendRefused:
    reason = (
        f"producer {header.producer_id} without a place in its order: "
        f"epoch {header.producer_epoch}, sequence {header.base_sequence}"
    )
    return AppendRefused(Refusal.INVALID, reason)


def refuse_producer(verdict: ProducerVerdict) -> AppendRefused:
    """What the producer's sequences or its transactions say against the batch, or against a marker."""
    match verdict:
        case OutOfOrderSequence(expected, actual):
            return AppendRefused(Refusal.OUT_OF_ORDER_SEQUENCE, f"sequence {actual} where {expected} follows")
        case SequenceReused(expected, actual):
            reason = f"sequence {actual} where {expected} follows: the log holds another batch with it"
            return AppendRefused(Refusal.SEQUENCE_REUSED, reason)
        case InvalidProducerEpoch(current, actual):
            reason = f"producer epoch {actual}, a newer producer wrote with epoch {current}"
            return AppendRefused(Refusal.PRODUCER_FENCED, reason)
        case NotTransactional():
            reason = "the producer has a transaction under way, and the batch is not part of it"
            return AppendRefused(Refusal.NOT_TRANSACTIONAL, reason)
        case NotVerified():
            return AppendRefused(Refusal.NOT_VERIFIED, "the transaction ended while the batch was waiting")
        case TransactionOpen():
            return AppendRefused(Refusal.TRANSACTION_OPEN, "the producer's transaction before waits for its marker")
        case CoordinatorFenced(current, actual):
            reason = f"coordinator epoch {actual}, a newer coordinator wrote with epoch {current}"
            return AppendRefused(Refusal.COORDINATOR_FENCED, reason)


def refuse_unwritten(error: StorageError, replicated: ReplicatedCommits | None) -> AppendRefused:
    if isinstance(error, LogDamagedError):
        return AppendRefused(Refusal.DAMAGED, str(error))
    if not isinstance(error, DiskFullError):
        return AppendRefused(Refusal.OFFLINE, str(error))
    if replicated is not None:
        # Another replica may have room.
        replicated.note_full()
    return AppendRefused(Refusal.DISK_FULL, str(error))
