"""Memory for large reads on the loop, used again as soon as nobody looks at it any more.

Memory that is new has to be zeroed, and is cold: of a node's work for a consumer of large messages that was a third. A
buffer is free when only this list refers to it: a view of it, wherever it is (in a reply, in a transport that has not
sent it yet), keeps a reference of its own. So nobody gives anything back, and nothing is overwritten that somebody can
still read.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

# Smaller ones come out of the allocator's own caches.
SIZE_BYTES_MIN: Final = 64 * 1024
SIZE_BYTES_MAX: Final = 4 * 1024 * 1024
# Of all buffers that are kept, for each thread that reads.
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
# By the list, and by the call that counts.
_REFERENCES_OF_FREE: Final = 2


class ReadBuffers(threading.local):
    """One object for all files; every thread has buffers of its own."""

    def __init__(self) -> None:
        # By size, which is a power of two.
        self._kept: dict[int, list[bytearray]] = {}
        self._kept_bytes = 0

    def take(self, size: int) -> memoryview:
        """What stands in it is whatever was read last."""
        if not SIZE_BYTES_MIN <= size <= SIZE_BYTES_MAX:
            return memoryview(bytearray(size))
        room = 1 << (size - 1).bit_length()
        buffers = self._kept.setdefault(room, [])
        for place in range(len(buffers)):
            if sys.getrefcount(buffers[place]) == _REFERENCES_OF_FREE:
                return memoryview(buffers[place])[:size]
        buffer = bytearray(room)
        if self._kept_bytes + room <= KEPT_BYTES_MAX:
            buffers.append(buffer)
            self._kept_bytes += room
        return memoryview(buffer)[:size]
