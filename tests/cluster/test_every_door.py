"""Whatever a node is asked by HTTP or SQS it answers as the leader would: three nodes, of which one leads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from support.cluster.nodes_with_doors import NodesWithDoors
from support.door.sqs_client import sqs_client_at

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(120)]

NODES = (1, 2, 3)
# Node 3 leads nothing.
SPREAD = ((1, 2, 3), (2, 3, 1), (1, 3, 2), (2, 1, 3))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NodesWithDoors]:
    made = NodesWithDoors(tmp_path)
    for node_id in NODES:
        await made.start(node_id)
    yield made
    for node_id in list(made.nodes):
        await made.stop(node_id)


async def publish(http: httpx.AsyncClient, topic: str, *values: str, **fields: object) -> list[dict[str, object]]:
    messages = [{"value": value, "key": value, **fields} for value in values]
    reply = await http.post(f"/v1/topics/{topic}/messages", json={"messages": messages})
    assert reply.status_code == 201, reply.text
    found: list[dict[str, object]] = reply.json()["messages"]
    return found


async def receive(http: httpx.AsyncClient, queue: str, **fields: object) -> list[dict[str, object]]:
    reply = await http.post(f"/v1/queues/{queue}/receive", json={"count": 100, **fields})
    assert reply.status_code == 200, reply.text
    found: list[dict[str, object]] = reply.json()["messages"]
    return found


async def test_each_node_publishes_receives_and_settles_alike(cluster: NodesWithDoors) -> None:
    await cluster.create("orders", *SPREAD)
    for node_id, http in cluster.http.items():
        values = {f"{node_id}-{number}" for number in range(40)}
        placed = await publish(http, "orders", *sorted(values))
        assert {each["partition"] for each in placed} == {0, 1, 2, 3}
        seen = (await http.get("/v1/queues/orders/workers/peek?count=100")).json()["messages"] if node_id > 1 else []
        assert [each["value"] for each in seen] == [] or {each["value"] for each in seen} == values
        got = await receive(http, "orders/workers")
        assert {each["value"] for each in got} == values
        stats = (await http.get("/v1/queues/orders/workers/stats")).json()
        assert stats["leased_count"] == 40
        assert "incomplete" not in stats
        assert [each["partition"] for each in stats["partitions"]] == [0, 1, 2, 3]
        receipts = [each["receipt"] for each in got]
        extended = (await http.post("/v1/queues/orders/workers/extend", json={"receipts": receipts})).json()
        assert {each["outcome"] for each in extended["results"]} == {"done"}
        nacked = await http.post("/v1/queues/orders/workers/nack", json={"receipts": receipts[:10], "delay_ms": 0})
        assert {each["outcome"] for each in nacked.json()["results"]} == {"done"}
        again = await receive(http, "orders/workers", wait_ms=5_000)
        assert {each["value"] for each in again} == {each["value"] for each in got[:10]}
        acked = await http.post(
            "/v1/queues/orders/workers/ack", json={"receipts": receipts[10:] + [each["receipt"] for each in again]}
        )
        assert [each["outcome"] for each in acked.json()["results"]] == ["done"] * 40
        assert (await http.get("/v1/queues/orders/workers/stats")).json()["leased_count"] == 0


async def test_a_queue_is_paused_resumed_and_purged_through_any_node(cluster: NodesWithDoors) -> None:
    await cluster.create("orders", *SPREAD)
    assert (await cluster.http[3].put("/v1/queues/orders/workers", json={})).status_code == 201
    await cluster.knows_queue("orders", "workers")
    await publish(cluster.http[2], "orders", *map(str, range(20)))
    for node_id, http in cluster.http.items():
        assert (await http.post("/v1/queues/orders/workers/pause")).status_code == 204
        assert await receive(cluster.http[node_id % 3 + 1], "orders/workers") == []
        assert (await http.get("/v1/queues/orders/workers/stats")).json()["is_paused"] is True
        assert (await http.post("/v1/queues/orders/workers/resume")).status_code == 204
    seen = [(await http.get("/v1/queues/orders/workers/peek?count=7")).json() for http in cluster.http.values()]
    assert len(seen[0]["messages"]) == 7
    assert seen[0] == seen[1] == seen[2]
    assert (await cluster.http[3].post("/v1/queues/orders/workers/purge")).status_code == 204
    for http in cluster.http.values():
        assert await receive(http, "orders/workers") == []
    assert (await cluster.http[3].delete("/v1/queues/orders/workers")).status_code == 204


async def test_delayed_messages_are_shown_and_changed_through_any_node(cluster: NodesWithDoors) -> None:
    await cluster.create("orders", *SPREAD)
    for http in cluster.http.values():
        placed = await publish(http, "orders", *"abcdefgh", delay_ms=3_600_000)
        assert len({each["partition"] for each in placed}) > 1
        page = (await http.get("/v1/schedules?topic=orders")).json()["messages"]
        assert {each["id"] for each in page} == {each["id"] for each in placed}
        for each in placed:
            path = f"/v1/schedules/{each['id']}"
            assert (await http.get(path)).json()["partition"] == each["partition"]
            assert (await http.patch(path, json={"delay_ms": 7_200_000})).status_code == 200
            assert (await http.delete(path)).status_code == 204
            assert (await http.get(path)).status_code == 404


async def test_who_waits_at_a_node_that_leads_nothing_gets_what_comes(cluster: NodesWithDoors) -> None:
    await cluster.create("orders", *SPREAD)
    assert await receive(cluster.http[3], "orders/workers") == []
    waiting = [
        asyncio.ensure_future(receive(cluster.http[3], "orders/workers", wait_ms=20_000, count=1)) for _ in range(8)
    ]
    await asyncio.sleep(0.2)
    await publish(cluster.http[1], "orders", *map(str, range(8)))
    got = [message["value"] for messages in await asyncio.gather(*waiting) for message in messages]
    assert sorted(got) == [str(number) for number in range(8)]


async def test_messages_for_a_caller_who_left_are_free_again_on_the_other_node(cluster: NodesWithDoors) -> None:
    await cluster.create("orders", ((1, 2, 3)))
    assert await receive(cluster.http[3], "orders/workers") == []
    async with httpx.AsyncClient(base_url=str(cluster.http[3].base_url)) as leaving:
        asked = asyncio.ensure_future(receive(leaving, "orders/workers", wait_ms=20_000, lease_ms=600_000))
        await asyncio.sleep(0.2)
        asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await publish(cluster.http[1], "orders", "a")
    got = await receive(cluster.http[2], "orders/workers", wait_ms=5_000)
    assert [each["value"] for each in got] == ["a"]


async def test_sqs_answers_alike_at_every_node(cluster: NodesWithDoors) -> None:
    await cluster.create("jobs", *SPREAD)
    first = sqs_client_at(cluster.address(1))
    await asyncio.to_thread(first.create_queue, QueueName="jobs")
    await asyncio.to_thread(first.create_queue, QueueName="orders.fifo", Attributes={"FifoQueue": "true"})
    await cluster.knows_queue("jobs", "sqs")
    await cluster.knows_queue("orders.fifo", "sqs")
    for node_id in NODES:
        await asyncio.to_thread(use_sqs, cluster.address(node_id), f"from-{node_id}")


def use_sqs(address: str, text: str) -> None:
    sqs = sqs_client_at(address)
    url = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
    entries = [{"Id": str(number), "MessageBody": f"{text}-{number}"} for number in range(10)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    got: list[dict[str, str]] = []
    while len(got) < 10:
        found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5).get("Messages", [])
        assert found, f"{len(got)} messages, and no more come"
        got += found
    assert {each["Body"] for each in got} == {f"{text}-{number}" for number in range(10)}
    in_flight = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessagesNotVisible"])
    assert in_flight["Attributes"] == {"ApproximateNumberOfMessagesNotVisible": "10"}
    handles = [each["ReceiptHandle"] for each in got]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handles[0], VisibilityTimeout=0)
    (again,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert again["MessageId"] == got[0]["MessageId"]
    deleted = [{"Id": str(place), "ReceiptHandle": handle} for place, handle in enumerate(handles[1:])]
    assert len(sqs.delete_message_batch(QueueUrl=url, Entries=deleted)["Successful"]) == 9
    sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    fifo = sqs.get_queue_url(QueueName="orders.fifo")["QueueUrl"]
    sent = [
        sqs.send_message(QueueUrl=fifo, MessageBody=text, MessageGroupId="g", MessageDeduplicationId=text)
        for _ in range(2)
    ]
    assert sent[0]["MessageId"] == sent[1]["MessageId"]
    (ordered,) = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10, WaitTimeSeconds=5)["Messages"]
    assert ordered["Body"] == text
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=ordered["ReceiptHandle"])


async def test_stats_name_the_node_that_did_not_answer(cluster: NodesWithDoors) -> None:
    await cluster.create("orders", (1,), (2,))
    assert (await cluster.http[3].put("/v1/queues/orders/workers", json={})).status_code == 201
    await publish(cluster.http[3], "orders", *map(str, range(20)))
    await cluster.stop(2)
    told = (await cluster.http[3].get("/v1/queues/orders/workers/stats")).json()
    assert len(told["incomplete"]) == 1
    assert [each["partition"] for each in told["partitions"]] == [0]
    refused = await cluster.http[3].get("/v1/queues/orders/workers/peek")
    assert refused.status_code == 503
    assert "orders-1" in refused.json()["detail"]


async def test_many_who_wait_cost_the_leader_one_question(cluster: NodesWithDoors) -> None:
    await cluster.create("orders", (1, 2, 3))
    assert await receive(cluster.http[3], "orders/workers") == []
    delivery = cluster.nodes[3].parts.delivery
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=str(cluster.http[3].base_url), limits=limits, timeout=30) as many:
        waiting = [asyncio.ensure_future(receive(many, "orders/workers", wait_ms=20_000, count=1)) for _ in range(100)]
        waits = delivery._spread._waits
        await cluster.until(lambda: sum(len(each._line) for each in waits.values()) == 100)
        assert delivery._spread._parked == {1: 1}
        await publish(cluster.http[1], "orders", *map(str, range(100)))
        got = [message["value"] for messages in await asyncio.gather(*waiting) for message in messages]
    assert sorted(got) == sorted(str(number) for number in range(100))
