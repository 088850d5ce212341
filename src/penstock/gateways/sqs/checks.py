"""What an SQS message and a batch of them may be. The words of refusals are close to AWS's: people search for them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.codec.sqs.errors import SqsError
from penstock.codec.sqs.messages import AttributeValue
from penstock.domain.queue.definition import QueueDefinition
from penstock.gateways.sqs.attributes import DEFAULTS, DELAY_SECONDS_MAX, FIFO_SUFFIX, attributes_of
from penstock.gateways.sqs.context import SqsRefusal, invalid

BATCH_MAX: Final = 10
# Of all messages of a batch together, whatever a queue allows for one of them: AWS's.
BATCH_BYTES_MAX: Final = 1024 * 1024
WAIT_SECONDS_MAX: Final = 20
VISIBILITY_SECONDS_MAX: Final = 43_200
ATTRIBUTES_MAX: Final = 10
_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_GROUP_ID: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_ATTRIBUTE_NAME: Final = re.compile(r"[A-Za-z0-9_\-.]{1,256}")
_KINDS: Final = frozenset({"String", "Number", "Binary"})
# What XML 1.0 can hold, which is what SQS takes.
_UNWRITABLE: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Entry(Protocol):
    @property
    def id(self) -> str: ...


class Sendable(Protocol):
    """SendMessage, or an entry of SendMessageBatch."""

    @property
    def message_body(self) -> str: ...
    @property
    def delay_seconds(self) -> int | None: ...
    @property
    def message_attributes(self) -> dict[str, AttributeValue]: ...
    @property
    def message_system_attributes(self) -> dict[str, AttributeValue]: ...
    @property
    def message_deduplication_id(self) -> str | None: ...
    @property
    def message_group_id(self) -> str | None: ...


def check_message(definition: QueueDefinition, message: Sendable) -> None:
    is_fifo = definition.name.topic.endswith(FIFO_SUFFIX)
    if not message.message_body:
        raise SqsRefusal(SqsError.MISSING_PARAMETER, "The request must contain the parameter MessageBody.")
    if found := _UNWRITABLE.search(message.message_body):
        raise SqsRefusal(
            SqsError.INVALID_MESSAGE_CONTENTS,
            f"The message holds the character U+{ord(found[0]):04X} at {found.start()}, which is not allowed.",
        )
    size_bytes, size_max = size_of(message), size_max_of(definition)
    if size_bytes > size_max:
        raise invalid(
            "One or more parameters are invalid. Reason: Message must be shorter than "
            f"{size_max} bytes, this one has {size_bytes}."
        )
    _check_delay(message.delay_seconds, is_fifo=is_fifo)
    if is_fifo and not message.message_group_id:
        raise SqsRefusal(SqsError.MISSING_PARAMETER, "The request must contain the parameter MessageGroupId.")
    if message.message_group_id is not None and not _GROUP_ID.fullmatch(message.message_group_id):
        raise invalid("MessageGroupId: 1 to 128 letters, digits and punctuation marks.")
    if message.message_deduplication_id is not None:
        if not is_fifo:
            raise invalid(
                "The request includes a parameter that is not valid for this queue type: MessageDeduplicationId."
            )
        if not _GROUP_ID.fullmatch(message.message_deduplication_id):
            raise invalid("MessageDeduplicationId: 1 to 128 letters, digits and punctuation marks.")
    check_attributes(message.message_attributes)


def _check_delay(seconds: int | None, *, is_fifo: bool) -> None:
    if seconds is None:
        return
    if not 0 <= seconds <= DELAY_SECONDS_MAX:
        raise invalid(
            f"Value {seconds} for parameter DelaySeconds is invalid. "
            f"Reason: DelaySeconds must be >= 0 and <= {DELAY_SECONDS_MAX}."
        )
    if seconds and is_fifo:
        raise invalid(
            f"Value {seconds} for parameter DelaySeconds is invalid. "
            "Reason: The request include parameter that is not valid for this queue type."
        )


def delay_ms_of(definition: QueueDefinition, message: Sendable) -> int:
    """Its own, or the queue's; messages of FIFO queues have none of their own."""
    known = attributes_of(definition.options)
    of_queue = int(known.get("DelaySeconds", DEFAULTS["DelaySeconds"]))
    is_fifo = definition.name.topic.endswith(FIFO_SUFFIX)
    return 1000 * (of_queue if message.delay_seconds is None or is_fifo else message.delay_seconds)


def check_attributes(attributes: dict[str, AttributeValue]) -> None:
    if len(attributes) > ATTRIBUTES_MAX:
        raise invalid(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}]."
        )
    for name, value in attributes.items():
        lowered = name.lower()
        if not _ATTRIBUTE_NAME.fullmatch(name) or lowered.startswith(("aws.", "amazon.", "penstock-")):
            raise invalid(f"Message attribute name {name[:100]!r} is invalid.")
        kind = value.data_type.partition(".")[0]
        if kind not in _KINDS or len(value.data_type) > 256:
            raise invalid(
                f"The message attribute {name!r} has an invalid message attribute type, the set of supported "
                "type prefixes is Binary, Number, and String."
            )
        if value.string_list_values or value.binary_list_values:
            raise SqsRefusal(
                SqsError.UNSUPPORTED_OPERATION,
                f"Message attribute {name!r}: list values are not supported, as with AWS.",
            )
        content = value.binary_value if kind == "Binary" else value.string_value
        if not content:
            field = "BinaryValue" if kind == "Binary" else "StringValue"
            raise invalid(f"The message attribute {name!r} must contain a non-empty {field} of type {kind}.")
        if kind == "Number" and not _is_number(value.string_value or ""):
            raise invalid(f"Can't cast the value of message attribute {name!r} to a number.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_batch(entries: Sequence[Entry]) -> None:
    if not entries:
        raise SqsRefusal(SqsError.EMPTY_BATCH_REQUEST, "There should be at least one entry in the request.")
    if len(entries) > BATCH_MAX:
        raise SqsRefusal(
            SqsError.TOO_MANY_ENTRIES,
            f"Maximum number of entries per request are {BATCH_MAX}. You have sent {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        if not _ENTRY_ID.fullmatch(entry.id):
            raise SqsRefusal(
                SqsError.INVALID_BATCH_ENTRY_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if entry.id in seen:
            raise SqsRefusal(SqsError.BATCH_ENTRY_IDS_NOT_DISTINCT, f"Id {entry.id} repeated.")
        seen.add(entry.id)


def check_seconds(name: str, seconds: int, seconds_max: int) -> None:
    if not 0 <= seconds <= seconds_max:
        raise invalid(
            f"Value {seconds} for parameter {name} is invalid. "
            f"Reason: Must be between 0 and {seconds_max}, if provided."
        )


def size_of(message: Sendable) -> int:
    attributes = sum(
        len(name.encode())
        + len(value.data_type)
        + len(value.binary_value or b"")
        + len((value.string_value or "").encode())
        for name, value in message.message_attributes.items()
    )
    return len(message.message_body.encode()) + attributes


def size_max_of(definition: QueueDefinition) -> int:
    return int(attributes_of(definition.options).get("MaximumMessageSize", DEFAULTS["MaximumMessageSize"]))


def deduplication_id(definition: QueueDefinition, message: Sendable) -> str | None:
    if not definition.name.topic.endswith(FIFO_SUFFIX):
        return None
    if message.message_deduplication_id is not None:
        return message.message_deduplication_id
    if attributes_of(definition.options).get("ContentBasedDeduplication") != "true":
        raise invalid(
            "The queue should either have ContentBasedDeduplication enabled "
            "or MessageDeduplicationId provided explicitly"
        )
    return hashlib.sha256(message.message_body.encode()).hexdigest()
