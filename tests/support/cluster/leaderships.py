"""Leadership of a partition that goes away from a node and comes back, by the words of a controller in the store.

One node cannot hand its log to another in a test without replicas; but it can lose the lead and get it again in a later
epoch, and whatever lived with the first leadership must not outlive it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.values import encode
from penstock.domain.replication.state import PartitionState

HERE, ELSEWHERE = 1, 2
_LIFE_ELSEWHERE = 7
PATIENCE_S: Final = 10.0


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Looks again with every turn of the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():  # noqa: ASYNC110  nobody tells the test
            await asyncio.sleep(0)


class Leaderships:
    def __init__(self, catalog: TopicCatalog, topic: str, index: int = 0) -> None:
        self._catalog = catalog
        self._topic = topic
        self._index = index

    async def go(self, *, epoch: int | None = None) -> None:
        """Another node leads when this returns, and only it holds everything: nobody here may be elected."""
        await self._put(ELSEWHERE, _LIFE_ELSEWHERE, (ELSEWHERE, HERE), (ELSEWHERE,), epoch)

    async def come(self, *, epoch: int | None = None) -> None:
        """This node leads, alone."""
        await self._put(HERE, 0, (HERE,), (HERE,), epoch)

    async def _put(
        self, leader: int, life: int, replicas: tuple[int, ...], in_sync: tuple[int, ...], epoch: int | None
    ) -> None:
        topic = self._catalog.by_name(self._topic)
        assert topic is not None
        before = self._catalog.state(topic.topic_id, self._index)
        assert before is not None
        state = PartitionState(
            leader=leader,
            life=life,
            epoch=before.state.epoch + 1 if epoch is None else epoch,
            replicas=replicas,
            in_sync=in_sync,
        )
        key = KeySpace().partition(topic.topic_id, self._index)
        result = await self._catalog._store.txn(puts={key: encode(state)})
        await self._catalog.wait_for(result.revision)


class Gate:
    """A barrier that the test opens. Closed, it holds whoever takes over."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    def is_reached(self, _partition: PartitionShell, _leadership: Leadership, /) -> bool:
        return self._opened.is_set()

    async def reached(self, partition: PartitionShell, leadership: Leadership, /) -> bool:
        await self._opened.wait()
        return partition.refuse_leadership(leadership) is None
