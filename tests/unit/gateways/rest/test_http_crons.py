"""Cron schedules by the HTTP door of a whole node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import httpx
import pytest

from penstock.gateways.http.server import HttpServerConfig
from support.door.conversation import ANY_PORT, TalkingNode, running_node

PATH = "/v1/crons/orders/nightly"


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT)) as running:
        yield running


@pytest.fixture
async def http(node: TalkingNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client:
        yield client


async def define(http: httpx.AsyncClient, status: int = 201, path: str = PATH, **body: Any) -> dict[str, Any]:
    reply = await http.put(path, json={"cron": "30 2 * * *", **body})
    assert reply.status_code == status, reply.text
    return dict(reply.json())


async def test_a_schedule_is_made_shown_set_anew_and_deleted(http: httpx.AsyncClient) -> None:
    made = await define(http, timezone="Europe/Berlin", value={"do": "it"}, key="k", headers={"a": "b"})
    assert (made["topic"], made["cron"], made["timezone"], made["missed"]) == (
        "orders",
        "30 2 * * *",
        "Europe/Berlin",
        "once",
    )
    assert (made["value"], made["key"], made["headers"]) == ('{"do":"it"}', "k", {"a": "b"})
    shown = (await http.get(PATH)).json()
    assert shown == made
    again = await define(http, 200, cron="0 0 1 1 *", missed="skip")
    assert (again["cron"], again["timezone"], again["missed"], "value" in again) == ("0 0 1 1 *", "UTC", "skip", False)
    assert [cron["name"] for cron in (await http.get("/v1/crons")).json()["crons"]] == ["nightly"]
    assert (await http.delete(PATH)).status_code == 204
    assert (await http.delete(PATH)).status_code == 404
    assert (await http.get(PATH)).status_code == 404
    assert (await http.get("/v1/crons?topic=orders")).json() == {"crons": []}


async def test_the_next_times_are_told_as_the_clocks_of_the_zone_show_them(http: httpx.AsyncClient) -> None:
    made = await define(http, timezone="Asia/Kolkata")
    assert len(made["next_runs"]) == 5
    for run in made["next_runs"]:
        local = datetime.fromisoformat(run["local"])
        assert (local.hour, local.minute, local.isoformat()[-6:]) == (2, 30, "+05:30")
        assert round(local.timestamp() * 1000) == run["due_ms"]
    (listed,) = (await http.get("/v1/crons")).json()["crons"]
    assert listed["next_runs"] == made["next_runs"][:1]


async def test_a_schedule_sends_its_message_when_its_time_comes(http: httpx.AsyncClient) -> None:
    made = await define(http, cron="* * * * * *", value="tick", key="k")
    body = {"count": 1, "wait_ms": 10_000}
    reply = await http.post("/v1/queues/orders/workers/receive", json=body)
    (message,) = reply.json()["messages"]
    assert (message["value"], message["key"]) == ("tick", "k")
    assert message["timestamp_ms"] >= made["next_runs"][0]["due_ms"]
    assert message["timestamp_ms"] % 1_000 == 0


async def test_a_schedule_whose_key_changes_moves_to_the_partition_of_that_key(
    node: TalkingNode, http: httpx.AsyncClient
) -> None:
    await node.create_topic("orders", partitions=8)
    first = await define(http, key="a")
    second = await define(http, 200, key="another")
    assert first["partition"] != second["partition"]
    (listed,) = (await http.get("/v1/crons")).json()["crons"]
    assert listed["partition"] == second["partition"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"cron": "every day"}, 422, "no cron expression"),
        ({"cron": "0 0 30 2 *"}, 422, ""),
        ({"timezone": "Europe/Berln"}, 422, "no such time zone"),
        ({"timezone": "../../etc/passwd"}, 422, "no such time zone"),
        ({"missed": "never"}, 400, "missed"),
        ({"headers": {"penstock-delay-ms": "5"}}, 400, "penstock-delay-ms"),
        ({"value": "a", "value_base64": "YQ=="}, 400, "value_base64"),
        ({"when": "now"}, 400, "when"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    http: httpx.AsyncClient, body: dict[str, Any], status: int, text: str
) -> None:
    reply = await http.put(PATH, json={"cron": "30 2 * * *", **body})
    assert reply.status_code == status, reply.text
    assert text in reply.json()["detail"]
    assert (await http.get("/v1/crons")).json() == {"crons": []}


async def test_names_are_those_of_a_path(http: httpx.AsyncClient) -> None:
    for name in ("a b", "x" * 101, "ä"):
        assert (await http.put(f"/v1/crons/orders/{name}", json={"cron": "* * * * *"})).status_code == 400
