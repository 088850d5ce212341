"""The straight way from a request to its handler: the same handler, the same bytes, and everything else as before."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from penstock.gateways.admission import Admission
from penstock.gateways.http.direct import PATH_CHARACTERS_MAX, PATHS_REMEMBERED, DirectRoutes
from penstock.gateways.http.door import json_response
from penstock.gateways.http.protocol import reply
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.rest.openapi import OPERATIONS
from support.door.conversation import ANY_PORT, PATIENCE_SECONDS, TalkingNode, running_node


async def first(_request: Request) -> Response:
    return json_response({"who": "first"})


async def second(request: Request) -> Response:
    return json_response(request.path_params)


ROUTES = [
    Route("/v1/things/special", first, methods=["GET"]),
    Route("/v1/things/{name}", second, methods=["GET", "PUT"]),
    Route("/v1/things/{number:int}/parts/{part}", second, methods=["POST"]),
]


def direct() -> DirectRoutes:
    return DirectRoutes(Starlette(routes=ROUTES), ROUTES)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/things/special"),
        ("PUT", "/v1/things/special"),
        ("GET", "/v1/things/a b"),
        ("POST", "/v1/things/7/parts/x"),
        ("POST", "/v1/things/x/parts/x"),
        ("DELETE", "/v1/things/a"),
        ("GET", "/v1/things/"),
        ("GET", "/v1/things/a/"),
        ("GET", "/v1/things/a\n"),
        ("GET", ""),
    ],
)
def test_request_finds_the_handler_that_the_application_would_find(method: str, path: str) -> None:
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "root_path": ""}
    fitting = [(route, *route.matches(scope)) for route in ROUTES]
    expected = next((each for each in fitting if each[1] is Match.FULL), None)
    found = direct().find(method, path)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found[0] is expected[0].endpoint
        assert found[1] == expected[2]["path_params"]


def test_paths_are_remembered_up_to_a_bound_and_long_ones_not_at_all() -> None:
    routes = direct()
    paths = [f"/v1/things/{number}" for number in range(2 * PATHS_REMEMBERED + 1)]
    for path in [*paths, *paths[-2:]]:
        assert routes.find("GET", path) == (second, {"name": path.rpartition("/")[2]})
    assert routes.find("GET", paths[-1]) is routes.find("GET", paths[-1])
    long = "/v1/things/" + "x" * PATH_CHARACTERS_MAX
    assert routes.find("GET", long) is not routes.find("GET", long)
    assert routes.remembered_count <= PATHS_REMEMBERED


def test_head_is_left_to_the_application() -> None:
    assert direct().find("HEAD", "/v1/things/special") is None


async def test_server_without_the_extension_is_answered_by_the_usual_messages() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        raise AssertionError("nobody reads a body here")

    scope = {"type": "http", "method": "GET", "path": "/v1/things/a", "headers": [], "extensions": {}}
    await direct()(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[1]["body"] == b'{"name":"a"}'


def test_json_response_is_made_as_any_other() -> None:
    ours, theirs = json_response({"a": 1}), Response(b'{"a":1}', media_type="application/json")
    assert (ours.status_code, ours.body, ours.raw_headers) == (theirs.status_code, theirs.body, theirs.raw_headers)
    ours.headers["penstock-more"] = "x"
    assert ours.raw_headers[-1] == (b"penstock-more", b"x")


# On the wire


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node(http=HttpServerConfig(listen=ANY_PORT, keep_alive_seconds=1)) as running:
        yield running


async def ask(node: TalkingNode, data: bytes) -> bytes:
    """All that comes until the node closes."""
    host, _, port = node.addresses["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    async with asyncio.timeout(PATIENCE_SECONDS):
        answer = await reader.read()
    writer.close()
    return re.sub(rb"date: [^\r]*\r\n", b"", answer)


GET = b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\n"
HEAD_LINES = b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\ncontent-type: application/json\r\n"
BODY = b'{"queues":[]}'


async def test_reply_is_what_it_was_byte_for_byte(node: TalkingNode) -> None:
    answer = await ask(node, GET + b"Connection: close\r\n\r\n")
    assert answer == HEAD_LINES + b"connection: close\r\n\r\n" + BODY


async def test_pipelined_requests_are_answered_in_their_order(node: TalkingNode) -> None:
    missing = b"GET /v1/queues/a/b HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = await ask(node, GET + b"\r\n" + missing + GET + b"Connection: close\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"404", b"200"]


async def test_head_and_what_is_not_there_are_answered_as_before(node: TalkingNode) -> None:
    head = await ask(node, b"HEAD /v1/queues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert head == HEAD_LINES + b"connection: close\r\n\r\n"
    wrong = await ask(node, b"PATCH /v1/queues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert wrong.startswith(b"HTTP/1.1 405 ")
    assert b"allow: GET, HEAD\r\n" in wrong


async def test_idle_connection_is_closed_and_a_busy_one_is_not(node: TalkingNode) -> None:
    host, _, port = node.addresses["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    loop = asyncio.get_running_loop()
    began = loop.time()
    # For longer than the idle time, and never idle for that long.
    while loop.time() < began + 1.5:
        writer.write(GET + b"\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.readuntil(BODY)
    last = loop.time()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await reader.read() == b""
    assert loop.time() - last > 0.5
    writer.close()


async def test_every_operation_takes_the_straight_way(node: TalkingNode) -> None:
    from penstock.gateways.http_app import make_http_app

    application: Any = make_http_app(node.parts, Admission(node.parts.authorizer), HttpServerConfig())
    for operation in OPERATIONS:
        path = re.sub(r"\{\w+\}", "1", operation.path)
        assert application._application.find(operation.method.upper(), path) is not None, operation.path


async def test_header_with_a_line_end_is_never_sent() -> None:
    class Cycle:
        disconnected = response_started = False
        keep_alive = True
        default_headers: tuple[()] = ()

        class flow:  # noqa: N801
            write_paused = False

        async def send(self, _message: Any) -> None: ...

    with pytest.raises(AssertionError, match="line end"):
        await reply(Cycle().send, 200, [(b"a", b"b\r\nset-cookie: c")], b"")
