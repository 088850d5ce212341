"""What is sent to partitions that are led here, by the doors of other nodes."""

from __future__ import annotations

from penstock.broker.forwarded.work import DoorWork, NotKnownYetError, Served
from penstock.broker.publisher import Publisher
from penstock.broker.queue.fifo import FifoSender
from penstock.broker.queue.node import NodeQueues
from penstock.broker.sending import FIFO_SENDS, SENDS, encode_outcomes
from penstock.domain.queue.definition import QueueName
from penstock.domain.replication.exchange import ForwardKind


class SendWork:
    def __init__(self, queues: NodeQueues, publisher: Publisher, fifo: FifoSender) -> None:
        self._queues = queues
        self._publisher = publisher
        self._fifo = fifo

    def join(self, work: DoorWork) -> None:
        work.serve(ForwardKind.PUBLISH, self._publish)
        work.serve(ForwardKind.FIFO, self._send_fifo)

    async def _publish(self, served: Served) -> bytes:
        return encode_outcomes(await self._publisher.publish_here(served.topic, SENDS.decode(served.body).messages))

    async def _send_fifo(self, served: Served) -> bytes:
        asked = FIFO_SENDS.decode(served.body)
        definition = self._queues.get(QueueName(served.topic.name, asked.group))
        if definition is None:
            raise NotKnownYetError(f"there is no queue {asked.group!r} on topic {served.topic.name!r}")
        return encode_outcomes(
            await self._fifo.send_here(definition, served.topic, asked.messages, is_by_group=asked.is_by_group)
        )
