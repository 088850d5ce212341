"""What a queue is asked, what it answers, and what it wants done. Doors turn their requests into these."""

from __future__ import annotations

from enum import Enum, IntEnum

import msgspec

from penstock.domain.queue.records import Move, QueueRecord
from penstock.domain.queue.values import ANY_DELIVERY, Limit, Range

# ------------------------------------------------------------------ commands


class Open(msgspec.Struct, frozen=True):
    """A new queue begins here: earliest, latest or a time, resolved by the caller. Opening it again changes nothing."""

    start_offset: int


class Close(msgspec.Struct, frozen=True):
    """The queue is deleted. A move that is under way is forgotten: finish it before."""


class Found(msgspec.Struct, frozen=True):
    """What the caller saw in the log: all messages of a lane from `since` up to, without, `upto`.

    Left out are messages of other lanes, holes, control batches, and for readers of committed messages those of
    aborted transactions. `upto` may lie behind the last message: there is nothing in between.
    """

    lane: int
    since: int
    upto: int
    # In order, apart from each other or not.
    ranges: tuple[Range, ...]
    # Hashes of the keys of the messages in `ranges`, one after the other; needed with ordering by key only.
    keys: tuple[int, ...] = ()
    # Offset and the time after which it must not be delivered, of those messages that have one; in order.
    expiries: tuple[tuple[int, int], ...] = ()


class Receive(msgspec.Struct, frozen=True):
    consumer: str
    count_max: int
    # Of every lane that has messages at or above its cursor. What has become stale meanwhile is not used.
    found: tuple[Found, ...]
    # 0: as the queue's settings say.
    lease_ms: int = 0
    # Kafka's batch-optimized way: a range of `Found` is taken whole, even if that makes more than `count_max`.
    takes_whole_ranges: bool = False


class Act(IntEnum):
    """Numbered as KIP-932 and KIP-1222 number them; MOVE is ours."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    MOVE = 5


class Settlement(msgspec.Struct, frozen=True):
    first: int
    last: int
    act: Act
    # From the receipt. Without it, the consumer must be the one that holds the message.
    number: int = ANY_DELIVERY
    # RELEASE: None is what the back-off policy says. RENEW: the new lease, None is the queue's own.
    delay_ms: int | None = None
    # RELEASE and REJECT: why, in the consumer's words.
    text: str = ""


class Settle(msgspec.Struct, frozen=True):
    items: tuple[Settlement, ...]
    # None: anybody with the receipt.
    consumer: str | None = None
    # All or nothing, as Kafka does.
    is_whole: bool = False


class ConsumerGone(msgspec.Struct, frozen=True):
    """Its messages are free at once. Not counted as deliveries (KAFKA-17541) unless it is asked for."""

    consumer: str
    is_counted: bool = False


class MoveStart(msgspec.Struct, frozen=True):
    """PurgeQueue, AlterShareGroupOffsets, a seek: whatever is in flight is forgotten, but for what is dying."""

    start_offset: int


class TrimLog(msgspec.Struct, frozen=True):
    """Retention or DeleteRecords has moved the log's start."""

    log_start: int


class Pause(msgspec.Struct, frozen=True):
    """Nothing more is delivered; what is delivered can be settled."""


class Resume(msgspec.Struct, frozen=True): ...


class BeginMove(msgspec.Struct, frozen=True):
    """The caller knows where dead letters go. One move at a time; the next when `FinishMove` was applied."""

    target_topic_id: bytes
    target_partition: int
    producer_id: int
    producer_epoch: int
    # Of what `dying` lists.
    sources: tuple[Range, ...]


class FinishMove(msgspec.Struct, frozen=True):
    """The batch is durable in the target: written now, or found there already."""

    batch: int
    # Where its first record is; -1: not known.
    base_offset: int = -1


class DropMove(msgspec.Struct, frozen=True):
    """The batch is not in the target and never will be, for instance because the target is gone: another move may
    take its sources."""

    batch: int


class TimePassed(msgspec.Struct, frozen=True): ...


class TakeOver(msgspec.Struct, frozen=True):
    """Another node has dated what is in the journal: all leases begin anew."""


class Snapshot(msgspec.Struct, frozen=True):
    """Writes everything down anew, so that the journal before it is no longer needed."""


QueueCommand = (
    Open
    | Close
    | Receive
    | Settle
    | ConsumerGone
    | MoveStart
    | TrimLog
    | Pause
    | Resume
    | BeginMove
    | FinishMove
    | DropMove
    | TakeOver
    | TimePassed
    | Snapshot
)

# ------------------------------------------------------------------ replies


class Delivery(msgspec.Struct, frozen=True):
    first: int
    last: int
    # With this one.
    count: int
    lane: int


class Received(msgspec.Struct, frozen=True):
    # The name of this delivery, for the receipts. 0 if there is none.
    number: int = 0
    until_ms: int = 0
    deliveries: tuple[Delivery, ...] = ()
    limit: Limit = Limit.NONE


class Outcome(IntEnum):
    DONE = 0
    # It is with somebody else, waits for somebody else, or was delivered once more after this receipt.
    NOT_HELD = 1
    # Nothing of it is in flight any more: accepted before, dropped, moved. An SQS DeleteMessage calls that success.
    FINISHED = 2


class Settled(msgspec.Struct, frozen=True):
    # One for each item.
    outcomes: tuple[Outcome, ...]


class Done(msgspec.Struct, frozen=True): ...


class QueueProblem(Enum):
    NOT_OPEN = "there is no such queue"
    MOVE_UNDER_WAY = "a move has been intended and is not done yet"
    NO_SUCH_MOVE = "no move of that number is under way"
    NOT_DYING = "these messages are not on their way to the dead letters"
    PRODUCER_ID_USED = "another target needs another producer id, or its sequence would have to begin in the middle"


class Refused(msgspec.Struct, frozen=True):
    problem: QueueProblem


QueueReply = Received | Settled | Done | Refused

# ------------------------------------------------------------------ effects


class WakeReceivers(msgspec.Struct, frozen=True):
    """Somebody who waits for messages may get some now."""


class DeadLettersWait(msgspec.Struct, frozen=True):
    """Find the target, then `BeginMove`. Said again with every decision that adds to them."""


class AppendMove(msgspec.Struct, frozen=True):
    """To be done when the decision's records are durable; and after a restart, from `pending_move`."""

    move: Move


QueueEffect = WakeReceivers | DeadLettersWait | AppendMove


class Decision(msgspec.Struct, frozen=True):
    records: tuple[QueueRecord, ...]
    reply: QueueReply
    effects: tuple[QueueEffect, ...] = ()
