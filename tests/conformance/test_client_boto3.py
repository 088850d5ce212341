"""boto3, as it is, against a node of its own process: everything an SQS application relies on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from support.door.sqs_client import sqs_client
from support.node_process import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("sqs"), has_http=True).start()
    yield running
    running.terminate()


@pytest.fixture
def sqs(node: NodeProcess) -> Any:
    return sqs_client(node)


_names = iter(f"queue-{number}" for number in range(10_000))


def new_queue(sqs: Any, suffix: str = "", **attributes: str) -> str:
    return str(sqs.create_queue(QueueName=next(_names) + suffix, Attributes=attributes)["QueueUrl"])


def receive(sqs: Any, url: str, **more: Any) -> list[dict[str, Any]]:
    return list(sqs.receive_message(QueueUrl=url, **{"MaxNumberOfMessages": 10, **more}).get("Messages", []))


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def test_a_message_is_sent_received_and_deleted(sqs: Any) -> None:
    url = new_queue(sqs)
    sent = sqs.send_message(QueueUrl=url, MessageBody="hello ü")
    assert sent["MD5OfMessageBody"] == hashlib.md5("hello ü".encode()).hexdigest()
    (message,) = receive(sqs, url)
    assert (message["Body"], message["MessageId"]) == ("hello ü", sent["MessageId"])
    assert receive(sqs, url) == []
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == "0"
    assert attributes["QueueArn"].startswith("arn:aws:sqs:eu-central-1:000000000000:queue-")


def test_attributes_come_back_and_only_those_that_were_asked_for(sqs: Any) -> None:
    url = new_queue(sqs)
    attributes = {
        "city": {"DataType": "String", "StringValue": "Köln"},
        "count": {"DataType": "Number.int", "StringValue": "7"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    asked = {"VisibilityTimeout": 0, "MessageAttributeNames": ["c.*", "city"], "AttributeNames": ["SentTimestamp"]}
    (message,) = receive(sqs, url, **asked)
    assert set(message["MessageAttributes"]) == {"city"}
    assert set(message["Attributes"]) == {"SentTimestamp"}
    time.sleep(0.01)
    (message,) = receive(sqs, url, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"])
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "2"


def test_a_message_that_is_not_deleted_comes_back(sqs: Any) -> None:
    url = new_queue(sqs, VisibilityTimeout="1")
    sqs.send_message(QueueUrl=url, MessageBody="again")
    (first,) = receive(sqs, url)
    (second,) = receive(sqs, url, WaitTimeSeconds=5)
    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    # The old receipt is worth nothing: the message stays with the second consumer.
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    with pytest.raises(ClientError) as error:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    assert code_of(error) == "AWS.SimpleQueueService.MessageNotInflight"
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=0)
    assert len(receive(sqs, url)) == 1


def test_a_long_poll_returns_with_the_message(sqs: Any, node: NodeProcess) -> None:
    from threading import Timer

    url = new_queue(sqs)
    sender = Timer(0.5, lambda: sqs_client(node).send_message(QueueUrl=url, MessageBody="late"))
    sender.start()
    began = time.monotonic()
    (message,) = receive(sqs, url, WaitTimeSeconds=20)
    sender.join()
    assert message["Body"] == "late"
    assert time.monotonic() - began < 10


def test_batches_fail_in_parts(sqs: Any) -> None:
    url = new_queue(sqs)
    entries = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(9)]
    bad = {"Id": "bad", "MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Strange", "StringValue": "1"}}}
    sent = sqs.send_message_batch(QueueUrl=url, Entries=[*entries, bad])
    assert [each["Id"] for each in sent["Successful"]] == [str(number) for number in range(9)]
    assert [(each["Id"], each["SenderFault"]) for each in sent["Failed"]] == [("bad", True)]
    messages = receive(sqs, url)
    assert sorted(message["Body"] for message in messages) == [f"m{number}" for number in range(9)]
    handles = [{"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]} for place, each in enumerate(messages)]
    handles[0]["ReceiptHandle"] = "nonsense"
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=handles)
    assert len(deleted["Successful"]) == 8
    assert deleted["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"
    changed = [{"Id": "a", "ReceiptHandle": messages[0]["ReceiptHandle"], "VisibilityTimeout": 0}]
    assert sqs.change_message_visibility_batch(QueueUrl=url, Entries=changed)["Successful"] == [{"Id": "a"}]


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "AWS.SimpleQueueService.EmptyBatchRequest"),
        (
            [{"Id": str(n), "MessageBody": "x"} for n in range(11)],
            "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        ),
        ([{"Id": "a", "MessageBody": "x"}] * 2, "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"),
        ([{"Id": "a b", "MessageBody": "x"}], "AWS.SimpleQueueService.InvalidBatchEntryId"),
        (
            [{"Id": str(n), "MessageBody": "x" * 600_000} for n in range(2)],
            "AWS.SimpleQueueService.BatchRequestTooLong",
        ),
    ],
)
def test_a_batch_that_is_wrong_as_a_whole_is_refused(sqs: Any, entries: list[dict[str, str]], code: str) -> None:
    with pytest.raises(ClientError) as error:
        sqs.send_message_batch(QueueUrl=new_queue(sqs), Entries=entries)
    assert code_of(error) == code


def test_errors_are_the_ones_that_applications_catch(sqs: Any) -> None:
    url = new_queue(sqs)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName="nowhere")
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.send_message(QueueUrl=url + "x", MessageBody="a")
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=url, ReceiptHandle="nonsense")
    with pytest.raises(sqs.exceptions.InvalidAttributeName):
        sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Colour"])
    for parameters, code in [
        ({"MessageBody": "x" * 1_048_577}, "InvalidParameterValue"),
        ({"MessageBody": "a\x00"}, "InvalidMessageContents"),
        ({"MessageBody": "a", "DelaySeconds": 901}, "InvalidParameterValue"),
        ({"MessageBody": ""}, "MissingParameter"),
    ]:
        with pytest.raises(ClientError) as error:
            sqs.send_message(QueueUrl=url, **parameters)
        assert code_of(error) == code, parameters
    for parameters in ({"MaxNumberOfMessages": 11}, {"WaitTimeSeconds": 21}, {"VisibilityTimeout": 43_201}):
        with pytest.raises(ClientError) as error:
            sqs.receive_message(QueueUrl=url, **parameters)
        assert code_of(error) == "InvalidParameterValue", parameters


def test_creating_again_is_the_same_queue_unless_it_differs(sqs: Any) -> None:
    name = next(_names)
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "5"})["QueueUrl"]
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    with pytest.raises(sqs.exceptions.QueueNameExists):
        sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "6"})
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    assert url in sqs.list_queues(QueueNamePrefix=name)["QueueUrls"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7", "MessageRetentionPeriod": "60"})
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"]
    assert attributes == {"VisibilityTimeout": "7"}
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName=name)


def test_queues_are_listed_in_pages(sqs: Any) -> None:
    prefix = f"{next(_names)}-page"
    for number in range(5):
        sqs.create_queue(QueueName=f"{prefix}-{number}")
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2})
    found = [page.get("QueueUrls", []) for page in pages]
    assert [len(page) for page in found] == [2, 2, 1]


def test_tags_are_kept(sqs: Any) -> None:
    url = new_queue(sqs)
    sqs.tag_queue(QueueUrl=url, Tags={"team": "billing", "stage": "test"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["stage"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "billing"}


def test_a_purge_empties_the_queue(sqs: Any) -> None:
    url = new_queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="old")
    sqs.purge_queue(QueueUrl=url)
    sqs.send_message(QueueUrl=url, MessageBody="new")
    assert [message["Body"] for message in receive(sqs, url)] == ["new"]


def test_what_fails_too_often_goes_to_the_dead_letter_queue(sqs: Any) -> None:
    dead = new_queue(sqs)
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    url = new_queue(sqs, RedrivePolicy=policy, VisibilityTimeout="0")
    sent = sqs.send_message(
        QueueUrl=url, MessageBody="poison", MessageAttributes={"a": {"DataType": "String", "StringValue": "1"}}
    )
    for _ in range(2):
        (message,) = receive(sqs, url, WaitTimeSeconds=5)
        assert message["Body"] == "poison"
    assert receive(sqs, url, WaitTimeSeconds=1) == []
    (letter,) = receive(sqs, dead, WaitTimeSeconds=10, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert (letter["Body"], letter["MessageId"]) == ("poison", sent["MessageId"])
    assert letter["MessageAttributes"] == {"a": {"DataType": "String", "StringValue": "1"}}
    assert letter["Attributes"]["DeadLetterQueueSourceArn"].endswith(url.rpartition("/")[2])
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]


def test_a_fifo_queue_keeps_the_order_of_each_group_and_drops_repetitions(sqs: Any) -> None:
    url = new_queue(sqs, ".fifo", FifoQueue="true")
    first = sqs.send_message(QueueUrl=url, MessageBody="a1", MessageGroupId="a", MessageDeduplicationId="1")
    again = sqs.send_message(QueueUrl=url, MessageBody="a1", MessageGroupId="a", MessageDeduplicationId="1")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    sqs.send_message(QueueUrl=url, MessageBody="a2", MessageGroupId="a", MessageDeduplicationId="2")
    sqs.send_message(QueueUrl=url, MessageBody="b1", MessageGroupId="b", MessageDeduplicationId="3")
    held = receive(sqs, url, AttributeNames=["All"])
    assert [message["Body"] for message in held] == ["a1", "b1"]
    assert held[0]["Attributes"]["MessageGroupId"] == "a"
    assert receive(sqs, url) == []
    sqs.delete_message(QueueUrl=url, ReceiptHandle=held[0]["ReceiptHandle"])
    assert [message["Body"] for message in receive(sqs, url)] == ["a2"]
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageDeduplicationId="9")
    assert code_of(error) == "MissingParameter"
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="a")
    assert code_of(error) == "InvalidParameterValue"


def test_the_older_protocol_says_the_same(sqs: Any, node: NodeProcess) -> None:
    import httpx

    url = new_queue(sqs)
    path = "/" + url.split("/", 3)[3]
    form = {
        "Action": "SendMessage",
        "Version": "2012-11-05",
        "MessageBody": "by form & <xml>",
        "MessageAttribute.1.Name": "a",
        "MessageAttribute.1.Value.DataType": "String",
        "MessageAttribute.1.Value.StringValue": "v",
    }
    with httpx.Client(base_url=f"http://{node.http}", headers={"authorization": "AWS4-HMAC-SHA256"}) as http:
        sent = http.post(path, data=form)
        assert sent.status_code == 200
        assert "<SendMessageResult>" in sent.text
        query = {"Action": "ReceiveMessage", "MessageAttributeName.1": "All", "AttributeName.1": "All"}
        received = http.post(path, data=query)
        assert "<Body>by form &amp; &lt;xml&gt;</Body>" in received.text
        missing = http.post("/", data={"Action": "GetQueueUrl", "QueueName": "nowhere"})
        assert missing.status_code == 400
        assert "<Code>AWS.SimpleQueueService.NonExistentQueue</Code>" in missing.text


def test_everything_is_found_again_after_a_kill(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, has_http=True).start()
    try:
        sqs = sqs_client(node)
        url = new_queue(sqs, ".fifo", FifoQueue="true")
        for number in range(3):
            body = f"m{number}"
            sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=body, MessageDeduplicationId=body)
        held = receive(sqs, url, MaxNumberOfMessages=2)
        sqs.delete_message(QueueUrl=url, ReceiptHandle=held[0]["ReceiptHandle"])
        node.kill()
        node.start()
        # The lease of the second one holds, so does what was deleted; and a repetition is still one.
        sqs.send_message(QueueUrl=url, MessageBody="m0", MessageGroupId="m0", MessageDeduplicationId="m0")
        assert [message["Body"] for message in receive(sqs, url)] == ["m2"]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=held[1]["ReceiptHandle"])
    finally:
        if node.is_running:
            node.kill()
