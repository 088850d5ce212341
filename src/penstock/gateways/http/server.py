"""The HTTP door's machinery: uvicorn on the node's own loop, one listening socket, bodies with a bound.

uvicorn is told to leave signals alone: a node is stopped by `main`, which closes doors before it closes the disk.
Starlette and uvicorn are imported when the door opens, so that nothing else pays for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.tasks import TaskSupervisor
from penstock.gateways.connection_room import connections_room
from penstock.gateways.http.asgi import Application, Receive
from penstock.gateways.request_memory import RequestMemory

if TYPE_CHECKING:
    import uvicorn

    from penstock.gateways.http.protocol import BoundedProtocol

# Connections that wait in the kernel until we accept them.
BACKLOG: Final = 2048
START_SECONDS_MAX: Final = 10
STOP_SECONDS_MAX: Final = 5


class HttpServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # Empty or "off": no HTTP, and with it no SQS.
    listen: str = "127.0.0.1:8080"
    # Names that clients reach the door by, beside localhost, addresses and the names it listens on and advertises;
    # .example.org: everything below it; *: any, for a proxy that checks.
    host_names: tuple[str, ...] = ()
    # Larger requests are refused with 413 before they are read.
    request_bytes_max: int = 16 * 1024 * 1024
    # Of all requests together, while they are being received; small ones do not count.
    request_bytes_total_max: int = 256 * 1024 * 1024
    connections_max: int = 10_000
    # Idle connections are closed; longer than any long poll, so that a client's pool stays warm between two.
    keep_alive_seconds: int = 75


class BodyTooLargeError(Exception):
    """More than `request_bytes_max`, by its length or by what has come so far."""


class BodyCutOffError(Exception):
    """The client has gone before the end of its body: what came is not what was meant."""


class BodyMemory:
    """For bodies that are being received. Who gets none is not read from, and waits."""

    def __init__(self, bytes_max: int) -> None:
        self._memory = RequestMemory(bytes_max)

    @property
    def bytes_held(self) -> int:
        return self._memory.bytes_held

    @asynccontextmanager
    async def of(self, size_bytes: int) -> AsyncIterator[None]:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_granted(_size: int) -> None:
            if granted.cancelled():
                self._memory.give_back(size_bytes)
            else:
                granted.set_result(None)

        if not self._memory.take(size_bytes, on_granted):
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self._memory.give_back(size_bytes)
                raise
        try:
            yield
        finally:
            self._memory.give_back(size_bytes)


class HttpServer:
    def __init__(self, config: HttpServerConfig, application: Application, tasks: TaskSupervisor) -> None:
        self._config = config
        self._application = application
        self._tasks = tasks
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.protocol: type[BoundedProtocol] | None = None
        self.host = ""
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        import uvicorn

        from penstock.gateways.http.protocol import BoundedProtocol

        connections_max = connections_room(self._config.connections_max)
        # A class of this server: its bounds are its own.
        self.protocol = type("NodeProtocol", (BoundedProtocol,), {"connections_max": connections_max})
        listener = await asyncio.to_thread(_bind, host, port)
        self.host, self.port = listener.getsockname()[:2]
        config = uvicorn.Config(
            self._application,
            # Our own log events say what matters; a line per request would cost more than the request.
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=self.protocol,
            server_header=False,
            # Nothing here asks who a proxy says the client is.
            proxy_headers=False,
            timeout_keep_alive=self._config.keep_alive_seconds,
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
        )
        server = _without_signals(uvicorn.Server)(config)
        self._server = server
        self._serving = self._tasks.start("http door", server.serve(sockets=[listener]))
        async with asyncio.timeout(START_SECONDS_MAX):
            while not server.started:
                assert not self._serving.done(), "the HTTP door could not start"
                await asyncio.sleep(0.005)

    def stop_listening(self) -> None:
        """Takes no new connection; uvicorn sees a moment later that it is to end."""
        if self._server is not None:
            self._server.should_exit = True
            for listener in self._server.servers:
                listener.close()

    async def drain(self) -> None:
        """Lets the requests at hand finish; they were woken before."""
        if self._serving is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * STOP_SECONDS_MAX):
                await asyncio.wait([self._serving])


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _without_signals(server: type[uvicorn.Server]) -> type[uvicorn.Server]:
    class QuietServer(server):  # type: ignore[valid-type, misc]
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return QuietServer


async def read_body(receive: Receive, *, declared_bytes: int | None, bytes_max: int) -> bytes:
    """The whole body of a request, or BodyTooLargeError before more than the bound is held."""
    if declared_bytes is not None and declared_bytes > bytes_max:
        raise BodyTooLargeError(f"{declared_bytes} bytes, {bytes_max} are allowed")
    message = await receive()
    # Nearly always the whole of it comes at once.
    if not message.get("more_body", True):
        whole: bytes = message.get("body", b"")
        if len(whole) <= bytes_max:
            return whole
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        if message["type"] == "http.disconnect":
            raise BodyCutOffError(f"the client has gone after {size_bytes} bytes of its body")
        part: bytes = message.get("body", b"")
        parts.append(part)
        size_bytes += len(part)
        if size_bytes > bytes_max:
            raise BodyTooLargeError(f"more than the {bytes_max} bytes that are allowed")
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
