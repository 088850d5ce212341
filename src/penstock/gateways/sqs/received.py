"""A delivered message as SQS clients are given it: only the attributes they asked for."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.queue.delivery import Message
from penstock.codec.sqs import messages
from penstock.codec.sqs.digest import digest_of_attributes, digest_of_body
from penstock.domain.queue.dead_letter import TOPIC_HEADER
from penstock.domain.queue.deduplication import DEDUPLICATION_HEADER
from penstock.domain.queue.definition import QueueDefinition
from penstock.domain.queue.receipt import MessageId, read_scheduled_id, write_message_id
from penstock.domain.schedule.headers import MESSAGE_ID_HEADER, SCHEDULED_AT_HEADER
from penstock.gateways.sqs import records as sqs_records
from penstock.gateways.sqs.attributes import FIFO_SUFFIX
from penstock.gateways.sqs.context import SqsContext


def shape_message(
    message: Message,
    definition: QueueDefinition,
    request: messages.ReceiveMessage,
    context: SqsContext,
    *,
    receipt: str,
) -> messages.ReceivedMessage:
    record = message.record
    body, is_encoded = sqs_records.body_of(record)
    wanted = {*request.attribute_names, *request.message_system_attribute_names}
    attributes = {
        name: value
        for name, value in sqs_records.attributes_of(record, is_encoded=is_encoded).items()
        if _is_wanted(name, request.message_attribute_names)
    }
    first_place = MessageId(message.receipt.topic_id, message.receipt.partition, record.offset)
    return messages.ReceivedMessage(
        message_id=sqs_records.header_text(record, MESSAGE_ID_HEADER) or write_message_id(first_place),
        receipt_handle=receipt,
        body_digest=digest_of_body(body),
        body=body,
        attributes=_system_attributes(message, definition, context, wanted) if wanted else {},
        attributes_digest=digest_of_attributes(attributes),
        message_attributes=attributes,
    )


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    """`All`, `.*`, a name, or the beginning of one before `.*`."""
    return any(
        pattern in ("All", ".*", name) or (pattern.endswith(".*") and name.startswith(pattern[:-1]))
        for pattern in patterns
    )


def _system_attributes(
    message: Message, definition: QueueDefinition, context: SqsContext, wanted: set[str]
) -> dict[str, str]:
    record = message.record
    known: dict[str, str | None] = {
        "SenderId": context.account,
        # A message that was delayed is dated with its due time.
        "SentTimestamp": sqs_records.header_text(record, SCHEDULED_AT_HEADER) or str(record.timestamp_ms),
        "ApproximateReceiveCount": str(message.delivery_count),
        "ApproximateFirstReceiveTimestamp": str(message.first_delivery_ms),
        "AWSTraceHeader": sqs_records.header_text(record, sqs_records.TRACE_HEADER),
        "MessageGroupId": record.key.decode(errors="replace") if record.key is not None else None,
    }
    if definition.name.topic.endswith(FIFO_SUFFIX):
        known["SequenceNumber"] = _sequence_number(message, definition)
        known["MessageDeduplicationId"] = sqs_records.header_text(record, DEDUPLICATION_HEADER)
    origin = sqs_records.header_text(record, TOPIC_HEADER)
    if origin is not None:
        known["DeadLetterQueueSourceArn"] = context.queue_arn(origin)
    return {name: value for name, value in known.items() if value is not None and ("All" in wanted or name in wanted)}


def _sequence_number(message: Message, definition: QueueDefinition) -> str:
    """As its sender was told: the message's first place."""
    record = message.record
    place = read_scheduled_id(sqs_records.header_text(record, MESSAGE_ID_HEADER) or "")
    is_own = place is not None and place.topic_id == definition.topic_id
    return sqs_records.sequence_number(place.offset if place is not None and is_own else record.offset)
