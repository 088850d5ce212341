"""Redrive: dead letters that go back to where they came from, or to another topic. The rules; nothing is moved here.

A task reads the queue of a dead-letter topic, picks messages by a filter, and gives each the place it shall go to. The
place is written into the journal with the decision to move, so the mover needs nothing else, also after a crash. A
copy that goes back to life leaves behind what was said about its death, and keeps the name of its first place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from penstock.domain.queue.dead_letter import (
    DELIVERIES_HEADER,
    FIRST_FAILURE_HEADER,
    GROUP_HEADER,
    KAFKA_PREFIX,
    LAST_FAILURE_HEADER,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TEXT_HEADER,
    TOPIC_HEADER,
)
from penstock.domain.queue.definition import QueueName
from penstock.domain.security.access import ANONYMOUS, Principal

# The queue on a dead-letter topic whose finished messages are those that were redriven or purged.
REDRIVE_GROUP: Final = "penstock-redrive"
RATE_MAX: Final = 1_000_000
TTL_HEADER: Final = "penstock-ttl-ms"
# A dead letter must not expire: what it had left to live waits under this name.
KEPT_TTL_HEADER: Final = "penstock-origin-ttl-ms"
_DEATH_PREFIXES: Final = (
    "penstock-dead-letter-",
    "penstock-origin-",
    "penstock-delivery-count",
    "penstock-first-failure-ms",
    "penstock-last-failure-ms",
    KAFKA_PREFIX,
)
# The digits of the largest 64-bit number; longer ones come from nobody who means it.
_DIGITS_MAX: Final = 19

Header = tuple[str, bytes | None]
# A partition, and the first and the last offset of a run in it.
Choice = tuple[int, int, int]
# Of one task: four megabytes of a request.
CHOICES_MAX: Final = 200_000


class Place(msgspec.Struct, frozen=True):
    topic: str
    partition: int


class Death(msgspec.Struct, frozen=True):
    """What the headers of a dead letter tell. Anybody can write to such a topic, so any of it may be missing."""

    reason: str | None = None
    error: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    group: str | None = None
    delivery_count: int | None = None
    first_failure_ms: int | None = None
    last_failure_ms: int | None = None


class RedriveFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is left out fits everything."""

    reason: str | None = None
    key: str | None = None
    # Of the last failure; of a message that does not tell it, of its timestamp. `until_ms` itself is outside.
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == RedriveFilter()

    def fits(self, headers: Iterable[Header], *, key: bytes | None, timestamp_ms: int) -> bool:
        """Millions of messages are asked this: what can be told without their headers comes first."""
        if self.key is not None and self.key.encode() != key:
            return False
        if self.reason is None and self.since_ms is None and self.until_ms is None:
            return True
        known = dict(headers)
        if self.reason is not None and known.get(REASON_HEADER) != self.reason.encode():
            return False
        failure_ms = _number(known.get(LAST_FAILURE_HEADER))
        moment_ms = timestamp_ms if failure_ms is None else failure_ms
        is_late_enough = self.since_ms is None or moment_ms >= self.since_ms
        return is_late_enough and (self.until_ms is None or moment_ms < self.until_ms)


class Chosen:
    """Dead letters that somebody has picked by their places, such as Spark by a condition in SQL."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, choices: Iterable[Choice]) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._lasts: dict[int, list[int]] = {}
        for partition, first, last in sorted(choices):
            self._firsts.setdefault(partition, []).append(first)
            self._lasts.setdefault(partition, []).append(last)

    def holds(self, partition: int, offset: int) -> bool:
        firsts = self._firsts.get(partition, ())
        place = bisect_right(firsts, offset) - 1
        return place >= 0 and offset <= self._lasts[partition][place]


class RedriveState(StrEnum):
    """Written into the metadata store: never renamed."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self not in (RedriveState.RUNNING, RedriveState.CANCELLING)


class RedriveTask(msgspec.Struct, frozen=True):
    """One redrive, as it is remembered. Counts are those of the last time it was written: about a second old."""

    id: str
    source: QueueName
    # Of the source: a topic made again under its name has nothing to do with this task.
    topic_id: bytes
    # Who asked for it, and must be allowed to write wherever a message goes. Tasks of a version that did not note it
    # are nobody's.
    author: Principal = ANONYMOUS
    # None: each message goes back to the topic it came from.
    target: str | None = None
    only: RedriveFilter = RedriveFilter()
    # Only what was picked by place; the choices are kept beside the task.
    is_chosen: bool = False
    # Messages in a second; 0: as fast as it goes.
    rate: int = 0
    # By partition, the end of the log at the start. What dies later is not of this task, or it might never end.
    ends: tuple[int, ...] = ()
    # What was in the queue at the start.
    pending_count: int = 0
    looked_count: int = 0
    moved_count: int = 0
    # Of those looked at: did not fit the filter, or do not tell a topic that there is.
    skipped_count: int = 0
    lost_count: int = 0
    # Or would go where the author may not write.
    denied_count: int = 0
    state: RedriveState = RedriveState.RUNNING
    reason: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    # Of the leadership of the source's first partition under which it runs: who has a later one has taken it over.
    owner_epoch: int = 0


def death_of(headers: Iterable[Header]) -> Death:
    """Reads ours, and where there are none those of KIP-1191."""
    known = dict(headers)
    return Death(
        reason=_text(known.get(REASON_HEADER)),
        error=_text(_first(known, TEXT_HEADER, "message")),
        topic=_text(_first(known, TOPIC_HEADER, "topic")),
        partition=_number(_first(known, PARTITION_HEADER, "partition")),
        offset=_number(_first(known, OFFSET_HEADER, "offset")),
        group=_text(_first(known, GROUP_HEADER, "group")),
        delivery_count=_number(_first(known, DELIVERIES_HEADER, "delivery.count")),
        first_failure_ms=_number(known.get(FIRST_FAILURE_HEADER)),
        last_failure_ms=_number(known.get(LAST_FAILURE_HEADER)),
    )


def origin_of(headers: Iterable[Header]) -> tuple[str | None, int | None]:
    """Topic and partition."""
    known = dict(headers)
    topic = _first(known, TOPIC_HEADER, "topic")
    return _text(topic), _number(_first(known, PARTITION_HEADER, "partition"))


def _first(known: dict[str, bytes | None], ours: str, theirs: str) -> bytes | None:
    found = known.get(ours)
    return known.get(KAFKA_PREFIX + theirs) if found is None else found


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _number(value: bytes | None) -> int | None:
    """Of bytes, `isdigit` knows the ten of ASCII only."""
    return int(value) if value is not None and value.isdigit() and len(value) <= _DIGITS_MAX else None


def is_of_death(header: str) -> bool:
    return header.startswith(_DEATH_PREFIXES)


def deadly_headers(headers: Iterable[Header]) -> tuple[Header, ...]:
    """A message's own, as its dead letter has them. Those of an earlier death go: it says only why it died now."""
    own = [header for header in headers if not is_of_death(header[0])]
    return tuple((KEPT_TTL_HEADER if name == TTL_HEADER else name, value) for name, value in own)


def living_headers(headers: Iterable[Header]) -> tuple[Header, ...]:
    """A dead letter's headers without its death."""
    renamed = [(TTL_HEADER if name == KEPT_TTL_HEADER else name, value) for name, value in headers]
    return tuple(header for header in renamed if not is_of_death(header[0]))


def write_place(place: Place) -> str:
    """No topic's name holds a slash."""
    return f"{place.topic}/{place.partition}"


def read_place(text: str) -> Place | None:
    topic, slash, partition = text.rpartition("/")
    is_place = bool(topic) and bool(slash) and partition.isascii() and partition.isdigit()
    return Place(topic, int(partition)) if is_place else None
