"""What every part of a queue shares: its settings, its limits, and the words for what can happen to a message.

    never seen ──► leased ──► finished
                    │  ▲
                    ▼  │
       blocked ──► waiting ──► dying ──► finished

- leased: with a consumer, until a deadline (Kafka's share groups say acquired)
- waiting: to be delivered, at once or after a while (available)
- blocked: seen, but an earlier message of its key is not finished; never delivered
- dying: no consumer gets it any more; it is on its way to the dead letters
- finished: accepted, dropped or moved (acknowledged, archived). Not remembered: below a lane's cursor, whatever is
  not remembered is finished, and a backlog above it has not been looked at. So memory is that of what is in flight.

Offsets are those of the log. A range is `(first, last)`, both inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

Range = tuple[int, int]

NO_OFFSET: Final = -1
# The name of a delivery is never below 1, so 0 can stand for "whichever it is".
ANY_DELIVERY: Final = 0
# Messages without a key have no order among themselves.
NO_KEY: Final = -1
# An error text is kept for as long as its message is in flight and goes into a header of the dead letter.
TEXT_CHARACTERS_MAX: Final = 1_024


class Ordering(StrEnum):
    NONE = "none"
    # At most one message of a key in flight, and in order. Priorities do not apply: they would contradict it.
    KEY = "key"


class Cause(StrEnum):
    """Why a message came back, is dead or is finished. Written into journals and headers: never renamed."""

    ACCEPTED = "accepted"
    RELEASED = "released"
    REJECTED = "rejected"
    LEASE_EXPIRED = "lease-expired"
    CONSUMER_GONE = "consumer-gone"
    DELIVERIES_EXHAUSTED = "deliveries-exhausted"
    TIME_TO_LIVE_EXPIRED = "time-to-live-expired"
    # There is no such message: a hole left by compaction, a control batch, an aborted transaction.
    GAP = "gap"
    # The log no longer holds it.
    DELETED = "deleted"
    # Asked for by a move task, of a message that failed nowhere here.
    MOVED = "moved"


class Limit(StrEnum):
    """Why a consumer got fewer messages than there may be."""

    NONE = "none"
    PAUSED = "paused"
    QUEUE_FULL = "queue-full"
    CONSUMER_FULL = "consumer-full"
    # Too many messages wait for earlier ones of their keys.
    KEYS_FULL = "keys-full"


class BackOffKind(StrEnum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class BackOff(msgspec.Struct, frozen=True):
    """How long a message waits after a failed delivery. Kafka and SQS: not at all, which is the default."""

    kind: BackOffKind = BackOffKind.FIXED
    initial_ms: int = 0
    ms_max: int = 3_600_000
    # Up to this share of the wait is added, so that what failed together does not come back together.
    jitter_share: float = 0.0

    def delay_ms(self, delivery_count: int, chance: Callable[[], float]) -> int:
        """After the delivery of that number. `chance` gives numbers from 0 up to 1."""
        delay_ms = self.initial_ms
        if delay_ms and self.kind is BackOffKind.EXPONENTIAL:
            # 62 doublings are more than any limit in milliseconds.
            delay_ms <<= min(max(delivery_count - 1, 0), 62)
        delay_ms = min(delay_ms, self.ms_max)
        if delay_ms and self.jitter_share:
            delay_ms += int(delay_ms * self.jitter_share * chance())
        return delay_ms


class QueueConfig(msgspec.Struct, frozen=True):
    """May change between any two decisions: what was decided stands in the records, so a replay needs none of it."""

    ordering: Ordering = Ordering.NONE
    # Kafka: group.share.record.lock.duration.ms. SQS: VisibilityTimeout.
    lease_ms: int = 30_000
    lease_ms_max: int = 12 * 3_600_000
    # Kafka: group.share.delivery.count.limit. SQS: maxReceiveCount. 0: without end.
    deliveries_max: int = 5
    back_off: BackOff = BackOff()
    # Everything that is remembered counts, also what waits for its next delivery. SQS stops at 120,000.
    in_flight_max: int = 1_000_000
    in_flight_per_consumer_max: int = 1_000_000
    # Ordering by key only: how many messages may wait for earlier ones of their keys.
    key_lookahead_max: int = 100_000
    # Without: what is rejected or exhausted is finished.
    has_dead_letters: bool = True
    # What outlived its time to live goes to the dead letters too, instead of nowhere.
    keeps_expired: bool = False


class HoldKind(IntEnum):
    LEASED = 0
    WAITING = 1
    BLOCKED = 2
    DYING = 3


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why the deliveries of a message have failed so far."""

    first_ms: int
    last_ms: int
    cause: Cause
    text: str = ""


def merge_ranges(ranges: list[Range]) -> tuple[Range, ...]:
    """In order, and neighbours as one."""
    if len(ranges) < 2:
        return tuple(ranges)
    ranges.sort()
    merged: list[Range] = []
    first, last = ranges[0]
    for next_first, next_last in ranges:
        if next_first > last + 1:
            merged.append((first, last))
            first, last = next_first, next_last
        elif next_last > last:
            last = next_last
    merged.append((first, last))
    return tuple(merged)


def count_of(ranges: tuple[Range, ...]) -> int:
    return sum(last - first + 1 for first, last in ranges)
