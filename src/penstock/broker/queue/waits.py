"""Who waits on this node for messages of a queue that other nodes look after: one question to each of them for all who
wait, however many they are.

    a waiter comes ─► is the node asked already? ─ yes ─► it waits with the others
                          │ no
                          ▼
                  the node says that there may be something ─► the first in the line takes it, alone
                                                                  └─ all that it wanted: the next one, too
                                                                  └─ less: the node is asked again

A node that was asked and has not answered has nothing: nobody need ask it for messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.waiting import Waiter

# Of one question. SQS lets a client wait for so long.
WAIT_MS_MAX: Final = 20_000
# Of questions to one node that are parked there. For more queues it is looked now and then.
PARKED_MAX: Final = 100
LOOK_MS: Final = 500
# Where a node says that there may be something and there is not, for those who wait: it is asked later and later.
PAUSE_MS_MIN: Final = 10
PAUSE_MS_MAX: Final = 1_000

# Whether there may be something, after `WAIT_MS_MAX` at the latest; also if the node did not answer.
AskNode = Callable[[int], Awaitable[bool]]


class QueueWait:
    """Of one queue on this node."""

    def __init__(self, tasks: TaskSupervisor, parked: dict[int, int], ask: AskNode) -> None:
        self._tasks = tasks
        self._ask_node = ask
        # By node, of all queues.
        self._parked = parked
        # Who has waited longest first.
        self._line: dict[Waiter, None] = {}
        self._asked: dict[int, asyncio.Task[None]] = {}
        # Nodes from which somebody takes at this moment.
        self._claimed: set[int] = set()
        self._pauses_ms: dict[int, int] = {}

    @property
    def is_idle(self) -> bool:
        return not self._line and not self._asked and not self._claimed

    def enter(self, waiter: Waiter) -> None:
        self._line[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """What it was woken for is for the next one."""
        if self._line.pop(waiter, waiter) is None:
            self._wake_next()

    def is_open(self, node_id: int) -> bool:
        """Whether it may have something that nobody takes yet."""
        return node_id not in self._asked and node_id not in self._claimed

    def claim(self, node_id: int) -> bool:
        if not self.is_open(node_id):
            return False
        self._claimed.add(node_id)
        return True

    def release(self, node_id: int, *, taken_count: int, is_drained: bool) -> None:
        self._claimed.discard(node_id)
        if taken_count:
            self._pauses_ms.pop(node_id, None)
        if is_drained and self._line:
            self.ask(node_id)
        else:
            self._wake_next()

    def ask(self, node_id: int) -> None:
        if self.is_open(node_id):
            self._asked[node_id] = self._tasks.start("queue wait", self._ask(node_id))

    async def _ask(self, node_id: int) -> None:
        try:
            await asyncio.sleep(self._pauses_ms.get(node_id, 0) / 1000)
            while self._line and not await self._is_woken(node_id):
                pass
            before_ms = self._pauses_ms.get(node_id, 0)
            self._pauses_ms[node_id] = min(max(2 * before_ms, PAUSE_MS_MIN), PAUSE_MS_MAX)
        finally:
            del self._asked[node_id]
            self._wake_next()

    async def _is_woken(self, node_id: int) -> bool:
        parked = self._parked.get(node_id, 0)
        if parked >= PARKED_MAX:
            await asyncio.sleep(LOOK_MS / 1000)
            return True
        self._parked[node_id] = parked + 1
        try:
            return await self._ask_node(node_id)
        finally:
            self._parked[node_id] -= 1

    def _wake_next(self) -> None:
        for waiter in self._line:
            waiter.wake()
            return
