"""Keeping a session of the metadata store alive, and knowing until when it is surely held.

    every second, in a thread ── the loop has turned within 3 s ──► renew ──► held until it was sent + TTL
                             └── it has not ──► nothing: a node whose loop is stuck must lose its seat
    the store says that the session has ended ──► `on_lost`, on the loop, once

A thread, because a long compaction on the loop must not cost the node its seat. Time counts from when a renewal was
*sent*: the store began to count no earlier than that. While the store is out of reach nothing is lost yet: after an
outage the store gives everybody a TTL anew, so the keeper goes on asking; only `is_held_at` says no meanwhile.

An engine that offers nothing to a thread (`StoreSession.renewer`), as one in memory or in a simulation, is asked on the
loop: `run_on_loop` is the same without a thread.

    keeper = await SessionKeeper.open(store, clock, on_lost=...)   →   keeper.start()   →   await keeper.close()
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.cluster.store.protocol import MetadataStore, SessionRenewer, StoreError, StoreSession

SESSION_MS: Final = 4000
# Three may be late or lost before the session ends.
RENEW_MS: Final = 1000
# A loop that has not turned for so long serves nobody: others should.
LOOP_TURN_MS_MAX: Final = 3000
# How exactly that is known.
_BEAT_MS: Final = 250
# What a renewal may come after its time without being told of: the thread waits for the interpreter too.
_LATE_MS: Final = 1000
# A renewal asks each member once, a second each at most; then the thread sees that it is to end.
_STOP_SECONDS_MAX: Final = 10.0

log = get_logger("metadata")


class SessionKeeper:
    def __init__(
        self, session: StoreSession, clock: Clock, *, opened_sent_ms: int, on_lost: Callable[[], None]
    ) -> None:
        """`opened_sent_ms`: when the request that opened it was sent, by the monotonic clock. `open` does all that."""
        self.session = session
        self._clock = clock
        self._on_lost = on_lost
        self._renewed_sent_ms = opened_sent_ms
        self._asked_ms = opened_sent_ms
        self._turned_ms = opened_sent_ms
        self._is_lost = False
        self._is_failing = False
        self.late_count = 0
        self._tasks = TaskSupervisor(log)
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()

    @classmethod
    async def open(
        cls, store: MetadataStore, clock: Clock, *, on_lost: Callable[[], None], ttl_ms: int = SESSION_MS
    ) -> SessionKeeper:
        sent_ms = clock.monotonic_ms()
        session = await store.open_session(ttl_ms)
        return cls(session, clock, opened_sent_ms=sent_ms, on_lost=on_lost)

    # For whoever must know before it answers

    @property
    def renewed_sent_ms(self) -> int:
        """When the last renewal that succeeded was sent, by the monotonic clock."""
        return self._renewed_sent_ms

    @property
    def is_lost(self) -> bool:
        """The store has said so: its keys are gone."""
        return self._is_lost

    def is_held_at(self, now_ms: int) -> bool:
        """Whether nobody can have ended it before then, by the monotonic clock. Asked inline, never by a timer."""
        return not self._is_lost and now_ms < self._renewed_sent_ms + self.session.ttl_ms

    # Life

    def start(self) -> None:
        """From the loop: in a thread where the engine has something for it."""
        renewer = self.session.renewer()
        if renewer is None:
            self._tasks.start("session renewal", self.run_on_loop())
            return
        self._turned_ms = self._clock.monotonic_ms()
        self._tasks.every(_BEAT_MS, "session heartbeat", self._beat)
        work = (renewer, asyncio.get_running_loop())
        # A daemon: a process that ends must not wait for a store that is out of reach.
        self._thread = threading.Thread(target=self._run_in_thread, args=work, name="session", daemon=True)
        self._thread.start()

    async def run_on_loop(self) -> None:
        """Until the session is lost."""
        while not self._is_lost:
            await asyncio.sleep(RENEW_MS / 1000)
            sent_ms = self._begin()
            try:
                is_there = await self.session.keep_alive()
            except StoreError as error:
                self._fail(error)
                continue
            self._take(sent_ms, is_there=is_there)
        self._on_lost()

    async def stop(self) -> None:
        """No more renewals. The session runs out by itself."""
        self._ends.set()
        await self._tasks.stop()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _STOP_SECONDS_MAX)
            self._thread = None

    async def close(self) -> None:
        """Its keys vanish at once, if the store is there."""
        await self.stop()
        if self._is_lost:
            return
        self._is_lost = True
        try:
            await self.session.close()
        except StoreError as error:
            log.warning("session not ended, it runs out by itself", error=str(error))

    # Inside

    async def _beat(self) -> None:
        self._turned_ms = self._clock.monotonic_ms()

    def _run_in_thread(self, renewer: SessionRenewer, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while not self._is_lost and not self._ends.wait(RENEW_MS / 1000):
                self.renew_once(renewer)
        finally:
            renewer.close()
        if self._is_lost and not self._ends.is_set():
            loop.call_soon_threadsafe(self._on_lost)

    def renew_once(self, renewer: SessionRenewer) -> None:
        """In the thread; blocking."""
        if self._clock.monotonic_ms() - self._turned_ms > LOOP_TURN_MS_MAX:
            # Not begun, so the next one that is counts as late.
            return
        sent_ms = self._begin()
        try:
            is_there = renewer.renew()
        except StoreError as error:
            self._fail(error)
            return
        self._take(sent_ms, is_there=is_there)

    def _begin(self) -> int:
        """When it is sent."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._asked_ms > RENEW_MS + _LATE_MS:
            self.late_count += 1
            log.warning("session renewed late", after_ms=now_ms - self._asked_ms, ttl_ms=self.session.ttl_ms)
        self._asked_ms = now_ms
        return now_ms

    def _take(self, sent_ms: int, *, is_there: bool) -> None:
        self._is_failing = False
        if is_there:
            self._renewed_sent_ms = sent_ms
            return
        self._is_lost = True
        log.warning("session lost: the store has ended it", session=self.session.id)

    def _fail(self, error: StoreError) -> None:
        # Told once: an outage may last for hours.
        if not self._is_failing:
            log.warning("session not renewed", error=str(error))
        self._is_failing = True
