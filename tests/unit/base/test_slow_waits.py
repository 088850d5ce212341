from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.base.slow_waits import SENTENCES_MAX, SLOW_SECONDS, SlowWaits, set_real_alarm


class FakeAlarm:
    def __init__(self, seconds: float, ring: Callable[[], None]) -> None:
        self.seconds = seconds
        self.ring = ring
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Scene:
    """A clock that goes on when it is told to, and an ear."""

    def __init__(self) -> None:
        self.alarms: list[FakeAlarm] = []
        self.heard: list[str] = []
        self.waits = SlowWaits(self.heard.append, self._set)

    def _set(self, seconds: float, ring: Callable[[], None]) -> FakeAlarm:
        self.alarms.append(FakeAlarm(seconds, ring))
        return self.alarms[-1]

    def let_pass(self, seconds: float) -> None:
        for alarm in self.alarms:
            if not alarm.is_cancelled and alarm.seconds <= seconds:
                alarm.ring()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_wait_is_told_after_two_seconds_and_not_before(scene: Scene) -> None:
    with scene.waits.told_if_slow("no answer yet"):
        scene.let_pass(SLOW_SECONDS - 0.1)
        assert scene.heard == []
        scene.let_pass(SLOW_SECONDS)
        assert scene.heard == ["no answer yet"]


def test_wait_that_has_ended_is_not_told(scene: Scene) -> None:
    with pytest.raises(ValueError, match="lost"), scene.waits.told_if_slow("no answer yet"):
        raise ValueError("lost")
    with scene.waits.told_if_slow("no answer yet"):
        pass
    scene.let_pass(SLOW_SECONDS)
    assert scene.heard == []


def test_many_waits_for_the_same_thing_are_one_line(scene: Scene) -> None:
    with scene.waits.told_if_slow("no answer yet"), scene.waits.told_if_slow("no answer yet"):
        scene.let_pass(SLOW_SECONDS)
    with scene.waits.told_if_slow("something else"):
        scene.let_pass(SLOW_SECONDS)
    assert scene.heard == ["no answer yet", "something else"]


def test_what_is_told_is_what_is_known_then(scene: Scene) -> None:
    problem = "nothing"
    with scene.waits.told_if_slow(lambda: f"{problem} came"):
        problem = "a refusal"
        scene.let_pass(SLOW_SECONDS)
    assert scene.heard == ["a refusal came"]


def test_long_poll_is_slow_only_after_its_time(scene: Scene) -> None:
    with scene.waits.told_if_slow("no answer yet", meant_seconds=20):
        scene.let_pass(21.9)
        assert scene.heard == []
        scene.let_pass(22)
    assert scene.heard == ["no answer yet"]


def test_lines_have_an_end(scene: Scene) -> None:
    for number in range(SENTENCES_MAX + 5):
        with scene.waits.told_if_slow(f"waiting for {number}"):
            scene.let_pass(SLOW_SECONDS)
    assert len(scene.heard) == SENTENCES_MAX


def test_nobody_listens_so_nothing_is_set(scene: Scene) -> None:
    scene.waits.listen(None)
    with scene.waits.told_if_slow("no answer yet"):
        assert scene.alarms == []


def test_caller_that_blocks_is_told_by_a_thread() -> None:
    rung: list[str] = []
    alarm = set_real_alarm(0.0, lambda: rung.append("rung"))
    alarm.join(10)  # type: ignore[attr-defined]
    assert rung == ["rung"]


async def test_caller_on_a_loop_is_told_by_the_loop() -> None:
    import asyncio

    rung = asyncio.Event()
    set_real_alarm(0.0, rung.set)
    await asyncio.wait_for(rung.wait(), 10)
