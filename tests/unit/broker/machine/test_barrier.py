"""The barrier of what a node leads: who waits for it, and what ends the wait."""

from __future__ import annotations

import asyncio

from penstock.broker.machine.barrier import LedBarrier
from penstock.broker.partition.role import Following, Leading
from penstock.broker.partition.shell import PartitionShell
from support.door.conversation import running_node


async def test_machines_of_the_only_replica_wait_for_nobody() -> None:
    async with running_node() as node:
        await node.create_topic("orders")
        shell = node.shell("orders")
        barrier = LedBarrier()
        assert barrier.is_reached(shell, shell.leadership)
        assert await barrier.reached(shell, shell.leadership)


async def test_machines_of_a_shared_partition_wait_until_somebody_has_counted() -> None:
    async with running_node() as node:
        await node.create_topic("orders")
        shell = node.shell("orders")
        shell.take_role(Leading(3, is_replicated=True))
        barrier, counted = LedBarrier(), set[int]()
        waiting = asyncio.ensure_future(barrier.reached(shell, shell.leadership))
        await asyncio.sleep(0)

        def counts(_partition: PartitionShell, epoch: int) -> bool:
            return epoch in counted

        barrier.count_by(counts)
        barrier.wake(shell)
        await asyncio.sleep(0)
        assert not waiting.done(), "nothing is committed yet"
        counted.add(3)
        barrier.wake(shell)
        assert await asyncio.wait_for(waiting, 5)


async def test_wait_ends_with_the_lead() -> None:
    async with running_node() as node:
        await node.create_topic("orders")
        shell = node.shell("orders")
        shell.take_role(Leading(3, is_replicated=True))
        barrier = LedBarrier()
        barrier.count_by(lambda _partition, _epoch: False)
        waiting = asyncio.ensure_future(barrier.reached(shell, shell.leadership))
        await asyncio.sleep(0)
        shell.take_role(Following(4, 2))
        barrier.wake(shell)
        assert not await asyncio.wait_for(waiting, 5)
