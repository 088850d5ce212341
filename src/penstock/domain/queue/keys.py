"""Order by key: of each key at most one message is out, and the next one only when it is finished.

    key ──► head (leased, or waiting for its next delivery) ◄── blocked ◄── blocked …

Keys are hashes that the caller made of them. Two keys with one hash wait for each other, which is harmless.
"""

from __future__ import annotations

from collections import deque

from penstock.domain.queue.values import NO_KEY


class KeyOrder:
    __slots__ = ("_blocked", "_heads", "_keys")

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}
        self._heads: dict[int, int] = {}
        self._blocked: dict[int, deque[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def is_free(self, key: int) -> bool:
        return key == NO_KEY or key not in self._heads

    def enter(self, offset: int, key: int) -> bool:
        """In the order of the offsets. Whether it is free to go: whoever comes second is blocked."""
        if key == NO_KEY:
            return True
        self._keys[offset] = key
        if key not in self._heads:
            self._heads[key] = offset
            return True
        self._blocked.setdefault(key, deque()).append(offset)
        return False

    def leave(self, offset: int) -> int | None:
        """It is finished or dying; returns the message whose turn it is now."""
        key = self._keys.pop(offset, None)
        if key is None:
            return None
        blocked = self._blocked.get(key)
        if self._heads[key] != offset:
            # The log lost it while it was blocked.
            assert blocked is not None
            blocked.remove(offset)
            if not blocked:
                del self._blocked[key]
            return None
        if blocked is None:
            del self._heads[key]
            return None
        successor = self._heads[key] = blocked.popleft()
        if not blocked:
            del self._blocked[key]
        return successor

    def head_of(self, offset: int) -> int | None:
        """The message that it waits for; None: it waits for none."""
        key = self._keys.get(offset)
        head = None if key is None else self._heads[key]
        return None if head == offset else head

    def items(self) -> tuple[tuple[int, int], ...]:
        """Offset and key, in order: entered again in this order, they make the same queues."""
        return tuple(sorted(self._keys.items()))
