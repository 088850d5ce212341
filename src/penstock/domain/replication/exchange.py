"""What nodes ask each other about the logs of a partition, and what they answer: values, whoever carries them.

    fetch       a follower asks the leader for what comes after its end; the offset says what it can never lose
    barrier     answered when everything is committed that the log held when it was asked
    describe    what a replica holds, and checksums to compare it by
    forward     work for the node that leads the partition: of a door, or of a mover

A log has the id of its topic, or of its companion (queue journal, schedule): the three logs of a partition have three
names. Whoever is not the leader says who is, as far as it knows.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
NO_NODE: Final = -1
# Of one answer to a `DescribeReplica`; `cluster verify` asks again for the rest. A checksum is read from the disk: so
# many ranges of 10,000 offsets are ten million records, some seconds of work.
CHECKSUMS_MAX: Final = 1_000

Buffer = bytes | bytearray | memoryview


class ReplicaProblem(enum.Enum):
    NOT_LEADER = "not the leader"
    # Of the leader, as the one who asks believes it to be.
    FENCED_EPOCH = "an epoch that is over"
    UNKNOWN_EPOCH = "an epoch that is not known here yet"
    # Of the node that asks: it has been registered anew since.
    STALE_LIFE = "an earlier life of the node"
    UNKNOWN_LOG = "no such log"
    OFFSET_OUT_OF_RANGE = "no such offset"
    STORAGE_FAILED = "the log cannot be read or written"
    TIMED_OUT = "not within the time"
    SESSION_UNKNOWN = "no such fetch session"
    SESSION_OUT_OF_STEP = "another epoch of the fetch session"
    INVALID = "not a request that can be answered"
    UNKNOWN_KIND = "work of a kind that is not known here"
    STOPPING = "the node is stopping"
    FAILED = "a fault"


class LogName(msgspec.Struct, frozen=True, order=True, gc=False):
    topic_id: bytes
    partition: int


class KnownLeader(msgspec.Struct, frozen=True, gc=False):
    node_id: int
    epoch: int


# Fetch


class LogFetch(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    log: LogName
    leader_epoch: int
    offset: int
    # Of the last batch before `offset`; NO_EPOCH: there is none.
    last_epoch: int
    log_start: int
    bytes_max: int
    # The follower's own; NO_OFFSET: not told.
    high_watermark: int = NO_OFFSET


class ReplicaFetch(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    # Its broker epoch.
    life: int
    # Session 0 and epoch 0 begin one; from then on only what has changed is named.
    session_id: int = 0
    session_epoch: int = 0
    wait_ms: int = 0
    bytes_min: int = 1
    bytes_max: int = 0
    logs: Sequence[LogFetch] = ()
    forgotten: Sequence[LogName] = ()


class EpochEnd(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    end_offset: int


class LogFetched(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    log: LogName
    problem: ReplicaProblem | None = None
    high_watermark: int = NO_OFFSET
    log_start: int = NO_OFFSET
    # Below this the leader has dropped tombstones and markers; NO_OFFSET: none.
    tombstone_horizon: int = NO_OFFSET
    # The logs differ before the offset that was asked for: where the leader's largest epoch up to ours ends.
    diverging: EpochEnd | None = None
    leader: KnownLeader | None = None
    # Whole batches, one range or several.
    records: Buffer | list[Buffer] = b""


class NodePlace(msgspec.Struct, frozen=True):
    """Where a leader that was named is found."""

    node_id: int
    host: str
    port: int


class ReplicaFetched(msgspec.Struct, frozen=True, kw_only=True):
    problem: ReplicaProblem | None = None
    session_id: int = 0
    logs: Sequence[LogFetched] = ()
    places: Sequence[NodePlace] = ()


# Barrier


class LogBarrier(msgspec.Struct, frozen=True, gc=False):
    log: LogName
    leader_epoch: int


class Barrier(msgspec.Struct, frozen=True):
    logs: Sequence[LogBarrier]
    timeout_ms: int


class LogPassed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Everything is committed that was there, unless there is a problem."""

    log: LogName
    problem: ReplicaProblem | None = None
    high_watermark: int = NO_OFFSET
    leader: KnownLeader | None = None


# Describe


class DescribeReplica(msgspec.Struct, frozen=True, kw_only=True):
    """Checksums from `from_offset` on to `to_offset`, which is not included, one for every `step_offsets`."""

    log: LogName
    from_offset: int = 0
    to_offset: int = 0
    step_offsets: int = 0

    @property
    def range_count(self) -> int:
        return -((self.from_offset - self.to_offset) // self.step_offsets) if self.wants_checksums else 0

    @property
    def wants_checksums(self) -> bool:
        return self.step_offsets > 0 and self.to_offset > self.from_offset


class EpochStart(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    start_offset: int


class RangeChecksum(msgspec.Struct, frozen=True, gc=False):
    """Over the batches that begin in the range."""

    from_offset: int
    to_offset: int
    checksum: int


class ReplicaDescription(msgspec.Struct, frozen=True, kw_only=True):
    problem: ReplicaProblem | None = None
    detail: str | None = None
    log_start: int = NO_OFFSET
    log_end: int = NO_OFFSET
    durable_end: int = NO_OFFSET
    high_watermark: int = NO_OFFSET
    epochs: Sequence[EpochStart] = ()
    checksums: Sequence[RangeChecksum] = ()


# Forward


class ForwardKind(enum.IntEnum):
    """What a body is. Nodes of two versions talk to each other: never renumbered."""

    # A batch of a queue's mover, for the partition that it goes to (`domain/queue/landing`).
    LANDING = 1
    # Of doors, each for all partitions of a topic that the node leads (`broker/relay`): queues,
    TAKE = 10
    WAIT = 11
    SETTLE = 12
    COMMAND = 13
    PEEK = 14
    TOTALS = 15
    # what is sent,
    PUBLISH = 20
    FIFO = 21
    # what is delayed,
    PENDING = 30
    PENDING_CHANGE = 31
    PENDING_PAGE = 32
    # dead letters,
    LETTERS = 40
    REDRIVE = 41
    # and what was written about messages.
    SETTLEMENTS = 50
    TRACE = 51


class Forward(msgspec.Struct, frozen=True, kw_only=True):
    """`log` and `leader_epoch` are the leadership under which it is to be decided; NO_EPOCH: whichever it is by now."""

    kind: int
    log: LogName
    leader_epoch: int = NO_EPOCH
    timeout_ms: int
    body: bytes


class Forwarded(msgspec.Struct, frozen=True, kw_only=True):
    problem: ReplicaProblem | None = None
    detail: str | None = None
    leader: KnownLeader | None = None
    body: bytes = b""
