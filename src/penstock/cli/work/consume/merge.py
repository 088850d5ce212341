"""Several partitions as one stream, in the order of their timestamps as far as each partition's own order allows.

Records of one partition never overtake each other. Of the records that stand first in their partitions the oldest goes
out, so that where every partition is sorted, the whole is. That can be known only while each partition has shown its
next record or its end: until then nothing leaves, and who feeds should hold those that have something (`fed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from penstock.codec.batch.records import StoredRecord


class TimeMerge:
    def __init__(self, partitions: Iterable[int]) -> None:
        # Nothing of these has come yet, and their end neither.
        self._starving = set(partitions)
        self._unfinished = set(self._starving)
        self._rows: dict[int, deque[Iterator[StoredRecord]]] = {partition: deque() for partition in self._starving}
        self._heads: dict[int, StoredRecord] = {}
        # (timestamp, partition) of each head.
        self._order: list[tuple[int, int]] = []

    @property
    def fed(self) -> frozenset[int]:
        return frozenset(self._heads)

    def feed(self, partition: int, rows: Iterator[StoredRecord]) -> None:
        """`rows` are read when they are needed, so that what waits is bytes and not objects."""
        self._rows[partition].append(rows)
        if partition not in self._heads:
            self._advance(partition)

    def finish(self, partition: int) -> None:
        """Nothing more comes of it."""
        self._unfinished.discard(partition)
        self._starving.discard(partition)

    def ready(self) -> Iterator[tuple[int, StoredRecord]]:
        while self._order and not self._starving:
            _, partition = heappop(self._order)
            yield partition, self._heads.pop(partition)
            self._advance(partition)

    def _advance(self, partition: int) -> None:
        rows = self._rows[partition]
        while rows:
            head = next(rows[0], None)
            if head is not None:
                self._heads[partition] = head
                self._starving.discard(partition)
                heappush(self._order, (head.timestamp_ms, partition))
                return
            rows.popleft()
        if partition in self._unfinished:
            self._starving.add(partition)
