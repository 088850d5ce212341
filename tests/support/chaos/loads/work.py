"""What every load has: threads that work until they are told to end, and what went wrong in them."""

from __future__ import annotations

import threading
import time
from typing import Final

from support.chaos.checks import Violation

END_SECONDS_MAX: Final = 90.0
# A client that is refused asks again, but not at once.
PAUSE_SECONDS: Final = 0.02


class Work(threading.Thread):
    """`work` again and again, then `finish`, all in its own thread: clients of Kafka belong to one."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.is_over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self.work()
            self.finish()
        except BaseException as error:
            self.error = error

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Nothing, but for who has to clean up."""

    def end(self) -> None:
        self.is_over.set()
        self.join(END_SECONDS_MAX)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error is not None:
            raise AssertionError(f"{self.name}: {self.error!r}") from self.error


class Load:
    """Some of them, and what they know together."""

    def __init__(self, name: str) -> None:
        self.name = name
        # What a client was told that was no success: what it did about it is its own matter.
        self.refusals: list[tuple[float, str]] = []

    def refused(self, what: str) -> None:
        self.refusals.append((time.monotonic(), f"{self.name}: {what}"))

    def start(self) -> None:
        raise NotImplementedError

    def finish(self) -> list[Violation]:
        """Ends it, waits until nothing is left to be done, and compares."""
        raise NotImplementedError

    def told(self) -> str:
        """How much of it there was, in a line."""
        raise NotImplementedError
