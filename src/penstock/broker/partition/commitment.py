"""Whether what was appended will stay: what an acknowledgement waits for.

    open ──► kept    the disk has it; with several replicas, all that are in sync do
         └─► lost    it may be gone, or nobody knows; `loss` says why

One commitment may stand for all that its partition has taken until the same turn of the disk, so the requests of many
clients share it. It speaks for its own partition alone, and two of them end in any order: who has written to several
partitions waits for every one of theirs (`when_all_known`).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from functools import partial


class Loss(enum.Enum):
    """Why what was taken is not kept, as its sender is told."""

    DISK = "the disk did not take the batch"
    LEADERSHIP = "this node no longer leads the partition"
    # It is written, and may well be kept later.
    TIMEOUT = "the replicas that are in sync did not take the batch in time"
    REPLICAS = "fewer replicas are in sync than min.insync.replicas asks for"


class Commitment:
    __slots__ = ("_callbacks", "is_known", "loss")

    def __init__(self) -> None:
        self.is_known = False
        self.loss: Loss | None = None
        self._callbacks: list[OnKnown] = []

    def when_known(self, callback: OnKnown) -> None:
        """Called on the loop when it is kept or lost, in the order of asking; at once if that is known."""
        if self.is_known:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def kept(self) -> bool:
        """False: lost."""
        if not self.is_known:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._callbacks.append(partial(_release, future))
            await future
        return self.loss is None

    def settle(self, loss: Loss | None = None) -> None:
        """By its partition: kept, or lost. The first word counts: whoever waited has been told."""
        if self.is_known:
            return
        self.is_known = True
        self.loss = loss
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


OnKnown = Callable[[Commitment], None]


def when_all_known(commitments: list[Commitment], callback: Callable[[], None]) -> None:
    """Calls when every one of them is kept or lost. The list is used up.

    From the last on: it was made after the others and mostly ends with them or after them, so that a request with
    thousands of partitions is called about once, not once for each.
    """
    while commitments:
        if not commitments[-1].is_known:
            commitments[-1].when_known(partial(_look_on, commitments, callback))
            return
        commitments.pop()
    callback()


def _look_on(commitments: list[Commitment], callback: Callable[[], None], _known: Commitment) -> None:
    when_all_known(commitments, callback)


def _release(future: asyncio.Future[None], _known: Commitment) -> None:
    # Whoever waited may have been cancelled meanwhile.
    if not future.done():
        future.set_result(None)
