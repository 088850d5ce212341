"""The load of a bench over HTTP: a few connections, each with one request under way, and nothing decoded in vain."""

from __future__ import annotations

import asyncio
from typing import Final, Self

from penstock.cli.failure import CommandError

# Larger than any reply to a hundred messages of the sizes that a bench is asked for.
_REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
_JSON: Final = "Content-Type: application/json\r\n"
_OK: Final = (b"200", b"201", b"204", b"207")


class BenchConnection:
    """One connection that is kept."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> Self:
        address = address.removeprefix("http://").rstrip("/")
        host, _, port = address.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port), limit=_REPLY_BYTES_MAX)
        except (OSError, ValueError) as error:
            raise CommandError(f"{address}: no HTTP door there: {error}") from error
        return cls(address, reader, writer)

    async def send(self, method: str, path: str, body: bytes, *, headers: str = _JSON) -> bytes:
        """The body of the reply, which must be a success."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._address}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self._writer.write(head.encode() + body)
        reply = await self._reader.readuntil(b"\r\n\r\n")
        status = reply[9:12]
        size = 0
        for line in reply.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        content = await self._reader.readexactly(size)
        if status not in _OK:
            raise CommandError(f"{method} {path} was answered with {status.decode()}: {content[:300].decode()}")
        return content

    def close(self) -> None:
        self._writer.close()
