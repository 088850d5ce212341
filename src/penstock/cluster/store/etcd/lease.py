"""Sessions on etcd are leases. They are renewed by a thread, over a connection of its own: the loop may be busy."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from penstock.cluster.store.etcd import messages
from penstock.cluster.store.etcd.access import Access
from penstock.cluster.store.etcd.client import EtcdClient
from penstock.cluster.store.etcd.connection import reason_of
from penstock.cluster.store.etcd.faults import NOT_FOUND, MemberFaultError, NotSentError, RefusedError, UnansweredError
from penstock.cluster.store.etcd.wire import OK, READ_BYTES, ReplyReader, WireError, request_bytes
from penstock.cluster.store.settings import EtcdMember

# For connecting, and for each part of an answer: a renewal is due every second, so another member is asked by then.
STEP_SECONDS_MAX: Final = 1.0
# A few hundred bytes.
_REPLY_BYTES_MAX: Final = 64 * 1024

ReplyT = TypeVar("ReplyT")


class EtcdSession:
    def __init__(self, client: EtcdClient, lease_id: int, ttl_ms: int) -> None:
        self._client = client
        self._id = lease_id
        self._ttl_ms = ttl_ms

    @property
    def id(self) -> int:
        return self._id

    @property
    def ttl_ms(self) -> int:
        """What was asked for: etcd may give more, never less."""
        return self._ttl_ms

    async def keep_alive(self) -> bool:
        try:
            reply = await self._client.call("lease/keepalive", {"ID": self._id}, messages.keep_alive_reply)
        except RefusedError as error:
            raise error.store_error() from error
        return reply.result.TTL > 0

    def renewer(self) -> LeaseRenewer:
        return LeaseRenewer(self._client.members, self._client.access, self._id)

    async def close(self) -> None:
        try:
            await self._client.call("lease/revoke", {"ID": self._id}, messages.revoke_reply)
        except RefusedError as error:
            # Ended by itself meanwhile, or at the first try, whose answer was lost.
            if error.status != NOT_FOUND:
                raise error.store_error() from error


class LeaseRenewer:
    """Blocking; belongs to the thread that uses it."""

    def __init__(self, members: tuple[EtcdMember, ...], access: Access, lease_id: int) -> None:
        self._members = members
        self._access = access
        self._lease_id = lease_id
        self._turn = 0
        self._socket: socket.socket | None = None

    def renew(self) -> bool:
        """Each member once, until one answers."""
        fault: MemberFaultError | None = None
        for _ in self._members:
            try:
                return self._renew()
            except MemberFaultError as error:
                fault = error
                self.close()
                self._turn = (self._turn + 1) % len(self._members)
        assert fault is not None, "there is always a member"
        raise fault.store_error() from fault

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None

    def _renew(self) -> bool:
        if not self._access.has_login:
            self._log_in()
        body = {"ID": self._lease_id}
        try:
            reply = self._ask("lease/keepalive", body, messages.keep_alive_reply)
        except RefusedError as error:
            if not error.wants_login or not self._access.user:
                raise
            self._log_in()
            reply = self._ask("lease/keepalive", body, messages.keep_alive_reply)
        return reply.result.TTL > 0

    def _log_in(self) -> None:
        self._access.token = ""
        reply = self._ask("auth/authenticate", self._access.login_body(), messages.authenticate_reply)
        self._access.token = reply.token

    def _ask(self, path: str, body: messages.Body, decoder: msgspec.json.Decoder[ReplyT]) -> ReplyT:
        member = self._members[self._turn]
        connected = self._connected(member)
        reply = ReplyReader(bytes_max=_REPLY_BYTES_MAX)
        try:
            connected.sendall(request_bytes(member, path, msgspec.json.encode(body), token=self._access.token))
            while not reply.is_complete:
                data = connected.recv(READ_BYTES)
                if not data:
                    raise UnansweredError(member, "closed the connection")
                reply.feed(data)
        except (OSError, WireError) as error:
            raise UnansweredError(member, f"did not renew: {reason_of(error)}") from error
        if not reply.keeps_connection:
            self.close()
        if reply.status != OK:
            raise RefusedError(member, reply.status, bytes(reply.body))
        try:
            return decoder.decode(bytes(reply.body))
        except msgspec.DecodeError as error:
            raise UnansweredError(member, f"answered with something else: {error}") from error

    def _connected(self, member: EtcdMember) -> socket.socket:
        if self._socket is None:
            try:
                plain = socket.create_connection((member.host, member.port), timeout=STEP_SECONDS_MAX)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                tls = self._access.tls if member.is_tls else None
                self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=member.host)
            except OSError as error:
                raise NotSentError(member, f"cannot be connected to: {reason_of(error)}") from error
        return self._socket
