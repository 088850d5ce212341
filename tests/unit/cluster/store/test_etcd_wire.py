from __future__ import annotations

import pytest

from penstock.cluster.store.etcd.wire import ReplyReader, WireError, request_bytes
from penstock.cluster.store.settings import EtcdMember

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_a_request_is_whole() -> None:
    request = request_bytes(EtcdMember("::1", 2379), "kv/range", b"{}", token="t0ken", extra="X: y\r\n")
    head, _, body = request.partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.split(b"\r\n") == [
        b"POST /v3/kv/range HTTP/1.1",
        b"Host: [::1]:2379",
        b"Content-Type: application/json",
        b"Content-Length: 2",
        b"Authorization: t0ken",
        b"X: y",
    ]


def test_a_reply_is_read_however_it_is_cut() -> None:
    reply = ReplyReader()
    for byte in HEAD + chunk(b'{"a":') + chunk(b"1}") + b"0\r\n\r\n":
        assert not reply.is_complete
        reply.feed(bytes([byte]))
    assert (reply.status, bytes(reply.body), reply.is_complete, reply.keeps_connection) == (200, b'{"a":1}', True, True)


def test_lines_of_a_watch_come_out_one_by_one() -> None:
    reply = ReplyReader()
    reply.feed(HEAD + chunk(b"first\nsec"))
    assert (reply.take_line(), reply.take_line()) == (b"first", None)
    reply.feed(chunk(b"ond\nthird\n"))
    assert [reply.take_line() for _ in range(3)] == [b"second", b"third", None]
    assert not reply.is_complete


def test_a_refusal_is_not_taken_for_a_line() -> None:
    reply = ReplyReader()
    reply.feed(b"HTTP/1.1 503 No\r\nContent-Length: 3\r\n\r\nno\n")
    assert reply.take_line() is None
    assert (reply.status, reply.is_complete) == (503, True)


def test_a_reply_has_a_bound() -> None:
    reply = ReplyReader(bytes_max=10)
    reply.feed(HEAD + chunk(b"x" * 10))
    with pytest.raises(WireError, match="more than 10 bytes"):
        reply.feed(chunk(b"x"))


def test_lines_that_were_taken_do_not_count() -> None:
    reply = ReplyReader(bytes_max=10)
    reply.feed(HEAD)
    for _ in range(5):
        reply.feed(chunk(b"12345678\n"))
        assert reply.take_line() == b"12345678"


def test_what_is_no_http_is_told() -> None:
    with pytest.raises(WireError, match="does not speak HTTP"):
        ReplyReader().feed(b"SSH-2.0-OpenSSH\r\n")
