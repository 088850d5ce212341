"""The HTTP door, wired: the application of all who speak HTTP, and the server under it."""

from __future__ import annotations

from typing import Final

from penstock.broker.parts import Parts
from penstock.gateways.admission import Admission
from penstock.gateways.caller import HTTP
from penstock.gateways.door import listen_on
from penstock.gateways.http.server import HttpServer, HttpServerConfig
from penstock.gateways.node_address import join_address, split_address


class HttpPort:
    """`names`: what the node is known as, beside what its settings say and where it listens."""

    name: Final = HTTP

    def __init__(
        self, parts: Parts, admission: Admission, config: HttpServerConfig, *, names: tuple[str, ...] = ()
    ) -> None:
        self._parts = parts
        self._admission = admission
        self._config = config
        self._names = names
        self.server: HttpServer | None = None

    @property
    def address(self) -> str:
        server = self.server
        return join_address(server.host, server.port) if server is not None and server.host else ""

    async def open(self) -> None:
        # Not before somebody wants it: Starlette takes a while to import.
        from penstock.gateways.http_app import make_http_app

        names = (split_address(self._config.listen, self.name)[0], *self._names)
        application = make_http_app(self._parts, self._admission, self._config, names)
        self.server = HttpServer(self._config, application, self._parts.site.tasks)
        await listen_on(self.server.start, self._config.listen, self.name)

    async def stop_listening(self) -> None:
        if self.server is not None:
            self.server.stop_listening()

    async def drain(self) -> None:
        """Whoever waits for a message is woken, then what is at hand is answered."""
        if self.server is not None:
            self._parts.broker.wake_waiting()
            await self.server.drain()
