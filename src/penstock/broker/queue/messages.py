"""What comes out of a queue: messages, delivered or only looked at, and how many there are."""

from __future__ import annotations

import msgspec

from penstock.broker.partition.waiting import WaitingRoom
from penstock.codec.batch.records import StoredRecord
from penstock.domain.queue.machine import QueueStats
from penstock.domain.queue.receipt import Receipt
from penstock.domain.queue.values import HoldKind, Limit


class QueueUnavailable(msgspec.Struct, frozen=True):
    """The partition or its journal cannot be used now; it is tried again by itself, unless it is damaged."""

    reason: str
    # It stays so until an operator has repaired it: nobody need ask again.
    is_damaged: bool = False
    # It will be over in a moment: who can wait goes on waiting.
    is_loading: bool = False


class Source(msgspec.Struct, frozen=True):
    """What the messages of one delivery share."""

    group: str
    topic_id: bytes
    partition: int
    number: int
    until_ms: int


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, delivered."""

    source: Source
    record: StoredRecord
    # With this one.
    delivery_count: int
    lane: int
    # About: of a message that has failed before it is when it first did.
    first_delivery_ms: int

    @property
    def receipt(self) -> Receipt:
        source = self.source
        return Receipt(source.group, source.topic_id, source.partition, self.record.offset, source.number)

    @property
    def until_ms(self) -> int:
        return self.source.until_ms


class Receiver:
    """Who asked for messages. Whoever is gone must not be given any: they would be with nobody until their lease
    ends."""

    __slots__ = ("is_gone", "room")

    def __init__(self) -> None:
        self.is_gone = False
        self.room = WaitingRoom()

    def leave(self) -> None:
        self.is_gone = True
        self.room.wake_all()


class PeekedMessage(msgspec.Struct, frozen=True):
    """One message that somebody has looked at."""

    partition: int
    record: StoredRecord
    # None: never delivered.
    state: HoldKind | None
    delivery_count: int = 0
    consumer: str = ""
    until_ms: int = 0


class ReceivedMessages(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...] = ()
    # Why there are not more.
    limit: Limit = Limit.NONE
    # The log goes on behind what was looked at, and nothing of it was for anybody so far.
    has_more: bool = False


class QueueTotals(msgspec.Struct, frozen=True):
    """A queue over all its partitions."""

    partitions: tuple[tuple[int, QueueStats], ...]
    # Not looked at yet. Holes of compaction and transactions count too: nobody has looked.
    backlog_count: int
    leased_count: int
    waiting_count: int
    blocked_count: int
    dying_count: int
    is_paused: bool
    # Of the topic, for this queue, and not in it before they are due.
    delayed_count: int = 0
    # Nodes that did not answer: what they lead is not in the sums.
    incomplete: tuple[str, ...] = ()
