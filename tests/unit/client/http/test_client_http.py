"""The client of the HTTP door against servers that answer all kinds of things."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from penstock.client.http.client import HttpClient, RefusedError, path_of
from penstock.net.errors import (
    BrokerUnreachableError,
    ConnectionLostError,
    ProtocolMismatchError,
    RequestTimeoutError,
)

Answer = Callable[[BaseHTTPRequestHandler], None]


class Thing(msgspec.Struct):
    name: str


class Server:
    """Answers every request by the next of its answers; the last one goes on."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, str, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.requests.append((self.command, self.path, body))
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                answer(self)

            do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815  their names

            def log_message(self, format: str, *values: object) -> None:  # noqa: A002  its name there
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


def reply(body: bytes, status: int = 200, kind: str = "application/json") -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def test_bodies_and_queries_go_there_and_answers_come_back(server: Server) -> None:
    server.answers = [reply(b'{"name":"a","more":1}'), reply(b'{"name":"b"}'), reply(b"", 204)]
    with HttpClient(server.address) as client:
        assert client.get(path_of("x", "a/b ü"), Thing, {"count": 3, "left": None}) == Thing("a")
        assert client.post("/v1/y", Thing, {"n": 1}) == Thing("b")
        assert client.delete("/v1/z", type(None)) is None
    assert server.requests == [
        ("GET", "/v1/x/a%2Fb%20%C3%BC?count=3", b""),
        ("POST", "/v1/y", b'{"n":1}'),
        ("DELETE", "/v1/z", b""),
    ]


def test_a_problem_is_told_in_its_own_words(server: Server) -> None:
    problem = b'{"title":"Not found","status":404,"detail":"there is no topic \'x\'","type":"about:blank"}'
    server.answers = [reply(problem, 404, "application/problem+json")]
    with HttpClient(f"http://{server.address}/") as client, pytest.raises(RefusedError) as caught:
        client.get("/v1/x", Thing)
    assert (str(caught.value), caught.value.status) == ("there is no topic 'x'", 404)


@pytest.mark.parametrize("answer", [reply(b"<html>", 404, "text/html"), reply(b"<html>"), reply(b'{"other":1}')])
def test_some_other_server_is_recognised(server: Server, answer: Answer) -> None:
    server.answers = [answer]
    with HttpClient(server.address) as client, pytest.raises(ProtocolMismatchError):
        client.get("/v1/x", Thing)


def test_a_question_is_asked_again_over_a_new_connection(server: Server) -> None:
    server.answers = [reply(b'{"name":"a"}'), hang_up, reply(b'{"name":"b"}')]
    with HttpClient(server.address) as client:
        client.get("/v1/x", Thing)
        assert client.get("/v1/x", Thing) == Thing("b")


def test_what_changes_something_is_not_sent_twice(server: Server) -> None:
    server.answers = [reply(b'{"name":"a"}'), hang_up, reply(b'{"name":"b"}')]
    with HttpClient(server.address) as client:
        client.get("/v1/x", Thing)
        with pytest.raises(ConnectionLostError):
            client.post("/v1/x", Thing, {})
    assert len(server.requests) == 2


def test_a_server_that_says_nothing_is_left(server: Server) -> None:
    stay = threading.Event()
    server.answers = [lambda _: stay.wait(10) and None]
    try:
        with HttpClient(server.address, timeout_seconds=0.05) as client, pytest.raises(RequestTimeoutError):
            client.get("/v1/x", Thing)
    finally:
        stay.set()


def test_of_several_nodes_the_next_is_asked_where_one_cannot_be_reached(server: Server) -> None:
    dead = Server()
    dead.stop()
    server.answers = [reply(b'{"name":"a"}')]
    with HttpClient(f"{dead.address}, {server.address}") as client:
        assert client.post("/v1/x", Thing, {}) == Thing("a")
        assert client.get("/v1/x", Thing) == Thing("a")
    with HttpClient(f"{dead.address},{dead.address}") as client, pytest.raises(BrokerUnreachableError, match="; "):
        client.get("/v1/x", Thing)


def test_what_may_have_been_done_is_not_sent_to_the_next_node(server: Server) -> None:
    dying = Server()
    try:
        dying.answers, server.answers = [hang_up], [reply(b'{"name":"a"}')]
        with HttpClient(f"{dying.address},{server.address}") as client:
            with pytest.raises(ConnectionLostError):
                client.post("/v1/x", Thing, {})
            assert server.requests == []
            # The next call goes to the node that is well.
            assert client.post("/v1/y", Thing, {}) == Thing("a")
        with HttpClient(f"{dying.address},{server.address}") as client:
            assert client.get("/v1/z", Thing) == Thing("a")
    finally:
        dying.stop()
