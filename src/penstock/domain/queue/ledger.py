"""Which part of a journal is needed: bookkeeping for a companion log that many queues share.

A queue is rebuilt from its last `Stored` (or `Opened`) on, so the journal must be read from the earliest of those.
A busy queue writes its next one after so many records that reading them takes no time; an idle one when it lies so
far back that it alone would make the others' old records be read. So a restart reads a bounded part of the journal,
however long it is, and the rest can go when nobody wants to trace it any more.
"""

from __future__ import annotations

from typing import Final

from penstock.domain.queue.records import Closed, Opened, QueueRecord, Stored

# A record is applied in some ten microseconds, and a node has a thousand queues, each with a tail of its own: together
# they take half a second of a start. A snapshot of a few messages is as large as a record or two.
RECORDS_MIN: Final = 64
# A snapshot is as large as what is in flight; it must not be written for every few changes of it.
SPANS_PER_RECORD: Final = 4
# All queues of a partition together: a fraction of a second.
BEHIND_MAX: Final = 20_000


class JournalLedger:
    """Positions are offsets of the journal, as far as the caller has been told them."""

    __slots__ = ("_begins", "_end", "_since")

    def __init__(self) -> None:
        # By queue, where reading must begin; the earliest first, because whoever writes one goes to the end.
        self._begins: dict[str, int] = {}
        self._since: dict[str, int] = {}
        self._end = 0

    def note(self, queue: str, position: int, record: QueueRecord) -> None:
        """Live when a record has got its position, and for every record that is read at a start."""
        if position >= self._end:
            self._end = position + 1
        kind = type(record)
        if kind is Closed:
            self._begins.pop(queue, None)
            self._since.pop(queue, None)
        elif kind is Stored or kind is Opened:
            self._begins.pop(queue, None)
            self._begins[queue] = position
            self._since[queue] = 0
        elif queue in self._since:
            self._since[queue] += 1

    def is_known(self, queue: str) -> bool:
        """At a start: whether records of the queue count already. Those before its first whole one do not."""
        return queue in self._begins

    def replay_start(self) -> int:
        """Nothing before it is needed to rebuild any queue."""
        return next(iter(self._begins.values()), self._end)

    def is_due(self, queue: str, span_count: int) -> bool:
        """Of a queue that has just written: whether it should be stored anew."""
        return self._since.get(queue, 0) >= max(RECORDS_MIN, span_count // SPANS_PER_RECORD)

    def idle_due(self, *, count_max: int) -> list[str]:
        """Of those that have not: the ones that hold up all others."""
        due: list[str] = []
        for queue, position in self._begins.items():
            if len(due) >= count_max or self._end - position <= BEHIND_MAX:
                break
            due.append(queue)
        return due
