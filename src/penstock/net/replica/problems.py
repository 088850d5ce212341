"""Problems between nodes as Kafka's error codes, and back."""

from __future__ import annotations

from typing import Final

from penstock.codec.kafka import ErrorCode
from penstock.domain.replication.exchange import NO_NODE, KnownLeader, ReplicaProblem

CODES: Final = {
    ReplicaProblem.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ReplicaProblem.FENCED_EPOCH: ErrorCode.FENCED_LEADER_EPOCH,
    ReplicaProblem.UNKNOWN_EPOCH: ErrorCode.UNKNOWN_LEADER_EPOCH,
    ReplicaProblem.STALE_LIFE: ErrorCode.STALE_BROKER_EPOCH,
    ReplicaProblem.UNKNOWN_LOG: ErrorCode.UNKNOWN_TOPIC_ID,
    ReplicaProblem.OFFSET_OUT_OF_RANGE: ErrorCode.OFFSET_OUT_OF_RANGE,
    ReplicaProblem.STORAGE_FAILED: ErrorCode.KAFKA_STORAGE_ERROR,
    ReplicaProblem.TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    ReplicaProblem.SESSION_UNKNOWN: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ReplicaProblem.SESSION_OUT_OF_STEP: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ReplicaProblem.INVALID: ErrorCode.INVALID_REQUEST,
    ReplicaProblem.UNKNOWN_KIND: ErrorCode.UNSUPPORTED_VERSION,
    ReplicaProblem.STOPPING: ErrorCode.BROKER_NOT_AVAILABLE,
    ReplicaProblem.FAILED: ErrorCode.UNKNOWN_SERVER_ERROR,
}
_PROBLEMS: Final[dict[int, ReplicaProblem]] = {code: problem for problem, code in CODES.items()}


def code_of(problem: ReplicaProblem | None) -> int:
    return ErrorCode.NONE if problem is None else CODES[problem]


def problem_of(code: int) -> ReplicaProblem | None:
    """A code that no node of today's sends is a fault, whatever it means."""
    return None if code == ErrorCode.NONE else _PROBLEMS.get(code, ReplicaProblem.FAILED)


def leader_of(node_id: int, epoch: int) -> KnownLeader | None:
    return None if node_id == NO_NODE else KnownLeader(node_id, epoch)
