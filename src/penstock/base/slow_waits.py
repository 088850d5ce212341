"""Waits that take long are told, once each: silence for more than two seconds looks like a hang.

    with told_if_slow("no answer from 127.0.0.1:9092 yet"):
        ...

Nobody is told before somebody listens (`listen`): the command line does, a node and a library's user do not. The same
sentence is told once in the life of a process: five requests that wait for the same thing are one line.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

SLOW_SECONDS: Final = 2.0
# A command that waits for so many different things tells of no more of them.
SENTENCES_MAX: Final = 100

Listener = Callable[[str], None]


class Alarm(Protocol):
    def cancel(self) -> None: ...


SetAlarm = Callable[[float, Callable[[], None]], Alarm]


class SlowWaits:
    def __init__(self, listener: Listener | None = None, set_alarm: SetAlarm | None = None) -> None:
        self._listener = listener
        self._set_alarm = set_alarm or set_real_alarm
        self._told: set[str] = set()

    def listen(self, listener: Listener | None) -> None:
        self._listener = listener
        self._told.clear()

    @contextmanager
    def told_if_slow(self, sentence: str | Callable[[], str], *, meant_seconds: float = 0.0) -> Iterator[None]:
        """`meant_seconds` is how long it is meant to take: a long poll is slow only after that."""
        if self._listener is None:
            yield
            return
        alarm = self._set_alarm(SLOW_SECONDS + meant_seconds, lambda: self._tell(sentence))
        try:
            yield
        finally:
            alarm.cancel()

    def _tell(self, sentence: str | Callable[[], str]) -> None:
        text = sentence if isinstance(sentence, str) else sentence()
        if self._listener is not None and text not in self._told and len(self._told) < SENTENCES_MAX:
            self._told.add(text)
            self._listener(text)


def set_real_alarm(seconds: float, ring: Callable[[], None]) -> Alarm:
    """By the loop, where one runs; else by a thread, because the caller is about to block."""
    try:
        return asyncio.get_running_loop().call_later(seconds, ring)
    except RuntimeError:
        alarm = threading.Timer(seconds, ring)
        alarm.daemon = True
        alarm.start()
        return alarm


_waits = SlowWaits()
listen = _waits.listen
told_if_slow = _waits.told_if_slow
