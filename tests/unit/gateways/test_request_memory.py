from __future__ import annotations

from penstock.gateways.request_memory import RequestMemory


def test_oldest_wish_is_granted_first_however_large() -> None:
    memory = RequestMemory(100)
    granted: list[int] = []
    assert memory.take(60, granted.append)
    assert not memory.take(90, granted.append)
    # There would be room for it, but then the large one could wait for ever.
    assert not memory.take(10, granted.append)
    memory.give_back(60)
    assert granted == [90, 10]
    assert memory.bytes_held == 100
    memory.give_back(90)
    memory.give_back(10)
    assert memory.bytes_held == 0
    assert not memory.is_wanted


def test_what_is_larger_than_everything_gets_through_alone() -> None:
    memory = RequestMemory(100)
    granted: list[int] = []
    assert memory.take(500, granted.append)
    assert not memory.take(1, granted.append)
    memory.give_back(500)
    assert granted == [1]


def test_who_is_granted_may_give_back_at_once() -> None:
    memory = RequestMemory(100)
    granted: list[int] = []

    def give_back(size: int) -> None:
        granted.append(size)
        memory.give_back(size)

    assert memory.take(100, give_back)
    for size in (50, 100, 30):
        assert not memory.take(size, give_back)
    memory.give_back(100)
    assert granted == [50, 100, 30]
    assert memory.bytes_held == 0
