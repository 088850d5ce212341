"""An event loop on which whole nodes run: one thread, virtual time, everything from one seed.

    ready handles, in their order ──► none left: time moves to the next timer ──► …

- Nothing waits: a sleep of an hour takes no time. Whoever would wait for ever is found out (`EverybodyWaitsError`).
- What goes to a thread (`run_in_executor`) is done here, some time later; and its caller hears of it later still, as
  from a real thread. Nothing runs side by side, so the same seed gives the same run.
- Every handle belongs to the owner that its context names: a life of a node, a client, or nobody (the world itself).
  An owner can be paused (its handles wait), and killed (they never run; nor does a `finally` of its coroutines).
- `trace` is a hash of every handle with its time and owner: two runs with the same one were the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack, cast

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

OWNER: Final[contextvars.ContextVar[str]] = contextvars.ContextVar("owner", default="")
# More than the longest story by far: what does not end is a fault too.
STEPS_MAX: Final = 300_000
# Of work in a thread, before it begins and until the loop hears of it.
WORK_SECONDS: Final = (0.000_02, 0.001)
# Now and then the disk, or another program, is in the way.
SLOW_WORK_SECONDS: Final = (0.005, 0.1)
SLOW_WORK_CHANCE: Final = 0.04
# Of a coroutine that waits again when it is told to end.
CLOSING_STEPS_MAX: Final = 20


class EverybodyWaitsError(Exception):
    """Nothing is ready and no timer is set: the main task waits for what nobody will do."""


class NeverEndsError(Exception):
    pass


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)
        self.step_count = 0
        # Every handle as it is run, if somebody wants to compare two runs.
        self.lines: list[str] | None = None
        # Of work in threads of a host whose disk is in trouble.
        self.slow_work_seconds: dict[str, tuple[float, float]] = {}
        self._now = 0.0
        self._hash = hashlib.blake2b(digest_size=16)
        self._handles: deque[tuple[str, asyncio.Handle]] = deque()
        self._timers: list[tuple[float, int, str, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._held: dict[str, list[asyncio.Handle]] = {}
        self._dead: set[str] = set()
        # What happens when so many more handles have been run, whoever's they are.
        self._in_between: dict[int, Callable[[], None]] = {}
        # Kept, or their coroutines would be closed while the world goes on: the dead would clean up after themselves.
        self._graves: list[asyncio.Handle] = []

    @property
    def trace(self) -> str:
        return self._hash.hexdigest()

    def time(self) -> float:
        return self._now

    # Owners

    def start_as(self, owner: str, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """A task that belongs to `owner`, and all that comes of it."""
        context = contextvars.copy_context()
        context.run(OWNER.set, owner)
        return self.create_task(work, context=context)

    def pause(self, owner: str) -> None:
        self._held.setdefault(owner, [])

    def resume(self, owner: str) -> None:
        self._handles.extend((owner, handle) for handle in self._held.pop(owner, ()))

    def kill(self, owner: str) -> None:
        self._dead.add(owner)
        self._graves.extend(self._held.pop(owner, ()))

    def after_handles(self, handle_count: int, act: Callable[[], None]) -> None:
        """Between two of them, wherever whoever is at work has come to by then."""
        self._in_between[self.step_count + handle_count] = act

    def is_dead(self, owner: str) -> bool:
        return owner in self._dead

    def forget(self) -> None:
        """Everything that was kept for its own sake. The world has ended."""
        for task in asyncio.all_tasks(self):
            _close(task)
        self._graves.clear()
        self._held.clear()
        self._handles.clear()
        self._timers.clear()

    # Handles

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._handles.append((_owner_of(context), handle))
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), _owner_of(context), handle))
        return handle

    def _run_once(self) -> None:
        if not self._handles:
            self._move_time()
        for _ in range(len(self._handles)):
            owner, handle = self._handles.popleft()
            if handle.cancelled():
                continue
            if owner in self._dead:
                self._graves.append(handle)
            elif owner in self._held:
                self._held[owner].append(handle)
            else:
                self._note(owner, handle)
                handle._run()
                if self._in_between:
                    self._act_in_between()

    def _act_in_between(self) -> None:
        act = self._in_between.pop(self.step_count, None)
        if act is not None:
            act()

    def _move_time(self) -> None:
        timers = self._timers
        while timers and timers[0][3].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise EverybodyWaitsError(f"after {self._now:.3f} s")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _when, _number, owner, handle = heapq.heappop(timers)
            self._handles.append((owner, handle))

    def _note(self, owner: str, handle: asyncio.Handle) -> None:
        self.step_count += 1
        if self.step_count > STEPS_MAX:
            raise NeverEndsError(f"{STEPS_MAX} handles after {self._now:.3f} s")
        line = f"{self._now:.6f} {owner} {_name_of(handle)}\n"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    # What a loop is asked for besides

    def run_in_executor(
        self, _executor: object, work: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                tell: Callable[[], None] = partial(future.set_result, work(*args))
            except Exception as error:
                tell = partial(future.set_exception, error)
            self.call_later(self._work_seconds(), _unless_done, future, tell)

        self.call_later(self._work_seconds(), run)
        return future

    def _work_seconds(self) -> float:
        bounds = self.slow_work_seconds.get(host_of(OWNER.get()))
        if bounds is not None:
            return self.random.uniform(*bounds)
        is_slow = self.random.random() < SLOW_WORK_CHANCE
        return self.random.uniform(*(SLOW_WORK_SECONDS if is_slow else WORK_SECONDS))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nothing is told of tasks that die with their node; all else is a fault of somebody's."""
        if "was destroyed but it is pending" not in context.get("message", ""):
            super().call_exception_handler(context)

    def _process_events(self, event_list: object) -> None:
        raise NotImplementedError

    def _write_to_self(self) -> None:
        return None


def host_of(owner: str) -> str:
    """`n1#2` is the second life on the host `n1`."""
    return owner.partition("#")[0] or "world"


def _unless_done(future: asyncio.Future[Any], tell: Callable[[], None]) -> None:
    if not future.done():
        tell()


def _close(task: asyncio.Task[Any]) -> None:
    """What it cleans up may wait for more, or ask for a loop: neither is there any more."""
    for _ in range(CLOSING_STEPS_MAX):
        try:
            cast("Coroutine[Any, Any, Any]", task.get_coro()).close()
        except Exception:
            continue
        return


def _owner_of(context: contextvars.Context | None) -> str:
    return OWNER.get() if context is None else context.get(OWNER, "")


def _name_of(handle: asyncio.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    while isinstance(callback, partial):
        callback = callback.func
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        callback = task.get_coro()
    return getattr(callback, "__qualname__", "") or type(callback).__name__
