"""The HTTP door of a whole node, spoken to over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from starlette.routing import Route

from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.rest.node import NodeRoutes
from penstock.gateways.rest.openapi import OPERATIONS, describe
from support.door.conversation import ANY_PORT, TalkingNode, running_node
from support.storage.gated_loads import GatedLoads

JSON = {"content-type": "application/json"}


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT, request_bytes_max=1_000_000)) as running:
        yield running


@pytest.fixture
async def http(node: TalkingNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client:
        yield client


async def publish(http: httpx.AsyncClient, *values: Any, topic: str = "orders") -> list[dict[str, Any]]:
    reply = await http.post(f"/v1/topics/{topic}/messages", json={"messages": [{"value": each} for each in values]})
    assert reply.status_code == 201, reply.text
    return list(reply.json()["messages"])


async def receive(http: httpx.AsyncClient, count: int = 10, **more: Any) -> list[dict[str, Any]]:
    reply = await http.post("/v1/queues/orders/workers/receive", json={"count": count, **more})
    assert reply.status_code == 200, reply.text
    return list(reply.json()["messages"])


async def test_a_message_goes_in_and_comes_out_once(http: httpx.AsyncClient) -> None:
    (published,) = await publish(http, "hello")
    (message,) = await receive(http)
    assert (message["value"], message["id"], message["delivery_count"]) == ("hello", published["id"], 1)
    reply = await http.post("/v1/queues/orders/workers/ack", json={"receipts": [message["receipt"]]})
    assert reply.json()["results"] == [{"receipt": message["receipt"], "outcome": "done"}]
    again = await http.post("/v1/queues/orders/workers/ack", json={"receipts": [message["receipt"]]})
    assert again.json()["results"][0]["outcome"] == "finished"
    assert await receive(http) == []


async def test_first_receives_at_once_wait_for_the_queue_and_are_all_served() -> None:
    """The first one makes the queue; the others come when it is defined and not open yet."""
    gate = GatedLoads()
    async with (
        running_node(http=HttpServerConfig(listen=ANY_PORT), files=lambda: gate) as node,
        httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as http,
    ):
        await publish(http, *map(str, range(8)))
        gate.close_gate()
        first = asyncio.ensure_future(receive(http, 1, lease_ms=60_000))
        async with asyncio.timeout(20):
            while not gate.load_count:  # noqa: ASYNC110  a thread stands there
                await asyncio.sleep(0.005)
        others = [asyncio.ensure_future(receive(http, 1, lease_ms=60_000)) for _ in range(7)]
        stats = asyncio.ensure_future(http.get("/v1/queues/orders/workers/stats"))
        await asyncio.wait([*others, stats], timeout=0.2)
        gate.open_gate()
        received = await asyncio.gather(first, *others)
        assert sorted(message["value"] for messages in received for message in messages) == list("01234567")
        assert len((await stats).json()["partitions"]) == 1


async def test_values_of_every_kind_come_back_as_they_were(http: httpx.AsyncClient) -> None:
    body = {
        "messages": [
            {"value": {"total": 3}, "key": "k", "headers": {"trace": "1"}},
            {"value_base64": "AP8=", "key_base64": "/w=="},
            {},
        ]
    }
    await http.post("/v1/topics/orders/messages", json=body)
    first, second, third = await receive(http)
    assert (first["value"], first["key"], first["headers"]) == ('{"total":3}', "k", {"trace": "1"})
    assert (second["value_base64"], second["key_base64"]) == ("AP8=", "/w==")
    assert "value" not in third


async def test_bytes_are_published_as_they_are(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/octet-stream", "penstock-header-source": "meter"}
    reply = await http.post("/v1/topics/orders/messages?key=k&priority=9", content=b"\xff\x00", headers=headers)
    assert reply.status_code == 201
    (message,) = await receive(http)
    assert (message["value_base64"], message["key"]) == ("/wA=", "k")
    assert message["headers"] == {"source": "meter", "penstock-priority": "9"}


async def test_a_nack_brings_it_back_and_a_reject_does_not(http: httpx.AsyncClient) -> None:
    await publish(http, "a")
    (first,) = await receive(http)
    await http.post("/v1/queues/orders/workers/nack", json={"receipts": [first["receipt"]]})
    (second,) = await receive(http)
    assert second["delivery_count"] == 2
    reject = {"receipts": [second["receipt"]], "reject": True, "error": "no customer"}
    await http.post("/v1/queues/orders/workers/nack", json=reject)
    assert await receive(http) == []
    reply = await http.post("/v1/queues/orders-dlq/workers/receive", json={"wait_ms": 10_000})
    if reply.status_code == 404:  # its topic is made when the first letter comes, which may be a moment from now
        await asyncio.sleep(1)
        reply = await http.post("/v1/queues/orders-dlq/workers/receive", json={"wait_ms": 10_000})
    (letter,) = reply.json()["messages"]
    assert letter["headers"]["penstock-dead-letter-text"] == "no customer"
    assert letter["id"] == first["id"]


async def test_a_long_poll_ends_with_the_message(http: httpx.AsyncClient) -> None:
    await http.put("/v1/queues/orders/workers", json={})
    await publish(http, "before")
    await http.put("/v1/queues/orders/workers", json={"start": "latest"})
    waiting = asyncio.ensure_future(receive(http, 1, wait_ms=15_000))
    await publish(http, "after")
    (message,) = await asyncio.wait_for(waiting, 10)
    assert message["value"] == "after"


async def test_an_extended_lease_is_ours_for_longer(http: httpx.AsyncClient) -> None:
    await publish(http, "a")
    (message,) = await receive(http, lease_ms=60_000)
    body = {"receipts": [message["receipt"]], "lease_ms": 3_600_000}
    reply = await http.post("/v1/queues/orders/workers/extend", json=body)
    assert reply.json()["results"][0]["outcome"] == "done"
    (seen,) = (await http.get("/v1/queues/orders/workers/peek")).json()["messages"]
    assert seen["state"] == "leased"
    assert seen["until_ms"] > message["lease_until_ms"] + 3_000_000


async def test_stats_tell_what_is_where(http: httpx.AsyncClient) -> None:
    await publish(http, *"abcd")
    await receive(http, 3)
    stats = (await http.get("/v1/queues/orders/workers/stats")).json()
    assert (stats["leased_count"], stats["backlog_count"]) == (3, 1)
    assert stats["partitions"][0]["consumers"] == [["http", 3]]


async def test_a_queue_is_listed_described_changed_and_deleted(http: httpx.AsyncClient) -> None:
    await publish(http, "a")
    made = await http.put("/v1/queues/orders/workers", json={"lease_ms": 5_000, "ordering": "key"})
    assert made.status_code == 201
    changed = await http.put("/v1/queues/orders/workers", json={"lease_ms": 7_000})
    assert (changed.status_code, changed.json()["options"]["lease_ms"]) == (200, 7_000)
    assert [each["group"] for each in (await http.get("/v1/queues")).json()["queues"]] == ["workers"]
    assert (await http.delete("/v1/queues/orders/workers")).status_code == 204
    assert (await http.get("/v1/queues/orders/workers")).status_code == 404


async def test_a_receipt_of_another_queue_is_not_held_and_the_others_count(http: httpx.AsyncClient) -> None:
    await publish(http, "a")
    (message,) = await receive(http)
    (other,) = (await http.post("/v1/queues/orders/others/receive", json={})).json()["messages"]
    receipts = [other["receipt"], message["receipt"]]
    reply = await http.post("/v1/queues/orders/workers/ack", json={"receipts": receipts})
    assert [each["outcome"] for each in reply.json()["results"]] == ["not-held", "done"]


async def test_a_whole_number_may_be_written_as_a_fraction(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/topics/orders/messages", content=b'{"value": 1.0, "priority": 9.0}', headers=JSON)
    assert reply.status_code == 201
    reply = await http.post(
        "/v1/queues/orders/workers/receive", content=b'{"count": 1.0, "lease_ms": 1e3}', headers=JSON
    )
    (message,) = reply.json()["messages"]
    assert (message["value"], message["headers"]) == ("1.0", {"penstock-priority": "9"})


async def test_a_wrong_method_is_told_the_right_ones(http: httpx.AsyncClient) -> None:
    reply = await http.patch("/v1/queues/orders/workers")
    assert (reply.status_code, reply.headers["allow"]) == (405, "DELETE, GET, HEAD, PUT")


async def test_a_pause_and_a_purge_are_obeyed(http: httpx.AsyncClient) -> None:
    await publish(http, "a")
    await receive(http, 1, lease_ms=1)
    assert (await http.post("/v1/queues/orders/workers/pause")).status_code == 204
    reply = await http.post("/v1/queues/orders/workers/receive", json={})
    assert reply.json() == {"messages": [], "limit": "paused"}
    await http.post("/v1/queues/orders/workers/resume")
    assert (await http.post("/v1/queues/orders/workers/purge")).status_code == 204
    assert await receive(http) == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "word"),
    [
        ("POST", "/v1/queues/none/workers/receive", b"{}", 404, "none"),
        ("POST", "/v1/queues/orders/workers/ack", b'{"receipts":["x"]}', 400, "receipt"),
        ("POST", "/v1/queues/orders/workers/ack", b'{"receipts":[]}', 400, "receipts"),
        ("POST", "/v1/queues/orders/workers/receive", b'{"count":0}', 400, "count"),
        ("POST", "/v1/queues/orders/workers/receive", b'{"counts":1}', 400, "counts"),
        ("POST", "/v1/queues/orders/workers/receive", b"{", 400, "body"),
        ("GET", "/v1/queues/orders/workers/peek?count=many", b"", 400, "many"),
        ("GET", "/v1/queues/orders/none/stats", b"", 404, "none"),
        ("POST", "/v1/topics/orders/messages", b'{"value":"a","partition":7}', 404, "partition 7"),
        ("POST", "/v1/topics/orders/messages", b'{"value":"a","value_base64":"YQ=="}', 400, "both"),
        ("POST", "/v1/topics/or%20ders/messages", b'{"value":"a"}', 400, "or ders"),
        ("POST", "/v1/topics/__consumer_offsets/messages", b'{"value":"a"}', 404, "__consumer_offsets"),
        ("PUT", "/v1/queues/orders/workers", b'{"lease_ms":0}', 400, "lease_ms"),
        ("PUT", "/v1/queues/orders/workers", b'{"leases_ms":1}', 400, "leases_ms"),
        ("PUT", "/v1/queues/orders/workers", b'{"dead_letter_topic":"a/b"}', 400, "dead_letter_topic"),
        ("POST", "/v1/queues/orders/workers/receive", b'{"count":1.5}', 400, "count"),
        ("PATCH", "/v1/queues", b"", 405, "PATCH"),
        ("GET", "/nowhere", b"", 404, "/nowhere"),
        ("POST", "/v1/topics/orders/messages", b" " * 1_000_001, 413, "1000000"),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(
    http: httpx.AsyncClient, method: str, path: str, body: bytes, status: int, word: str
) -> None:
    await publish(http, "a")
    await receive(http, 1)
    reply = await http.request(method, path, content=body, headers=JSON)
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert problem["status"] == status
    assert word in problem["detail"], problem


def test_the_document_describes_every_route_and_no_other() -> None:
    from penstock.gateways.rest.cluster import ClusterRoutes
    from penstock.gateways.rest.crons import CronRoutes
    from penstock.gateways.rest.dead_letters import DeadLetterRoutes
    from penstock.gateways.rest.queues import QueueRoutes
    from penstock.gateways.rest.schedules import ScheduleRoutes
    from penstock.gateways.rest.settlements import SettlementRoutes
    from penstock.gateways.rest.topics import TopicRoutes
    from penstock.gateways.rest.trace import TraceRoutes

    routes: list[Route] = [
        *QueueRoutes(None, None, None).routes(),  # type: ignore[arg-type]
        *TopicRoutes(None, None).routes(),  # type: ignore[arg-type]
        *ClusterRoutes(None, None).routes(),  # type: ignore[arg-type]
        *DeadLetterRoutes(None, None).routes(),  # type: ignore[arg-type]
        *ScheduleRoutes(None, None).routes(),  # type: ignore[arg-type]
        *CronRoutes(None, None).routes(),  # type: ignore[arg-type]
        *SettlementRoutes(None, None, None).routes(),  # type: ignore[arg-type]
        *TraceRoutes(None, None).routes(),  # type: ignore[arg-type]
        *NodeRoutes(None).routes(),  # type: ignore[arg-type]
    ]
    served = {(method.lower(), route.path) for route in routes for method in route.methods or () if method != "HEAD"}
    described = {(each.method, each.path) for each in OPERATIONS}
    assert served | {("get", "/health")} == described
    assert describe()["openapi"] == "3.1.0"


# Clients that go away, and a node that does


async def until_waiting(node: TalkingNode, count: int) -> None:
    """So many wait for messages."""
    async with asyncio.timeout(5):
        while len(node.shell("orders").readers) != count:  # noqa: ASYNC110  a room tells nobody who enters it
            await asyncio.sleep(0.005)


async def ask_and_hang_up(node: TalkingNode, path: str, body: dict[str, Any], **headers: str) -> None:
    """A long poll whose client is gone before there is an answer."""
    content = msgspec.json.encode(body)
    host, port = node.addresses["http"].split(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + content)
    await writer.drain()
    # Until it waits: its waiter has entered the room.
    await until_waiting(node, 1)
    writer.close()
    await writer.wait_closed()
    await until_waiting(node, 0)


async def test_a_client_that_hung_up_is_given_nothing(node: TalkingNode, http: httpx.AsyncClient) -> None:
    await publish(http, "first")
    await receive(http)
    await ask_and_hang_up(node, "/v1/queues/orders/workers/receive", {"wait_ms": 20_000, "lease_ms": 60_000})
    await publish(http, "second")
    (message,) = await receive(http)
    assert (message["value"], message["delivery_count"]) == ("second", 1)


async def test_an_sqs_client_that_hung_up_is_given_nothing(node: TalkingNode, http: httpx.AsyncClient) -> None:
    headers = {"x-amz-target": "AmazonSQS.CreateQueue"}
    made = (await http.post("/", json={"QueueName": "orders"}, headers=headers)).json()
    asked = {"QueueUrl": made["QueueUrl"], "WaitTimeSeconds": 20, "VisibilityTimeout": 60}
    await ask_and_hang_up(node, "/", asked, x_amz_target="AmazonSQS.ReceiveMessage")
    await publish(http, "only")
    headers = {"x-amz-target": "AmazonSQS.ReceiveMessage"}
    (message,) = (await http.post("/", json={**asked, "WaitTimeSeconds": 0}, headers=headers)).json()["Messages"]
    assert message["Body"] == "only"


async def test_who_waits_is_answered_when_the_node_stops(node: TalkingNode, http: httpx.AsyncClient) -> None:
    await publish(http, "first")
    await receive(http)
    waiting = asyncio.ensure_future(receive(http, wait_ms=20_000))
    await until_waiting(node, 1)
    async with asyncio.timeout(5):
        await node.stop()
    assert await waiting == []
