"""Dead letters over HTTP, of a whole node: listed, shown, brought back, dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock.broker.partition.recompression import OWN_BYTES_MAX
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, read_header
from penstock.gateways.http.server import HttpServerConfig
from support.door.conversation import ANY_PORT, TalkingNode, running_node

LETTERS = "/v1/dead-letters/orders-dlq"


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT)) as running:
        yield running


@pytest.fixture
async def http(node: TalkingNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client:
        yield client


async def receive(http: httpx.AsyncClient, count: int = 100) -> list[dict[str, Any]]:
    reply = await http.post("/v1/queues/orders/workers/receive", json={"count": count})
    assert reply.status_code == 200, reply.text
    return list(reply.json()["messages"])


async def die(http: httpx.AsyncClient, *values: str) -> None:
    """Publishes, rejects, and waits until all are dead letters."""
    messages = [{"value": value, "key": f"key-{value}", "partition": 0} for value in values]
    await http.post("/v1/topics/orders/messages", json={"messages": messages})
    receipts = [message["receipt"] for message in await receive(http)]
    body = {"receipts": receipts, "reject": True, "error": "no such article"}
    assert (await http.post("/v1/queues/orders/workers/nack", json=body)).status_code == 200
    await until_pending(http, len(values))


async def until_pending(http: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(10):
        while True:
            if [each["pending_count"] for each in await listed(http)] == [count]:
                return
            await asyncio.sleep(0.005)


async def listed(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    reply = await http.get("/v1/dead-letters")
    assert reply.status_code == 200, reply.text
    return list(reply.json()["dead_letters"])


async def redrive(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """Begins one, and waits for its end."""
    reply = await http.post(f"{LETTERS}/redrive", json=body)
    assert reply.status_code == 202, reply.text
    return await ended(http, reply.json()["id"])


async def ended(http: httpx.AsyncClient, task: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            found: dict[str, Any] = (await http.get(f"{LETTERS}/redrives/{task}")).json()
            if found["ended_ms"]:
                return found
            await asyncio.sleep(0.005)


async def test_dead_letters_are_listed_shown_and_brought_back(http: httpx.AsyncClient) -> None:
    await die(http, "a", "b")
    (found,) = await listed(http)
    assert (found["topic"], found["sources"]) == ("orders-dlq", [{"topic": "orders", "group": "workers"}])
    shown = (await http.get(LETTERS)).json()["messages"]
    assert [(each["value"], each["reason"], each["error"]) for each in shown] == [
        ("a", "rejected", "no such article"),
        ("b", "rejected", "no such article"),
    ]
    assert (shown[0]["origin_topic"], shown[0]["origin_group"], shown[0]["delivery_count"]) == ("orders", "workers", 1)
    task = await redrive(http)
    assert (task["state"], task["moved_count"], task["pending_count"]) == ("completed", 2, 2)
    again = await receive(http)
    assert [each["value"] for each in again] == ["a", "b"]
    assert [name for name in again[0]["headers"] if name.startswith(("penstock-dead", "penstock-origin"))] == []
    assert (await http.get(LETTERS)).json() == {"messages": []}
    (listed_task,) = (await http.get(f"{LETTERS}/redrives")).json()["redrives"]
    assert listed_task == task


async def test_dead_letters_come_in_the_codec_of_their_topic_however_large(
    node: TalkingNode, http: httpx.AsyncClient
) -> None:
    await node.create_topic("orders-dlq", compression_type="gzip")
    await die(http, "x" * (OWN_BYTES_MAX + 1))
    header = read_header(node.shell("orders-dlq").read(0, bytes_max=1).records)
    assert isinstance(header, BatchHeader)
    assert header.codec == Codec.GZIP


async def test_a_dry_run_counts_and_moves_nothing(http: httpx.AsyncClient) -> None:
    await die(http, "a", "b", "c")
    reply = await http.post(f"{LETTERS}/redrive", json={"dry_run": True, "key": "key-b"})
    assert (reply.status_code, reply.json()) == (
        200,
        {"topic": "orders-dlq", "pending_count": 3, "fitting_count": 1},
    )
    assert await receive(http) == []
    assert (await http.get(f"{LETTERS}/redrives")).json() == {"redrives": []}


async def test_filters_choose_what_is_shown_and_moved(http: httpx.AsyncClient) -> None:
    await die(http, "a", "b", "c")
    shown = (await http.get(LETTERS, params={"key": "key-b", "reason": "rejected"})).json()["messages"]
    assert [each["value"] for each in shown] == ["b"]
    assert (await http.get(LETTERS, params={"until_ms": 5})).json() == {"messages": []}
    assert len((await http.get(LETTERS, params={"count": 2})).json()["messages"]) == 2
    task = await redrive(http, key="key-b")
    assert (task["moved_count"], task["skipped_count"]) == (1, 2)
    assert [each["value"] for each in await receive(http)] == ["b"]
    await until_pending(http, 2)


async def test_a_running_redrive_refuses_another_and_can_be_cancelled(http: httpx.AsyncClient) -> None:
    await die(http, *[str(number) for number in range(10)])
    task = (await http.post(f"{LETTERS}/redrive", json={"rate": 1})).json()
    second = await http.post(f"{LETTERS}/redrive", json={})
    assert (second.status_code, second.json()["title"]) == (409, "Running already")
    cancelled = await http.delete(f"{LETTERS}/redrives/{task['id']}")
    assert cancelled.status_code == 200
    assert cancelled.json()["state"] in ("cancelling", "cancelled")
    over = await ended(http, task["id"])
    assert over["state"] == "cancelled"
    assert (await http.delete(f"{LETTERS}/redrives/{task['id']}")).json() == over


async def test_purge_tells_how_many(http: httpx.AsyncClient) -> None:
    await die(http, "a", "b")
    assert (await http.post(f"{LETTERS}/purge")).json() == {"purged_count": 2}
    await until_pending(http, 0)
    assert (await http.get(LETTERS)).json() == {"messages": []}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/dead-letters/missing", None, 404),
        ("POST", "/v1/dead-letters/missing/redrive", {}, 404),
        ("POST", "/v1/dead-letters/missing/purge", None, 404),
        ("GET", "/v1/dead-letters/__consumer_offsets", None, 404),
        ("GET", f"{LETTERS}?count=0", None, 400),
        ("GET", f"{LETTERS}?count=x", None, 400),
        ("GET", f"{LETTERS}?since_ms=soon", None, 400),
        ("GET", f"{LETTERS}?group=", None, 400),
        ("POST", f"{LETTERS}/redrive", {"nonsense": 1}, 400),
        ("POST", f"{LETTERS}/redrive", {"rate": -1}, 400),
        ("POST", f"{LETTERS}/redrive", {"target": "missing"}, 404),
        ("POST", f"{LETTERS}/redrive", {"target": "orders-dlq"}, 409),
        ("POST", f"{LETTERS}/redrive", {"target": "no/topic"}, 400),
        ("POST", f"{LETTERS}/redrive", {"group": "nobody"}, 404),
        ("GET", f"{LETTERS}/redrives/nonsense", None, 404),
        ("DELETE", f"{LETTERS}/redrives/nonsense", None, 404),
    ],
)
async def test_what_cannot_be_done_is_a_problem(
    http: httpx.AsyncClient, method: str, path: str, body: Any, status: int
) -> None:
    await http.post("/v1/topics/orders-dlq/messages", json={"value": "x"})
    reply = await http.request(method, path, json=body)
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["detail"]
