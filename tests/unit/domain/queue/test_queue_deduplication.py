from __future__ import annotations

from penstock.domain.queue.deduplication import WINDOW_MS, DeduplicationWindow, Sent


def test_a_repetition_within_five_minutes_is_the_first_message() -> None:
    window = DeduplicationWindow()
    first = Sent(10, 1_000)
    window.note("a", first)
    assert window.find("a", 1_000 + WINDOW_MS - 1) == first
    assert window.find("a", 1_000 + WINDOW_MS) is None
    assert window.find("b", 1_000) is None


def test_the_window_begins_with_the_first_message_not_with_its_repetition() -> None:
    window = DeduplicationWindow(window_ms=100)
    window.note("a", Sent(1, 1_000))
    window.note("a", Sent(2, 1_050))
    assert window.find("a", 1_099) == Sent(1, 1_000)
    assert window.find("a", 1_100) is None
    window.note("a", Sent(3, 1_100))
    assert window.find("a", 1_150) == Sent(3, 1_100)


def test_an_id_counts_within_its_message_group_where_that_is_the_scope() -> None:
    window = DeduplicationWindow()
    window.note("a", Sent(1, 1_000), scope="g1")
    assert window.find("a", 1_001, scope="g1") == Sent(1, 1_000)
    assert window.find("a", 1_001, scope="g2") is None
    assert window.find("a", 1_001) is None


def test_a_full_window_refuses_and_forgets_nothing_that_counts() -> None:
    window = DeduplicationWindow(window_ms=100, ids_max=3)
    for number in range(3):
        window.note(f"id-{number}", Sent(number, 1_000 + number))
    assert window.is_full(1_050)
    assert window.find("id-0", 1_050) is not None
    assert not window.is_full(1_100)
    assert len(window) == 2


def test_old_ids_take_no_memory() -> None:
    window = DeduplicationWindow(window_ms=1_000)
    for number in range(20_000):
        window.note(f"id-{number}", Sent(number, number))
    assert len(window) == 1_000


def test_a_log_with_unruly_times_is_read_without_harm() -> None:
    window = DeduplicationWindow(window_ms=100)
    for offset, at_ms in enumerate((1_000, 1_500, 1_010, 1_490, 1_520)):
        window.note("a" if offset % 2 else "b", Sent(offset, at_ms))
    assert window.find("a", 1_550) == Sent(1, 1_500)
    assert window.find("b", 1_550) == Sent(4, 1_520)
