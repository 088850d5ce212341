"""Rows of a schedule's log, there and back."""

from __future__ import annotations

import msgspec
import pytest

from penstock.domain.schedule.records import (
    CronDefined,
    CronDeleted,
    CronFired,
    End,
    Ended,
    Missed,
    Move,
    MoveDone,
    MoveIntended,
    ProducerBatch,
    Scheduled,
    ScheduleRecord,
    TransactionEnded,
    entry_key,
)
from penstock.domain.schedule.rows import Message, Row, read_message, read_row, write_row

MESSAGE = Message(b"key", None, (("penstock-delay-ms", b"5"), ("empty", None)), written_ms=99)
ENTRY = entry_key(12, ProducerBatch(3, 1, 500, 2))
MOVE = Move(4, 900, 0, 77, (12, 9))


@pytest.mark.parametrize(
    "record",
    [
        Scheduled(12, 1_000, 900, producer=ProducerBatch(3, 1, 500, 2), is_transactional=True),
        Scheduled(40, 1_000, 900, origin=12, replaces=12),
        CronDefined("nightly", 7, "* * * * *", "UTC", Missed.ALL, fired_ms=5, at_ms=6),
        Ended(40, 12, End.CANCELLED, 8),
        CronDeleted("nightly", 8),
        CronFired("nightly", 7, 8),
        MoveIntended(MOVE, 8),
        MoveDone(MOVE, 9),
    ],
    ids=lambda record: type(record).__name__,
)
def test_row_gives_back_its_record(record: ScheduleRecord) -> None:
    row = write_row(record, entry=ENTRY, message=MESSAGE)
    assert read_row(row) == record
    assert (row.value is None) == isinstance(record, Ended | CronDeleted)


def test_row_gives_back_its_message() -> None:
    record = Scheduled(12, 1_000, 900)
    assert read_message(write_row(record, entry=ENTRY, message=MESSAGE)) == (record, MESSAGE)


def test_definition_from_before_there_were_versions_has_the_lowest() -> None:
    record = CronDefined("nightly", 7, "* * * * *", "UTC", Missed.ALL, fired_ms=5, at_ms=6)
    row = write_row(record, message=MESSAGE)
    fields, message = msgspec.msgpack.decode(row.value or b"")
    assert fields[-1] == 0
    old = Row(row.key, msgspec.msgpack.encode([fields[:-1], message]))
    assert read_message(old) == (record, MESSAGE)


def test_message_and_its_tombstone_have_one_key() -> None:
    row = write_row(Scheduled(12, 1_000, 900), entry=ENTRY, message=MESSAGE)
    later = write_row(Scheduled(40, 2_000, 950, origin=12, replaces=12), entry=ENTRY, message=MESSAGE)
    tombstone = write_row(Ended(40, 12, End.RELEASED, 2_000), entry=ENTRY)
    assert row.key == later.key == tombstone.key


@pytest.mark.parametrize(
    "row", [Row(ENTRY, None), Row(ENTRY, b"\xc1"), Row(b"!move", b"\x90"), Row(ENTRY, b"\x91\x01")]
)
def test_row_that_no_schedule_has_written_is_refused(row: Row) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_row(row)
    with pytest.raises(msgspec.DecodeError):
        read_message(row)


def test_end_of_a_transaction_is_a_control_batch_and_no_row() -> None:
    with pytest.raises(AssertionError):
        write_row(TransactionEnded(1, 0, True, 5))
