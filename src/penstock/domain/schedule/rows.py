"""Rows of a schedule's log: a record, and with it the message that waits, as a key, a value and headers.

What a replay needs is read without looking at the message; what a release needs, with it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.domain.schedule.records import (
    RECORD_HEADER,
    CronDefined,
    CronDeleted,
    Ended,
    Scheduled,
    ScheduleRecord,
    key_of,
    read_record,
    write_record,
)


class Message(msgspec.Struct, frozen=True, array_like=True):
    """As it was sent, delivery headers and all."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    # Its own date, which a release replaces by the due time.
    written_ms: int = 0
    # Of one that was given another time: when it came. 0: when its row was written.
    arrived_ms: int = 0


class Row(msgspec.Struct, frozen=True):
    key: bytes
    # None: a tombstone.
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class _Whole(msgspec.Struct, frozen=True, array_like=True):
    record: Scheduled | CronDefined
    message: Message


class _RecordAlone(msgspec.Struct, frozen=True, array_like=True):
    record: Scheduled | CronDefined
    # Skipped, not built.
    message: msgspec.Raw


_WHOLE: Final = msgspec.msgpack.Decoder(_Whole)
_RECORD_ALONE: Final = msgspec.msgpack.Decoder(_RecordAlone)
_ENCODER: Final = msgspec.msgpack.Encoder()


def write_row(record: ScheduleRecord, *, entry: bytes = b"", message: Message | None = None) -> Row:
    """`entry` is the key of the message that the record is about (`entry_key`, or that of its row so far)."""
    key = key_of(record, entry=entry)
    assert key, f"{record} has no row"
    match record:
        case Scheduled() | CronDefined():
            assert message is not None, f"{record} without its message"
            return Row(key, _ENCODER.encode(_Whole(record, message)))
        case Ended() | CronDeleted():
            return Row(key, None, ((RECORD_HEADER, write_record(record)),))
        case _:
            return Row(key, write_record(record))


def read_row(row: Row) -> ScheduleRecord:
    """Raises msgspec.DecodeError (a ValidationError is one): the log holds what no schedule has written."""
    if row.value is None:
        text = dict(row.headers).get(RECORD_HEADER)
        if text is None:
            raise msgspec.ValidationError(f"the tombstone of {row.key.hex()} does not say what has ended")
        return read_record(text)
    if row.key.startswith(b"!") and not row.key.startswith(b"!cron/"):
        return read_record(row.value)
    return _RECORD_ALONE.decode(row.value).record


def read_message(row: Row) -> tuple[Scheduled | CronDefined, Message]:
    """Of a row that holds one; raises as `read_row` does."""
    if row.value is None:
        raise msgspec.ValidationError(f"the row of {row.key.hex()} is a tombstone")
    whole = _WHOLE.decode(row.value)
    return whole.record, whole.message
