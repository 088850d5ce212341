"""Which leader wrote which part of the log: (epoch, first offset) pairs, both growing.

A follower asks with its last epoch where that epoch ended on the leader, and cuts its log there.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import Final

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1

_ENTRY = struct.Struct("<iq")


class LeaderEpochs:
    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        # Kept apart from the list because every append compares with it.
        self.latest = NO_EPOCH

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochs) and self.entries() == other.entries()

    __hash__ = None  # type: ignore[assignment]

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """From `start_offset` on the log is written by the leader of `epoch`."""
        if epoch <= self.latest:
            return
        # An epoch that wrote nothing has no place: its follower would be told to cut where nothing was written.
        while self._starts and self._starts[-1] >= start_offset:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch

    def epoch_at(self, offset: int) -> int:
        place = bisect_right(self._starts, offset)
        return self._epochs[place - 1] if place else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch not over the one asked for, and where it ended; (-1, -1) when nothing can be said."""
        if epoch < 0 or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end
        place = bisect_right(self._epochs, epoch)
        # Older than everything we hold: it ended, at the latest, where our first epoch begins.
        # With nothing written since, that is the end.
        ended_at = self._starts[place] if place < len(self._starts) else log_end
        return (self._epochs[place - 1] if place else epoch), ended_at

    def truncate_end(self, offset: int) -> None:
        """The log now ends at `offset`."""
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH

    def truncate_start(self, offset: int) -> None:
        """The log now begins at `offset`: the epoch that wrote it is kept, and begins there."""
        place = bisect_right(self._starts, offset)
        if place > 1:
            del self._starts[: place - 1]
            del self._epochs[: place - 1]
        if place:
            self._starts[0] = offset

    def to_bytes(self) -> bytes:
        return b"".join(_ENTRY.pack(epoch, start) for epoch, start in self.entries())

    @classmethod
    def from_bytes(cls, data: bytes) -> LeaderEpochs:
        epochs = cls()
        for epoch, start in _ENTRY.iter_unpack(data):
            epochs._epochs.append(epoch)
            epochs._starts.append(start)
        epochs.latest = epochs._epochs[-1] if epochs._epochs else NO_EPOCH
        return epochs
