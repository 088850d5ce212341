"""What must hold in every world of replicas, by name; and the book of what was committed, which no node can see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from support.replication.log import Entry, SimLog

# Who is in sync or eligible holds, on disk, everything that was ever committed.
SET_TRUTH: Final = "set-truth"
# No two leaders commit different things at one offset.
ONE_HISTORY: Final = "one-history"
WATERMARK: Final = "watermark-monotonic"
# Without an unclean election nobody is told to cut what it had for committed.
NO_CUT: Final = "no-cut-below-watermark"
# So many disks have had it when it was committed.
MINIMUM: Final = "committed-on-the-minimum"
ONE_LEADER: Final = "one-leader-per-epoch"
NOBODY_LEAVING_JOINS: Final = "nobody-joins-who-drains"
# A follower that said it is damaged is in no set.
DAMAGED_OUT: Final = "damaged-is-out"
# When faults end: one leader, everybody in sync, all logs equal and committed to their end.
QUIET: Final = "after-quiet"
DELAY_ONCE: Final = "delay-exactly-once"
DELAY_KEPT: Final = "delay-kept"


class BrokenError(AssertionError):
    def __init__(self, invariant: str, words: str) -> None:
        super().__init__(f"{invariant}: {words}")
        self.invariant = invariant


class CommittedBook:
    """What each log has committed, in the order of offsets, for ever."""

    def __init__(self, log_count: int) -> None:
        self.entries: list[list[Entry]] = [[] for _ in range(log_count)]
        self.count = 0

    def note(self, log: int, source: SimLog, *, since: int, end: int, epoch: int) -> list[Entry]:
        """The leader of `epoch` has moved its watermark from `since` to `end`. What nobody had committed before."""
        committed, entries = self.entries[log], source.entries
        known = min(end, len(committed))
        if entries[since:known] != committed[since:known]:
            raise BrokenError(ONE_HISTORY, f"log {log} has another history below {known}, committed in epoch {epoch}")
        new = entries[len(committed) : end]
        committed += new
        self.count += len(new)
        return new

    def is_held_by(self, logs: Iterable[SimLog]) -> bool:
        return all(
            log.durable_end >= len(committed) and log.entries[: len(committed)] == committed
            for log, committed in zip(logs, self.entries, strict=True)
        )

    def lengths(self) -> list[int]:
        return [len(entries) for entries in self.entries]
