"""boto3, as it is: message move tasks, which bring the messages of a dead-letter queue back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from support.door.sqs_client import sqs_client
from support.node_process import NodeProcess

PATIENCE_SECONDS = 15
_names = iter(f"moved-{number}" for number in range(10_000))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("sqs-tasks"), has_http=True).start()
    yield running
    running.terminate()


@pytest.fixture
def sqs(node: NodeProcess) -> Any:
    return sqs_client(node)


def arn_of(sqs: Any, url: str) -> str:
    reply = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return str(reply["Attributes"]["QueueArn"])


def new_pair(sqs: Any, suffix: str = "") -> tuple[str, str]:
    """A queue and its dead-letter queue, which gets what was received once and not deleted."""
    name = next(_names)
    more = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if suffix else {}
    dead = str(sqs.create_queue(QueueName=f"{name}-dead{suffix}", Attributes=more)["QueueUrl"])
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})
    attributes = {"RedrivePolicy": policy, "VisibilityTimeout": "0", **more}
    return str(sqs.create_queue(QueueName=f"{name}{suffix}", Attributes=attributes)["QueueUrl"]), dead


def receive(sqs: Any, url: str, **more: Any) -> list[dict[str, Any]]:
    return list(sqs.receive_message(QueueUrl=url, **{"MaxNumberOfMessages": 10, **more}).get("Messages", []))


def count_of(sqs: Any, url: str) -> int:
    reply = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    return int(reply["Attributes"]["ApproximateNumberOfMessages"])


def fill(sqs: Any, url: str, dead: str, *bodies: str) -> None:
    """Sends them, receives each once, and waits until all are in the dead-letter queue."""
    for body in bodies:
        more = {"MessageGroupId": "g"} if url.endswith(".fifo") else {}
        sqs.send_message(QueueUrl=url, MessageBody=body, **more)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while count_of(sqs, dead) < len(bodies):
        assert time.monotonic() < deadline, f"{count_of(sqs, dead)} of {len(bodies)} messages are dead letters"
        receive(sqs, url)


def ended(sqs: Any, arn: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
        if task["Status"] not in ("RUNNING", "CANCELLING"):
            return dict(task)
        assert time.monotonic() < deadline, task


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def test_messages_go_back_to_the_queue_they_came_from(sqs: Any) -> None:
    url, dead = new_pair(sqs)
    fill(sqs, url, dead, "a", "b", "c")
    arn = arn_of(sqs, dead)
    started = sqs.start_message_move_task(SourceArn=arn)
    assert started["TaskHandle"]
    task = ended(sqs, arn)
    assert task["Status"] == "COMPLETED"
    assert (task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"]) == (3, 3)
    assert task["SourceArn"] == arn
    assert task["StartedTimestamp"] > 1_600_000_000_000
    assert "TaskHandle" not in task
    assert count_of(sqs, dead) == 0
    assert sorted(message["Body"] for message in receive(sqs, url, VisibilityTimeout=30)) == ["a", "b", "c"]


def test_messages_go_to_another_queue_with_their_ids_and_attributes(sqs: Any) -> None:
    url, dead = new_pair(sqs)
    other = str(sqs.create_queue(QueueName=next(_names))["QueueUrl"])
    attributes = {"kind": {"DataType": "String", "StringValue": "test"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody="hello", MessageAttributes=attributes)
    fill_count = time.monotonic() + PATIENCE_SECONDS
    while count_of(sqs, dead) < 1:
        assert time.monotonic() < fill_count
        receive(sqs, url)
    arn = arn_of(sqs, dead)
    sqs.start_message_move_task(SourceArn=arn, DestinationArn=arn_of(sqs, other), MaxNumberOfMessagesPerSecond=100)
    task = ended(sqs, arn)
    assert (task["Status"], task["DestinationArn"]) == ("COMPLETED", arn_of(sqs, other))
    assert task["MaxNumberOfMessagesPerSecond"] == 100
    (message,) = receive(sqs, other, MessageAttributeNames=["All"])
    assert (message["Body"], message["MessageId"]) == ("hello", sent["MessageId"])
    assert message["MessageAttributes"] == attributes


def test_a_fifo_queue_gets_its_messages_back_in_order(sqs: Any) -> None:
    url, dead = new_pair(sqs, ".fifo")
    bodies = [f"{number:02d}" for number in range(8)]
    fill(sqs, url, dead, *bodies)
    sqs.start_message_move_task(SourceArn=arn_of(sqs, dead))
    assert ended(sqs, arn_of(sqs, dead))["ApproximateNumberOfMessagesMoved"] == 8
    # To be received more than once: else they die again while we look.
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "30"})
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < len(bodies) and time.monotonic() < deadline:
        for message in receive(sqs, url):
            found.append(message["Body"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert found == bodies


def test_a_running_task_is_listed_cancelled_and_alone(sqs: Any) -> None:
    url, dead = new_pair(sqs)
    fill(sqs, url, dead, *[str(number) for number in range(12)])
    arn = arn_of(sqs, dead)
    handle = sqs.start_message_move_task(SourceArn=arn, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert (task["Status"], task["TaskHandle"]) == ("RUNNING", handle)
    with pytest.raises(ClientError) as error:
        sqs.start_message_move_task(SourceArn=arn)
    assert code_of(error) == "AWS.SimpleQueueService.UnsupportedOperation"
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    assert moved < 12
    assert ended(sqs, arn)["Status"] == "CANCELLED"
    with pytest.raises(ClientError) as error:
        sqs.cancel_message_move_task(TaskHandle=handle)
    assert code_of(error) == "AWS.SimpleQueueService.UnsupportedOperation"
    sqs.start_message_move_task(SourceArn=arn)
    ended(sqs, arn)
    tasks = sqs.list_message_move_tasks(SourceArn=arn, MaxResults=10)["Results"]
    assert [task["Status"] for task in tasks] == ["COMPLETED", "CANCELLED"]


def test_a_message_that_came_from_nowhere_fails_the_task(sqs: Any) -> None:
    _, dead = new_pair(sqs)
    sqs.send_message(QueueUrl=dead, MessageBody="stray")
    arn = arn_of(sqs, dead)
    sqs.start_message_move_task(SourceArn=arn)
    task = ended(sqs, arn)
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
    assert [message["Body"] for message in receive(sqs, dead)] == ["stray"]


def test_what_makes_no_sense_is_refused_as_by_aws(sqs: Any) -> None:
    url, dead = new_pair(sqs)
    plain = str(sqs.create_queue(QueueName=next(_names))["QueueUrl"])
    arn, missing = arn_of(sqs, dead), arn_of(sqs, dead) + "-missing"
    for expected, action, fields in (
        ("ResourceNotFoundException", "start_message_move_task", {"SourceArn": missing}),
        ("ResourceNotFoundException", "start_message_move_task", {"SourceArn": arn, "DestinationArn": missing}),
        ("InvalidParameterValue", "start_message_move_task", {"SourceArn": "nonsense"}),
        ("InvalidParameterValue", "start_message_move_task", {"SourceArn": arn_of(sqs, plain)}),
        ("InvalidParameterValue", "start_message_move_task", {"SourceArn": arn, "MaxNumberOfMessagesPerSecond": 501}),
        ("InvalidParameterValue", "start_message_move_task", {"SourceArn": arn, "DestinationArn": arn}),
        ("ResourceNotFoundException", "list_message_move_tasks", {"SourceArn": missing}),
        ("InvalidParameterValue", "list_message_move_tasks", {"SourceArn": arn, "MaxResults": 11}),
        ("InvalidParameterValue", "cancel_message_move_task", {"TaskHandle": "nonsense"}),
    ):
        with pytest.raises(ClientError) as error:
            getattr(sqs, action)(**fields)
        assert code_of(error) == expected, (action, fields)
    assert sqs.list_message_move_tasks(SourceArn=arn_of(sqs, url))["Results"] == []


def test_a_dead_letter_queue_may_refuse_to_be_one(sqs: Any) -> None:
    allowed, other = (str(sqs.create_queue(QueueName=next(_names))["QueueUrl"]) for _ in range(2))
    policy = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [arn_of(sqs, allowed)]})
    dead = str(sqs.create_queue(QueueName=next(_names), Attributes={"RedriveAllowPolicy": policy})["QueueUrl"])
    wanted = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 3})}
    sqs.set_queue_attributes(QueueUrl=allowed, Attributes=wanted)
    with pytest.raises(ClientError) as error:
        sqs.set_queue_attributes(QueueUrl=other, Attributes=wanted)
    assert code_of(error) == "InvalidParameterValue"
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": '{"redrivePermission": "denyAll"}'})
    with pytest.raises(ClientError):
        sqs.create_queue(QueueName=next(_names), Attributes=wanted)
    with pytest.raises(ClientError) as error:
        sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": '{"redrivePermission": "maybe"}'})
    assert code_of(error) == "InvalidParameterValue"
