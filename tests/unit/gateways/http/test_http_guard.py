"""Web pages at the HTTP door: what a browser sends for a page of another site changes nothing and reads nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from penstock.gateways.http.guard import host_rule
from penstock.gateways.http.server import HttpServerConfig
from support.door.conversation import ANY_PORT, TalkingNode, running_node

PUBLISH = "/v1/topics/orders/messages"
SEND = {"Action": "SendMessage", "QueueUrl": "/0/orders", "MessageBody": "a"}
SIGNED = {"authorization": "AWS4-HMAC-SHA256 Credential=key/20261116/eu-central-1/sqs/aws4_request, Signature=0"}


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    config = HttpServerConfig(listen=ANY_PORT, host_names=("broker.example.org", ".svc.cluster.local"))
    async with running_node(http=config) as running:
        yield running


@pytest.fixture
async def http(node: TalkingNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{node.addresses['http']}", timeout=20) as client:
        yield client


def count(node: TalkingNode, topic: str = "orders") -> int:
    served = node.parts.broker.topic(topic)
    return 0 if served is None else sum(partition.readable_end for partition in served.shells)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://127.0.0.1"},
        {"origin": "file://"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        # A form that leads the browser to our answer.
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    ],
)
async def test_page_of_another_site_changes_nothing(
    node: TalkingNode, http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    for path in (PUBLISH, "/v1/queues/orders/workers/purge"):
        reply = await http.post(path, json={"value": "a"}, headers=headers)
        assert (reply.status_code, reply.json()["title"]) == (403, "Another site")
        assert "access-control-allow-origin" not in reply.headers
    assert (await http.post("/", data=SEND, headers=SIGNED | headers)).status_code == 403
    assert (await http.request("OPTIONS", PUBLISH, headers=headers)).status_code == 403
    assert count(node) == 0


@pytest.mark.parametrize(
    "content_type",
    [None, "text/plain", "TEXT/plain ; charset=utf-8", "application/x-www-form-urlencoded", "multipart/form-data; a=b"],
)
async def test_body_as_a_form_could_send_it_is_refused(
    node: TalkingNode, http: httpx.AsyncClient, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    reply = await http.post(PUBLISH, content=b'{"value": "a"}', headers=headers)
    assert reply.status_code == 415
    assert "curl --json" in reply.json()["detail"]
    assert count(node) == 0


async def test_body_in_pieces_without_a_type_is_refused(node: TalkingNode, http: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"value": "a"}'

    assert (await http.post(PUBLISH, content=pieces())).status_code == 415
    assert count(node) == 0


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"]
)
async def test_name_of_somebody_else_that_leads_here_is_refused(http: httpx.AsyncClient, host: str) -> None:
    for method, path in (("GET", "/v1/queues"), ("POST", PUBLISH), ("GET", "/?Action=ListQueues")):
        reply = await http.request(method, path, headers={"host": host, "origin": f"http://{host}"})
        assert (reply.status_code, reply.json()["title"]) == (403, "Unknown host")
        assert "host_names" in reply.json()["message"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost:8080",
        "LOCALHOST.",
        "app.localhost",
        "[::1]:8080",
        "10.1.2.3",
        "broker.example.org:80",
        "a.b.svc.cluster.local",
    ],
)
async def test_own_names_and_addresses_are_taken(http: httpx.AsyncClient, host: str) -> None:
    assert (await http.get("/health", headers={"host": host})).status_code == 200


def test_any_name_is_taken_where_the_settings_say_so() -> None:
    assert host_rule(("*",))(b"evil.example")
    assert not host_rule(())(b"evil.example")


async def test_page_of_this_door_and_whoever_types_its_address_are_served(http: httpx.AsyncClient) -> None:
    own = {"origin": str(http.base_url).rstrip("/"), "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert (await http.post(PUBLISH, json={"value": "a"}, headers=own)).status_code == 201
    through_a_proxy = {"host": "broker.example.org", "origin": "https://broker.example.org"}
    assert (await http.post(PUBLISH, json={"value": "a"}, headers=through_a_proxy)).status_code == 201
    typed = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    followed = typed | {"sec-fetch-site": "cross-site"}
    for headers in (typed, followed):
        assert (await http.get("/openapi.json", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"origin": "http://evil.example", "sec-fetch-mode": "cors"},
    ],
)
async def test_page_of_another_site_reads_nothing(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await http.get("/v1/queues", headers=headers)).status_code == 403


async def test_header_that_is_there_twice_is_refused(http: httpx.AsyncClient) -> None:
    twice = [("content-type", "application/json"), ("content-type", "text/plain")]
    assert (await http.post(PUBLISH, content=b"{}", headers=twice)).status_code == 400


async def test_links_and_forms_change_nothing_at_the_sqs_door(node: TalkingNode, http: httpx.AsyncClient) -> None:
    assert (await http.post("/", data={"Action": "CreateQueue", "QueueName": "orders"}, headers=SIGNED)).is_success
    basic = {"authorization": "Basic YTpi"}
    for headers in ({}, basic):
        for method in ("GET", "HEAD"):
            assert (await http.request(method, "/", params=SEND, headers=headers)).status_code == 403
        for path in ("/", "/0/orders"):
            reply = await http.post(path, data=SEND, headers=headers)
            assert reply.status_code == 403
            assert "MissingAuthenticationToken" in reply.text
    assert count(node) == 0
    assert (await http.get("/", params={"Action": "ListQueues"})).is_success
    assert (await http.get("/", params=SEND, headers=SIGNED)).is_success
    assert (await http.post("/", data=SEND, headers=SIGNED)).is_success
    assert count(node) == 2
