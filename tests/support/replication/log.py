"""A log in a world of replicas: entries instead of batches, and the real list of leader epochs beside them."""

from __future__ import annotations

from random import Random

from penstock.storage.log.epochs import LeaderEpochs

# (epoch, what it is, whom it is about, the intent it belongs to)
Entry = tuple[int, str, int, int]


class SimLog:
    __slots__ = ("durable_end", "entries", "epochs", "watermark")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.epochs = LeaderEpochs()
        self.durable_end = 0
        self.watermark = 0

    @property
    def end(self) -> int:
        return len(self.entries)

    def append(self, entry: Entry) -> None:
        if entry[0] > self.epochs.latest:
            self.epochs.assign(entry[0], len(self.entries))
        self.entries.append(entry)

    def cut(self, offset: int) -> None:
        del self.entries[offset:]
        self.epochs.truncate_end(offset)
        self.durable_end = min(self.durable_end, offset)
        self.watermark = min(self.watermark, offset)

    def crash(self, random: Random) -> None:
        """What was not synced may be there or not; the watermark is that of some checkpoint."""
        kept = random.randint(self.durable_end, self.end)
        self.cut(kept)
        self.durable_end = kept
        if random.random() < 0.5:
            self.watermark = 0

    def copy(self) -> SimLog:
        """Of what is on the disk."""
        log = SimLog()
        for entry in self.entries[: self.durable_end]:
            log.append(entry)
        log.durable_end = log.end
        return log
