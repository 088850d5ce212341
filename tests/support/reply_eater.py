"""A TCP proxy on loopback that can lose replies: what was asked for is done, and nobody hears of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

_READ_BYTES: Final = 64 * 1024


class ReplyEater:
    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._eats = False
        self.eaten = asyncio.Event()

    async def start(self) -> int:
        """Where to connect."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def begin(self) -> None:
        """From now on each connection is cut when a reply comes over it."""
        self._eats = True

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        with suppress(OSError):
            await asyncio.gather(
                self._pass_on(reader, back, is_reply=False), self._pass_on(there, writer, is_reply=True)
            )

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool) -> None:
        try:
            while data := await reader.read(_READ_BYTES):
                if is_reply and self._eats:
                    self.eaten.set()
                    return
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
