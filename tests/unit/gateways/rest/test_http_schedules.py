"""Delayed messages by the HTTP door of a whole node: published, looked at, cancelled, given another time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.gateways.http.server import HttpServerConfig
from support.door.conversation import ANY_PORT, TalkingNode, running_node

LATER_MS = 3_600_000


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT, request_bytes_max=1_000_000)) as running:
        yield running


@pytest.fixture
async def http(node: TalkingNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client:
        yield client


@asynccontextmanager
async def talking_to_node(data_dir: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running_node(http=HttpServerConfig(listen=ANY_PORT), data_dir=str(data_dir)) as node,
        httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as http,
    ):
        yield http


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def publish(http: httpx.AsyncClient, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    reply = await http.post("/v1/topics/orders/messages", json={"messages": list(messages)})
    assert reply.status_code == 201, reply.text
    return list(reply.json()["messages"])


async def receive(http: httpx.AsyncClient, *, wait_ms: int = 0, group: str = "workers") -> list[dict[str, Any]]:
    body = {"count": 10, "wait_ms": wait_ms}
    reply = await http.post(f"/v1/queues/orders/{group}/receive", json=body)
    assert reply.status_code == 200, reply.text
    return list(reply.json()["messages"])


async def pending(http: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    reply = await http.get("/v1/schedules", params={"topic": "orders", **query})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def test_a_delayed_message_comes_when_it_is_due_and_not_before(http: httpx.AsyncClient) -> None:
    before_ms = now_ms()
    (sent,) = await publish(http, {"value": "later", "key": "k", "headers": {"a": "b"}, "delay_ms": 800})
    assert before_ms + 800 <= sent["due_ms"] <= now_ms() + 800
    assert "offset" not in sent
    assert await receive(http) == []
    (message,) = await receive(http, wait_ms=10_000)
    assert now_ms() >= sent["due_ms"]
    assert (message["id"], message["value"], message["key"]) == (sent["id"], "later", "k")
    assert message["timestamp_ms"] == sent["due_ms"]
    assert message["headers"]["a"] == "b"
    assert before_ms <= int(message["headers"]["penstock-scheduled-at"]) <= now_ms()


async def test_a_time_is_a_number_or_a_text_and_the_later_of_two_counts(http: httpx.AsyncClient) -> None:
    at_ms = now_ms() + LATER_MS
    text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
    sent = await publish(
        http,
        {"value": "a", "deliver_at": at_ms},
        {"value": "b", "deliver_at": text},
        {"value": "c", "deliver_at": at_ms, "delay_ms": 1},
        {"value": "d", "deliver_at": 1, "delay_ms": 0},
    )
    assert [message.get("due_ms") for message in sent] == [at_ms, at_ms, at_ms, None]
    assert sent[3]["offset"] == 0


async def test_what_is_published_in_one_request_need_not_be_due_together(http: httpx.AsyncClient) -> None:
    sent = await publish(http, {"value": "late", "delay_ms": LATER_MS}, {"value": "now"}, {"value": "also now"})
    assert ["due_ms" in message for message in sent] == [True, False, False]
    assert [message["value"] for message in await receive(http)] == ["now", "also now"]


async def test_bytes_are_delayed_by_the_query(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/octet-stream"}
    at = datetime.fromtimestamp(4_102_444_800, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for query in ("deliver_at=4102444800000", f"deliver_at={at}"):
        reply = await http.post(f"/v1/topics/orders/messages?{query}", content=b"\xff", headers=headers)
        assert reply.json()["messages"][0]["due_ms"] == 4_102_444_800_000
    assert (await pending(http))["messages"][0]["value_base64"] == "/w=="


async def test_delivery_headers_mean_by_http_what_they_mean_by_kafka(http: httpx.AsyncClient) -> None:
    at_ms = now_ms() + LATER_MS
    sent = await publish(
        http,
        {"value": "a", "headers": {"penstock-deliver-at": str(at_ms)}},
        {"value": "b", "headers": {"penstock-delay-ms": str(LATER_MS)}},
        {"value": "c", "headers": {"penstock-delay-ms": "0"}},
    )
    assert sent[0]["due_ms"] == at_ms
    assert abs(sent[1]["due_ms"] - at_ms) < 60_000
    assert sent[2]["offset"] == 0


@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "", "9" * 30])
async def test_a_delivery_header_that_says_nothing_is_refused(http: httpx.AsyncClient, text: str) -> None:
    body = {"value": "a", "headers": {"penstock-delay-ms": text}}
    reply = await http.post("/v1/topics/orders/messages", json=body)
    assert reply.status_code == 400
    assert "penstock-delay-ms" in reply.json()["detail"]


async def test_delivery_headers_are_plain_headers_where_the_topic_says_so(
    node: TalkingNode, http: httpx.AsyncClient
) -> None:
    await node.create_topic("orders", penstock_delivery_headers="false")
    sent = await publish(
        http, {"value": "a", "headers": {"penstock-delay-ms": "soon"}}, {"value": "b", "delay_ms": LATER_MS}
    )
    assert sent[0]["offset"] == 0
    assert sent[1]["due_ms"] > now_ms()


@pytest.mark.parametrize("field", [{"delay_ms": -1}, {"deliver_at": "tomorrow"}, {"deliver_at": "2030-01-01T00:00:00"}])
async def test_a_time_that_is_none_is_refused(http: httpx.AsyncClient, field: dict[str, Any]) -> None:
    reply = await http.post("/v1/topics/orders/messages", json={"value": "a", **field})
    assert reply.status_code == 400, reply.text


async def test_a_message_that_its_topic_would_not_take_later_is_refused_now(
    node: TalkingNode, http: httpx.AsyncClient
) -> None:
    await node.create_topic("compacted", cleanup_policy="compact")
    reply = await http.post("/v1/topics/compacted/messages", json={"value": "a", "delay_ms": 1_000})
    assert reply.status_code == 422
    assert "key" in reply.json()["detail"]


async def test_one_message_that_is_refused_does_not_keep_the_others_out(
    node: TalkingNode, http: httpx.AsyncClient
) -> None:
    await node.create_topic("compacted", partitions=3, cleanup_policy="compact")
    messages = [{"value": str(number), "key": f"key-{number}", "delay_ms": LATER_MS} for number in range(6)]
    del messages[4]["key"]
    reply = await http.post("/v1/topics/compacted/messages", json={"messages": messages})
    assert reply.status_code == 207
    outcomes = reply.json()["messages"]
    assert ["error" in outcome for outcome in outcomes] == [False, False, False, False, True, False]
    for number in (0, 1, 2, 3, 5):
        shown = (await http.get(f"/v1/schedules/{outcomes[number]['id']}")).json()
        assert (shown["value"], shown["partition"]) == (str(number), outcomes[number]["partition"])


async def test_the_list_is_in_the_order_of_due_times_over_all_partitions_and_pages(
    node: TalkingNode, http: httpx.AsyncClient
) -> None:
    await node.create_topic("orders", partitions=3)
    delays = [LATER_MS + (number * 7 % 20) * 1_000 for number in range(20)]
    await publish(http, *({"value": str(delay), "delay_ms": delay, "key": str(delay)} for delay in delays))
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await pending(http, count=6, **cursor)
        assert len(page["messages"]) <= 6
        found += [message["value"] for message in page["messages"]]
        if "cursor" not in page:
            break
        cursor = {"cursor": page["cursor"]}
    assert found == [str(delay) for delay in sorted(delays)]
    counts = (await http.get("/v1/schedule-counts")).json()
    assert counts == {"pending_count": 20, "topics": [{"topic": "orders", "pending_count": 20}]}


async def test_a_pending_message_is_shown_as_it_was_sent(http: httpx.AsyncClient) -> None:
    (sent,) = await publish(http, {"value": {"n": 1}, "key": "k", "delay_ms": LATER_MS, "timestamp_ms": 5})
    shown = (await http.get(f"/v1/schedules/{sent['id']}")).json()
    assert {name: shown[name] for name in ("id", "topic", "due_ms", "value", "key", "timestamp_ms")} == {
        "id": sent["id"],
        "topic": "orders",
        "due_ms": sent["due_ms"],
        "value": '{"n":1}',
        "key": "k",
        "timestamp_ms": 5,
    }
    assert (await pending(http))["messages"] == [shown]


async def test_a_cancelled_message_never_comes_and_is_gone(http: httpx.AsyncClient) -> None:
    (sent,) = await publish(http, {"value": "a", "delay_ms": LATER_MS})
    path = f"/v1/schedules/{sent['id']}"
    assert (await http.delete(path)).status_code == 204
    again = await http.delete(path)
    assert again.status_code == 404
    assert "released or cancelled" in again.json()["detail"]
    assert (await http.get(path)).status_code == 404
    assert (await pending(http))["messages"] == []


async def test_a_message_that_is_given_another_time_keeps_its_id(http: httpx.AsyncClient) -> None:
    (sent,) = await publish(http, {"value": "a", "delay_ms": LATER_MS})
    path = f"/v1/schedules/{sent['id']}"
    later = await http.patch(path, json={"deliver_at": "2100-01-01T00:00:00Z"})
    assert (later.status_code, later.json()["due_ms"]) == (200, 4_102_444_800_000)
    assert (await http.get(path)).json()["due_ms"] == 4_102_444_800_000
    at_once = await http.patch(path, json={"delay_ms": 0})
    assert at_once.status_code == 200
    (message,) = await receive(http, wait_ms=10_000)
    assert (message["id"], message["value"]) == (sent["id"], "a")
    assert (await http.patch(path, json={"delay_ms": 0})).status_code == 404


async def test_whoever_asks_wrongly_is_told_what_is_wrong(http: httpx.AsyncClient) -> None:
    (sent,) = await publish(http, {"value": "a", "delay_ms": LATER_MS})
    (plain,) = await publish(http, {"value": "b"})
    path = f"/v1/schedules/{sent['id']}"
    for request, status, text in [
        (http.get("/v1/schedules"), 400, "topic"),
        (http.get("/v1/schedules?topic=nothing"), 404, "nothing"),
        (http.get("/v1/schedules?topic=orders&count=0"), 400, "count"),
        (http.get("/v1/schedules?topic=orders&cursor=x"), 400, "cursor"),
        (http.patch(path, json={}), 400, "delay_ms"),
        (http.patch(path, json={"delay": 5}), 400, "delay"),
        (http.get(f"/v1/schedules/{plain['id']}"), 404, "delayed"),
        (http.delete("/v1/schedules/x"), 404, "delayed"),
    ]:
        reply = await request
        assert reply.status_code == status, reply.text
        assert text in reply.json()["detail"]


async def test_a_queue_tells_how_many_are_delayed_and_a_purge_hides_them(http: httpx.AsyncClient) -> None:
    await publish(http, {"value": "first"})
    await receive(http)
    (old,) = await publish(http, {"value": "old", "delay_ms": LATER_MS})
    stats = "/v1/queues/orders/workers/stats"
    assert (await http.get(stats)).json()["delayed_count"] == 1
    assert (await http.post("/v1/queues/orders/workers/purge")).status_code == 204
    assert (await http.get(stats)).json()["delayed_count"] == 0
    (new,) = await publish(http, {"value": "new", "delay_ms": LATER_MS})
    assert (await http.get(stats)).json()["delayed_count"] == 1
    for message in (old, new):
        assert (await http.patch(f"/v1/schedules/{message['id']}", json={"delay_ms": 0})).status_code == 200
    # Whoever else reads the topic gets both.
    found: list[str] = []
    while len(found) < 3:
        found += [message["value"] for message in await receive(http, wait_ms=10_000, group="others")]
    assert found == ["first", "old", "new"]
    assert [message["value"] for message in await receive(http, wait_ms=10_000)] == ["new"]
    assert await receive(http) == []


async def test_delayed_messages_survive_a_restart(tmp_path: Path) -> None:
    async with talking_to_node(tmp_path) as http:
        (sent,) = await publish(http, {"value": "a", "delay_ms": LATER_MS})
    async with talking_to_node(tmp_path) as http:
        (found,) = (await pending(http))["messages"]
        assert (found["id"], found["due_ms"]) == (sent["id"], sent["due_ms"])
