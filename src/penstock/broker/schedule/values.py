"""What doors hand to a schedule, and what it shows them."""

from __future__ import annotations

import binascii
import struct
from typing import Final

import msgspec

from penstock.broker.partition.outcome import Refusal
from penstock.codec.batch.records import Headers
from penstock.domain.schedule.commands import Done, Refused
from penstock.domain.schedule.records import Missed

_CURSOR: Final = struct.Struct(">qiq")
# Eight, four and eight bytes, as text.
_CURSOR_CHARACTERS: Final = 28


class DelayedMessage(msgspec.Struct, frozen=True):
    """To be delivered at `due_ms`; as it was sent, delivery headers and all."""

    due_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    # Its own date, which the release replaces by the due time.
    written_ms: int = 0


class Scheduled(msgspec.Struct, frozen=True):
    """Durable. In the order of the messages."""

    # First places in the schedule's log; -1 for those that are there from an earlier attempt of their producer.
    origins: list[int]
    # Empty for those.
    message_ids: list[str]


class NotScheduled(msgspec.Struct, frozen=True):
    """Nothing of it counts; it may be asked again."""

    refusal: Refusal
    reason: str


# `Refused` says which of the schedule's own rules was in the way.
ChangeOutcome = Done | Refused | NotScheduled


class PendingMessage(msgspec.Struct, frozen=True):
    message_id: str
    topic: str
    partition: int
    origin: int
    # Where its row is now: another place than the origin if it was given another time.
    position: int
    due_ms: int
    arrived_ms: int
    written_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    # The schedule that made it, if one did.
    cron: str = ""
    # It has been taken and can neither be cancelled nor be given another time.
    is_being_released: bool = False


class DueCursor(msgspec.Struct, frozen=True, order=True):
    """The last message of a page: the next page goes on behind it."""

    due_ms: int
    partition: int
    position: int


class PendingPage(msgspec.Struct, frozen=True):
    """In the order of due times. There may be more although it is not full: only no cursor says that there is not."""

    messages: list[PendingMessage]
    next: DueCursor | None


class CronFacts(msgspec.Struct, frozen=True):
    """A named schedule, without the message that it makes."""

    name: str
    topic: str
    partition: int
    expression: str
    zone: str
    missed: Missed
    # Times up to this one are past: it has fired, or was defined then.
    fired_ms: int
    # None: no time is left, or this node has no rules for the zone.
    next_ms: int | None


class CronMessage(msgspec.Struct, frozen=True):
    """What a named schedule sends each time."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


def write_cursor(cursor: DueCursor) -> str:
    """Opaque, for an address."""
    packed = _CURSOR.pack(cursor.due_ms, cursor.partition, cursor.position)
    return binascii.b2a_base64(packed, newline=False).translate(bytes.maketrans(b"+/", b"-_")).decode()


def read_cursor(text: str) -> DueCursor | None:
    """None: not one of ours."""
    if len(text) != _CURSOR_CHARACTERS or not text.isascii():
        return None
    try:
        packed = binascii.a2b_base64(text.encode().translate(bytes.maketrans(b"-_", b"+/")))
    except binascii.Error:
        return None
    return DueCursor(*_CURSOR.unpack(packed)) if len(packed) == _CURSOR.size else None
