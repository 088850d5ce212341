"""The deduplication window of a FIFO queue: within five minutes, a second message with the same id is the first one.

Memory, rebuilt after a start from the headers of the last five minutes of the log. It is bounded by refusing, never by
forgetting: whoever sends more ids than it holds is told to slow down, and nobody is told that a message is new that
is not.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

# Of a record: the id that it was sent with.
DEDUPLICATION_HEADER: Final = "penstock-sqs-deduplication-id"
# SQS: five minutes from the first message on, not from the last repetition.
WINDOW_MS: Final = 300_000
# SQS's high throughput is 3,000 messages a second with batches; 300 s of it. About 200 MB when full.
IDS_MAX: Final = 1_000_000


class Sent(msgspec.Struct, frozen=True, gc=False):
    # Of the log, or of the schedule for a message that is delayed.
    offset: int
    at_ms: int
    is_delayed: bool = False


class DeduplicationWindow:
    __slots__ = ("_ids_max", "_order", "_sent", "_window_ms")

    def __init__(self, *, window_ms: int = WINDOW_MS, ids_max: int = IDS_MAX) -> None:
        self._window_ms = window_ms
        self._ids_max = ids_max
        self._sent: dict[tuple[str, str], Sent] = {}
        self._order: deque[tuple[str, str]] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    def find(self, token: str, now_ms: int, *, scope: str = "") -> Sent | None:
        """The message that this one repeats. Its sender is answered when that one is durable, and as that one was.

        `scope` is the message group, where the queue's DeduplicationScope says so.
        """
        sent = self._sent.get((scope, token))
        return sent if sent is not None and sent.at_ms + self._window_ms > now_ms else None

    def is_full(self, now_ms: int) -> bool:
        """Then a message with a new id must be refused for now."""
        self._expire(now_ms)
        return len(self._sent) >= self._ids_max

    def note(self, token: str, sent: Sent, *, scope: str = "") -> None:
        """In the order of the log; between `find` and this there is no other send."""
        self._expire(sent.at_ms)
        key = (scope, token)
        before = self._sent.get(key)
        if before is None:
            self._order.append(key)
        elif sent.at_ms < before.at_ms + self._window_ms:
            # At a rebuild: a repetition that somebody wrote into the log by another door.
            return
        self._sent[key] = sent

    def _expire(self, now_ms: int) -> None:
        order = self._order
        while order and self._sent[order[0]].at_ms + self._window_ms <= now_ms:
            del self._sent[order.popleft()]
