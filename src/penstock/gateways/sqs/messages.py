"""SQS messages: sent, received, deleted, made visible again; one at a time or ten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.base.clock import Clock
from penstock.broker.partition.outcome import PASSING, Refusal
from penstock.broker.publisher import Delayed, NotPublished, Outgoing, Published, Publisher, PublishOutcome
from penstock.broker.queue.delivery import (
    Message,
    NoSuchQueue,
    QueueDelivery,
    ReceiptSettlement,
    ReceivedMessages,
    is_worth_waiting,
)
from penstock.broker.queue.fifo import FifoSender
from penstock.broker.queue.node import QueueUnavailable
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.sqs import messages
from penstock.codec.sqs.digest import digest_of_attributes, digest_of_body
from penstock.codec.sqs.errors import SqsError
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueDefinition
from penstock.domain.queue.receipt import MessageId, Receipt, read_receipt, write_message_id, write_receipt
from penstock.domain.queue.values import Limit
from penstock.gateways.sqs import records as sqs_records
from penstock.gateways.sqs.access import GROUP
from penstock.gateways.sqs.attributes import DEFAULTS, FIFO_SUFFIX, attributes_of
from penstock.gateways.sqs.checks import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    VISIBILITY_SECONDS_MAX,
    WAIT_SECONDS_MAX,
    Entry,
    Sendable,
    check_batch,
    check_message,
    check_seconds,
    deduplication_id,
    delay_ms_of,
    size_of,
)
from penstock.gateways.sqs.context import SqsContext, SqsRefusal, invalid, no_such_queue, queue_unavailable
from penstock.gateways.sqs.queues import SqsQueues
from penstock.gateways.sqs.received import shape_message

EntryT = TypeVar("EntryT", bound=Entry)


class SqsMessages:
    def __init__(
        self,
        broker: Broker,
        queues: SqsQueues,
        delivery: QueueDelivery,
        publisher: Publisher,
        fifo: FifoSender,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._queues = queues
        self._delivery = delivery
        self._publisher = publisher
        self._fifo = fifo
        self._clock = clock

    # Sending

    async def send_message(self, request: messages.SendMessage, context: SqsContext) -> messages.Message:
        definition = self._queues.find(request.queue_url)
        (outcome,) = await self._send(definition, [self._outgoing(definition, request)], context)
        if isinstance(outcome, NotPublished):
            raise _not_published(outcome)
        return messages.SendMessageReply(
            body_digest=digest_of_body(request.message_body),
            attributes_digest=digest_of_attributes(request.message_attributes),
            system_attributes_digest=digest_of_attributes(request.message_system_attributes),
            message_id=_message_id(definition, outcome),
            sequence_number=_sequence_number(definition, outcome),
        )

    async def send_message_batch(self, request: messages.SendMessageBatch, context: SqsContext) -> messages.Message:
        definition = self._queues.find(request.queue_url)
        check_batch(request.entries)
        size_bytes = sum(size_of(entry) for entry in request.entries)
        if size_bytes > BATCH_BYTES_MAX:
            raise SqsRefusal(
                SqsError.BATCH_REQUEST_TOO_LONG,
                f"Batch requests cannot be longer than {BATCH_BYTES_MAX} bytes. You have sent {size_bytes} bytes.",
            )
        failed: list[messages.FailedEntry] = []
        good: list[tuple[messages.SendMessageEntry, Outgoing]] = []
        for entry in request.entries:
            try:
                good.append((entry, self._outgoing(definition, entry)))
            except SqsRefusal as refusal:
                failed.append(_failed(entry.id, refusal))
        outcomes = await self._send(definition, [outgoing for _, outgoing in good], context) if good else []
        successful: list[messages.SentEntry] = []
        for (entry, _), outcome in zip(good, outcomes, strict=True):
            if isinstance(outcome, NotPublished):
                failed.append(_failed(entry.id, _not_published(outcome)))
                continue
            successful.append(
                messages.SentEntry(
                    id=entry.id,
                    message_id=_message_id(definition, outcome),
                    body_digest=digest_of_body(entry.message_body),
                    attributes_digest=digest_of_attributes(entry.message_attributes),
                    system_attributes_digest=digest_of_attributes(entry.message_system_attributes),
                    sequence_number=_sequence_number(definition, outcome),
                )
            )
        return messages.SendMessageBatchReply(successful=successful, failed=failed)

    async def _send(
        self, definition: QueueDefinition, outgoing: list[Outgoing], context: SqsContext
    ) -> list[PublishOutcome]:
        topic = self._topic(definition)
        if definition.name.topic.endswith(FIFO_SUFFIX):
            is_by_group = attributes_of(definition.options).get("DeduplicationScope") == "messageGroup"
            return await self._fifo.send(definition, topic, outgoing, is_by_group=is_by_group, by=context.caller)
        return await self._publisher.publish(topic, outgoing, by=context.caller)

    def _topic(self, definition: QueueDefinition) -> ServedTopic:
        topic = self._broker.topic(definition.name.topic)
        if topic is None:
            raise no_such_queue(definition.name.topic)
        return topic

    def _outgoing(self, definition: QueueDefinition, message: Sendable) -> Outgoing:
        check_message(definition, message)
        trace = message.message_system_attributes.get(sqs_records.TRACE_ATTRIBUTE)
        now_ms, delay_ms = self._clock.now_ms(), delay_ms_of(definition, message)
        record = sqs_records.to_record(
            message.message_body,
            message.message_attributes,
            now_ms=now_ms,
            group=message.message_group_id,
            deduplication=deduplication_id(definition, message),
            trace=None if trace is None else trace.string_value,
        )
        return Outgoing(record, due_ms=now_ms + delay_ms if delay_ms else None)

    # Receiving

    async def receive_message(self, request: messages.ReceiveMessage, context: SqsContext) -> messages.Message:
        definition = self._queues.find(request.queue_url)
        if not 1 <= request.max_number_of_messages <= BATCH_MAX:
            raise invalid(
                f"Value {request.max_number_of_messages} for parameter MaxNumberOfMessages is invalid. "
                f"Reason: Must be between 1 and {BATCH_MAX}, if provided."
            )
        lease_ms = 0
        if request.visibility_timeout is not None:
            check_seconds("VisibilityTimeout", request.visibility_timeout, VISIBILITY_SECONDS_MAX)
            lease_ms = max(request.visibility_timeout * 1000, 1)
        wait_seconds = request.wait_time_seconds
        if wait_seconds is None:
            known = attributes_of(definition.options)
            wait_seconds = int(known.get("ReceiveMessageWaitTimeSeconds", DEFAULTS["ReceiveMessageWaitTimeSeconds"]))
        check_seconds("WaitTimeSeconds", wait_seconds, WAIT_SECONDS_MAX)
        count_max = request.max_number_of_messages
        received = await self._delivery.receive(
            definition.name,
            consumer=GROUP,
            count_max=count_max,
            lease_ms=lease_ms,
            is_first=wait_seconds > 0,
            by=context.caller,
        )
        if wait_seconds and is_worth_waiting(received):
            with context.attend() as caller:
                received = await self._delivery.receive(
                    definition.name,
                    consumer=GROUP,
                    count_max=count_max,
                    wait_ms=wait_seconds * 1000,
                    lease_ms=lease_ms,
                    caller=caller,
                    by=context.caller,
                )
        return messages.ReceiveMessageReply(messages=self._shape(definition, received, request, context))

    def _shape(
        self,
        definition: QueueDefinition,
        received: ReceivedMessages | NoSuchQueue | QueueUnavailable,
        request: messages.ReceiveMessage,
        context: SqsContext,
    ) -> list[messages.ReceivedMessage]:
        if isinstance(received, NoSuchQueue):
            raise no_such_queue(definition.name.topic)
        if isinstance(received, QueueUnavailable):
            raise queue_unavailable(received)
        if not received.messages and received.limit is Limit.QUEUE_FULL:
            raise SqsRefusal(
                SqsError.OVER_LIMIT, f"{definition.options.in_flight_max} messages are in flight, which is the limit."
            )
        return [
            shape_message(each, definition, request, context, receipt=_receipt_of(each)) for each in received.messages
        ]

    # Settling

    async def delete_message(self, request: messages.DeleteMessage, context: SqsContext) -> messages.Message:
        definition = self._queues.find(request.queue_url)
        await self._one(definition, _delete(request.receipt_handle), _judge_delete(definition), context)
        return messages.Nothing()

    async def delete_message_batch(self, request: messages.DeleteMessageBatch, context: SqsContext) -> messages.Message:
        definition = self._queues.find(request.queue_url)
        successful, failed = await self._many(
            definition,
            request.entries,
            lambda entry: _delete(entry.receipt_handle),
            _judge_delete(definition),
            context,
        )
        return messages.DeleteMessageBatchReply(successful=successful, failed=failed)

    async def change_message_visibility(
        self, request: messages.ChangeMessageVisibility, context: SqsContext
    ) -> messages.Message:
        definition = self._queues.find(request.queue_url)
        await self._one(definition, _change(request.receipt_handle, request.visibility_timeout), _judge_change, context)
        return messages.Nothing()

    async def change_message_visibility_batch(
        self, request: messages.ChangeMessageVisibilityBatch, context: SqsContext
    ) -> messages.Message:
        definition = self._queues.find(request.queue_url)

        def item(entry: messages.ChangeMessageVisibilityEntry) -> ReceiptSettlement:
            seconds = entry.visibility_timeout
            return _change(entry.receipt_handle, definition.options.lease_ms // 1000 if seconds is None else seconds)

        successful, failed = await self._many(definition, request.entries, item, _judge_change, context)
        return messages.ChangeMessageVisibilityBatchReply(successful=successful, failed=failed)

    async def _one(
        self,
        definition: QueueDefinition,
        item: ReceiptSettlement,
        judge: Callable[[Outcome | QueueUnavailable], SqsRefusal | None],
        context: SqsContext,
    ) -> None:
        outcomes = await self._delivery.settle(definition.name, [item], by=context.caller)
        if isinstance(outcomes, NoSuchQueue):
            raise no_such_queue(definition.name.topic)
        refusal = judge(outcomes[0])
        if refusal is not None:
            raise refusal

    async def _many(
        self,
        definition: QueueDefinition,
        entries: Sequence[EntryT],
        item_of: Callable[[EntryT], ReceiptSettlement],
        judge: Callable[[Outcome | QueueUnavailable], SqsRefusal | None],
        context: SqsContext,
    ) -> tuple[list[messages.SettledEntry], list[messages.FailedEntry]]:
        check_batch(entries)
        failed: list[messages.FailedEntry] = []
        good: list[tuple[str, ReceiptSettlement]] = []
        for entry in entries:
            try:
                good.append((entry.id, item_of(entry)))
            except SqsRefusal as refusal:
                failed.append(_failed(entry.id, refusal))
        outcomes = await self._delivery.settle(definition.name, [item for _, item in good], by=context.caller)
        if isinstance(outcomes, NoSuchQueue):
            raise no_such_queue(definition.name.topic)
        successful: list[messages.SettledEntry] = []
        for (name, _), outcome in zip(good, outcomes, strict=True):
            refused = judge(outcome)
            if refused is None:
                successful.append(messages.SettledEntry(id=name))
            else:
                failed.append(_failed(name, refused))
        return successful, failed


# Outcomes


def _delete(handle: str) -> ReceiptSettlement:
    return ReceiptSettlement(_receipt(handle), Act.ACCEPT)


def _change(handle: str, seconds: int) -> ReceiptSettlement:
    check_seconds("VisibilityTimeout", seconds, VISIBILITY_SECONDS_MAX)
    receipt = _receipt(handle)
    return ReceiptSettlement(receipt, Act.RENEW if seconds else Act.RELEASE, seconds * 1000)


def _receipt(handle: str) -> Receipt:
    receipt = read_receipt(handle, group=GROUP)
    if receipt is None:
        raise SqsRefusal(
            SqsError.RECEIPT_HANDLE_IS_INVALID,
            f'The input receipt handle "{handle[:200]}" is not a valid receipt handle.',
        )
    return receipt


def _receipt_of(message: Message) -> str:
    return write_receipt(message.receipt)


def _judge_delete(definition: QueueDefinition) -> Callable[[Outcome | QueueUnavailable], SqsRefusal | None]:
    def judge(outcome: Outcome | QueueUnavailable) -> SqsRefusal | None:
        if isinstance(outcome, QueueUnavailable):
            return queue_unavailable(outcome)
        # A late delete of a message that somebody else has by now is no error of AWS's either, except in FIFO queues,
        # where it is: it stays with the other one.
        if outcome is Outcome.NOT_HELD and definition.name.topic.endswith(FIFO_SUFFIX):
            return invalid("Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.")
        return None

    return judge


def _judge_change(outcome: Outcome | QueueUnavailable) -> SqsRefusal | None:
    if isinstance(outcome, QueueUnavailable):
        return queue_unavailable(outcome)
    if outcome is Outcome.FINISHED:
        return invalid(
            "Value for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for "
            "visibility timeout change."
        )
    if outcome is Outcome.NOT_HELD:
        return SqsRefusal(SqsError.MESSAGE_NOT_INFLIGHT, "The message is not in flight under this receipt handle.")
    return None


def _not_published(outcome: NotPublished) -> SqsRefusal:
    if outcome.refusal is Refusal.DAMAGED:
        return SqsRefusal(SqsError.DAMAGED, outcome.reason)
    if outcome.refusal in PASSING:
        return SqsRefusal(SqsError.SERVICE_UNAVAILABLE, outcome.reason)
    return invalid(outcome.reason)


def _failed(name: str, refusal: SqsRefusal) -> messages.FailedEntry:
    return messages.FailedEntry(
        id=name, sender_fault=refusal.error.is_sender_fault, code=refusal.error.query_code, message=str(refusal)
    )


def _message_id(definition: QueueDefinition, sent: Published | Delayed) -> str:
    if isinstance(sent, Delayed):
        return sent.message_id
    return write_message_id(MessageId(definition.topic_id, sent.partition, sent.offset))


def _sequence_number(definition: QueueDefinition, sent: Published | Delayed) -> str | None:
    if not definition.name.topic.endswith(FIFO_SUFFIX):
        return None
    return sqs_records.sequence_number(sent.origin if isinstance(sent, Delayed) else sent.offset)
