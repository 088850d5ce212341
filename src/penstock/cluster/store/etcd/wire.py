"""HTTP/1.1 as far as etcd's gateway needs it, without a socket: request bytes out, reply bytes in.

The loop and the thread that renews leases have a connection each and share this.
"""

from __future__ import annotations

from typing import Final

import httptools

from penstock.cluster.store.settings import EtcdMember

# What one request may bring: 100,000 partitions are some 40 MB. A message of a watch is one of its lines.
REPLY_BYTES_MAX: Final = 256 * 1024 * 1024
READ_BYTES: Final = 256 * 1024
OK: Final = 200

# A watch ends when its member has lost the others, instead of being silent until they are back.
NEEDS_LEADER: Final = "Grpc-Metadata-hasleader: true\r\n"


class WireError(Exception):
    """What came is no HTTP, or more than may come. The text says which, for the end of a sentence."""


def version_request(member: EtcdMember) -> bytes:
    """Beside the gateway, and for everybody: etcd 3.6 tells its status only to root."""
    return f"GET /version HTTP/1.1\r\nHost: {_host(member)}\r\n\r\n".encode("latin-1")


def _host(member: EtcdMember) -> str:
    return str(member).partition("://")[2]


def request_bytes(member: EtcdMember, path: str, body: bytes, *, token: str = "", extra: str = "") -> bytes:
    login = f"Authorization: {token}\r\n" if token else ""
    head = (
        f"POST /v3/{path} HTTP/1.1\r\nHost: {_host(member)}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{login}{extra}\r\n"
    )
    return head.encode("latin-1") + body


class ReplyReader:
    """One reply. `body` grows as it comes; a watch takes whole lines out of it."""

    def __init__(self, *, bytes_max: int = REPLY_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._parser = httptools.HttpResponseParser(self)
        self.body = bytearray()
        # There is no end of a line before it.
        self._looked = 0
        # 0: its head is not complete yet.
        self.status = 0
        self.is_complete = False
        self.keeps_connection = False

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise WireError("it does not speak HTTP") from error
        if len(self.body) > self._bytes_max:
            raise WireError(f"it answered with more than {self._bytes_max:,} bytes")

    def take_line(self) -> bytes | None:
        """The next one without its end; None: it has not come whole. Of a refusal there are none."""
        end = self.body.find(b"\n", self._looked) if self.status == OK else -1
        if end < 0:
            self._looked = len(self.body)
            return None
        line = bytes(self.body[:end])
        del self.body[: end + 1]
        self._looked = 0
        return line

    # Called by the parser

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.keeps_connection = self._parser.should_keep_alive()

    def on_body(self, chunk: bytes) -> None:
        self.body += chunk

    def on_message_complete(self) -> None:
        self.is_complete = True
