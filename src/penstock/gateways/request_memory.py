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
        # How much, and whom to tell.
        self._waiting: deque[tuple[int, Callable[[int], None]]] = deque()

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def take(self, size_bytes: int, on_granted: Callable[[int], None]) -> bool:
        """False: not now; `on_granted` is told when so much has been set aside. Who waits must hold nothing."""
        if self._waiting or not self._has_room(size_bytes):
            self._waiting.append((size_bytes, on_granted))
            return False
        self.bytes_held += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.bytes_held -= size_bytes
        assert self.bytes_held >= 0, "more was given back than taken"
        # Whoever is told may give something back in turn, and come in here again: so look anew each time.
        while self._waiting and self._has_room(self._waiting[0][0]):
            granted_bytes, on_granted = self._waiting.popleft()
            self.bytes_held += granted_bytes
            on_granted(granted_bytes)

    def _has_room(self, size_bytes: int) -> bool:
        return self.bytes_held == 0 or self.bytes_held + size_bytes <= self._bytes_max
