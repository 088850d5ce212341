"""What a schedule is asked, what it answers, and what it wants done. Doors turn their requests into these.

`position` in a command is the offset that the caller's next row will get in the schedule's log. Only one writes there,
so it is known before anything is written.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.domain.schedule.records import Missed, Move, ProducerBatch, ScheduleRecord, Stored

# ------------------------------------------------------------------ commands


class Schedule(msgspec.Struct, frozen=True):
    """Messages that came together, each with the time when it is due. One row for each, in this order."""

    position: int
    dues_ms: tuple[int, ...]
    # Of a producer that repeats what it does not know to be stored; `index` counts for nothing here.
    producer: ProducerBatch | None = None
    is_transactional: bool = False


class EndTransaction(msgspec.Struct, frozen=True):
    """The marker is in the schedule's log before it is in the topic's. Again: nothing happens."""

    producer_id: int
    producer_epoch: int
    is_commit: bool


class Cancel(msgspec.Struct, frozen=True):
    # Its first place, as its id says.
    origin: int


class Reschedule(msgspec.Struct, frozen=True):
    """The message is written anew, at `position`, under its old key."""

    position: int
    origin: int
    due_ms: int


class Release(msgspec.Struct, frozen=True):
    """The next ones that are due, as one batch of the mover."""

    producer_id: int
    producer_epoch: int


class FinishMove(msgspec.Struct, frozen=True):
    """The batch is durable in the partition's log: written now, or found there already."""

    batch: int


class DefineCron(msgspec.Struct, frozen=True):
    """New, or in place of the one of that name: then times that are past are past."""

    position: int
    name: str
    expression: str
    zone: str = "UTC"
    missed: Missed = Missed.ONCE
    # Higher than that of every other definition of that name, wherever.
    version: int = 0


class DeleteCron(msgspec.Struct, frozen=True):
    """What it has made already is released."""

    name: str


class FireCrons(msgspec.Struct, frozen=True):
    """Those whose time has come, but for those that another partition may fire."""

    position: int
    held: frozenset[str] = frozenset()


class NoteFired(msgspec.Struct, frozen=True):
    """Times up to then were fired, by another partition: they are past."""

    name: str
    fired_ms: int


ScheduleCommand = (
    Schedule
    | EndTransaction
    | Cancel
    | Reschedule
    | Release
    | FinishMove
    | DefineCron
    | DeleteCron
    | FireCrons
    | NoteFired
)

# ------------------------------------------------------------------ replies


class Accepted(msgspec.Struct, frozen=True):
    # Rows are to be written for the last so many of the messages; all others are here from an earlier attempt.
    count: int
    # Of the first of those.
    position: int


class Done(msgspec.Struct, frozen=True): ...


class ScheduleProblem(Enum):
    NOT_PENDING = "no message of that id waits here: it was released or cancelled, or never was here"
    BEING_RELEASED = "too late: the message is on its way"
    MOVE_UNDER_WAY = "a batch has been intended and is not done yet"
    NO_SUCH_MOVE = "no batch of that number is under way"
    PRODUCER_ID_USED = "another epoch needs another producer id, or its sequence would have to begin in the middle"
    NO_SUCH_CRON = "there is no schedule of that name"
    BAD_EXPRESSION = "that is no cron expression"
    UNKNOWN_ZONE = "there is no such time zone"
    NEVER_DUE = "that expression names no time"


class Refused(msgspec.Struct, frozen=True):
    problem: ScheduleProblem
    detail: str = ""


ScheduleReply = Accepted | Done | Refused

# ------------------------------------------------------------------ effects


class AppendMove(msgspec.Struct, frozen=True):
    """To be done when the decision's records are durable; and after a restart, from `pending_move`."""

    move: Move


ScheduleEffect = AppendMove


class Decision(msgspec.Struct, frozen=True):
    records: tuple[ScheduleRecord, ...]
    reply: ScheduleReply
    effects: tuple[ScheduleEffect, ...] = ()


# ------------------------------------------------------------------ the caller's files


class BucketName(msgspec.Struct, frozen=True):
    """Of a file. A number is used once, so that a file which is to be deleted is never mistaken for a new one."""

    number: int
    level: int
    index: int


class BucketWrite(msgspec.Struct, frozen=True):
    """To be put behind what the file has."""

    name: BucketName
    entries: bytes


class BucketRead(msgspec.Struct, frozen=True):
    """The file's first `count` entries are wanted now."""

    name: BucketName
    count: int


class BucketPart(msgspec.Struct, frozen=True):
    """All that is known to be due in a span of time: the file's first `count` entries, and those not written yet."""

    name: BucketName
    start_ms: int
    end_ms: int
    count: int
    entries: bytes


class Checkpoint(msgspec.Struct, frozen=True):
    """First the writes, synced; then `stored`, synced; then every file that `stored` does not name may go."""

    writes: tuple[BucketWrite, ...]
    stored: Stored
