"""Delayed messages and cron schedules over HTTP: bodies that a node and its clients share.

A time is a number of milliseconds since 1970, or a text as RFC 3339 has it, with its zone. A message may be given a
delay and a time at once: the later of both counts.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.codec.http.fields import NUMBER_MAX, Base64, Body

CRON_CHARACTERS_MAX: Final = 200
ZONE_CHARACTERS_MAX: Final = 100
# Of cron schedules: it is a part of a path, and of a key.
NAME_TEXT: Final = "^[A-Za-z0-9._-]{1,100}$"
# 29 bytes as base64.
ID_TEXT: Final = "^[A-Za-z0-9_-]{39}$"
CURSOR_TEXT: Final = "^[A-Za-z0-9_-]{27}=$"
PAGE_MAX: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# No maximum but that of the numbers that JSON can hold: 285,000 years.
DelayMs = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Moment = Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | Annotated[datetime, Meta(tz=True)]
MissedText = Literal["skip", "once", "all"]


def moment_ms(moment: int | datetime) -> int:
    """Of a fraction of a millisecond the end: never too early."""
    return moment if isinstance(moment, int) else -((_EPOCH - moment) // timedelta(milliseconds=1))


def due_ms_of(now_ms: int, delay_ms: int | None, deliver_at: int | datetime | None) -> int | None:
    """None: nothing was said."""
    dues_ms = [] if delay_ms is None else [now_ms + delay_ms]
    dues_ms += [] if deliver_at is None else [moment_ms(deliver_at)]
    return max(dues_ms, default=None)


# Delayed messages


class PendingMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    topic: str
    partition: int
    due_ms: int
    # When it came, and the time that its sender wrote on it.
    scheduled_ms: int
    timestamp_ms: int
    # The cron schedule that made it.
    cron: str | None = None
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] = {}


def with_due(message: PendingMessage, due_ms: int) -> PendingMessage:
    return msgspec.structs.replace(message, due_ms=due_ms)


class PendingPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """In the order in which they are due."""

    messages: list[PendingMessage]
    # Where the next page begins; left out: there is none.
    cursor: str | None = None


class PendingCount(msgspec.Struct, frozen=True):
    topic: str
    pending_count: int


class PendingCounts(msgspec.Struct, frozen=True):
    pending_count: int
    # Those that have some.
    topics: list[PendingCount]


class RescheduleRequest(Body, frozen=True):
    """One of both, or both: then the later. What is past is due at once."""

    # From now on.
    delay_ms: DelayMs | UnsetType = UNSET
    deliver_at: Moment | UnsetType = UNSET

    def due_ms(self, now_ms: int) -> int | None:
        """None: nothing was said."""
        delay_ms = None if self.delay_ms is UNSET else self.delay_ms
        return due_ms_of(now_ms, delay_ms, None if self.deliver_at is UNSET else self.deliver_at)


# Cron


class CronRequest(Body, frozen=True):
    """A message that is published whenever the clock of its zone shows one of the times."""

    # Minute, hour, day of the month, month, day of the week; or with seconds in front.
    cron: Annotated[str, Meta(min_length=1, max_length=CRON_CHARACTERS_MAX)]
    timezone: Annotated[str, Meta(min_length=1, max_length=ZONE_CHARACTERS_MAX)] = "UTC"
    # Of the times when no node was there: none, the last one, all of them.
    missed: MissedText = "once"
    # As for publishing: text, or any other JSON, or bytes as base64.
    value: Any = None
    value_base64: Base64 | None = None
    key: str | None = None
    key_base64: Base64 | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)


class CronRun(msgspec.Struct, frozen=True):
    due_ms: int
    # The same, as the clocks of the schedule's zone show it.
    local: str


class Cron(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    topic: str
    partition: int
    cron: str
    timezone: str
    missed: MissedText
    # The first ones from now on.
    next_runs: list[CronRun]
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] = {}


class CronList(msgspec.Struct, frozen=True):
    crons: list[Cron]
