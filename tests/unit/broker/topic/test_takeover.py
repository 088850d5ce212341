"""What lives with a leadership goes with it, at once; what comes with the next one waits for the barrier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.broker.group.shell import GroupShell
from penstock.broker.partition.role import Leading
from penstock.broker.transaction.shell import TransactionShell
from penstock.domain.group.commands import (
    CommitOffsets,
    FetchOffsets,
    GroupReply,
    Join,
    OffsetsFetched,
    OffsetToCommit,
    PartitionName,
)
from penstock.domain.group.commands import Refused as GroupRefused
from penstock.domain.group.values import GroupError
from penstock.domain.share.machine import ShareRefused
from penstock.domain.topic_rules import CONSUMER_OFFSETS, TRANSACTION_STATE
from penstock.domain.transaction.commands import InitProducer, ProducerReady, Refused, TransactionProblem
from penstock.domain.transaction.state import TransactionMetadata
from support.cluster.leaderships import PATIENCE_S, Gate, Leaderships, until
from support.door.conversation import TalkingNode, running_node
from support.group.shell_world import ShellWorld
from support.transaction.desk import TransactionDesk

GROUP, ID = "workers", "payments"
WANTED = FetchOffsets((PartitionName("orders", 0),))
NOT_COORDINATOR = GroupRefused(GroupError.NOT_COORDINATOR)
LOADING = GroupRefused(GroupError.COORDINATOR_LOAD_IN_PROGRESS)
TRANSACTIONS_NOT_HERE = Refused(TransactionProblem.NOT_COORDINATOR)
TRANSACTIONS_LOADING = Refused(TransactionProblem.COORDINATOR_LOAD_IN_PROGRESS)


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node() as running:
        await running.create_topic("orders")
        yield running


def of_group(node: TalkingNode) -> Leaderships:
    return Leaderships(node.catalog, CONSUMER_OFFSETS, node.parts.groups.partition_of(GROUP))


def of_transaction(node: TalkingNode) -> Leaderships:
    return Leaderships(node.catalog, TRANSACTION_STATE, node.transactions.partition_of(ID))


async def commit(node: TalkingNode, offset: int) -> GroupReply:
    return await node.parts.groups.submit(GROUP, CommitOffsets((OffsetToCommit("orders", 0, offset),)))


async def committed(node: TalkingNode) -> int:
    await served(lambda: node.parts.groups.submit(GROUP, WANTED))
    reply = await node.parts.groups.submit(GROUP, WANTED)
    assert isinstance(reply, OffsetsFetched), reply
    return reply.partitions[0].offset


async def group_shell(node: TalkingNode) -> GroupShell:
    await served(lambda: node.parts.groups._shell_of(GROUP))
    shell = await node.parts.groups._shell_of(GROUP)
    assert isinstance(shell, GroupShell), shell
    return shell


async def transaction_shell(node: TalkingNode) -> TransactionShell:
    await served(lambda: node.transactions._shell_of(ID))
    shell = await node.transactions._shell_of(ID)
    assert isinstance(shell, TransactionShell), shell
    return shell


async def begin(node: TalkingNode) -> ProducerReady:
    reply = await node.transactions.submit(InitProducer(ID, 60_000))
    assert isinstance(reply, ProducerReady), reply
    return reply


async def served(ask: Callable[[], Awaitable[object]]) -> None:
    """Returns when whoever is asked is not being loaded."""

    async def is_loaded() -> bool:
        return await ask() not in (LOADING, TRANSACTIONS_LOADING)

    await until(is_loaded)


# Groups


async def test_groups_go_with_their_partition_and_come_back_with_what_is_committed(node: TalkingNode) -> None:
    await commit(node, 41)
    await of_group(node).go()
    assert await commit(node, 42) == NOT_COORDINATOR
    assert await node.parts.groups.submit(GROUP, WANTED) == NOT_COORDINATOR
    assert await node.parts.groups.describe(GROUP) == NOT_COORDINATOR
    assert await node.shares.create(GROUP) == ShareRefused(GroupError.NOT_COORDINATOR)
    assert await node.parts.groups.list_groups() == []
    assert node.parts.groups.committed_offset(GROUP, "orders", 0) is None, "retention waits"
    await of_group(node).come()
    assert await committed(node) == 41


async def test_groups_of_other_partitions_are_served_on(node: TalkingNode) -> None:
    await commit(node, 41)
    groups = node.parts.groups
    other = next(name for name in map(str, range(100)) if groups.partition_of(name) != groups.partition_of(GROUP))
    await of_group(node).go()
    assert not isinstance(await groups.submit(other, WANTED), GroupRefused)


async def test_nothing_of_a_group_is_answered_before_the_barrier(node: TalkingNode) -> None:
    await commit(node, 41)
    await of_group(node).go()
    gate = node.broker.barrier = Gate()
    await of_group(node).come()
    assert await node.parts.groups.submit(GROUP, WANTED) == LOADING
    assert await node.parts.groups.list_groups() == LOADING
    gate.open()
    assert await committed(node) == 41


async def test_a_member_that_waits_is_sent_to_the_coordinator(node: TalkingNode) -> None:
    groups = node.parts.groups
    join = Join(groups.next_ticket(), "", "ann", "consumer", (("range", b""),), 10_000, 10_000, requires_known_id=False)
    waiting = asyncio.ensure_future(groups.submit(GROUP, join))

    async def has_joined() -> bool:
        return groups._is_ready and bool((await group_shell(node)).group_ids())

    await until(has_joined)
    assert not waiting.done()
    await of_group(node).go()
    reply = await asyncio.wait_for(waiting, PATIENCE_S)
    assert isinstance(reply, GroupRefused)
    assert reply.error is GroupError.NOT_COORDINATOR


async def test_a_shell_that_has_resigned_answers_nobody(node: TalkingNode) -> None:
    await commit(node, 41)
    old = await group_shell(node)
    await of_group(node).go()
    await of_group(node).come()
    assert await old.submit(GROUP, WANTED) == NOT_COORDINATOR, "though this node leads again"
    assert await old.describe(GROUP) == NOT_COORDINATOR
    assert await old.refuse_reply(is_look=False) == NOT_COORDINATOR
    assert await group_shell(node) is not old
    assert await committed(node) == 41


async def test_what_was_decided_and_is_not_written_when_the_lead_goes_is_not_answered_and_never_written() -> None:
    world = ShellWorld()
    await world.shell.load()
    await world.commit(GROUP, 0, 41)
    end = world.partition.log.log_end
    under_way = asyncio.ensure_future(world.commit(GROUP, 0, 42))
    await asyncio.sleep(0)
    assert world.shell.committed_offset(GROUP, "orders", 0) == 42, "decided"
    world.shell.resign()
    world.partition.take_role(Leading(2))
    assert await under_way == NOT_COORDINATOR
    assert world.partition.log.log_end == end


async def test_what_became_durable_a_moment_before_is_not_told_by_who_has_resigned(node: TalkingNode) -> None:
    await commit(node, 41)
    shell = await group_shell(node)
    durable = shell._journal.until_durable
    told: list[bool] = []

    def resigning(*, may_wait: bool = False) -> asyncio.Future[bool]:
        """The role changes between the word of the disk and the one who waits for it."""
        future = durable(may_wait=may_wait)
        future.add_done_callback(lambda done: (told.append(done.result()), shell.resign()))
        return future

    shell._journal.until_durable = resigning  # type: ignore[method-assign]
    assert await shell.submit(GROUP, CommitOffsets((OffsetToCommit("orders", 0, 42),))) == NOT_COORDINATOR
    assert told == [True]


async def test_groups_begin_anew_when_an_operator_removes_their_topic(node: TalkingNode) -> None:
    await commit(node, 41)
    await node.catalog.delete_topic(CONSUMER_OFFSETS)
    assert await node.parts.groups.list_groups() == []
    await commit(node, 7)
    assert await committed(node) == 7


# Transactions


async def test_transactions_go_with_their_partition_and_come_back(node: TalkingNode) -> None:
    first = await begin(node)
    await of_transaction(node).go()
    assert await node.transactions.submit(InitProducer(ID, 60_000)) == TRANSACTIONS_NOT_HERE
    assert await node.transactions.describe(ID) == TRANSACTIONS_NOT_HERE
    assert await node.transactions.list_transactions() == []
    gate = node.broker.barrier = Gate()
    await of_transaction(node).come()
    assert await node.transactions.describe(ID) == TRANSACTIONS_LOADING
    assert await node.transactions.list_transactions() == TRANSACTIONS_LOADING
    gate.open()
    await transaction_shell(node)
    found = await node.transactions.describe(ID)
    assert isinstance(found, TransactionMetadata)
    assert found.producer_id == first.producer_id


async def test_the_epoch_of_a_coordinator_is_never_below_that_of_its_leadership(node: TalkingNode) -> None:
    await begin(node)
    epochs = [(await transaction_shell(node)).coordinator_epoch]
    for epoch in (40, 41, 50):
        await of_transaction(node).go(epoch=epoch - 1)
        await of_transaction(node).come(epoch=epoch)
        epochs.append((await transaction_shell(node)).coordinator_epoch)
    # Each is written down, so that the next one is above it, whatever its leadership is.
    assert epochs == [1, 40, 41, 50]
    shell = await transaction_shell(node)
    await shell.unload()
    await shell.load()
    assert shell.coordinator_epoch == 51


async def test_a_coordinator_that_has_resigned_answers_nobody(node: TalkingNode) -> None:
    await begin(node)
    old = await transaction_shell(node)
    await of_transaction(node).go()
    await of_transaction(node).come()
    assert await old.submit(InitProducer(ID, 60_000)) == TRANSACTIONS_NOT_HERE
    assert await old.describe(ID) == TRANSACTIONS_NOT_HERE
    assert await old.list_transactions() == TRANSACTIONS_NOT_HERE


async def test_a_transaction_that_is_decided_on_when_the_lead_goes_is_not_answered_and_never_written() -> None:
    desk = TransactionDesk()
    await desk.start()
    await desk.shell.submit(InitProducer(ID, 60_000, spare_producer_id=7))
    end = desk.journal.log.log_end
    under_way = asyncio.ensure_future(desk.shell.submit(InitProducer(ID, 60_000)))
    await asyncio.sleep(0)
    desk.shell.resign()
    desk.journal.take_role(Leading(2))
    assert await under_way == TRANSACTIONS_NOT_HERE
    assert desk.journal.log.log_end == end
    await desk.close()
