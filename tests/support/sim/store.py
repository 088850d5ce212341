"""A metadata store in memory that all nodes share, with everything that a real one does to its callers.

    SimStore (one life of one node) ──ask──► SimEngine (the state, its faults) ──► reply

A request that has left takes effect whether or not its sender still lives, and its reply may be lost: then the caller
is told that the store is out of reach, and does not know that it was done. A watch may break between two revisions,
never within one, and may find that its history is gone.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, TypeVar

from penstock.base.clock import Clock
from penstock.cluster.store.protocol import (
    NOTHING,
    Compare,
    Entry,
    EventBatch,
    Range,
    StoreClosedError,
    StoreSession,
    StoreUnavailableError,
    TxnResult,
    check_operations,
)
from support.sim.store_state import StoreState

Result = TypeVar("Result")

EVERYBODY: Final = "*"


@dataclass(slots=True)
class StoreFaults:
    # One way; a request takes two.
    latency_seconds: tuple[float, float] = (0.0, 0.0)
    # Hosts that cannot reach it; EVERYBODY: it is down.
    away: set[str] = field(default_factory=set)
    # How long a caller waits until it is told so.
    patience_seconds: float = 0.0
    # Of requests that are done, and whose reply does not arrive; hosts that never get one.
    lost_reply_chance: float = 0.0
    mute: set[str] = field(default_factory=set)
    # Of revisions after which a watch breaks.
    break_chance: float = 0.0
    # Added to what a watch takes anyway.
    watch_delay_seconds: float = 0.0
    # Sessions are ended so much later than their TTL says.
    grace_ms: int = 0


class SimEngine:
    def __init__(self, clock: Clock, random: Random | None = None) -> None:
        self.state = StoreState()
        self.faults = StoreFaults()
        self.clock = clock
        self.random = random or Random(0)
        # Requests and timers of the store belong to nobody: they outlive the node that asked.
        self.context = contextvars.Context()
        self._waiting: list[asyncio.Future[None]] = []
        self._was_down = False

    def is_away(self, host: str) -> bool:
        return EVERYBODY in self.faults.away or host in self.faults.away

    def delay(self) -> float:
        return self.random.uniform(*self.faults.latency_seconds)

    def expire(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if EVERYBODY in self.faults.away:
            self._was_down = True
            return
        if self._was_down:
            # As etcd does: nobody could renew, so everybody has a whole TTL again.
            self._was_down = False
            self.state.renew_all(now_ms)
        self.state.expire(now_ms - self.faults.grace_ms)
        self.tell_watches()

    def end_sessions(self) -> None:
        """Early, as when the store has lost its own clock."""
        for session_id in list(self.state.sessions):
            self.state.close_session(session_id)
        self.tell_watches()

    def tell_watches(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def changed(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future


class SimStore:
    def __init__(self, engine: SimEngine, host: str) -> None:
        self._engine = engine
        self._host = host
        self._is_closed = False

    async def get(self, key: str) -> Entry | None:
        return await self._ask(lambda state: state.get(key))

    async def range(self, prefix: str) -> Range:
        return await self._ask(lambda state: state.range(prefix))

    async def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] = NOTHING,
        deletes: Sequence[str] = (),
        session: StoreSession | None = None,
    ) -> TxnResult:
        check_operations(puts, deletes, compares)
        session_id = None if session is None else session.id
        return await self._ask(lambda state: state.txn(compares, puts, deletes, session_id))

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[EventBatch]:
        engine = self._engine
        next_revision = from_revision
        while not self._is_closed:
            try:
                batches, seen = await self._ask(partial(_events, prefix=prefix, from_revision=next_revision))
            except StoreClosedError:
                return
            for batch in batches:
                yield batch
                if engine.random.random() < engine.faults.break_chance:
                    raise StoreUnavailableError("the watch broke off")
            next_revision = max(next_revision, seen + 1)
            while engine.state.revision < next_revision and not self._is_closed:
                await engine.changed()
            if engine.faults.watch_delay_seconds:
                await asyncio.sleep(engine.random.random() * engine.faults.watch_delay_seconds)

    async def open_session(self, ttl_ms: int) -> SimSession:
        now_ms = self._engine.clock.monotonic_ms
        session_id = await self._ask(lambda state: state.open_session(ttl_ms, now_ms()))
        self.watch_session(ttl_ms)
        return SimSession(self, session_id, ttl_ms)

    async def keep_alive(self, session_id: int, ttl_ms: int) -> bool:
        now_ms = self._engine.clock.monotonic_ms
        is_alive = await self._ask(lambda state: state.keep_alive(session_id, now_ms()))
        self.watch_session(ttl_ms)
        return is_alive

    def watch_session(self, ttl_ms: int) -> None:
        seconds = (ttl_ms + self._engine.faults.grace_ms + 1) / 1000
        asyncio.get_running_loop().call_later(seconds, self._engine.expire, context=self._engine.context)

    async def close_session(self, session_id: int) -> None:
        await self._ask(lambda state: state.close_session(session_id))

    def keep_copy(self) -> None:
        """Nobody needs one of what cannot be lost."""

    async def close(self) -> None:
        self._is_closed = True
        self._engine.tell_watches()

    async def _ask(self, work: Callable[[StoreState], Result]) -> Result:
        if self._is_closed:
            raise StoreClosedError("the metadata store is closed")
        engine, loop = self._engine, asyncio.get_running_loop()
        reply: asyncio.Future[Result] = loop.create_future()
        context = contextvars.copy_context()

        def arrive() -> None:
            if engine.is_away(self._host):
                loop.call_later(engine.faults.patience_seconds, fail, _out_of_reach(), context=context)
                return
            engine.expire()
            before = engine.state.revision
            try:
                result = work(engine.state)
            except Exception as error:
                loop.call_later(engine.delay(), fail, error, context=context)
                return
            if engine.state.revision != before:
                engine.tell_watches()
            is_lost = engine.random.random() < engine.faults.lost_reply_chance
            if is_lost or self._host in engine.faults.mute:
                loop.call_later(engine.faults.patience_seconds, fail, _out_of_reach(), context=context)
            else:
                loop.call_later(engine.delay(), succeed, result, context=context)

        def succeed(result: Result) -> None:
            if not reply.done():
                reply.set_result(result)

        def fail(error: Exception) -> None:
            if not reply.done():
                reply.set_exception(error)

        loop.call_later(engine.delay(), arrive, context=engine.context)
        return await reply


def _events(state: StoreState, *, prefix: str, from_revision: int) -> tuple[list[EventBatch], int]:
    return state.events(prefix, from_revision), state.revision


def _out_of_reach() -> StoreUnavailableError:
    """The same whether or not it was done: nobody can tell."""
    return StoreUnavailableError("the metadata store is out of reach")


class SimSession:
    def __init__(self, store: SimStore, session_id: int, ttl_ms: int) -> None:
        self._store = store
        self._id = session_id
        self._ttl_ms = ttl_ms

    @property
    def id(self) -> int:
        return self._id

    @property
    def ttl_ms(self) -> int:
        return self._ttl_ms

    async def keep_alive(self) -> bool:
        return await self._store.keep_alive(self._id, self._ttl_ms)

    def renewer(self) -> None:
        return None

    async def close(self) -> None:
        await self._store.close_session(self._id)
