"""Asking etcd: its members in turn, logged in, each step with a time limit.

    preferred member ── cannot be connected to ──► the next one
           └─ sent, and no answer ──► the next one, if asking twice does no harm; a transaction is never sent twice

Whoever failed is left: the next request begins with the member after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from penstock.cluster.store.etcd import messages
from penstock.cluster.store.etcd.access import Access
from penstock.cluster.store.etcd.connection import Connection
from penstock.cluster.store.etcd.faults import MemberFaultError, NotSentError, RefusedError, UnansweredError
from penstock.cluster.store.etcd.wire import ReplyReader, request_bytes, version_request
from penstock.cluster.store.protocol import StoreClosedError, StoreUnavailableError
from penstock.cluster.store.settings import EtcdMember

# One member's answer. etcd answers in milliseconds, or when a new leader is found: a second or two.
REQUEST_SECONDS_MAX: Final = 2.5
# One call, with every member that is asked: an administrator's tool gives up after five seconds.
CALL_SECONDS_MAX: Final = 4.0
# More wait for their turn.
CALLS_AT_ONCE_MAX: Final = 16
# To each member.
_IDLE_CONNECTIONS_MAX: Final = 4

ReplyT = TypeVar("ReplyT")


class EtcdClient:
    def __init__(self, members: tuple[EtcdMember, ...], access: Access) -> None:
        assert members
        self.members = members
        self.access = access
        self._turn = 0
        self._idle: dict[EtcdMember, list[Connection]] = {member: [] for member in members}
        self._open: set[Connection] = set()
        self._room = asyncio.Semaphore(CALLS_AT_ONCE_MAX)
        self.is_closed = False

    async def call(
        self, path: str, body: messages.Body, decoder: msgspec.json.Decoder[ReplyT], *, is_repeatable: bool = True
    ) -> ReplyT:
        """Raises StoreError, and RefusedError where a member said no to just this request."""
        until = asyncio.get_running_loop().time() + CALL_SECONDS_MAX
        try:
            async with asyncio.timeout_at(until):
                await self._room.acquire()
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"metadata is out of reach: {CALLS_AT_ONCE_MAX} requests wait for it"
            ) from error
        try:
            return await self._call_in_turn(path, msgspec.json.encode(body), decoder, until, is_repeatable)
        finally:
            self._room.release()

    async def version(self, member: EtcdMember) -> str:
        """Of this member and no other. Raises MemberFaultError."""
        body = await self._send(member, version_request(member), REQUEST_SECONDS_MAX)
        return _decode(member, body, messages.version_reply).etcdserver

    async def begin_watch(self, body: messages.Body, *, extra: str) -> tuple[Connection, ReplyReader]:
        """With the preferred member. Raises MemberFaultError; the caller releases the connection."""
        member = self.members[self._turn]
        try:
            if not self.access.has_login:
                await self._log_in(member, REQUEST_SECONDS_MAX)
            connection = await self._connect(member)
        except MemberFaultError as error:
            self.leave(error.member)
            raise
        data = msgspec.json.encode(body)
        reply = connection.begin(request_bytes(member, "watch", data, token=self.access.token, extra=extra))
        return connection, reply

    def leave(self, member: EtcdMember) -> None:
        """Whoever comes next begins with another."""
        if self.members[self._turn] == member:
            self._turn = (self._turn + 1) % len(self.members)
        for connection in self._idle[member]:
            self.drop(connection)
        self._idle[member].clear()

    def drop(self, connection: Connection) -> None:
        connection.close()
        self._open.discard(connection)

    def forget_login(self) -> None:
        self.access.token = ""

    def check_open(self) -> None:
        if self.is_closed:
            raise StoreClosedError("the metadata store is closed")

    async def close(self) -> None:
        """Whoever waits for an answer hears that the store is closed."""
        self.is_closed = True
        for connection in list(self._open):
            self.drop(connection)

    async def _call_in_turn(
        self, path: str, data: bytes, decoder: msgspec.json.Decoder[ReplyT], until: float, is_repeatable: bool
    ) -> ReplyT:
        fault: MemberFaultError | None = None
        for member in self._in_turn():
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                break
            try:
                return await self._ask(member, path, data, decoder, min(left, REQUEST_SECONDS_MAX))
            except RefusedError as error:
                if not error.is_of_the_member:
                    raise
                fault = error
            except MemberFaultError as error:
                fault = error
            self.leave(member)
            self.check_open()
            if not is_repeatable and not isinstance(fault, NotSentError):
                break
        if fault is None:
            raise StoreUnavailableError("metadata is out of reach: there was no time left to ask")
        raise fault.store_error(is_change=not is_repeatable) from fault

    def _in_turn(self) -> Iterator[EtcdMember]:
        """Each once, the preferred one first."""
        first = self._turn
        for place in range(len(self.members)):
            yield self.members[(first + place) % len(self.members)]

    async def _ask(
        self, member: EtcdMember, path: str, data: bytes, decoder: msgspec.json.Decoder[ReplyT], seconds_max: float
    ) -> ReplyT:
        if not self.access.has_login:
            await self._log_in(member, seconds_max)
        try:
            body = await self._exchange(member, path, data, seconds_max)
        except RefusedError as error:
            if not error.wants_login or not self.access.user:
                raise
            await self._log_in(member, seconds_max)
            body = await self._exchange(member, path, data, seconds_max)
        return _decode(member, body, decoder)

    async def _exchange(self, member: EtcdMember, path: str, data: bytes, seconds_max: float) -> bytes:
        return await self._send(member, request_bytes(member, path, data, token=self.access.token), seconds_max)

    async def _send(self, member: EtcdMember, request: bytes, seconds_max: float) -> bytes:
        connection = self._idle_connection(member) or await self._connect(member)
        try:
            return await connection.ask(request, seconds_max=seconds_max)
        finally:
            self._put_back(connection)

    async def _log_in(self, member: EtcdMember, seconds_max: float) -> None:
        self.forget_login()
        data = msgspec.json.encode(self.access.login_body())
        body = await self._exchange(member, "auth/authenticate", data, seconds_max)
        self.access.token = _decode(member, body, messages.authenticate_reply).token

    async def _connect(self, member: EtcdMember) -> Connection:
        self.check_open()
        connection = await Connection.open(member, self.access.tls if member.is_tls else None)
        if self.is_closed:
            connection.close()
        self.check_open()
        self._open.add(connection)
        return connection

    def _idle_connection(self, member: EtcdMember) -> Connection | None:
        self.check_open()
        while self._idle[member]:
            connection = self._idle[member].pop()
            if connection.is_usable:
                return connection
            self.drop(connection)
        return None

    def _put_back(self, connection: Connection) -> None:
        idle = self._idle[connection.member]
        if connection.is_usable and len(idle) < _IDLE_CONNECTIONS_MAX and not self.is_closed:
            idle.append(connection)
        else:
            self.drop(connection)


def _decode(member: EtcdMember, body: bytes, decoder: msgspec.json.Decoder[ReplyT]) -> ReplyT:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        # It did answer, but whether it did what it was asked is not known.
        raise UnansweredError(member, f"answered with something else: {error}") from error
