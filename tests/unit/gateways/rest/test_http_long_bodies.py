"""Bodies that hold very much: refused beyond their bound, and below it taken apart in slices, to the same end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock.base.long_work import LongWork
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.http_app import HttpDoor
from penstock.gateways.http_port import HttpPort
from support.door.conversation import ANY_PORT, TalkingNode, running_node

JSON = {"content-type": "application/json"}
PATH = "/v1/topics/orders/messages"


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT)) as running:
        yield running


@pytest.fixture
async def http(node: TalkingNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client:
        yield client


async def publish(http: httpx.AsyncClient, messages: list[Any]) -> httpx.Response:
    return await http.post(PATH, content=json.dumps({"messages": messages}), headers=JSON)


async def values_of(http: httpx.AsyncClient, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        reply = await http.post("/v1/queues/orders/g/receive", json={"count": 10_000, "wait_ms": 5_000})
        found += [message["value"] for message in reply.json()["messages"]]
    return found


async def test_more_messages_than_one_request_may_have_are_refused(http: httpx.AsyncClient) -> None:
    for count in (10_001, 300_000):
        assert (await publish(http, [{"value": "x"}] * count)).status_code in (400, 413)


async def test_a_body_of_very_many_values_is_stored_message_by_message(http: httpx.AsyncClient) -> None:
    values = [{"number": number, "list": [1, 2, 3, {"text": ',"]}\\'}]} for number in range(9_000)]
    await http.put("/v1/queues/orders/g", json={})
    reply = await publish(http, [{"value": value} for value in values])
    assert reply.status_code == 201, reply.text[:500]
    assert len(reply.json()["messages"]) == len(values)
    assert [json.loads(value) for value in await values_of(http, len(values))] == values


async def test_messages_with_very_many_headers_are_stored(http: httpx.AsyncClient) -> None:
    headers = {str(number): "y" for number in range(1_000)}
    reply = await publish(http, [{"value": "x", "headers": headers}] * 60)
    assert reply.status_code == 201, reply.text[:500]


async def test_a_message_of_very_many_values_is_refused(http: httpx.AsyncClient) -> None:
    long = [0] * 60_000
    assert (await publish(http, [{"value": long}])).status_code == 413
    assert (await http.post(PATH, json={"value": long})).status_code == 413


async def test_a_long_text_with_commas_is_one_value(http: httpx.AsyncClient) -> None:
    reply = await publish(http, [{"value": "," * 100_000}] * 3)
    assert reply.status_code == 201, reply.text[:500]


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (b"", "ends inside an array"),
        (b"]", "behind the messages"),
        (b"]}}", "behind the messages"),
        (b",]}", "messages[20000]"),
        (b',{"valu":1}]}', "messages[20000]"),
        (b',{"priority":12}]}', "messages[20000]"),
    ],
)
async def test_what_is_wrong_with_a_long_body_is_told(http: httpx.AsyncClient, end: bytes, told: str) -> None:
    many = b'{"messages":[' + b",".join([b'{"value":[1,2,3,4,5,6,7,8,9]}'] * 8_000)
    reply = await http.post(PATH, content=many + end, headers=JSON)
    assert reply.status_code == 400
    assert told.replace("20000", "8000") in reply.json()["detail"]


async def test_a_body_that_publishes_nothing_has_a_small_bound(http: httpx.AsyncClient) -> None:
    for path, body in [
        ("/v1/queues/orders/g/ack", {"receipts": ["A" * 55] * 100_000}),
        ("/v1/queues/orders/g/receive", {"consumer": "x" * 2_000_000}),
        ("/v1/queues/orders/g/ack", {"receipts": ["A"] * 100_000}),
    ]:
        assert (await http.post(path, json=body)).status_code == 413
    sqs = await http.post(
        "/", content=json.dumps({"Entries": [{}] * 100_000}), headers={"x-amz-target": "AmazonSQS.SendMessageBatch"}
    )
    assert sqs.status_code == 400


def door_of(node: TalkingNode) -> HttpDoor:
    port = node.doors[HttpPort.name]
    assert isinstance(port, HttpPort)
    guard: Any = port.server and port.server._application
    door = guard._application._application.state.door
    assert isinstance(door, HttpDoor)
    return door


async def test_others_are_answered_while_a_long_body_is_taken_apart(http: httpx.AsyncClient) -> None:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT)) as node:
        door_of(node).work.slice_seconds = 0
        url = f"http://{node.addresses['http']}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            long = asyncio.ensure_future(publish(client, [{"value": [1] * 400}] * 200))
            answered = 0
            while not long.done():
                assert (await client.get("/health")).status_code == 200
                answered += 1
            assert (await long).status_code == 201
            # All of it at once would let two of them through: before the body is there, and after it.
            assert answered > 5


async def test_a_long_body_counts_until_it_is_worked_on() -> None:
    """Not only while it comes: or bodies that wait for their turn have no bound."""
    held: list[int] = []

    class WatchedWork(LongWork):
        async def run(self, steps: Any) -> Any:
            held.append(door._memory.bytes_held)
            return await super().run(steps)

    async with (
        running_node(http=HttpServerConfig(listen=ANY_PORT)) as node,
        httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client,
    ):
        door = door_of(node)
        door.work = WatchedWork()
        assert (await publish(client, [{"value": [1] * 400}] * 200)).status_code == 201
        assert len(held) >= 3
        assert min(held) > 200 * 400
        assert door._memory.bytes_held == 0
