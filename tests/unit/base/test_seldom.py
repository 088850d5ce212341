from __future__ import annotations

from penstock.base.clock import ManualClock
from penstock.base.seldom import SELDOM_MS, THINGS_MAX, Seldom


def test_each_thing_is_told_once_in_a_while() -> None:
    clock = ManualClock()
    seldom = Seldom(clock)
    assert [seldom.is_due(thing) for thing in ("a", "a", "b", "a")] == [True, False, True, False]
    clock.advance_ms(SELDOM_MS - 1)
    assert not seldom.is_due("a")
    clock.advance_ms(1)
    assert [seldom.is_due(thing) for thing in ("a", "a")] == [True, False]


def test_what_is_remembered_is_bounded() -> None:
    seldom = Seldom(ManualClock())
    for thing in range(THINGS_MAX + 1):
        assert seldom.is_due(thing)
    # Forgotten, so that it is told too early: better than a memory that strangers fill.
    assert seldom.is_due(0)
    assert not seldom.is_due(THINGS_MAX)
