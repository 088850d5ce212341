"""What SQS clients say and are told, one struct for each action and its reply.

Field names are AWS's own, in Pascal case on the wire. A request is checked for shape alone here: what a queue allows,
and how much, is the door's business. Two protocols carry the same structs: JSON as it is, and the older query protocol
through `query` and `xml_reply`.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from penstock.base import typed_values


class Blob(bytes):
    """Bytes that travel as base64, in both protocols."""


class Message(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True, kw_only=True):
    """Anything of the protocol. What has its default is left out of replies, as with AWS."""


class AttributeValue(Message, frozen=True, kw_only=True):
    data_type: str
    string_value: str | None = None
    # Base64, decoded by the door: a value that is not is an error of its own.
    binary_value: Blob | None = None
    # Reserved by AWS, and refused by it.
    string_list_values: list[str] = []
    binary_list_values: list[Blob] = []


class ToQueue(Message, frozen=True, kw_only=True):
    """A request about one queue. The query protocol may name it by the path alone."""

    queue_url: str = ""


class Nothing(Message, frozen=True, kw_only=True):
    pass


# Queues


class CreateQueue(Message, frozen=True, kw_only=True):
    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = msgspec.field(default_factory=dict, name="tags")


class QueueUrlReply(Message, frozen=True, kw_only=True):
    queue_url: str


class DeleteQueue(ToQueue, frozen=True, kw_only=True):
    pass


class GetQueueUrl(Message, frozen=True, kw_only=True):
    queue_name: str
    queue_owner_account: str = msgspec.field(default="", name="QueueOwnerAWSAccountId")


class ListQueues(Message, frozen=True, kw_only=True):
    queue_name_prefix: str = ""
    next_token: str | None = None
    max_results: int | None = None


class ListQueuesReply(Message, frozen=True, kw_only=True):
    queue_urls: list[str] = []
    next_token: str | None = None


class GetQueueAttributes(ToQueue, frozen=True, kw_only=True):
    attribute_names: list[str] = []


class GetQueueAttributesReply(Message, frozen=True, kw_only=True):
    attributes: dict[str, str] = {}


class SetQueueAttributes(ToQueue, frozen=True, kw_only=True):
    attributes: dict[str, str]


class PurgeQueue(ToQueue, frozen=True, kw_only=True):
    pass


class AddPermission(ToQueue, frozen=True, kw_only=True):
    label: str
    accounts: list[str] = msgspec.field(name="AWSAccountIds")
    actions: list[str]


class RemovePermission(ToQueue, frozen=True, kw_only=True):
    label: str


class TagQueue(ToQueue, frozen=True, kw_only=True):
    tags: dict[str, str]


class UntagQueue(ToQueue, frozen=True, kw_only=True):
    tag_keys: list[str]


class ListQueueTags(ToQueue, frozen=True, kw_only=True):
    pass


class ListQueueTagsReply(Message, frozen=True, kw_only=True):
    tags: dict[str, str] = {}


# Sending


class SendMessage(ToQueue, frozen=True, kw_only=True):
    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] = {}
    message_system_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageReply(Message, frozen=True, kw_only=True):
    body_digest: str = msgspec.field(name="MD5OfMessageBody")
    attributes_digest: str | None = msgspec.field(default=None, name="MD5OfMessageAttributes")
    system_attributes_digest: str | None = msgspec.field(default=None, name="MD5OfMessageSystemAttributes")
    message_id: str
    sequence_number: str | None = None


class SendMessageEntry(Message, frozen=True, kw_only=True):
    id: str
    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] = {}
    message_system_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageBatch(ToQueue, frozen=True, kw_only=True):
    entries: list[SendMessageEntry] = []


class SentEntry(Message, frozen=True, kw_only=True):
    id: str
    message_id: str
    body_digest: str = msgspec.field(name="MD5OfMessageBody")
    attributes_digest: str | None = msgspec.field(default=None, name="MD5OfMessageAttributes")
    system_attributes_digest: str | None = msgspec.field(default=None, name="MD5OfMessageSystemAttributes")
    sequence_number: str | None = None


class FailedEntry(Message, frozen=True, kw_only=True):
    id: str
    sender_fault: bool
    code: str
    message: str = ""


class SendMessageBatchReply(Message, frozen=True, kw_only=True):
    successful: list[SentEntry]
    failed: list[FailedEntry]


# Receiving


class ReceiveMessage(ToQueue, frozen=True, kw_only=True):
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class ReceivedMessage(Message, frozen=True, kw_only=True):
    message_id: str
    receipt_handle: str
    body_digest: str = msgspec.field(name="MD5OfBody")
    body: str
    attributes: dict[str, str] = {}
    attributes_digest: str | None = msgspec.field(default=None, name="MD5OfMessageAttributes")
    message_attributes: dict[str, AttributeValue] = {}


class ReceiveMessageReply(Message, frozen=True, kw_only=True):
    messages: list[ReceivedMessage] = []


class DeleteMessage(ToQueue, frozen=True, kw_only=True):
    receipt_handle: str


class DeleteMessageEntry(Message, frozen=True, kw_only=True):
    id: str
    receipt_handle: str


class DeleteMessageBatch(ToQueue, frozen=True, kw_only=True):
    entries: list[DeleteMessageEntry] = []


class SettledEntry(Message, frozen=True, kw_only=True):
    id: str


class DeleteMessageBatchReply(Message, frozen=True, kw_only=True):
    successful: list[SettledEntry]
    failed: list[FailedEntry]


class ChangeMessageVisibility(ToQueue, frozen=True, kw_only=True):
    receipt_handle: str
    visibility_timeout: int


class ChangeMessageVisibilityEntry(Message, frozen=True, kw_only=True):
    id: str
    receipt_handle: str
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatch(ToQueue, frozen=True, kw_only=True):
    entries: list[ChangeMessageVisibilityEntry] = []


class ChangeMessageVisibilityBatchReply(Message, frozen=True, kw_only=True):
    successful: list[SettledEntry]
    failed: list[FailedEntry]


# Dead letters


class ListDeadLetterSourceQueues(ToQueue, frozen=True, kw_only=True):
    next_token: str | None = None
    max_results: int | None = None


class ListDeadLetterSourceQueuesReply(Message, frozen=True, kw_only=True):
    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | None = None


class StartMessageMoveTask(Message, frozen=True, kw_only=True):
    source_arn: str
    destination_arn: str = ""
    max_number_of_messages_per_second: int | None = None


class StartMessageMoveTaskReply(Message, frozen=True, kw_only=True):
    task_handle: str


class CancelMessageMoveTask(Message, frozen=True, kw_only=True):
    task_handle: str


class CancelMessageMoveTaskReply(Message, frozen=True, kw_only=True):
    approximate_number_of_messages_moved: int


class ListMessageMoveTasks(Message, frozen=True, kw_only=True):
    source_arn: str
    max_results: int = 1


class MoveTask(Message, frozen=True, kw_only=True):
    # Known only while the task runs: there is nothing to cancel afterwards.
    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int | None = None
    approximate_number_of_messages_to_move: int | None = None
    failure_reason: str | None = None
    started_timestamp: int


class ListMessageMoveTasksReply(Message, frozen=True, kw_only=True):
    results: list[MoveTask]


Request = (
    AddPermission
    | CancelMessageMoveTask
    | ChangeMessageVisibility
    | ChangeMessageVisibilityBatch
    | CreateQueue
    | DeleteMessage
    | DeleteMessageBatch
    | DeleteQueue
    | GetQueueAttributes
    | GetQueueUrl
    | ListDeadLetterSourceQueues
    | ListMessageMoveTasks
    | ListQueueTags
    | ListQueues
    | PurgeQueue
    | ReceiveMessage
    | RemovePermission
    | SendMessage
    | SendMessageBatch
    | SetQueueAttributes
    | StartMessageMoveTask
    | TagQueue
    | UntagQueue
)

ACTIONS: Final[dict[str, type[Message]]] = {kind.__name__: kind for kind in Request.__args__}


class Unreadable(msgspec.Struct, frozen=True):
    """The body does not fit the action: what is wrong, in words for the one who sent it."""

    reason: str
    # A field that must be there is not; AWS has a code of its own for that.
    is_missing: bool = False


def decode_json(action: type[Message], body: bytes) -> Message | Unreadable:
    try:
        return typed_values.read_json(body or b"{}", action, dec_hook=_read_blob)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return _unreadable(error)


def convert(action: type[Message], fields: dict[str, Any]) -> Message | Unreadable:
    """From the query protocol, where every value is text."""
    try:
        return typed_values.convert(fields, action, strict=False, dec_hook=_read_blob)
    except (msgspec.ValidationError, ValueError) as error:
        return _unreadable(error)


def encode_json(reply: Message) -> bytes:
    return _json.encode(reply)


def write_blob(value: object) -> str:
    if isinstance(value, Blob):
        return base64.b64encode(value).decode()
    raise NotImplementedError(type(value))


def _read_blob(kind: type, value: object) -> object:
    if kind is not Blob or not isinstance(value, str):
        raise ValueError(f"expected base64 text, got {type(value).__name__}")
    return Blob(base64.b64decode(value, validate=True))


def _unreadable(error: Exception) -> Unreadable:
    reason = str(error)
    return Unreadable(reason, is_missing="missing required field" in reason)


_json: Final = msgspec.json.Encoder(enc_hook=write_blob)
