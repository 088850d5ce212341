"""boto3 and DelaySeconds: of messages, of queues, of FIFO queues; ids, times, counts, purges and restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from support.door.sqs_client import sqs_client
from support.node_process import NodeProcess

_names = iter(f"delays-{number}" for number in range(10_000))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("sqs-delays"), has_http=True) as running:
        yield running


@pytest.fixture
def sqs(node: NodeProcess) -> Any:
    return sqs_client(node)


def new_queue(sqs: Any, suffix: str = "", **attributes: str) -> str:
    return str(sqs.create_queue(QueueName=next(_names) + suffix, Attributes=attributes)["QueueUrl"])


def new_fifo_queue(sqs: Any, **attributes: str) -> str:
    return new_queue(sqs, ".fifo", FifoQueue="true", ContentBasedDeduplication="true", **attributes)


def receive(sqs: Any, url: str, seconds: int = 0) -> list[dict[str, Any]]:
    found = sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=seconds, MessageSystemAttributeNames=["All"]
    )
    return list(found.get("Messages", []))


def receive_all(sqs: Any, url: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        batch = receive(sqs, url, 5)
        found += batch
        for message in batch:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return found


def delayed_count(sqs: Any, url: str) -> str:
    names = ["ApproximateNumberOfMessagesDelayed"]
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"][names[0]])


def refused(act: Any, **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as error:
        act(**arguments)
    problem = error.value.response["Error"]
    return problem["Code"], problem["Message"]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_delayed_message_comes_when_it_is_due_under_the_id_that_its_sender_got(sqs: Any) -> None:
    url = new_queue(sqs)
    before_ms = now_ms()
    sent = sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=1)
    after_ms = now_ms()
    assert receive(sqs, url) == []
    assert delayed_count(sqs, url) == "1"
    (message,) = receive(sqs, url, 10)
    assert now_ms() >= before_ms + 1_000
    assert (message["Body"], message["MessageId"]) == ("later", sent["MessageId"])
    assert before_ms <= int(message["Attributes"]["SentTimestamp"]) <= after_ms
    assert delayed_count(sqs, url) == "0"


def test_attributes_are_after_the_delay_what_they_were_before(sqs: Any) -> None:
    url = new_queue(sqs)
    attributes = {
        "city": {"DataType": "String", "StringValue": "Köln"},
        "count": {"DataType": "Number.int", "StringValue": "7"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=1, MessageAttributes=attributes)
    found = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10, MessageAttributeNames=["All"])["Messages"]
    assert found[0]["MessageAttributes"] == attributes
    assert found[0]["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


def test_the_query_protocol_delays_too(node: NodeProcess, sqs: Any) -> None:
    url = new_queue(sqs)
    form = {"Action": "SendMessage", "MessageBody": "x", "DelaySeconds": "600"}
    signed = {"authorization": "AWS4-HMAC-SHA256"}
    reply = httpx.post(f"http://{node.http}/000000000000/{url.rpartition('/')[2]}", data=form, headers=signed)
    assert reply.status_code == 200, reply.text
    assert delayed_count(sqs, url) == "1"
    form["DelaySeconds"] = "901"
    reply = httpx.post(f"http://{node.http}/000000000000/{url.rpartition('/')[2]}", data=form, headers=signed)
    assert (reply.status_code, "InvalidParameterValue" in reply.text) == (400, True)


def test_a_batch_has_delays_of_its_own(sqs: Any) -> None:
    url = new_queue(sqs)
    entries = [
        {"Id": "late", "MessageBody": "late", "DelaySeconds": 1},
        {"Id": "now", "MessageBody": "now"},
        {"Id": "bad", "MessageBody": "bad", "DelaySeconds": 901},
    ]
    reply = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in reply["Successful"]] == ["late", "now"]
    (failed,) = reply["Failed"]
    assert (failed["Id"], failed["SenderFault"]) == ("bad", True)
    found = receive_all(sqs, url, 2)
    assert [message["Body"] for message in found] == ["now", "late"]
    ids = {entry["Id"]: entry["MessageId"] for entry in reply["Successful"]}
    assert [message["MessageId"] for message in found] == [ids["now"], ids["late"]]


def test_the_delay_of_a_queue_is_that_of_messages_that_say_nothing(sqs: Any) -> None:
    url = new_queue(sqs, DelaySeconds="1")
    assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]["DelaySeconds"] == "1"
    before_ms = now_ms()
    sqs.send_message(QueueUrl=url, MessageBody="as the queue says")
    sqs.send_message(QueueUrl=url, MessageBody="at once", DelaySeconds=0)
    assert [message["Body"] for message in receive(sqs, url)] == ["at once"]
    assert [message["Body"] for message in receive(sqs, url, 10)] == ["as the queue says"]
    assert now_ms() >= before_ms + 1_000
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    sqs.send_message(QueueUrl=url, MessageBody="no more")
    assert [message["Body"] for message in receive(sqs, url)] == ["no more"]


def test_more_than_fifteen_minutes_is_refused_as_aws_does(sqs: Any) -> None:
    url = new_queue(sqs)
    for seconds in (901, -1):
        code, message = refused(sqs.send_message, QueueUrl=url, MessageBody="a", DelaySeconds=seconds)
        assert code == "InvalidParameterValue"
        assert "DelaySeconds" in message
    code, _ = refused(sqs.set_queue_attributes, QueueUrl=url, Attributes={"DelaySeconds": "901"})
    assert code == "InvalidAttributeValue"
    sqs.send_message(QueueUrl=url, MessageBody="a", DelaySeconds=900)
    assert delayed_count(sqs, url) == "1"


def test_a_purge_hides_what_is_pending(sqs: Any) -> None:
    url = new_queue(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="old", DelaySeconds=1)
    sqs.purge_queue(QueueUrl=url)
    assert delayed_count(sqs, url) == "0"
    sqs.send_message(QueueUrl=url, MessageBody="new", DelaySeconds=2)
    assert [message["Body"] for message in receive(sqs, url, 10)] == ["new"]
    assert receive(sqs, url) == []


def test_messages_of_fifo_queues_have_no_delay_of_their_own(sqs: Any) -> None:
    url = new_fifo_queue(sqs)
    code, message = refused(sqs.send_message, QueueUrl=url, MessageBody="a", MessageGroupId="g", DelaySeconds=1)
    assert (code, "queue type" in message) == ("InvalidParameterValue", True)
    # AWS takes this one.
    sqs.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g", DelaySeconds=0)


def test_a_fifo_queue_delays_all_in_order_and_counts_each_once(sqs: Any) -> None:
    url = new_fifo_queue(sqs, DelaySeconds="1")
    first = [sqs.send_message(QueueUrl=url, MessageBody=str(number), MessageGroupId="g") for number in range(3)]
    entries = [{"Id": str(number), "MessageBody": str(number), "MessageGroupId": "g"} for number in range(2, 6)]
    entries.append({"Id": "again", "MessageBody": "5", "MessageGroupId": "g"})
    batch = {entry["Id"]: entry for entry in sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]}
    # A repetition is answered as the first one was.
    assert batch["2"]["MessageId"] == first[2]["MessageId"]
    assert batch["2"]["SequenceNumber"] == first[2]["SequenceNumber"]
    assert batch["again"]["MessageId"] == batch["5"]["MessageId"]
    found: list[dict[str, Any]] = []
    while len(found) < 6:
        received = receive(sqs, url, 5)
        assert received, f"only {len(found)} came"
        found += received
        for message in received:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert [message["Body"] for message in found] == list("012345")
    numbers = [message["Attributes"]["SequenceNumber"] for message in found]
    assert numbers == sorted(numbers)
    assert numbers[:3] == [sent["SequenceNumber"] for sent in first]
    # Within five minutes of the sending, also when it was received and deleted since.
    sqs.send_message(QueueUrl=url, MessageBody="3", MessageGroupId="g")
    sqs.send_message(QueueUrl=url, MessageBody="6", MessageGroupId="g")
    assert [message["Body"] for message in receive(sqs, url, 10)] == ["6"]


def test_the_same_message_sent_by_many_at_once_is_delayed_once(node: NodeProcess, sqs: Any) -> None:
    url = new_fifo_queue(sqs, DelaySeconds="1")
    clients = [sqs_client(node) for _ in range(6)]
    with ThreadPoolExecutor(len(clients)) as pool:
        sent = list(
            pool.map(lambda each: each.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g"), clients)
        )
    assert len({reply["MessageId"] for reply in sent}) == 1
    assert delayed_count(sqs, url) == "1"


def test_nothing_overtakes_in_a_fifo_queue_whose_delay_becomes_shorter(sqs: Any) -> None:
    url = new_fifo_queue(sqs, DelaySeconds="2")
    sqs.send_message(QueueUrl=url, MessageBody="slow", MessageGroupId="g")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    sqs.send_message(QueueUrl=url, MessageBody="quick", MessageGroupId="g")
    assert receive(sqs, url) == []
    assert [message["Body"] for message in receive_all(sqs, url, 2)] == ["slow", "quick"]
    sqs.send_message(QueueUrl=url, MessageBody="at once", MessageGroupId="g")
    assert [message["Body"] for message in receive(sqs, url)] == ["at once"]


def test_nobody_waits_for_what_was_purged(sqs: Any) -> None:
    url = new_fifo_queue(sqs, DelaySeconds="900")
    sqs.send_message(QueueUrl=url, MessageBody="slow", MessageGroupId="g")
    sqs.purge_queue(QueueUrl=url)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    sqs.send_message(QueueUrl=url, MessageBody="at once", MessageGroupId="g")
    assert [message["Body"] for message in receive(sqs, url)] == ["at once"]


def test_delays_and_deduplication_survive_kill_nine(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node", has_http=True) as node:
        sqs = sqs_client(node)
        url = new_fifo_queue(sqs, DelaySeconds="2")
        sent = sqs.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g")
        plain = new_queue(sqs)
        later = sqs.send_message(QueueUrl=plain, MessageBody="b", DelaySeconds=2)
        node.kill()
        node.start()
        sqs = sqs_client(node)
        again = sqs.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g")
        assert again["MessageId"] == sent["MessageId"]
        found = receive_all(sqs, url, 1) + receive_all(sqs, plain, 1)
        assert [message["MessageId"] for message in found] == [sent["MessageId"], later["MessageId"]]
        assert receive(sqs, url) == []
        # It was released meanwhile, and is known all the same.
        node.kill()
        node.start()
        sqs = sqs_client(node)
        assert sqs.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g")["MessageId"] == sent["MessageId"]
        assert delayed_count(sqs, url) == "0"
