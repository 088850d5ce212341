"""Metadata replies that were encoded before: after a failover every client asks for the same.

Encoding two thousand partitions takes 4 ms of the loop; a thousand clients would hold a node for seconds. A reply is
kept until anything that is told in such replies has changed, and then all are forgotten.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

# Clients of one kind ask alike; what they may see, and which topics they use, makes the difference.
ENTRIES_MAX: Final = 32
BYTES_MAX: Final = 16 * 1024 * 1024


class ReplyCache:
    def __init__(self) -> None:
        self._stamp: Hashable = None
        # Oldest first.
        self._bodies: dict[Hashable, bytes] = {}
        self._size_bytes = 0

    def get(self, stamp: Hashable, key: Hashable) -> bytes | None:
        return self._bodies.get(key) if stamp == self._stamp else None

    def put(self, stamp: Hashable, key: Hashable, body: bytes) -> None:
        """`stamp` is of the moment before it was made, and still holds."""
        if stamp != self._stamp:
            self._stamp, self._size_bytes = stamp, 0
            self._bodies.clear()
        self._size_bytes += len(body) - len(self._bodies.pop(key, b""))
        self._bodies[key] = body
        while len(self._bodies) > ENTRIES_MAX or self._size_bytes > BYTES_MAX:
            oldest = next(iter(self._bodies))
            self._size_bytes -= len(self._bodies.pop(oldest))
