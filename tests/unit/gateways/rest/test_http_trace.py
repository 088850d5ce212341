"""Journeys and reasons over a real socket: what is answered, in which form, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from penstock.gateways.http.server import HttpServerConfig
from support.door.conversation import ANY_PORT, running_node


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running_node(http=HttpServerConfig(listen=ANY_PORT)) as node,
        httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client,
    ):
        yield client


async def published(http: httpx.AsyncClient, key: str = "k") -> str:
    reply = await http.post("/v1/topics/orders/messages", json={"value": "v", "key": key})
    return str(reply.json()["messages"][0]["id"])


async def test_a_journey_is_found_by_id_by_place_and_by_key(http: httpx.AsyncClient) -> None:
    name = await published(http)
    await published(http, "another key")
    by_id = (await http.get(f"/v1/trace/{name}")).json()
    assert [event["kind"] for event in by_id["events"]] == ["appended"]
    assert by_id["places"][0]["is_durable"]
    place = by_id["places"][0]["place"]
    by_place = await http.get(f"/v1/trace/orders/{place['partition']}/{place['offset']}")
    assert by_place.json() == by_id
    by_key = (await http.get("/v1/trace", params={"topic": "orders", "key": "k"})).json()
    assert by_key["journeys"] == [by_id]
    long_ago: dict[str, str | int] = {"topic": "orders", "key": "k", "since_ms": 0, "until_ms": 1_000}
    assert (await http.get("/v1/trace", params=long_ago)).json()["journeys"] == []


@pytest.mark.parametrize(
    ("form", "media_type", "begin"),
    [
        ("svg", "image/svg+xml", "<svg "),
        ("mermaid", "text/plain", "sequenceDiagram"),
        ("text", "text/plain", "message "),
    ],
)
async def test_a_journey_can_be_drawn(http: httpx.AsyncClient, form: str, media_type: str, begin: str) -> None:
    reply = await http.get(f"/v1/trace/{await published(http)}", params={"format": form})
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith(media_type)
    assert reply.text.startswith(begin)


async def test_a_message_that_nobody_reads_says_so(http: httpx.AsyncClient) -> None:
    (reason,) = (await http.get(f"/v1/why/{await published(http)}")).json()["reasons"]
    assert (reason["standing"], reason["kind"]) == ("nobody-reads", "topic")


async def test_queues_say_what_keeps_a_message_from_them(http: httpx.AsyncClient) -> None:
    await http.post("/v1/topics/orders/messages", json={"messages": [{"value": "v", "key": "k"}] * 3})
    await http.put("/v1/queues/orders/by-key", json={"ordering": "key"})
    await http.put("/v1/queues/orders/still", json={})
    await http.post("/v1/queues/orders/still/pause")
    first = (await http.post("/v1/queues/orders/by-key/receive", json={"count": 3})).json()["messages"]
    assert len(first) == 1
    reasons = {each["group"]: each for each in (await http.get("/v1/why/orders/0/1")).json()["reasons"]}
    assert reasons["by-key"]["standing"] == "key-order"
    assert reasons["by-key"]["blocked_by"]["offset"] == 0
    assert reasons["still"]["standing"] == "paused"
    receipts = [first[0]["receipt"]]
    await http.post("/v1/queues/orders/by-key/nack", json={"receipts": receipts, "delay_ms": 60_000, "error": "no"})
    reasons = {each["group"]: each for each in (await http.get("/v1/why/orders/0/0")).json()["reasons"]}
    assert reasons["by-key"]["standing"] == "backing-off"
    assert '("no")' in reasons["by-key"]["sentence"]


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/v1/trace/nonsense", 404, "no message id"),
        ("/v1/why/nonsense", 404, "no message id"),
        ("/v1/trace/0gAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 404, "deleted"),
        ("/v1/trace/orders/0/99", 404, "not written yet"),
        ("/v1/trace/orders/7/0", 404, "no partition 7"),
        ("/v1/trace/nowhere/0/0", 404, "no topic"),
        ("/v1/trace/__consumer_offsets/0/0", 404, "no topic"),
        ("/v1/trace/orders/x/0", 400, "partition is 'x'"),
        ("/v1/trace/orders/0/-1", 400, "offset is '-1'"),
        ("/v1/trace/orders/0/99999999999999999999", 400, "offset"),
        ("/v1/trace/orders/0/0?format=gif", 400, "gif"),
        ("/v1/trace", 400, "topic and key"),
        ("/v1/trace?topic=orders&key=k&since_ms=soon", 400, "since_ms"),
        ("/v1/trace?topic=nowhere&key=k", 404, "no topic"),
    ],
)
async def test_what_cannot_be_told_is_refused_with_a_reason(
    http: httpx.AsyncClient, path: str, status: int, word: str
) -> None:
    await published(http)
    reply = await http.get(path)
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert word in reply.json()["detail"]
