"""SQS on the wire, held against botocore's own description of the service."""

from __future__ import annotations

import json
from contextlib import suppress
from xml.etree import ElementTree as ET

import botocore.session
import msgspec
import pytest
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.sqs import messages
from penstock.codec.sqs.digest import digest_of_attributes, digest_of_body
from penstock.codec.sqs.errors import SqsError
from penstock.codec.sqs.messages import ACTIONS, AttributeValue, Blob, Message, Unreadable
from penstock.codec.sqs.query import MalformedQueryError, fields_of
from penstock.codec.sqs.xml_reply import encode_error, encode_reply

MODEL = botocore.session.get_session().get_service_model("sqs")
REPLIES = {"CreateQueue": messages.QueueUrlReply, "GetQueueUrl": messages.QueueUrlReply}


def reply_of(action: str) -> type[Message]:
    return REPLIES.get(action) or getattr(messages, f"{action}Reply", messages.Nothing)


def names(kind: type[Message]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


@pytest.mark.parametrize("action", MODEL.operation_names)
def test_every_action_has_the_fields_that_aws_has(action: str) -> None:
    operation = MODEL.operation_model(action)
    assert names(ACTIONS[action]) == set(operation.input_shape.members)
    expected = set(operation.output_shape.members) if operation.output_shape is not None else set()
    assert names(reply_of(action)) == expected


@pytest.mark.parametrize("action", MODEL.operation_names)
def test_a_field_that_aws_requires_is_missed_unless_the_path_may_name_it(action: str) -> None:
    required = set(MODEL.operation_model(action).input_shape.required_members) - {"QueueUrl"}
    ours = {field.encode_name for field in msgspec.structs.fields(ACTIONS[action]) if field.required}
    # An empty batch is an error with a name of its own, so that a missing one is taken for it.
    assert ours == required - {"Entries"}


def test_every_error_of_the_service_is_known() -> None:
    declared = {shape.name for shape in MODEL.error_shapes if not shape.name.startswith("Kms")}
    known = {error.shape for error in SqsError}
    assert declared - known <= {"InvalidIdFormat", "InvalidSecurity"}


REQUESTS = [
    ("SendMessage", {"QueueUrl": "u", "MessageBody": "b", "DelaySeconds": 3}),
    (
        "SendMessage",
        {
            "QueueUrl": "u",
            "MessageBody": "b ü & <",
            "MessageAttributes": {
                "n": {"DataType": "Number", "StringValue": "1"},
                "b": {"DataType": "Binary", "BinaryValue": b"\0\1"},
            },
            "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "t"}},
        },
    ),
    ("SendMessageBatch", {"QueueUrl": "u", "Entries": [{"Id": str(n), "MessageBody": f"{n}"} for n in range(12)]}),
    ("DeleteMessageBatch", {"QueueUrl": "u", "Entries": [{"Id": "a", "ReceiptHandle": "r"}]}),
    (
        "ChangeMessageVisibilityBatch",
        {"QueueUrl": "u", "Entries": [{"Id": "a", "ReceiptHandle": "r", "VisibilityTimeout": 5}]},
    ),
    (
        "ReceiveMessage",
        {"QueueUrl": "u", "AttributeNames": ["All"], "MessageAttributeNames": ["a.*"], "MaxNumberOfMessages": 7},
    ),
    ("CreateQueue", {"QueueName": "q", "Attributes": {"VisibilityTimeout": "3"}, "tags": {"team": "x"}}),
    ("SetQueueAttributes", {"QueueUrl": "u", "Attributes": {"A": "1", "B": "2"}}),
    ("TagQueue", {"QueueUrl": "u", "Tags": {"k": "v"}}),
    ("UntagQueue", {"QueueUrl": "u", "TagKeys": ["k", "l"]}),
    ("AddPermission", {"QueueUrl": "u", "Label": "l", "AWSAccountIds": ["1"], "Actions": ["*"]}),
]


@pytest.mark.parametrize(("action", "parameters"), REQUESTS)
def test_a_request_that_botocore_writes_as_json_is_read(action: str, parameters: dict[str, object]) -> None:
    written = create_serializer("json").serialize_to_request(parameters, MODEL.operation_model(action))
    read = messages.decode_json(ACTIONS[action], written["body"])
    assert not isinstance(read, Unreadable), read
    assert json.loads(messages.encode_json(read)) == json.loads(written["body"])


FORM_NAMES = {
    "AttributeNames": "AttributeName",
    "MessageAttributeNames": "MessageAttributeName",
    "TagKeys": "TagKey",
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "Tags": "Tag",
    "tags": "Tag",
}


def form_of(action: str, fields: dict[str, object], prefix: str = "") -> dict[str, str]:
    """The query protocol's rules, written down a second time and the other way round."""
    form: dict[str, str] = {} if prefix else {"Action": action, "Version": "2012-11-05"}
    for name, value in fields.items():
        element = f"{action}RequestEntry" if name == "Entries" else FORM_NAMES.get(name, name)
        if isinstance(value, list):
            for number, item in enumerate(value, 1):
                place = f"{prefix}{element}.{number}"
                form |= form_of(action, item, f"{place}.") if isinstance(item, dict) else {place: str(item)}
        elif isinstance(value, dict) and name in FORM_NAMES:
            for number, (key, item) in enumerate(value.items(), 1):
                place = f"{prefix}{element}.{number}"
                form[f"{place}.{'Key' if element == 'Tag' else 'Name'}"] = key
                below = form_of(action, item, f"{place}.Value.") if isinstance(item, dict) else {f"{place}.Value": item}
                form |= below
        else:
            form[f"{prefix}{element}"] = str(value)
    return form


@pytest.mark.parametrize(("action", "parameters"), REQUESTS)
def test_a_form_means_the_same_as_the_json(action: str, parameters: dict[str, object]) -> None:
    body = create_serializer("json").serialize_to_request(parameters, MODEL.operation_model(action))["body"]
    form = form_of(action, json.loads(body))
    assert messages.convert(ACTIONS[action], fields_of(form, action)) == messages.decode_json(ACTIONS[action], body)


@given(st.dictionaries(st.text("AtribueNm.1Z", max_size=40), st.text(max_size=5), max_size=12))
def test_no_form_breaks_the_reader(form: dict[str, str]) -> None:
    with suppress(MalformedQueryError):
        messages.convert(messages.SendMessage, fields_of(form, "SendMessage"))


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"MessageBody": 1}', b'{"MessageBody":"x","DelaySeconds":"soon"}', b"\xff"]
)
def test_a_body_of_another_shape_says_what_is_wrong(body: bytes) -> None:
    assert isinstance(messages.decode_json(messages.SendMessage, body), Unreadable)


def test_a_missing_field_is_told_from_a_bad_one() -> None:
    missing = messages.decode_json(messages.SendMessage, b"{}")
    assert isinstance(missing, Unreadable)
    assert missing.is_missing
    assert "MessageBody" in missing.reason


def test_binary_values_that_are_no_base64_are_refused() -> None:
    body = b'{"MessageBody":"x","MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"*"}}}'
    assert isinstance(messages.decode_json(messages.SendMessage, body), Unreadable)


RECEIVED = messages.ReceiveMessageReply(
    messages=[
        messages.ReceivedMessage(
            message_id="1",
            receipt_handle="r",
            body_digest=digest_of_body("a<b>\r\n&\u00fc"),
            body="a<b>\r\n&\u00fc",
            attributes={"ApproximateReceiveCount": "2"},
            message_attributes={
                "b": AttributeValue(data_type="Binary", binary_value=Blob(b"\0")),
                "s": AttributeValue(data_type="String", string_value="v"),
            },
        )
    ]
)


def test_what_botocore_reads_from_json_is_what_was_meant() -> None:
    shape = MODEL.operation_model("ReceiveMessage").output_shape
    response = {"headers": {}, "status_code": 200, "body": messages.encode_json(RECEIVED)}
    (message,) = create_parser("json").parse(response, shape)["Messages"]
    assert message["Body"] == "a<b>\r\n&\u00fc"
    assert message["MessageAttributes"]["b"]["BinaryValue"] == b"\0"


def test_the_xml_holds_the_same_text_as_the_json() -> None:
    document = ET.fromstring(encode_reply("ReceiveMessage", RECEIVED, "id-1"))
    space = {"q": "http://queue.amazonaws.com/doc/2012-11-05/"}
    assert document.findtext("q:ReceiveMessageResult/q:Message/q:Body", namespaces=space) == "a<b>\r\n&\u00fc"
    names_found = [element.text for element in document.iterfind(".//q:MessageAttribute/q:Name", space)]
    assert names_found == ["b", "s"]
    assert document.findtext("q:ResponseMetadata/q:RequestId", namespaces=space) == "id-1"


def test_characters_that_xml_cannot_hold_do_not_break_the_document() -> None:
    body = "".join(map(chr, range(32))) + "\ufffe"
    received = msgspec.structs.replace(RECEIVED.messages[0], body=body)
    ET.fromstring(encode_reply("ReceiveMessage", messages.ReceiveMessageReply(messages=[received]), "i"))


def test_an_error_names_its_code_and_whose_fault_it_is() -> None:
    document = encode_error(SqsError.QUEUE_DOES_NOT_EXIST.query_code, "no <queue>", "id", is_sender_fault=True)
    assert b"<Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code>" in document
    assert b"no &lt;queue&gt;" in document


def test_the_digest_of_attributes_is_the_one_that_other_servers_give() -> None:
    attributes = {
        "timestamp": AttributeValue(data_type="Number", string_value="1493147359900"),
    }
    assert digest_of_attributes(attributes) == "235c5c510d26fb653d073faed50ae77c"
    assert digest_of_attributes({}) is None
    assert digest_of_body("hello") == "5d41402abc4b2a76b9719d911017c592"
