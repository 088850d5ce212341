"""Three nodes in one loop with queues and schedules: what moves from one node's partitions to another's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.broker.queue.delivery import QueueDelivery, ReceivedMessages
from penstock.broker.queue.landing import land_for_another
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.redrive import Redrives
from penstock.broker.queue.settling import ReceiptSettlement
from penstock.broker.schedule.node import NodeSchedules
from penstock.cluster.catalog.queues import QueueCatalog
from penstock.cluster.catalog.redrives import RedriveStore
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.values import encode
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.queue.landing import Landing, read_landing
from penstock.domain.replication.exchange import Forward, ForwardKind, LogName
from penstock.domain.replication.view import Duty
from penstock.domain.security.access import AllowAll
from penstock.net.errors import PeerLostError, PeerUnreachableError
from support.replication.trio import PATIENCE_SECONDS, TOPIC, ReplicaNode, Trio

DEAD = "orders-dlq"
QUEUE = QueueName(TOPIC, "workers")


class MoveLineOf:
    """Direct calls, which a cut of the wire keeps from arriving or from being answered."""

    def __init__(self, node: MovingNode) -> None:
        self._node = node
        # Batches that were sent, whether they arrived or not, with the node that they were sent to.
        self.sent: list[tuple[int, bytes]] = []
        self.lost_answers = 0

    async def land(self, node_id: int, log: LogName, leader_epoch: int, batch: bytes) -> Landing | str:
        wire, here = self._node.wire, self._node.node_id
        self.sent.append((node_id, batch))
        other = wire.nodes.get(node_id)
        if other is None or (here, node_id) in wire.cuts:
            raise PeerUnreachableError(f"node {node_id} is not there")
        forward = Forward(kind=ForwardKind.LANDING, log=log, leader_epoch=leader_epoch, timeout_ms=5_000, body=batch)
        answer = await other.replication.replicas.forward(forward, None)
        if (node_id, here) in wire.cuts or wire.nodes.get(node_id) is not other:
            self.lost_answers += 1
            raise PeerLostError(f"node {node_id} hung up")
        return answer.problem.value if answer.problem is not None else read_landing(answer.body)


class MovingNode(ReplicaNode):
    async def start(self, duty: Duty) -> None:
        await super().start(duty)
        producer_ids = self.make_producer_ids()
        self.schedules = NodeSchedules(self.site, self.broker, self.topics, producer_ids)
        queues = QueueCatalog(self.watch, clock=self.site.clock)
        self.queues = NodeQueues(
            self.site, self.broker, self.topics, queues, producer_ids, authorizer=AllowAll(), chance=lambda: 0.5
        )
        self.delivery = QueueDelivery(self.queues)
        store = RedriveStore(self._metadata, self._keys)
        self.redrives = Redrives(self.site, self.queues, self.delivery, store, authorizer=AllowAll())
        self.line = MoveLineOf(self)
        self.replication.replicas.serve(ForwardKind.LANDING, land_for_another)
        self.queues.talk_by(self.line)
        await self.schedules.start()
        await self.queues.start()
        await self.redrives.start()

    def make_producer_ids(self) -> ProducerIds:
        return ProducerIds(self._metadata, self._keys)

    async def stop(self, *, clean: bool = True) -> None:
        await self.redrives.stop()
        await self.queues.stop()
        await self.schedules.stop()
        await super().stop(clean=clean)


class MovingTrio(Trio):
    node_type = MovingNode
    nodes: dict[int, MovingNode]  # type: ignore[assignment]  # made by `node_type`

    async def create_queue(self, dead_replicas: tuple[int, ...] = (2, 3, 1)) -> None:
        """Orders are led by node 1, their dead letters by node 2."""
        await self.create()
        await self.create(dead_replicas, topic=DEAD)
        await self.nodes[1].queues.define(QUEUE, QueueOptions(dead_letter_topic=DEAD, deliveries_max=5))

    async def put_leader(self, leader: int, *, partition: int, in_sync: tuple[int, ...]) -> None:
        """Of any partition of the orders."""
        node = self.nodes[leader]
        topic_id = node.shell(partition).log.home.topic_id
        stated = node.topics.state(topic_id, partition)
        assert stated is not None
        state = replace(stated.state, leader=leader, life=node.life, epoch=stated.state.epoch + 1, in_sync=in_sync)
        result = await self.metadata.txn([], {self.keys.partition(topic_id, partition): encode(state)})
        for each in self.nodes.values():
            await each.topics.wait_for(result.revision)

    async def reject(self, values: Sequence[bytes], *, leader: int = 1) -> None:
        """Sends messages, receives each and rejects it: they become dead letters."""
        await self.produce(leader, *values)
        left = len(values)
        delivery = self.nodes[leader].delivery
        async with asyncio.timeout(PATIENCE_SECONDS):
            while left:
                received = await delivery.receive(QUEUE, consumer="c", count_max=left, wait_ms=1_000)
                assert isinstance(received, ReceivedMessages), received
                items = [ReceiptSettlement(message.receipt, Act.REJECT) for message in received.messages]
                outcomes = await delivery.settle(QUEUE, items)
                assert outcomes == [Outcome.DONE] * len(items), outcomes
                left -= len(received.messages)

    async def until_dead(self, *values: bytes, on: int) -> None:
        """Exactly these, in this order, committed; and the source has forgotten them."""
        await self.until(lambda: len(self.written(on, DEAD)) >= len(values))
        await self.until(lambda: self.nodes[on].shell(topic=DEAD).readable_end == len(values))
        assert self.written(on, DEAD) == list(values)
