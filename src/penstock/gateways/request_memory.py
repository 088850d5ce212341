"""A bound on the bytes of requests that a door holds at once, over all its connections.

Every connection has a small receive buffer of its own; a request that does not fit into it needs memory from here. When
there is none left the connection is not read from until others have given theirs back, oldest wish first. One request
always gets through, however large, so that a bound below the frame cap cannot stop a door for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RequestMemory:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_held = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiting)

    def take(self, size_bytes: int, on_room: Callable[[], None]) -> bool:
        """False: not now; `on_room` is called when it is worth asking again."""
        if self.bytes_held > 0 and self.bytes_held + size_bytes > self._bytes_max:
            self._waiting.append(on_room)
            return False
        self.bytes_held += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.bytes_held -= size_bytes
        assert self.bytes_held >= 0, "more was given back than taken"
        # Whoever is called asks again, and waits again at the end of the queue if there is still too little.
        for _ in range(len(self._waiting)):
            if self.bytes_held >= self._bytes_max:
                return
            self._waiting.popleft()()
