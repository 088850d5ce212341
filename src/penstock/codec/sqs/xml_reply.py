"""Replies of the query protocol: the same structs as JSON, written as AWS's XML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from xml.sax.saxutils import escape

import msgspec

from penstock.codec.sqs.messages import Message, write_blob

NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
# Lists have no element of their own, only their items have: named by the reply and the field.
_ITEMS: Final = {
    ("SendMessageBatch", "Successful"): "SendMessageBatchResultEntry",
    ("DeleteMessageBatch", "Successful"): "DeleteMessageBatchResultEntry",
    ("ChangeMessageVisibilityBatch", "Successful"): "ChangeMessageVisibilityBatchResultEntry",
    ("ListMessageMoveTasks", "Results"): "ListMessageMoveTasksResultEntry",
}
_COMMON_ITEMS: Final = {
    "Failed": "BatchResultErrorEntry",
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
}
# (element, key, value) of maps.
_MAPS: Final = {
    "Attributes": ("Attribute", "Name", "Value"),
    "MessageAttributes": ("MessageAttribute", "Name", "Value"),
    "Tags": ("Tag", "Key", "Value"),
}
# XML 1.0 cannot hold them even as references. AWS refuses messages with them; ours may come from a Kafka client.
_UNWRITABLE: Final = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 65534, 65535), "�")


def encode_reply(action: str, reply: Message, request_id: str) -> bytes:
    fields = msgspec.to_builtins(reply, enc_hook=write_blob)
    result = "".join(_structure(action, fields))
    # An action without a result has no element for one.
    body = f"<{action}Result>{result}</{action}Result>" if type(reply).__struct_fields__ else ""
    metadata = f"<ResponseMetadata><RequestId>{_text(request_id)}</RequestId></ResponseMetadata>"
    return _document(f'<{action}Response xmlns="{NAMESPACE}">{body}{metadata}</{action}Response>')


def encode_error(code: str, message: str, request_id: str, *, is_sender_fault: bool) -> bytes:
    side = "Sender" if is_sender_fault else "Receiver"
    error = f"<Error><Type>{side}</Type><Code>{_text(code)}</Code><Message>{_text(message)}</Message><Detail/></Error>"
    request = f"<RequestId>{_text(request_id)}</RequestId>"
    return _document(f'<ErrorResponse xmlns="{NAMESPACE}">{error}{request}</ErrorResponse>')


def _document(element: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>{element}'.encode()


def _structure(action: str, fields: dict[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, dict) and name in _MAPS:
            yield from _map(action, *_MAPS[name], value)
        elif isinstance(value, list):
            element = _ITEMS.get((action, name)) or _COMMON_ITEMS.get(name, name)
            for item in value:
                yield _element(action, element, item)
        else:
            yield _element(action, name, value)


def _map(action: str, element: str, key: str, value: str, entries: dict[str, Any]) -> Iterator[str]:
    for name, entry in entries.items():
        yield f"<{element}><{key}>{_text(name)}</{key}>{_element(action, value, entry)}</{element}>"


def _element(action: str, name: str, value: object) -> str:
    inner = "".join(_structure(action, value)) if isinstance(value, dict) else _text(value)
    return f"<{name}>{inner}</{name}>"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # Line ends other than \n would be changed by every reader of XML.
    return escape(str(value).translate(_UNWRITABLE), {"\r": "&#xD;"})
