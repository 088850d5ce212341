"""Coordinators and partitions on different nodes: asked together, asked again, and believed with care."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.broker.group.node import GroupCoordinator
from penstock.broker.partition.role import NO_LEADER
from penstock.broker.schedule.delayed_batches import DelayedBatches
from penstock.broker.topic.not_here import Absence, NotHere
from penstock.broker.transaction.elsewhere import admit_elsewhere, sync_elsewhere
from penstock.broker.transaction.markers import MarkerWriter
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.keys import KeySpace
from penstock.domain.replication.exchange import LogBarrier, LogName
from penstock.domain.topic_rules import TRANSACTION_STATE
from penstock.domain.transaction.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    PartitionsVerified,
    ProducerReady,
    Refused,
    TransactionEnded,
    TransactionProblem,
)
from penstock.domain.transaction.marker import Marker, MarkerOutcome
from penstock.domain.transaction.state import TopicPartition, TransactionMetadata, TransactionState
from penstock.net.errors import PeerLostError
from penstock.net.replica.transactions import Admission
from support.cluster.leaderships import ELSEWHERE, Leaderships, until
from support.schedule.broker import ScheduleBroker

ID = "payments"
AWAY = Refused(TransactionProblem.COORDINATOR_NOT_AVAILABLE)
ASKED = Admission(ID, 7, 0, (TopicPartition("orders", 0),), is_verified_only=False)


class Line:
    """The other nodes; `outcomes` of the calls to come, then everything is written."""

    def __init__(self, *outcomes: MarkerOutcome | PeerLostError) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[tuple[int, list[tuple[str, int]]]] = []
        self.barriers: list[tuple[int, Sequence[LogBarrier]]] = []
        self.is_committed = True
        self.admitted: list[Admission] = []

    async def write_markers(self, node_id: int, markers: Sequence[Marker]) -> list[MarkerOutcome]:
        self.calls.append((node_id, [(marker.topic, marker.partition) for marker in markers]))
        outcome = self.outcomes.pop(0) if self.outcomes else MarkerOutcome.WRITTEN
        if isinstance(outcome, PeerLostError):
            raise outcome
        return [outcome] * len(markers)

    async def barrier(self, node_id: int, logs: Sequence[LogBarrier]) -> bool:
        self.barriers.append((node_id, logs))
        return self.is_committed

    async def admit(self, node_id: int, asked: Admission) -> PartitionsAdded | PartitionsVerified | Refused:
        assert node_id == ELSEWHERE
        self.admitted.append(asked)
        return PartitionsAdded()


class World(ScheduleBroker):
    """One node of several, and nobody who would elect another."""

    transactions: TransactionCoordinators

    async def start(self) -> None:
        await super().start()
        assert self.metadata is not None
        groups = GroupCoordinator(self.site, self.broker, self.catalog)
        self.transactions = TransactionCoordinators(
            self.site,
            self.broker,
            self.catalog,
            producer_ids=ProducerIds(self.metadata, KeySpace()),
            markers=MarkerWriter(self.broker, groups, DelayedBatches(self.schedules, clock=self.clock)),
        )
        await self.transactions.start()

    async def stop(self) -> None:
        await self.transactions.stop()
        await super().stop()


@pytest.fixture
async def node() -> AsyncIterator[World]:
    made = World()
    await made.start()
    yield made
    await made.stop()


async def open_one(node: World, *partitions: TopicPartition) -> EndTransaction:
    """A transaction with these; its commit, which nobody has sent yet."""
    producer = await node.transactions.submit(InitProducer(ID, 60_000))
    assert isinstance(producer, ProducerReady), producer
    whose = (ID, producer.producer_id, producer.producer_epoch)
    assert await node.transactions.submit(AddPartitions(*whose, partitions, 2)) == PartitionsAdded()
    return EndTransaction(*whose, is_commit=True, version=2)


async def until_complete(node: World) -> None:
    async def is_complete() -> bool:
        found = await node.transactions.describe(ID)
        return isinstance(found, TransactionMetadata) and found.state is TransactionState.COMPLETE_COMMIT

    await until(is_complete)


async def test_markers_for_one_node_go_together_and_again_until_they_are_written(node: World) -> None:
    await node.topic("orders", 3)
    for index in (0, 2):
        await Leaderships(node.catalog, "orders", index).go()
    line = Line(PeerLostError("gone"), MarkerOutcome.NOT_LEADER)
    node.transactions.talk_by(line)
    end = await open_one(node, *(TopicPartition("orders", index) for index in range(3)))
    assert isinstance(await node.transactions.submit(end), TransactionEnded)
    await until_complete(node)
    assert line.calls == [(ELSEWHERE, [("orders", 0), ("orders", 2)])] * 3


async def test_another_node_that_does_not_know_the_topic_is_not_believed(node: World) -> None:
    await node.topic("orders")
    await Leaderships(node.catalog, "orders").go()
    line = Line(MarkerOutcome.GONE)
    node.transactions.talk_by(line)
    end = await open_one(node, TopicPartition("orders", 0))
    await node.transactions.submit(end)
    await until_complete(node)
    assert len(line.calls) == 2


async def test_a_commit_waits_for_what_it_covers_on_other_nodes_where_a_topic_promises_less(node: World) -> None:
    await node.topic("orders", durability="interval")
    await node.topic("synced")
    topic_id = node.served("orders").topic_id
    await Leaderships(node.catalog, "orders").go()
    await Leaderships(node.catalog, "synced").go()
    line = Line()
    node.transactions.talk_by(line)
    end = await open_one(node, TopicPartition("orders", 0), TopicPartition("synced", 0))
    line.is_committed = False
    assert await node.transactions.submit(end) == AWAY
    line.is_committed = True
    assert isinstance(await node.transactions.submit(end), TransactionEnded)
    assert [(leader, [each.log for each in logs]) for leader, logs in line.barriers] == [
        (ELSEWHERE, [LogName(topic_id, 0)])
    ] * 2


async def test_a_batch_is_admitted_by_the_node_that_coordinates(node: World) -> None:
    await node.topic("orders")
    await open_one(node, TopicPartition("orders", 0))
    await Leaderships(node.catalog, TRANSACTION_STATE, node.transactions.partition_of(ID)).go()
    line = Line()
    node.transactions.talk_by(line)
    admitted = await node.transactions.admit(
        transactional_id=ID, producer_id=7, producer_epoch=0, partitions=ASKED.partitions, version=2
    )
    assert (admitted, line.admitted) == (PartitionsAdded(), [ASKED])


async def test_who_cannot_be_asked_is_away() -> None:
    class Silent(Line):
        async def admit(self, node_id: int, asked: Admission) -> PartitionsAdded | PartitionsVerified | Refused:
            raise PeerLostError(f"node {node_id}: {asked.transactional_id}")

        async def barrier(self, node_id: int, logs: Sequence[LogBarrier]) -> bool:
            raise PeerLostError(f"node {node_id}: {len(logs)}")

    led = NotHere(Absence.NOT_LED_HERE, "", ELSEWHERE, 3)
    logs = [(ELSEWHERE, LogBarrier(LogName(b"o" * 16, 0), 3))]
    assert await admit_elsewhere(Silent(), led, ASKED) == AWAY
    assert await admit_elsewhere(None, led, ASKED) == AWAY
    assert await admit_elsewhere(Line(), NotHere(Absence.NO_LEADER, ""), ASKED) == AWAY
    assert not await sync_elsewhere(Silent(), logs)
    assert not await sync_elsewhere(None, logs)
    assert not await sync_elsewhere(Line(), [(NO_LEADER, logs[0][1])])
    assert await sync_elsewhere(None, [])
