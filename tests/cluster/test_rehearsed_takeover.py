"""A follower that has rehearsed takes over: everything is there, and only what is past the saved start is replayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from penstock.broker.group.shell import GroupShell
from penstock.broker.machine.rehearsals import Subject
from penstock.broker.partition.outcome import Appended
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import DelayedMessage, Scheduled
from penstock.broker.topic.companion import CompanionKind
from penstock.broker.transaction.shell import TransactionShell
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.group.commands import CommitOffsets, OffsetsWritten, OffsetToCommit
from penstock.domain.queue.commands import Act, Found, Receive, Received, Settle, Settlement
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.topic_rules import CONSUMER_OFFSETS, TRANSACTION_STATE
from penstock.domain.transaction.commands import InitProducer, ProducerReady
from penstock.storage.log.derived import known_end
from support.cluster.whole_nodes import NODES, WholeNodes

pytestmark = pytest.mark.heavy

TOPIC, WORKERS = "orders", QueueName("orders", "workers")
ROWS = 150
REHEARSAL_ROWS = 60
FAR_MS = 24 * 3_600_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[WholeNodes]:
    made = WholeNodes(tmp_path, rehearsal_rows=REHEARSAL_ROWS)
    await made.start()
    await made.create(TOPIC)
    for internal in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        await made.create_anew(internal)
    yield made
    await made.stop()


# What node 1 is given to do


async def commit(cluster: WholeNodes) -> str:
    groups, name = cluster.parts(1).groups, "workers"
    for offset in range(ROWS):
        reply = await groups.submit(name, CommitOffsets((OffsetToCommit(TOPIC, 0, offset),)))
        assert isinstance(reply, OffsetsWritten), reply
    return name


async def begin(cluster: WholeNodes) -> str:
    transactions = cluster.parts(1).transactions
    for number in range(ROWS):
        reply = await transactions.submit(InitProducer(f"payments-{number % 10}", 60_000))
        assert isinstance(reply, ProducerReady), reply
    return "payments-0"


async def work(cluster: WholeNodes) -> None:
    """Every message is received and acknowledged, but for the last."""
    shell = cluster.shell(1, TOPIC)
    assert shell is not None
    batch = build_batch([Record(b"message", timestamp_ms=shell.now_ms())] * ROWS)
    outcome = shell.append(memoryview(batch))
    assert isinstance(outcome, Appended)
    await cluster.parts(1).queues.define(WORKERS, QueueOptions(lease_ms=FAR_MS))
    (queues,) = await cluster.parts(1).queues.shells(WORKERS)
    for offset in range(ROWS):
        found = Found(DEFAULT_LANE, offset, ROWS, ((offset, ROWS - 1),))
        reply = queues.decide(WORKERS.group, Receive("ann", 1, (found,)))
        assert isinstance(reply, Received)
        if offset < ROWS - 1:
            queues.decide(WORKERS.group, Settle((Settlement(offset, offset, Act.ACCEPT, reply.number),)))
        assert await queues.is_durable()


async def delay(cluster: WholeNodes) -> None:
    partition = cluster.shell(1, TOPIC)
    assert partition is not None
    shell = await cluster.parts(1).schedules.shell_of(partition)
    assert isinstance(shell, ScheduleShell), shell
    for number in range(ROWS):
        due_ms = partition.now_ms() + FAR_MS
        outcome = await shell.schedule([DelayedMessage(due_ms, None, b"%d" % number)])
        assert isinstance(outcome, Scheduled), outcome


# What the others have then


def saved(cluster: WholeNodes, node_id: int) -> set[Subject]:
    """Of which subjects a start is beside the journal."""
    files = {
        Subject.GROUPS: journal(cluster, node_id, CONSUMER_OFFSETS),
        Subject.TRANSACTIONS: journal(cluster, node_id, TRANSACTION_STATE),
        Subject.QUEUES: journal(cluster, node_id, TOPIC, CompanionKind.QUEUES),
        Subject.SCHEDULE: journal(cluster, node_id, TOPIC, CompanionKind.SCHEDULE),
    }
    return {subject for subject, shell in files.items() if known_end(shell.log.context.files, shell.log.home.directory)}


def journal(cluster: WholeNodes, node_id: int, topic: str, kind: CompanionKind | None = None) -> PartitionShell:
    partition = cluster.shell(node_id, topic)
    assert partition is not None
    shell = partition if kind is None else cluster.parts(node_id).broker.open_companion_of(partition, kind)
    assert shell is not None
    return shell


def has_leader(cluster: WholeNodes, topic: str) -> bool:
    return cluster.leader_of(topic) is not None


async def test_takeover_replays_what_is_past_the_saved_start(cluster: WholeNodes) -> None:
    (group, transactional_id, _, _) = await asyncio.gather(
        commit(cluster), begin(cluster), work(cluster), delay(cluster)
    )
    followers = NODES[1:]
    await cluster.until(lambda: all(saved(cluster, node_id) == set(Subject) for node_id in followers))
    assert not any(cluster.parts(node_id).broker.rehearsals.failed_count for node_id in followers)
    await cluster.stop(1)
    for topic in (TOPIC, CONSUMER_OFFSETS, TRANSACTION_STATE):
        await cluster.until(partial(has_leader, cluster, topic))
    await check_group(cluster, group)
    await check_transaction(cluster, transactional_id)
    await check_queue(cluster)
    await check_schedule(cluster)


async def check_group(cluster: WholeNodes, group: str) -> None:
    leader = cluster.leader_of(CONSUMER_OFFSETS)
    assert leader is not None
    groups = cluster.parts(leader).groups

    async def loaded() -> bool:
        return groups.committed_offset(group, TOPIC, 0) == ROWS - 1

    await cluster.until_asked(loaded)
    shell = await groups._shell_of(group)
    assert isinstance(shell, GroupShell)
    assert shell.replayed_records < ROWS, "one record of the snapshot stands for many of the log"
    assert cluster.parts(leader).broker.takeovers.by_subject[Subject.GROUPS].count


async def check_transaction(cluster: WholeNodes, transactional_id: str) -> None:
    leader = cluster.leader_of(TRANSACTION_STATE)
    assert leader is not None
    transactions = cluster.parts(leader).transactions

    async def loaded() -> bool:
        return isinstance(await transactions._shell_of(transactional_id), TransactionShell)

    await cluster.until_asked(loaded)
    reply = await transactions.submit(InitProducer(transactional_id, 60_000))
    assert isinstance(reply, ProducerReady), reply
    assert reply.producer_epoch > 0, "the producer's id and epoch are those of before"


async def check_queue(cluster: WholeNodes) -> None:
    leader = cluster.leader_of(TOPIC)
    assert leader is not None
    queues = cluster.parts(leader).queues

    async def loaded() -> bool:
        return any(shell.is_loaded and shell.queue(WORKERS.group) is not None for shell in queues.loaded_shells())

    await cluster.until_asked(loaded)
    (shell,) = await queues.shells(WORKERS)
    queue = shell.queue(WORKERS.group)
    assert queue is not None
    assert queue.stats().leased_count == 1
    assert shell.replayed_offsets < ROWS, "the journal has twice as many"


async def check_schedule(cluster: WholeNodes) -> None:
    leader = cluster.leader_of(TOPIC)
    assert leader is not None
    schedules = cluster.parts(leader).schedules

    async def loaded() -> bool:
        return any(shell.is_loaded for shell in schedules.loaded_shells())

    await cluster.until_asked(loaded)
    (shell,) = schedules.loaded_shells()
    assert shell.pending_count == ROWS
    assert shell.replayed_rows < ROWS
