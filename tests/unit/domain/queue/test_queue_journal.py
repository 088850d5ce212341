from __future__ import annotations

from penstock.domain.queue.ledger import BEHIND_MAX, RECORDS_MIN, JournalLedger
from penstock.domain.queue.machine import Queue
from penstock.domain.queue.records import (
    Closed,
    Finished,
    MoveDone,
    Opened,
    Passed,
    Paused,
    QueueRecord,
    Trimmed,
    is_whole,
    write_record,
)
from penstock.domain.queue.values import Cause
from support.queue.desk import QueueDesk

STORED = QueueDesk().queue.snapshot()
EVENT = Paused(1)


def write(ledger: JournalLedger, queue: str, count: int, position: int, record: QueueRecord = EVENT) -> int:
    for _number in range(count):
        ledger.note(queue, position, record)
        position += 1
    return position


def test_reading_begins_at_the_earliest_whole_record() -> None:
    ledger = JournalLedger()
    position = write(ledger, "a", 1, 0, Opened(0, 1, 1))
    position = write(ledger, "b", 1, position, Opened(0, 1, 1))
    position = write(ledger, "a", 10, position)
    assert ledger.replay_start() == 0
    position = write(ledger, "a", 1, position, STORED)
    assert ledger.replay_start() == 1
    position = write(ledger, "b", 1, position, STORED)
    assert ledger.replay_start() == 12


def test_a_deleted_queue_pins_nothing() -> None:
    ledger = JournalLedger()
    position = write(ledger, "a", 1, 0, Opened(0, 1, 1))
    write(ledger, "a", 1, position, Closed(2))
    assert ledger.replay_start() == 2
    assert not ledger.is_known("a")


def test_a_busy_queue_is_stored_after_so_many_records_and_a_large_one_later() -> None:
    ledger = JournalLedger()
    position = write(ledger, "a", 1, 0, Opened(0, 1, 1))
    position = write(ledger, "a", RECORDS_MIN - 1, position)
    assert not ledger.is_due("a", 10)
    write(ledger, "a", 1, position)
    assert ledger.is_due("a", 10)
    assert not ledger.is_due("a", 10_000)


def test_an_idle_queue_is_stored_when_it_holds_up_the_others() -> None:
    ledger = JournalLedger()
    position = 0
    for name in ("idle", "idle too", "busy"):
        position = write(ledger, name, 1, position, Opened(0, 1, 1))
    position = write(ledger, "busy", BEHIND_MAX - 5, position)
    assert ledger.idle_due(count_max=10) == []
    position = write(ledger, "busy", 10, position)
    assert ledger.idle_due(count_max=1) == ["idle"]
    assert ledger.idle_due(count_max=10) == ["idle", "idle too", "busy"]


def test_a_start_reads_a_bounded_part_of_a_long_journal() -> None:
    """As a shell does it: a thousand queues, most of them idle, and what is due is stored at once."""
    ledger = JournalLedger()
    position = 0
    for number in range(1_000):
        position = write(ledger, f"queue-{number}", 1, position, Opened(0, 1, 1))
    longest = 0
    for turn in range(100_000):
        name = f"queue-{turn % 20}"
        position = write(ledger, name, 1, position)
        if ledger.is_due(name, 50):
            position = write(ledger, name, 1, position, STORED)
        for idle in ledger.idle_due(count_max=10):
            position = write(ledger, idle, 1, position, STORED)
        longest = max(longest, position - ledger.replay_start())
    assert longest < BEHIND_MAX + 1_100


def test_a_record_that_replaces_all_before_it_is_known_by_its_first_bytes() -> None:
    queue = Queue()
    for _ in range(3):
        assert is_whole(write_record(queue.snapshot()))
        queue.apply(Opened(7, 1, 1))
    assert is_whole(write_record(Opened(7, 1, 1)))
    assert is_whole(write_record(Closed(1)))
    others = [Paused(1), Passed((), 1), Finished(((1, 1),), Cause.ACCEPTED, 1), Trimmed(1, 1), MoveDone(1, 1)]
    assert not any(is_whole(write_record(record)) for record in others)
