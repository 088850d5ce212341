"""Kafka's error codes for our outcomes: the one table of this door."""

from __future__ import annotations

from typing import Final

from penstock.broker.append_outcome import Refusal
from penstock.broker.partition_shell import ReadProblem
from penstock.codec.wire import ErrorCode
from penstock.domain.group_values import GroupError

REFUSAL_CODES: Final[dict[Refusal, ErrorCode]] = {
    Refusal.CORRUPT: ErrorCode.CORRUPT_MESSAGE,
    Refusal.INVALID: ErrorCode.INVALID_RECORD,
    Refusal.UNSUPPORTED_CODEC: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    Refusal.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    Refusal.BAD_TIMESTAMP: ErrorCode.INVALID_TIMESTAMP,
    Refusal.OUT_OF_ORDER_SEQUENCE: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Refusal.DUPLICATE_SEQUENCE: ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    Refusal.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    Refusal.NOT_TRANSACTIONAL: ErrorCode.INVALID_TXN_STATE,
    # Retriable for every client: the batch is sent again until there is room or its delivery times out.
    Refusal.DISK_FULL: ErrorCode.KAFKA_STORAGE_ERROR,
    Refusal.OFFLINE: ErrorCode.KAFKA_STORAGE_ERROR,
}

READ_CODES: Final[dict[ReadProblem, ErrorCode]] = {
    ReadProblem.UNKNOWN_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ReadProblem.UNKNOWN_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_ID,
    ReadProblem.FORBIDDEN: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ReadProblem.OUT_OF_RANGE: ErrorCode.OFFSET_OUT_OF_RANGE,
    ReadProblem.FENCED_EPOCH: ErrorCode.FENCED_LEADER_EPOCH,
    ReadProblem.UNKNOWN_EPOCH: ErrorCode.UNKNOWN_LEADER_EPOCH,
    ReadProblem.DAMAGED: ErrorCode.CORRUPT_MESSAGE,
    ReadProblem.OFFLINE: ErrorCode.KAFKA_STORAGE_ERROR,
    ReadProblem.POLICY: ErrorCode.POLICY_VIOLATION,
}

# A group's errors have Kafka's names; one without a number fails here, when the door is loaded.
GROUP_CODES: Final[dict[GroupError, ErrorCode]] = {error: ErrorCode[error.name] for error in GroupError}


def group_code(error: GroupError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else GROUP_CODES[error]
