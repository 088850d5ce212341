"""Rights at the HTTP and SQS doors: always asked for; and nothing there reaches the broker's own topics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock import __version__
from penstock.broker.topic.broker import Broker
from penstock.domain.security.access import Operation, Principal, Resource, ResourceType
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.sqs.access import RIGHTS
from support.door.conversation import ANY_PORT, TalkingNode, running_node

URL = "http://node/000000000000/orders"
RECEIPT = "0VbeZyqu_BsorFZDMoKIS1YCU16cAAAAAAAAAAAAAAAAAAaHizl4uAA"
ARN = "arn:aws:sqs:eu-central-1:000000000000:orders"
# The fields that each action cannot do without.
ASKED: dict[str, dict[str, Any]] = {
    "AddPermission": {"QueueUrl": URL, "Label": "a", "AWSAccountIds": ["1"], "Actions": ["*"]},
    "CancelMessageMoveTask": {},
    "ChangeMessageVisibility": {"QueueUrl": URL, "ReceiptHandle": RECEIPT, "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {"QueueUrl": URL, "Entries": [{"Id": "a", "ReceiptHandle": RECEIPT}]},
    "CreateQueue": {"QueueName": "orders"},
    "DeleteMessage": {"QueueUrl": URL, "ReceiptHandle": RECEIPT},
    "DeleteMessageBatch": {"QueueUrl": URL, "Entries": [{"Id": "a", "ReceiptHandle": RECEIPT}]},
    "DeleteQueue": {"QueueUrl": URL},
    "GetQueueAttributes": {"QueueUrl": URL},
    "GetQueueUrl": {"QueueName": "orders"},
    "ListDeadLetterSourceQueues": {"QueueUrl": URL},
    "ListMessageMoveTasks": {"SourceArn": ARN},
    "ListQueueTags": {"QueueUrl": URL},
    "ListQueues": {},
    "PurgeQueue": {"QueueUrl": URL},
    "ReceiveMessage": {"QueueUrl": URL},
    "RemovePermission": {"QueueUrl": URL, "Label": "a"},
    "SendMessage": {"QueueUrl": URL, "MessageBody": "a"},
    "SendMessageBatch": {"QueueUrl": URL, "Entries": [{"Id": "a", "MessageBody": "a"}]},
    "SetQueueAttributes": {"QueueUrl": URL, "Attributes": {"DelaySeconds": "1"}},
    "StartMessageMoveTask": {"SourceArn": ARN},
    "TagQueue": {"QueueUrl": URL, "Tags": {"a": "b"}},
    "UntagQueue": {"QueueUrl": URL, "TagKeys": ["a"]},
}


class Rules:
    """Everything, until it is closed; then what is granted. Who may change a thing need not be allowed to see it."""

    def __init__(self) -> None:
        self.is_open = True
        self.granted: set[tuple[Operation, ResourceType, str]] = set()

    def authorize(self, _principal: Principal, operation: Operation, resource: Resource) -> bool:
        return self.is_open or (operation, resource.type, resource.name) in self.granted

    def grant(self, operation: Operation, kind: ResourceType, name: str) -> None:
        self.granted.add((operation, kind, name))


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
async def node(rules: Rules) -> AsyncIterator[TalkingNode]:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT), authorizer=rules) as running:
        yield running


@pytest.fixture
async def http(node: TalkingNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client:
        yield client


async def ask_sqs(http: httpx.AsyncClient, action: str, fields: dict[str, Any]) -> httpx.Response:
    return await http.post("/", content=json.dumps(fields), headers={"x-amz-target": f"AmazonSQS.{action}"})


def broker_of(node: TalkingNode) -> Broker:
    return node.parts.broker


async def test_no_action_of_sqs_is_done_without_a_right(http: httpx.AsyncClient, rules: Rules) -> None:
    for queue in ("orders", "letters"):
        assert (await ask_sqs(http, "CreateQueue", {"QueueName": queue})).status_code == 200
    policy = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 1})
    fields = {"QueueUrl": "/0/letters", "Attributes": {"RedrivePolicy": policy}}
    assert (await ask_sqs(http, "SetQueueAttributes", fields)).status_code == 200
    task = (await ask_sqs(http, "StartMessageMoveTask", ASKED["StartMessageMoveTask"])).json()
    rules.is_open = False
    assert ASKED.keys() == RIGHTS.keys()
    for action, asked in ASKED.items():
        reply = await ask_sqs(http, action, asked | ({"TaskHandle": task["TaskHandle"]} if "Cancel" in action else {}))
        if action == "ListQueues":
            assert reply.json() == {}
            continue
        assert reply.status_code == 403, f"{action}: {reply.text}"
        assert reply.headers["x-amzn-query-error"] == "AccessDenied;Sender", action


async def test_list_that_rules_shorten_says_as_whom_it_was_asked(http: httpx.AsyncClient, rules: Rules) -> None:
    await ask_sqs(http, "CreateQueue", {"QueueName": "orders"})
    lists = ("/v1/queues", "/v1/dead-letters", "/v1/schedule-counts", "/v1/crons")
    for path in lists:
        assert "penstock-answered-as" not in (await http.get(path)).headers, path
    rules.is_open = False
    for path in lists:
        reply = await http.get(path)
        assert (reply.status_code, reply.headers["penstock-answered-as"]) == (200, "User:ANONYMOUS"), path
    refused = await http.get("/v1/queues/orders/workers")
    assert (refused.status_code, refused.json()["detail"]) == (403, "User:ANONYMOUS may not DESCRIBE group 'workers'")


async def test_node_tells_of_itself_only_who_may_describe_the_cluster(http: httpx.AsyncClient, rules: Rules) -> None:
    facts = (await http.get("/v1/node")).json()
    assert facts["version"] == __version__
    assert 0 < facts["cpu_seconds"] <= time.process_time()
    rules.is_open = False
    assert (await http.get("/v1/node")).status_code == 403
    rules.grant(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")
    assert (await http.get("/v1/node")).json()["cpu_seconds"] >= facts["cpu_seconds"]


async def test_a_sender_and_a_receiver_need_no_more_than_their_own_right(http: httpx.AsyncClient, rules: Rules) -> None:
    await ask_sqs(http, "CreateQueue", {"QueueName": "orders"})
    rules.is_open = False
    rules.grant(Operation.WRITE, ResourceType.TOPIC, "orders")
    assert (await ask_sqs(http, "SendMessage", ASKED["SendMessage"])).status_code == 200
    assert (await ask_sqs(http, "ReceiveMessage", {"QueueUrl": URL})).status_code == 403
    rules.granted.clear()
    rules.grant(Operation.READ, ResourceType.TOPIC, "orders")
    rules.grant(Operation.READ, ResourceType.GROUP, "sqs")
    assert len((await ask_sqs(http, "ReceiveMessage", {"QueueUrl": URL})).json()["Messages"]) == 1
    assert (await ask_sqs(http, "SendMessage", ASKED["SendMessage"])).status_code == 403
    assert (await ask_sqs(http, "PurgeQueue", {"QueueUrl": URL})).status_code == 403


async def test_queues_that_may_not_be_seen_are_not_listed(http: httpx.AsyncClient, rules: Rules) -> None:
    await http.post("/v1/topics/orders/messages", json={"value": "a"})
    await http.put("/v1/queues/orders/workers", json={})
    rules.is_open = False
    assert (await http.get("/v1/queues")).json() == {"queues": []}


async def test_who_may_only_write_makes_no_topics(node: TalkingNode, http: httpx.AsyncClient, rules: Rules) -> None:
    rules.is_open = False
    rules.grant(Operation.WRITE, ResourceType.TOPIC, "orders")
    assert (await http.post("/v1/topics/orders/messages", json={"value": "a"})).status_code == 403
    assert broker_of(node).topic("orders") is None
    rules.grant(Operation.CREATE, ResourceType.TOPIC, "orders")
    assert (await http.post("/v1/topics/orders/messages", json={"value": "a"})).status_code == 201


async def test_dead_letters_go_where_their_owner_may_write(http: httpx.AsyncClient, rules: Rules) -> None:
    await http.post("/v1/topics/orders/messages", json={"value": "a"})
    rules.is_open = False
    rules.grant(Operation.READ, ResourceType.TOPIC, "orders")
    rules.grant(Operation.ALTER_CONFIGS, ResourceType.GROUP, "workers")
    wanted = {"dead_letter_topic": "payroll"}
    assert (await http.put("/v1/queues/orders/workers", json=wanted)).status_code == 403
    rules.grant(Operation.WRITE, ResourceType.TOPIC, "payroll")
    assert (await http.put("/v1/queues/orders/workers", json=wanted)).status_code == 201


async def test_a_queue_of_dead_letters_is_purged_by_who_may_delete_its_group(
    http: httpx.AsyncClient, rules: Rules
) -> None:
    await http.post("/v1/topics/letters/messages", json={"value": "a"})
    await http.put("/v1/queues/letters/workers", json={})
    rules.is_open = False
    rules.grant(Operation.DELETE, ResourceType.TOPIC, "letters")
    assert (await http.post("/v1/dead-letters/letters/purge?group=workers")).status_code == 403
    rules.grant(Operation.DELETE, ResourceType.GROUP, "workers")
    assert (await http.post("/v1/dead-letters/letters/purge?group=workers")).status_code == 200


async def test_nothing_is_written_to_the_brokers_own_topics(node: TalkingNode, http: httpx.AsyncClient) -> None:
    await node.parts.groups.ready()
    own = "__consumer_offsets"
    assert broker_of(node).topic(own) is not None
    policy = json.dumps({"deadLetterTargetArn": f"arn:aws:sqs:x:1:{own}", "maxReceiveCount": 1})
    attributes = {"RedrivePolicy": policy}
    assert (await ask_sqs(http, "CreateQueue", {"QueueName": own})).status_code == 400
    assert (await ask_sqs(http, "CreateQueue", {"QueueName": "q", "Attributes": attributes})).status_code == 400
    await http.post("/v1/topics/orders/messages", json={"value": "a"})
    assert (await http.put("/v1/queues/orders/workers", json={"dead_letter_topic": own})).status_code == 400


async def test_a_forged_origin_leads_nowhere_the_caller_may_not_write(
    node: TalkingNode, http: httpx.AsyncClient, rules: Rules
) -> None:
    await node.create_topic("payments")
    for origin in ("orders", "payments"):
        body = {"value": "a", "headers": {"penstock-origin-topic": origin}}
        assert (await http.post("/v1/topics/letters/messages", json=body)).status_code == 201
    await node.create_topic("orders")
    rules.is_open = False
    rules.grant(Operation.READ, ResourceType.TOPIC, "letters")
    rules.grant(Operation.DESCRIBE, ResourceType.TOPIC, "letters")
    rules.grant(Operation.READ, ResourceType.GROUP, "penstock-redrive")
    rules.grant(Operation.WRITE, ResourceType.TOPIC, "orders")
    begun = await http.post("/v1/dead-letters/letters/redrive", json={})
    assert begun.status_code == 202
    task = begun.json()
    async with asyncio.timeout(10):
        while task["state"] == "running":
            task = (await http.get(f"/v1/dead-letters/letters/redrives/{task['id']}")).json()
            await asyncio.sleep(0.005)
    assert (task["state"], task["moved_count"], task["denied_count"]) == ("failed", 1, 1)
    assert "User:ANONYMOUS may not write to 'payments'" in task["reason"]
    assert [node.shell(name).readable_end for name in ("orders", "payments")] == [1, 0]


async def test_a_queue_is_never_its_own_dead_letter_topic(http: httpx.AsyncClient) -> None:
    await http.post("/v1/topics/orders/messages", json={"value": "a"})
    reply = await http.put("/v1/queues/orders/workers", json={"dead_letter_topic": "orders"})
    assert (reply.status_code, "its own dead-letter topic" in reply.json()["detail"]) == (400, True)
    policy = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 1})
    asked = {"QueueName": "orders", "Attributes": {"RedrivePolicy": policy}}
    assert (await ask_sqs(http, "CreateQueue", asked)).status_code == 400
    await ask_sqs(http, "CreateQueue", {"QueueName": "orders"})
    changed = {"QueueUrl": URL, "Attributes": {"RedrivePolicy": policy}}
    assert (await ask_sqs(http, "SetQueueAttributes", changed)).status_code == 400
