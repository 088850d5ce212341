"""A session is renewed in time, by a thread that watches the loop, and known to be held or not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.clock import ManualClock, SystemClock
from penstock.cluster.session import LOOP_TURN_MS_MAX, RENEW_MS, SessionKeeper
from penstock.cluster.store.protocol import SessionRenewer, StoreUnavailableError
from penstock.cluster.store.sqlite import SqliteStore

TTL_MS = 4000


class ScriptedSession:
    """Answers what the test says, after a time that the test says."""

    id = 7
    ttl_ms = TTL_MS

    def __init__(self, clock: ManualClock, *, has_thread: bool = True) -> None:
        self._clock = clock
        self._has_thread = has_thread
        self.is_there = True
        self.takes_ms = 0
        self.failure: StoreUnavailableError | None = None
        self.renewals = 0

    def renew(self) -> bool:
        self.renewals += 1
        self._clock.advance_ms(self.takes_ms)
        if self.failure is not None:
            raise self.failure
        return self.is_there

    def close(self) -> None:
        """As a renewer; a session's is awaited, which no test here does."""

    async def keep_alive(self) -> bool:
        return self.renew()

    def renewer(self) -> SessionRenewer | None:
        return self if self._has_thread else None


class Scene:
    def __init__(self, *, has_thread: bool = True) -> None:
        self.clock = ManualClock()
        self.clock.advance_ms(1_000_000)
        self.session = ScriptedSession(self.clock, has_thread=has_thread)
        self.lost = 0
        self.keeper = SessionKeeper(
            self.session,
            self.clock,
            opened_sent_ms=self.clock.monotonic_ms(),
            on_lost=self._on_lost,
        )

    def _on_lost(self) -> None:
        self.lost += 1

    @property
    def now_ms(self) -> int:
        return self.clock.monotonic_ms()

    async def turn(self) -> None:
        """The loop has turned."""
        await self.keeper._beat()

    def renew(self) -> None:
        self.keeper.renew_once(self.session)


async def test_time_counts_from_when_a_renewal_was_sent() -> None:
    scene = Scene()
    scene.clock.advance_ms(RENEW_MS)
    await scene.turn()
    sent_ms = scene.now_ms
    scene.session.takes_ms = 900
    scene.renew()
    assert scene.keeper.renewed_sent_ms == sent_ms
    assert scene.keeper.is_held_at(sent_ms + TTL_MS - 1)
    assert not scene.keeper.is_held_at(sent_ms + TTL_MS)


def test_a_session_is_held_from_when_its_opening_was_sent() -> None:
    scene = Scene()
    assert scene.keeper.is_held_at(scene.now_ms + TTL_MS - 1)
    assert not scene.keeper.is_held_at(scene.now_ms + TTL_MS)


def test_nothing_is_renewed_while_the_loop_is_stuck() -> None:
    scene = Scene()
    scene.clock.advance_ms(LOOP_TURN_MS_MAX)
    scene.renew()
    assert scene.session.renewals == 1
    scene.clock.advance_ms(1)
    scene.renew()
    assert scene.session.renewals == 1


async def test_a_late_renewal_is_counted() -> None:
    scene = Scene()
    for pause_ms in (RENEW_MS, RENEW_MS, 2 * RENEW_MS, 2 * RENEW_MS + 1, RENEW_MS):
        scene.clock.advance_ms(pause_ms)
        await scene.turn()
        scene.renew()
    assert scene.keeper.late_count == 1


def test_a_store_out_of_reach_takes_nothing_away_by_itself() -> None:
    scene = Scene()
    scene.session.failure = StoreUnavailableError("away")
    before = scene.keeper.renewed_sent_ms
    scene.renew()
    assert not scene.keeper.is_lost
    assert scene.keeper.renewed_sent_ms == before
    scene.session.failure = None
    scene.clock.advance_ms(1)
    scene.renew()
    assert scene.keeper.renewed_sent_ms == before + 1


def test_a_session_that_the_store_has_ended_is_not_held() -> None:
    scene = Scene()
    scene.session.is_there = False
    scene.renew()
    assert scene.keeper.is_lost
    assert not scene.keeper.is_held_at(scene.now_ms)


async def test_an_engine_without_threads_is_asked_on_the_loop() -> None:
    scene = Scene(has_thread=False)
    scene.session.is_there = False
    # By the loop's own time, which a simulation moves.
    async with asyncio.timeout(10):
        await scene.keeper.run_on_loop()
    assert (scene.session.renewals, scene.lost) == (1, 1)


# With a real thread on a real store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.sqlite", clock=SystemClock())
    yield store
    await store.close()


async def test_a_busy_loop_does_not_cost_the_seat(store: SqliteStore) -> None:
    clock = SystemClock()
    keeper = await SessionKeeper.open(store, clock, on_lost=lambda: None, ttl_ms=TTL_MS)
    before = keeper.renewed_sent_ms
    keeper.start()
    # The loop does nothing else for two renewals, as in a long piece of work.
    time.sleep(2.5 * RENEW_MS / 1000)  # noqa: ASYNC251  that is what is tested
    assert keeper.renewed_sent_ms >= before + 2 * RENEW_MS
    assert keeper.is_held_at(clock.monotonic_ms())
    await keeper.close()
    assert not keeper.is_held_at(clock.monotonic_ms())
    assert not await keeper.session.keep_alive()


async def test_the_loop_hears_of_the_loss(store: SqliteStore) -> None:
    heard: list[int] = []
    is_heard = asyncio.Event()

    def hear() -> None:
        heard.append(threading.get_ident())
        is_heard.set()

    keeper = await SessionKeeper.open(store, SystemClock(), on_lost=hear)
    keeper.start()
    await keeper.session.close()
    async with asyncio.timeout(20):
        await is_heard.wait()
    assert heard == [threading.get_ident()]
    await keeper.close()


async def test_no_thread_is_left_behind(store: SqliteStore) -> None:
    before = threading.active_count()
    keeper = await SessionKeeper.open(store, SystemClock(), on_lost=lambda: None)
    keeper.start()
    await keeper.stop()
    assert [thread.name for thread in threading.enumerate() if thread.name == "session"] == []
    assert threading.active_count() <= before + 1
