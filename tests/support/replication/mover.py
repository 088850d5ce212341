"""The walk with the release mover: delayed messages of the schedule become messages of the data log, each exactly once.

    schedule: row ──► intent ──────────────────────────► done
                        └ committed ──► data: message ┘ committed

Rules of the mover (its own simulation has them in full; here is what replication must keep): it begins when the barrier
is reached, writes the message when its intent is committed, and "done" when the message is.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.domain.replication.progress import GroupLog
from support.replication.invariants import DELAY_KEPT, DELAY_ONCE, BrokenError
from support.replication.node import Lead, Node
from support.replication.world import World

ROW = "row"
INTENT = "intent"
DONE = "done"
MESSAGE = "message"
# Intent, message, done: each is written, fetched and known to be held before the next.
ROUNDS_A_ROW = 20


class Mover:
    """What the leader of an epoch knows from the committed part of the schedule, and what it has written since."""

    __slots__ = ("done", "pending", "rows")

    def __init__(self, node: Node, schedule_end: int) -> None:
        self.rows: list[int] = []
        self.done: set[int] = set()
        # The row that is moved, its intent, and where the intent lies.
        self.pending: tuple[int, int, int] | None = None
        for offset, (_, kind, row, intent) in enumerate(node.logs[GroupLog.SCHEDULE].entries[:schedule_end]):
            if kind == ROW:
                self.rows.append(row)
            elif kind == INTENT:
                self.pending = (row, intent, offset)
            else:
                self.done.add(row)
                self.pending = None

    def next_row(self) -> int | None:
        return next((row for row in self.rows if row not in self.done), None)


class MoverWorld(World):
    def __init__(self, seed: int) -> None:
        self.intent = 0
        super().__init__(seed)

    def acts(self) -> list[tuple[Callable[[], None], float]]:
        return [(act, weight) for act, weight in super().acts() if act != self.write] + [
            (self.schedule, 8),
            (self.move, 24),
        ]

    def mover(self, node: Node) -> Mover | None:
        role = node.role
        if not isinstance(role, Lead):
            return None
        if role.mover is None and role.progress.has_barrier:
            role.mover = Mover(node, node.logs[GroupLog.SCHEDULE].watermark)
        return role.mover

    def schedule(self) -> None:
        node = self.pick()
        mover = self.mover(node)
        if mover is not None and self.random.random() < 0.5:
            self.value += 1
            node.append(GroupLog.SCHEDULE, ROW, self.value)
            mover.rows.append(self.value)

    def move(self) -> None:
        self.do_more(self.pick())

    def do_more(self, node: Node) -> None:
        mover = self.mover(node)
        if mover is None:
            return
        if mover.pending is None:
            self._begin(node, mover)
            return
        row, intent, offset = mover.pending
        if node.logs[GroupLog.SCHEDULE].watermark <= offset:
            return
        data = node.logs[GroupLog.DATA]
        place = next((place for place, entry in enumerate(data.entries) if entry[3] == intent), None)
        if place is None:
            node.append(GroupLog.DATA, MESSAGE, row, intent)
        elif data.watermark > place:
            node.append(GroupLog.SCHEDULE, DONE, row)
            mover.done.add(row)
            mover.pending = None

    def quiet_rounds(self) -> int:
        return super().quiet_rounds() + ROUNDS_A_ROW * self.value

    def is_calm(self, present: list[Node]) -> bool:
        """Every row that a leader may see has been moved."""
        if not super().is_calm(present):
            return False
        movers = [mover for node in present if (mover := self.mover(node)) is not None]
        return all(mover.pending is None and mover.next_row() is None for mover in movers)

    def _begin(self, node: Node, mover: Mover) -> None:
        row = mover.next_row()
        if row is not None:
            self.intent += 1
            mover.pending = (row, self.intent, node.append(GroupLog.SCHEDULE, INTENT, row, self.intent))

    def on_committed(self, node: Node, log: int, since: int, end: int) -> None:
        known = len(self.book.entries[log])
        super().on_committed(node, log, since, end)
        released = self.book.entries[GroupLog.DATA]
        for _, kind, row, _ in self.book.entries[log][known:]:
            count = sum(entry[2] == row for entry in released)
            if kind == MESSAGE and count > 1:
                raise BrokenError(DELAY_ONCE, f"row {row} is released {count} times")
            if kind == DONE and count == 0:
                raise BrokenError(DELAY_KEPT, f"row {row} is done, and its message is not committed")
