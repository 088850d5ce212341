"""One connection of the loop to one member of etcd: a request and its reply, or a watch's endless one."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from penstock.cluster.store.etcd.faults import NotSentError, RefusedError, UnansweredError
from penstock.cluster.store.etcd.wire import OK, READ_BYTES, ReplyReader, WireError
from penstock.cluster.store.settings import EtcdMember

# A member on the same continent answers within a tenth of it.
CONNECT_SECONDS_MAX: Final = 1.0


class Connection:
    def __init__(self, member: EtcdMember, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use `open`."""
        self.member = member
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, member: EtcdMember, tls: ssl.SSLContext | None) -> Connection:
        """Raises NotSentError."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                reader, writer = await asyncio.open_connection(member.host, member.port, ssl=tls, limit=READ_BYTES)
        except TimeoutError as error:
            raise NotSentError(member, f"did not take a connection within {CONNECT_SECONDS_MAX:g} s") from error
        except OSError as error:
            raise NotSentError(member, f"cannot be connected to: {reason_of(error)}") from error
        return cls(member, reader, writer)

    @property
    def is_usable(self) -> bool:
        """False: the member has closed it, so nothing should be sent over it any more."""
        is_over = self._reader.at_eof() or self._reader.exception() is not None
        return not is_over and not self._writer.transport.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def ask(self, request: bytes, *, seconds_max: float) -> bytes:
        """The body of its reply. Raises UnansweredError, after which the connection is closed, and RefusedError."""
        reply = ReplyReader()
        try:
            async with asyncio.timeout(seconds_max):
                self._writer.write(request)
                while not reply.is_complete:
                    reply.feed(await self._read())
        except TimeoutError as error:
            self.close()
            raise UnansweredError(self.member, f"did not answer within {seconds_max:.1f} s") from error
        except (OSError, WireError) as error:
            self.close()
            raise UnansweredError(self.member, f"broke off: {reason_of(error)}") from error
        except asyncio.CancelledError:
            # Its reply would be taken for that to the next request.
            self.close()
            raise
        if not reply.keeps_connection:
            self.close()
        if reply.status != OK:
            raise RefusedError(self.member, reply.status, bytes(reply.body))
        return bytes(reply.body)

    def begin(self, request: bytes) -> ReplyReader:
        """For a reply without an end: `next_line` reads on in it."""
        self._writer.write(request)
        return ReplyReader()

    async def next_line(self, reply: ReplyReader, *, seconds_max: float) -> bytes:
        """Raises TimeoutError if none came, and nothing is lost by asking again; else as `ask` does."""
        try:
            async with asyncio.timeout(seconds_max):
                while (line := reply.take_line()) is None:
                    if reply.is_complete:
                        raise _refusal_or_end(self.member, reply)
                    reply.feed(await self._read())
        except TimeoutError:
            raise
        except (OSError, WireError) as error:
            raise UnansweredError(self.member, f"broke off a watch: {reason_of(error)}") from error
        return line

    async def _read(self) -> bytes:
        data = await self._reader.read(READ_BYTES)
        if not data:
            raise ConnectionResetError("it closed the connection")
        return data


def _refusal_or_end(member: EtcdMember, reply: ReplyReader) -> Exception:
    if reply.status != OK:
        return RefusedError(member, reply.status, bytes(reply.body))
    return UnansweredError(member, "ended a watch")


def reason_of(error: Exception) -> str:
    """The system's words, not its numbers."""
    if isinstance(error, ssl.SSLError):
        return str(getattr(error, "verify_message", "") or error.reason or "TLS failed").lower()
    words = getattr(error, "strerror", None)
    return str(error) if words is None else str(words).lower()
