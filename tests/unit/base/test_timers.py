"""The timing wheel against a sorted list."""

from __future__ import annotations

from random import Random

from penstock.base.timers import TimingWheel


def everything(number: int) -> bool:
    return True


def take(wheel: TimingWheel, before_ms: int, count_max: int = 1_000) -> list[int]:
    found, looked = wheel.peek(before_ms, count_max=count_max, is_live=everything)
    wheel.drop(looked)
    return found


def test_numbers_come_out_in_the_order_of_their_times() -> None:
    wheel = TimingWheel()
    for at_ms, number in ((5_000, 1), (3, 2), (1_024, 3), (1_023, 4), (70_000, 5)):
        wheel.add(at_ms, number)
    assert take(wheel, 100_000) == [2, 4, 3, 1, 5]
    assert wheel.count == 0
    assert wheel.earliest_ms() is None


def test_nothing_comes_out_before_its_time() -> None:
    wheel = TimingWheel()
    wheel.add(1_500, 1)
    assert take(wheel, 1_500) == []
    assert take(wheel, 1_501) == [1]


def test_peeking_changes_nothing() -> None:
    wheel = TimingWheel()
    for number in range(10):
        wheel.add(100, number)
    first = wheel.peek(101, count_max=4, is_live=everything)
    assert first == ([0, 1, 2, 3], 4)
    assert wheel.peek(101, count_max=4, is_live=everything) == first
    assert wheel.count == 10


def test_the_dead_in_front_are_forgotten_and_those_between_are_passed_over() -> None:
    wheel = TimingWheel()
    for number in range(10):
        wheel.add(100, number)
    assert wheel.peek(101, count_max=2, is_live=lambda number: number > 90) == ([], 0)
    assert wheel.count == 0
    for number in range(10):
        wheel.add(100, number)
    found, looked = wheel.peek(101, count_max=2, is_live=lambda number: number in (3, 6))
    assert found == [3, 6]
    wheel.drop(looked)
    assert take(wheel, 101) == [7, 8, 9]


def test_time_that_is_past_already_is_welcome() -> None:
    wheel = TimingWheel()
    wheel.add(5_000, 1)
    assert take(wheel, 6_000) == [1]
    wheel.add(7, 2)
    assert wheel.earliest_ms() == 7
    assert take(wheel, 6_000) == [2]


def test_slot_that_is_too_large_for_one_turn_keeps_its_order() -> None:
    wheel = TimingWheel(work_max=10)
    times = [(number * 37) % 1_000 for number in range(100)]
    for number, at_ms in enumerate(times):
        wheel.add(at_ms, number)
    out: list[int] = []
    for _turn in range(100):
        out += take(wheel, 2_000)
    assert out == sorted(range(100), key=lambda number: times[number])


def test_numbers_of_one_time_come_out_in_their_own_order() -> None:
    wheel = TimingWheel(work_max=10)
    for number in (*range(30, 60), *range(30)):
        wheel.add(500 + number % 2, number)
    out: list[int] = []
    for _turn in range(20):
        out += take(wheel, 2_000, count_max=7)
    assert out == [*range(0, 60, 2), *range(1, 60, 2)]


def test_wheel_is_a_sorted_list() -> None:
    for seed in range(20):
        rng = Random(seed)
        wheel = TimingWheel()
        waiting: list[tuple[int, int]] = []
        now_ms = 0
        for number in range(2_000):
            if rng.random() < 0.6:
                at_ms = now_ms + rng.choice((-50, 0, 3, 900, 5_000, 300_000)) + rng.randint(0, 50)
                wheel.add(max(at_ms, 0), number)
                waiting.append((max(at_ms, 0), number))
            else:
                now_ms += rng.choice((0, 1, 100, 2_000))
                count_max = rng.choice((1, 5, 100))
                found = take(wheel, now_ms + 1, count_max)
                waiting.sort(key=lambda pair: pair[0])
                times = {number: at_ms for at_ms, number in waiting}
                due = [at_ms for at_ms, _number in waiting if at_ms <= now_ms][:count_max]
                assert [times[each] for each in found] == due
                waiting = [pair for pair in waiting if pair[1] not in found]
        assert wheel.count == len(waiting)
