"""The metrics page: `GET /metrics` for Prometheus, `GET /health` for whoever restarts us.

A few lines of HTTP on asyncio rather than a framework: it answers two fixed paths, one request a connection, and the
node must be observable without any extra installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.base.metrics import CONTENT_TYPE, CollectorRegistry, page
from penstock.gateways.door import listen_on
from penstock.gateways.node_address import join_address

REQUEST_BYTES_MAX: Final = 8 * 1024
REQUEST_SECONDS_MAX: Final = 10


class MetricsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # Empty or "off": no metrics page.
    listen: str = "off"


class MetricsPage:
    name: Final = "metrics"

    def __init__(
        self,
        config: MetricsConfig,
        registry: CollectorRegistry,
        is_healthy: Callable[[], bool],
        damages: Callable[[], list[str]],
    ) -> None:
        """`damages` are what somebody should look at, but not by a restart."""
        self._config = config
        self._registry = registry
        self._is_healthy = is_healthy
        self._damages = damages
        self._server: asyncio.Server | None = None
        self.address = ""

    async def open(self) -> None:
        await listen_on(self._start, self._config.listen, self.name)

    async def _start(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._answer, host, port, limit=REQUEST_BYTES_MAX)
        self.address = join_address(*self._server.sockets[0].getsockname()[:2])

    async def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def drain(self) -> None:
        """An answer is written as soon as its request is read, so nobody waits for one."""

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._reply(head.split(b"\r\n", 1)[0].decode("latin-1")))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # a client that does not finish its request gets no answer
        finally:
            writer.close()

    def _reply(self, request_line: str) -> bytes:
        method, _, rest = request_line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _response("405 Method Not Allowed", b"only GET is served here\n")
        if path == "/metrics":
            return _response("200 OK", page(self._registry), CONTENT_TYPE)
        if path == "/health":
            if self._is_healthy():
                return _response("200 OK", "\n".join([*self._damages(), "ok\n"]).encode())
            return _response("503 Service Unavailable", b"some partitions are offline or the disk is full\n")
        return _response("404 Not Found", b"there are /metrics and /health\n")


def _response(status: str, body: bytes, content_type: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
