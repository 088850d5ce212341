from __future__ import annotations

from penstock.domain.transaction.deadlines import TransactionDeadlines


def test_due_are_those_whose_time_has_come_the_earliest_first() -> None:
    deadlines = TransactionDeadlines()
    for name, deadline in (("c", 30), ("a", 20), ("b", 10)):
        deadlines.set(name, deadline)
    assert deadlines.next_ms() == 10
    assert deadlines.due(25, count_max=10) == ["b", "a"]
    assert deadlines.due(25, count_max=1) == ["b"]


def test_due_stays_due_until_it_is_set_anew() -> None:
    deadlines = TransactionDeadlines()
    deadlines.set("a", 10)
    assert deadlines.due(10, count_max=5) == deadlines.due(10, count_max=5) == ["a"]
    deadlines.set("a", 20)
    assert deadlines.due(10, count_max=5) == []
    assert deadlines.next_ms() == 20


def test_earlier_deadline_rings_earlier_and_a_later_one_is_found_when_it_rings() -> None:
    deadlines = TransactionDeadlines()
    deadlines.set("a", 100)
    deadlines.set("a", 50)
    assert deadlines.next_ms() == 50
    deadlines.set("a", 200)
    assert deadlines.due(150, count_max=5) == []
    assert deadlines.next_ms() == 200


def test_without_a_deadline_nothing_rings() -> None:
    deadlines = TransactionDeadlines()
    deadlines.set("a", 10)
    deadlines.set("a", None)
    deadlines.set("b", None)
    assert deadlines.due(50, count_max=5) == []
    assert deadlines.next_ms() is None


def test_forgotten_one_never_rings() -> None:
    deadlines = TransactionDeadlines()
    deadlines.set("a", 10)
    deadlines.forget("a")
    deadlines.forget("b")
    assert deadlines.next_ms() is None
    deadlines.set("a", 20)
    assert deadlines.due(20, count_max=5) == ["a"]


def test_busy_producer_costs_one_entry() -> None:
    deadlines = TransactionDeadlines()
    for now_ms in range(10_000):
        deadlines.set("a", now_ms + 60_000)
        deadlines.set("a", now_ms + 600_000)
    assert len(deadlines._queue) < 10


def test_entries_that_are_nobodys_are_dropped() -> None:
    deadlines = TransactionDeadlines()
    for deadline in range(100_000, 0, -1):
        deadlines.set("a", deadline)
    assert len(deadlines._queue) < 1_100
    assert deadlines.next_ms() == 1
