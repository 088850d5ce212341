"""Kafka's error codes for our outcomes: the one table of this door."""

from __future__ import annotations

from typing import Final

from penstock.broker.partition.commitment import Loss
from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.topic.not_here import Absence
from penstock.broker.transaction.markers import MarkerOutcome
from penstock.codec.kafka import ErrorCode
from penstock.domain.group.values import GroupError
from penstock.domain.transaction.commands import Refused, TransactionProblem

REFUSAL_CODES: Final[dict[Refusal, ErrorCode]] = {
    Refusal.CORRUPT: ErrorCode.CORRUPT_MESSAGE,
    Refusal.INVALID: ErrorCode.INVALID_RECORD,
    Refusal.UNSUPPORTED_CODEC: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    Refusal.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    Refusal.BAD_TIMESTAMP: ErrorCode.INVALID_TIMESTAMP,
    Refusal.OUT_OF_ORDER_SEQUENCE: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Refusal.DUPLICATE_SEQUENCE: ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    # Clients answer it by aborting the transaction and going on with a new epoch. Out of order would be a fatal error
    # to librdkafka, and a duplicate would be taken for stored.
    Refusal.SEQUENCE_REUSED: ErrorCode.UNKNOWN_PRODUCER_ID,
    Refusal.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    Refusal.NOT_TRANSACTIONAL: ErrorCode.INVALID_TXN_STATE,
    Refusal.NOT_VERIFIED: ErrorCode.INVALID_TXN_STATE,
    Refusal.NO_TRANSACTION: ErrorCode.INVALID_TXN_STATE,
    Refusal.TRANSACTION_OPEN: ErrorCode.CONCURRENT_TRANSACTIONS,
    Refusal.NOT_IN_TRANSACTION: ErrorCode.TRANSACTION_ABORTABLE,
    Refusal.WRONG_PRODUCER: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    Refusal.COORDINATOR_FENCED: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    # As with Kafka: producers do not look for a coordinator because of a Produce, but send the batch again for this.
    Refusal.COORDINATOR_AWAY: ErrorCode.NOT_ENOUGH_REPLICAS,
    # Retriable for every client: the batch is sent again until there is room or its delivery times out.
    Refusal.DISK_FULL: ErrorCode.KAFKA_STORAGE_ERROR,
    Refusal.OFFLINE: ErrorCode.KAFKA_STORAGE_ERROR,
    # Clients ask for the metadata and send it again, to whoever leads then.
    Refusal.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Refusal.NOT_ENOUGH_REPLICAS: ErrorCode.NOT_ENOUGH_REPLICAS,
    Refusal.TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    # Of a schedule or a coordinator's journal. Not retriable for any client: it stays so until somebody repairs it.
    Refusal.DAMAGED: ErrorCode.UNKNOWN_SERVER_ERROR,
}

# Codes that clients do not know before these versions of Produce, and what they make them do instead.
_OLDER_CODES: Final[dict[ErrorCode, tuple[int, ErrorCode]]] = {
    ErrorCode.CONCURRENT_TRANSACTIONS: (12, ErrorCode.NOT_ENOUGH_REPLICAS),
    ErrorCode.TRANSACTION_ABORTABLE: (11, ErrorCode.INVALID_TXN_STATE),
}


def refusal_code(refusal: Refusal, version: int) -> ErrorCode:
    """For a Produce of that version."""
    code = REFUSAL_CODES[refusal]
    known_from, older = _OLDER_CODES.get(code, (0, code))
    return code if version >= known_from else older


# Of a batch that was written: retriable, and a producer with an id is told of what is there after all.
LOSS_CODES: Final[dict[Loss, ErrorCode]] = {
    Loss.DISK: ErrorCode.KAFKA_STORAGE_ERROR,
    Loss.LEADERSHIP: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Loss.TIMEOUT: ErrorCode.REQUEST_TIMED_OUT,
    Loss.REPLICAS: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}


ABSENCE_CODES: Final[dict[Absence, ErrorCode]] = {
    Absence.NO_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Absence.NO_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Absence.NOT_LED_HERE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    # As Kafka: that nobody leads stands in the metadata, for which clients ask next.
    Absence.NO_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}

MARKER_CODES: Final[dict[MarkerOutcome, ErrorCode]] = {
    MarkerOutcome.WRITTEN: ErrorCode.NONE,
    MarkerOutcome.GONE: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    MarkerOutcome.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    MarkerOutcome.COORDINATOR_FENCED: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    MarkerOutcome.UNAVAILABLE: ErrorCode.KAFKA_STORAGE_ERROR,
    MarkerOutcome.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}

READ_CODES: Final[dict[ReadProblem, ErrorCode]] = {
    ReadProblem.UNKNOWN_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ReadProblem.UNKNOWN_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_ID,
    ReadProblem.FORBIDDEN: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ReadProblem.OUT_OF_RANGE: ErrorCode.OFFSET_OUT_OF_RANGE,
    ReadProblem.FENCED_EPOCH: ErrorCode.FENCED_LEADER_EPOCH,
    ReadProblem.UNKNOWN_EPOCH: ErrorCode.UNKNOWN_LEADER_EPOCH,
    ReadProblem.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    # The one code of storage that a consumer tells its user: for KAFKA_STORAGE_ERROR librdkafka, the Java client and
    # kafka-python ask again without a word, for ever.
    ReadProblem.DAMAGED: ErrorCode.CORRUPT_MESSAGE,
    ReadProblem.OFFLINE: ErrorCode.KAFKA_STORAGE_ERROR,
    ReadProblem.POLICY: ErrorCode.POLICY_VIOLATION,
    ReadProblem.END_UNKNOWN: ErrorCode.OFFSET_NOT_AVAILABLE,
}


# A group's errors have Kafka's names; one without a number fails here, when the door is loaded.
GROUP_CODES: Final[dict[GroupError, ErrorCode]] = {error: ErrorCode[error.name] for error in GroupError}


def group_code(error: GroupError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else GROUP_CODES[error]


# So have a transaction's.
TRANSACTION_CODES: Final[dict[TransactionProblem, ErrorCode]] = {
    problem: ErrorCode[problem.name] for problem in TransactionProblem
}


def transaction_code(refused: Refused, *, knows_fenced: bool) -> ErrorCode:
    """Clients from before PRODUCER_FENCED know the same by an older name, and end on any error that is new to them."""
    code = TRANSACTION_CODES[refused.problem]
    if code is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
