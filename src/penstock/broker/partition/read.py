"""What one read of a partition found."""

from __future__ import annotations

import enum
import struct
from typing import Final

import msgspec

from penstock.codec.batch.header import LENGTH_PREFIX_BYTES
from penstock.domain.log.aborted_index import AbortedTransaction
from penstock.storage.errors import Damaged, Offline, OutOfRange
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.log.time_lookup import TimestampOffset
from penstock.storage.segment.facts import Segment

_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23


class ReadProblem(enum.Enum):
    UNKNOWN_PARTITION = "unknown partition"
    UNKNOWN_TOPIC_ID = "unknown topic id"
    FORBIDDEN = "forbidden"
    OUT_OF_RANGE = "out of range"
    FENCED_EPOCH = "fenced epoch"
    UNKNOWN_EPOCH = "unknown epoch"
    NOT_LEADER = "not led here"
    DAMAGED = "damaged"
    OFFLINE = "offline"
    POLICY = "policy"
    # A new leader does not know yet how much of what it has is committed: the end would go back.
    END_UNKNOWN = "end not known yet"


class PartitionRead(msgspec.Struct, frozen=True):
    """Whole batches, a problem, or a plan for the disk whose bytes are not in memory."""

    records: bytes | bytearray | memoryview = b""
    problem: ReadProblem | None = None
    # For readers of committed records: what they leave out of `records`.
    aborted: tuple[AbortedTransaction, ...] = ()
    cold: ReadPlan | None = None
    # Of a cold read: where it begins, the segment that it reads, and for whom.
    offset: int = -1
    segment: Segment | None = None
    is_committed_only: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.records)


EMPTY_READ: Final = PartitionRead()


def problem_of(plan: OutOfRange | Damaged | Offline) -> ReadProblem:
    if isinstance(plan, OutOfRange):
        return ReadProblem.OUT_OF_RANGE
    return ReadProblem.DAMAGED if isinstance(plan, Damaged) else ReadProblem.OFFLINE


def first_offset_of(batches: bytes | bytearray | memoryview) -> int:
    """Of some whole batches, at least one."""
    base_offset: int = _OFFSET_AND_LENGTH.unpack_from(batches)[0]
    return base_offset


def next_offset_of(batches: bytes | bytearray | memoryview) -> int:
    """The offset after the last of some whole batches."""
    place = next_offset = 0
    while place < len(batches):
        base_offset, length = _OFFSET_AND_LENGTH.unpack_from(batches, place)
        next_offset = base_offset + _LAST_OFFSET_DELTA.unpack_from(batches, place + _LAST_OFFSET_DELTA_AT)[0] + 1
        place += length + LENGTH_PREFIX_BYTES
    return next_offset


def located(found: TimestampOffset | Offline | None) -> TimestampOffset | ReadProblem | None:
    if found is None or isinstance(found, TimestampOffset):
        return found
    return problem_of(found)
