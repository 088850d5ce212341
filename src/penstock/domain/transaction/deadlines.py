"""When each transactional id wants to be looked at next.

One alarm per id stands in the queue, and it may be early: a deadline that moves back, as it does with every
transaction, leaves the alarm where it is, and the alarm finds the new deadline when it rings. So a thousand
transactions a second of one producer cost one entry, not a thousand until their time comes.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

# Entries that are no longer anybody's alarm are dropped when they are more than the others and this many.
_STALE_MAX: Final = 1000


class TransactionDeadlines:
    __slots__ = ("_alarms", "_deadlines", "_queue")

    def __init__(self) -> None:
        self._deadlines: dict[str, int] = {}
        self._alarms: dict[str, int] = {}
        self._queue: list[tuple[int, str]] = []

    def set(self, transactional_id: str, deadline_ms: int | None) -> None:
        """None: nothing is to come for now."""
        if deadline_ms is None:
            self._deadlines.pop(transactional_id, None)
            return
        self._deadlines[transactional_id] = deadline_ms
        alarm = self._alarms.get(transactional_id)
        if alarm is None or deadline_ms < alarm:
            self._ring_at(transactional_id, deadline_ms)

    def forget(self, transactional_id: str) -> None:
        self._deadlines.pop(transactional_id, None)
        self._alarms.pop(transactional_id, None)

    def next_ms(self) -> int | None:
        """Not later than the first deadline."""
        self._drop_stale()
        return self._queue[0][0] if self._queue else None

    def due(self, now_ms: int, *, count_max: int) -> list[str]:
        """Whose deadline has come, the earliest first. They stay due until their deadline is set anew."""
        due: list[str] = []
        while len(due) < count_max:
            self._drop_stale()
            if not self._queue or self._queue[0][0] > now_ms:
                break
            _alarm, transactional_id = heappop(self._queue)
            del self._alarms[transactional_id]
            deadline = self._deadlines.get(transactional_id)
            if deadline is not None and deadline <= now_ms:
                due.append(transactional_id)
            elif deadline is not None:
                self._ring_at(transactional_id, deadline)
        for transactional_id in due:
            self._ring_at(transactional_id, self._deadlines[transactional_id])
        return due

    def _ring_at(self, transactional_id: str, alarm_ms: int) -> None:
        self._alarms[transactional_id] = alarm_ms
        heappush(self._queue, (alarm_ms, transactional_id))
        if len(self._queue) > 2 * len(self._alarms) + _STALE_MAX:
            self._queue = [(alarm, name) for name, alarm in self._alarms.items()]
            heapify(self._queue)

    def _drop_stale(self) -> None:
        queue = self._queue
        while queue and self._alarms.get(queue[0][1]) != queue[0][0]:
            heappop(queue)
