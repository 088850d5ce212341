"""What doors call to publish, receive and settle, with a span around each. In place of the plain ones only if spans are
wanted: whoever does not want them pays nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.base.clock import Clock
from penstock.broker.otel.spans import Attributes, OtelSpans, fail
from penstock.broker.publisher import Delayed, NotPublished, Outgoing, Placed, Published, Publisher, PublishOutcome
from penstock.broker.queue.delivery import (
    NoSuchQueue,
    QueueDelivery,
    ReceiptSettlement,
    ReceivedMessages,
    Receiver,
)
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.shell import QueueUnavailable
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.topic.served_topic import ServedTopic
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueName
from penstock.domain.queue.receipt import MessageId, write_message_id
from penstock.domain.security.caller import Caller

_ACTS: Final = {
    Act.GAP: "skip",
    Act.ACCEPT: "ack",
    Act.RELEASE: "nack",
    Act.REJECT: "reject",
    Act.RENEW: "extend",
    Act.MOVE: "move",
}


class TracedPublisher(Publisher):
    def __init__(self, schedules: NodeSchedules, clock: Clock, spans: OtelSpans) -> None:
        super().__init__(schedules, clock)
        self._spans = spans

    async def publish(
        self, topic: ServedTopic, messages: Sequence[Outgoing], *, by: Caller | None = None
    ) -> list[PublishOutcome]:
        contexts = [self._spans.context_of(message.record.headers) for message in messages]
        with self._spans.publish(topic.name, contexts) as span:
            outcomes = await super().publish(topic, messages, by=by)
            refused = [outcome for outcome in outcomes if isinstance(outcome, NotPublished)]
            if refused:
                fail(span, refused[0].refusal.value, refused[0].reason)
            elif len(outcomes) == 1:
                for name, value in _place_of(topic, outcomes[0]).items():
                    span.set_attribute(name, value)
            return outcomes

    def place(self, topic: ServedTopic, messages: Sequence[Outgoing]) -> list[Placed]:
        """By itself for FIFO queues alone: the span is over when the message is written, and not yet durable."""
        contexts = [self._spans.context_of(message.record.headers) for message in messages]
        with self._spans.publish(topic.name, contexts):
            return super().place(topic, messages)


def _place_of(topic: ServedTopic, outcome: PublishOutcome) -> dict[str, str | int]:
    if isinstance(outcome, Published):
        return {
            "messaging.message.id": write_message_id(MessageId(topic.topic_id, outcome.partition, outcome.offset)),
            "messaging.destination.partition.id": str(outcome.partition),
            "messaging.penstock.message.offset": outcome.offset,
        }
    if isinstance(outcome, Delayed):
        return {
            "messaging.message.id": outcome.message_id,
            "messaging.destination.partition.id": str(outcome.partition),
            "messaging.penstock.message.due_ms": outcome.due_ms,
        }
    return {}


class TracedDelivery(QueueDelivery):
    def __init__(self, queues: NodeQueues, schedules: NodeSchedules, spans: OtelSpans) -> None:
        super().__init__(queues, schedules)
        self._spans = spans

    async def receive(
        self,
        name: QueueName,
        *,
        consumer: str,
        count_max: int,
        wait_ms: int = 0,
        lease_ms: int = 0,
        caller: Receiver | None = None,
        is_first: bool = False,
        by: Caller | None = None,
    ) -> ReceivedMessages | NoSuchQueue | QueueUnavailable:
        with self._spans.receive(name.topic, name.group, consumer) as told:
            received = await super().receive(
                name,
                consumer=consumer,
                count_max=count_max,
                wait_ms=wait_ms,
                lease_ms=lease_ms,
                caller=caller,
                is_first=is_first,
                by=by,
            )
            if isinstance(received, ReceivedMessages):
                for message in received.messages:
                    context = self._spans.context_of(message.record.headers)
                    if context is not None:
                        source = message.source
                        self._spans.remember((source.topic_id, source.partition, message.record.offset), context)
                        told.contexts.append(context)
                told.count = len(received.messages)
                if told.count == 1:
                    told.attributes = _facts_of(received)
            return received

    async def settle(
        self, name: QueueName, items: Sequence[ReceiptSettlement], *, by: Caller | None = None
    ) -> list[Outcome | QueueUnavailable] | NoSuchQueue:
        if not items:
            return await super().settle(name, items, by=by)
        keys = [(item.receipt.topic_id, item.receipt.partition, item.receipt.offset) for item in items]
        with self._spans.settle(name.topic, name.group, _ACTS[items[0].act], keys) as span:
            settled = await super().settle(name, items, by=by)
            if isinstance(settled, NoSuchQueue):
                fail(span, "no-such-queue", f"there is no queue {name}")
            elif any(outcome is not Outcome.DONE for outcome in settled):
                fail(span, "not-settled", "some of the messages were not settled")
            return settled


def _facts_of(received: ReceivedMessages) -> Attributes:
    (message,) = received.messages
    source, offset = message.source, message.record.offset
    return {
        "messaging.message.id": write_message_id(MessageId(source.topic_id, source.partition, offset)),
        "messaging.destination.partition.id": str(source.partition),
        "messaging.penstock.message.offset": offset,
        "messaging.penstock.message.delivery_count": message.delivery_count,
    }
