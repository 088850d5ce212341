"""One connection to one broker: requests out in order, replies matched in order, any number under way.

    open → ApiVersions handshake → login → ready ── call / send / post ──→ closed (for good; make another)

Rules:
- The version of each request is the highest that both sides know, capped by `version_caps`.
- A broker answers in order, so one alarm watches the oldest request alone. When that is overdue the
  connection is closed: every later reply stands behind the missing one. A node of our own cluster may answer in any
  order (`is_ordered`): then any that is overdue closes it, for a node that lives answers each in time.
- A login that holds for a while only is done again before it ends, in front of the next request.
- The caller waits when `requests_in_flight_max` replies are owed or the socket's buffer is full.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import msgspec

from penstock.base.slow_waits import told_if_slow
from penstock.codec.kafka import APIS, ErrorCode, Malformed, decode_response, encode_request
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.codec.kafka.messages.sasl_handshake import SaslHandshakeRequest
from penstock.codec.kafka.schema import Request, Response
from penstock.net.address import Address
from penstock.net.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    ClientError,
    ConnectionLostError,
    HandshakeLostError,
    LoginFailedError,
    ProtocolMismatchError,
    RequestTimeoutError,
)
from penstock.net.framing import FrameReader, FrameTooLarge
from penstock.net.login import Credentials, log_in

R = TypeVar("R", bound=Response)

API_PRODUCE: Final = 0
API_FETCH: Final = 1
API_VERSIONS: Final = 18

# From these versions on topics are named by id alone; by name one request serves every broker since 0.11.
VERSION_CAPS: Final[Mapping[int, int]] = {API_PRODUCE: 12, API_FETCH: 12}

# How much of its time a login is used before it is done again.
LOGIN_PART: Final = 0.85

# Of no request: ours count from 0.
_NO_ID: Final = -1
_CORRELATION_AND_ERROR = struct.Struct(">ih")


class ConnectionOptions(msgspec.Struct, frozen=True):
    client_id: str = "penstock"
    connect_timeout_ms: int = 5_000
    # The handshake asks for nothing that takes time: a peer that is silent for so long speaks something else.
    handshake_timeout_ms: int = 5_000
    request_timeout_ms: int = 30_000
    # Above what one fetch asks for (50 MiB and one batch); a peer that speaks HTTP announces 1.2 GB.
    frame_bytes_max: int = 128 * 1024 * 1024
    requests_in_flight_max: int = 256
    # Replies come in the order of their requests.
    is_ordered: bool = True
    # Never above these versions, by API key, whatever both sides know.
    version_caps: Mapping[int, int] = msgspec.field(default_factory=lambda: VERSION_CAPS)
    # Who we are; None: the broker does not ask.
    credentials: Credentials | None = None
    # For whoever says nothing and is shut out: what the reason may be, and what to do.
    login_hint: str = "it may ask for a login"


@dataclass(slots=True)
class _Owed:
    """A reply that has not come yet."""

    correlation_id: int
    api_name: str
    response: type[Response] | None
    version: int
    future: asyncio.Future[Any]
    deadline: float
    timeout_ms: int


class Connection(asyncio.BufferedProtocol):
    def __init__(self, address: Address, options: ConnectionOptions) -> None:
        self.address = address
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(frame_bytes_max=options.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        # By correlation id, the oldest first.
        self._owed: dict[int, _Owed] = {}
        self._next_correlation_id = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._failure: ClientError | None = None
        self._is_write_paused = False
        self._order = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._closed = self._loop.create_future()
        # When to log in again, by the loop's clock; None: never.
        self._login_due: float | None = None
        # No reply has come yet but the handshake's.
        self._is_unanswered = True

    @classmethod
    async def open(cls, address: Address, options: ConnectionOptions) -> Connection:
        with told_if_slow(f"no answer from {address} yet"):
            return await cls._open(address, options)

    @classmethod
    async def _open(cls, address: Address, options: ConnectionOptions) -> Connection:
        connection = cls(address, options)
        try:
            async with asyncio.timeout(options.connect_timeout_ms / 1000):
                await connection._loop.create_connection(lambda: connection, address.host, address.port)
        except TimeoutError as error:
            waited = f"no answer within {options.connect_timeout_ms / 1000:g} s"
            raise BrokerUnreachableError(f"cannot connect to {address}: {waited}") from error
        except ConnectionRefusedError as error:
            raise BrokerRefusedError(f"cannot connect to {address}: {_reason(error)}") from error
        except OSError as error:
            raise BrokerUnreachableError(f"cannot connect to {address}: {_reason(error)}") from error
        try:
            await connection._negotiate()
            await connection._log_in(timeout_ms=options.handshake_timeout_ms)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_closed(self) -> bool:
        return self._failure is not None

    @property
    def in_flight(self) -> int:
        return len(self._owed)

    def version_of(self, api_key: int, version_max: int | None = None) -> int:
        """The version that `call` would use. A maximum is a wish: a broker that has no version so low is asked in its
        lowest."""
        api = APIS[api_key]
        if api_key not in self._versions:
            raise ProtocolMismatchError(f"{self.address} does not offer {api.name}: the broker is too old")
        low, high = self._versions[api_key]
        version = min(high, api.version_max, self._options.version_caps.get(api_key, api.version_max))
        if version < max(low, api.version_min):
            ours = f"{api.version_min} to {api.version_max}"
            raise ProtocolMismatchError(
                f"{self.address} offers {api.name} in versions {low} to {high}, this client speaks {ours}"
            )
        return version if version_max is None else max(low, api.version_min, min(version, version_max))

    def supports(self, api_key: int) -> bool:
        return api_key in self._versions

    async def call(
        self, request: Request, response: type[R], *, timeout_ms: int | None = None, version_max: int | None = None
    ) -> R:
        patience_seconds = (self._options.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        name = APIS[request.api_key].name
        with told_if_slow(f"{self.address} has not answered {name} yet, waiting up to {patience_seconds:g} s"):
            return await (await self.send(request, response, timeout_ms=timeout_ms, version_max=version_max))

    async def send(
        self, request: Request, response: type[R], *, timeout_ms: int | None = None, version_max: int | None = None
    ) -> asyncio.Future[R]:
        """Returns once the request is on its way: the next one may follow before the reply has come."""
        api_key = request.api_key
        assert APIS[api_key].response is response
        # The lock is fair, so requests leave in the order of the calls even when some had to wait for room.
        async with self._order:
            await self._wait_for_room()
            await self._renew_login()
            version = self.version_of(api_key, version_max)
            correlation_id = self._write(request, version)
            return self._owe(correlation_id, APIS[api_key].name, response, version, timeout_ms)

    async def post(self, request: Request) -> None:
        """For the one request that is never answered: Produce with acks=0."""
        async with self._order:
            await self._wait_for_room()
            await self._renew_login()
            self._write(request, self.version_of(request.api_key))

    def close(self) -> None:
        """What was posted still goes out: `wait_closed` tells when."""
        self._fail(ConnectionLostError(f"the connection to {self.address} was closed"), is_wanted=True)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    # -- the handshake

    async def _negotiate(self) -> None:
        request = ApiVersionsRequest(client_software_name="penstock", client_software_version="0")
        version = APIS[API_VERSIONS].version_max
        timeout_ms = self._options.handshake_timeout_ms
        try:
            while True:
                correlation_id = self._write(request, version)
                frame = await self._owe(correlation_id, "ApiVersions", None, version, timeout_ms)
                # A broker that does not know our version says so in the format of version 0, whatever was
                # asked.
                if len(frame) >= 6 and _CORRELATION_AND_ERROR.unpack_from(frame)[1] == _UNSUPPORTED:
                    if version == 0:
                        break
                    version = 0
                    continue
                self._learn_versions(frame, version)
                return
        except ConnectionLostError as error:
            raise HandshakeLostError(
                f"{self.address} closed the connection at the first request: "
                "no Kafka-compatible broker, or one that is too old (before 0.10)"
            ) from error
        except RequestTimeoutError as error:
            raise HandshakeLostError(f"{error}: it may not speak the Kafka protocol") from error
        raise ProtocolMismatchError(f"{self.address} refuses every version of ApiVersions")

    def _learn_versions(self, frame: memoryview, version: int) -> None:
        decoded = decode_response(ApiVersionsResponse, version, frame)
        if isinstance(decoded, Malformed):
            raise ProtocolMismatchError(f"{self.address} does not speak the Kafka protocol ({decoded.reason})")
        _, reply = decoded
        if reply.error_code != 0:
            raise ProtocolMismatchError(f"{self.address} refuses ApiVersions with error code {reply.error_code}")
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in reply.api_keys}

    # -- the login

    async def _log_in(self, *, timeout_ms: int) -> None:
        credentials = self._options.credentials
        if credentials is None:
            return
        if not self.supports(SaslHandshakeRequest.api_key):
            raise LoginFailedError(f"{self.address} has no logins: try it without a user")

        async def ask(request: Request, response: type[R]) -> R:
            version = self.version_of(request.api_key)
            correlation_id = self._write(request, version)
            name = APIS[request.api_key].name
            reply: R = await self._owe(correlation_id, name, response, version, timeout_ms)
            return reply

        lifetime_ms = await log_in(ask, credentials, self.address)
        self._login_due = self._loop.time() + lifetime_ms * LOGIN_PART / 1000 if lifetime_ms else None

    async def _renew_login(self) -> None:
        """By the holder of `_order`: nothing else may be sent before it is done."""
        if self._login_due is None or self._loop.time() < self._login_due:
            return
        try:
            # Behind whatever is under way, which may be a request that waits for messages.
            await self._log_in(timeout_ms=self._options.request_timeout_ms)
        except BaseException:
            self.close()
            raise

    # -- requests out

    def _write(self, request: Request, version: int) -> int:
        if self._failure is not None:
            raise self._failure
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFF_FFFF
        assert self._transport is not None
        self._transport.write(encode_request(request, version, correlation_id, self._options.client_id))
        return correlation_id

    def _owe(
        self,
        correlation_id: int,
        api_name: str,
        response: type[Response] | None,
        version: int,
        timeout_ms: int | None,
    ) -> asyncio.Future[Any]:
        timeout_ms = self._options.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self._loop.time() + timeout_ms / 1000
        future = self._loop.create_future()
        owed = _Owed(correlation_id, api_name, response, version, future, deadline, timeout_ms)
        self._owed[correlation_id] = owed
        self._watch(self._oldest() if self._options.is_ordered else owed)
        return future

    def _oldest(self) -> _Owed:
        return next(iter(self._owed.values()))

    def _has_room(self) -> bool:
        return not self._is_write_paused and len(self._owed) < self._options.requests_in_flight_max

    async def _wait_for_room(self) -> None:
        """Only the holder of `_order` waits here, so there is one waiter at most."""
        while not self._has_room() and self._failure is None:
            self._room = self._loop.create_future()
            try:
                await self._room
            finally:
                self._room = None
        if self._failure is not None:
            raise self._failure

    def _announce_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _watch(self, owed: _Owed) -> None:
        """An alarm that is set for later than the request's deadline would find it overdue too late; one that is set
        for earlier looks, and is set again."""
        deadline = owed.deadline
        if self._alarm is not None and self._alarm.when() > deadline:
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None:
            self._alarm = self._loop.call_at(deadline, self._check_overdue)

    def _check_overdue(self) -> None:
        self._alarm = None
        if not self._owed:
            return
        is_ordered = self._options.is_ordered
        first = self._oldest() if is_ordered else min(self._owed.values(), key=lambda owed: owed.deadline)
        if self._loop.time() >= first.deadline - 0.001:
            waited = f"{first.timeout_ms / 1000:g} s"
            self._fail(RequestTimeoutError(f"{self.address} did not answer {first.api_name} within {waited}"))
        else:
            self._watch(first)

    # -- bytes in (called by the transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        frames = self._reader.received(nbytes)
        if isinstance(frames, FrameTooLarge):
            length = frames.length & 0xFFFF_FFFF
            self._fail(
                ProtocolMismatchError(f"{self.address} does not speak the Kafka protocol (a frame of {length} bytes)")
            )
            return
        for frame in frames:
            self._on_frame(frame)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._announce_room()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = _reason(exc) if isinstance(exc, OSError) else "closed by the broker"
        if self._is_unanswered and self._options.credentials is None:
            reason += f" at the first request; {self._options.login_hint}"
        self._fail(ConnectionLostError(f"the connection to {self.address} was lost: {reason}"))
        if not self._closed.done():
            self._closed.set_result(None)

    def _on_frame(self, frame: memoryview) -> None:
        if not self._owed:
            self._fail(ProtocolMismatchError(f"{self.address} sent a reply that nobody asked for"))
            return
        answered = int.from_bytes(frame[:4], "big", signed=True) if len(frame) >= 4 else _NO_ID
        owed = self._oldest()
        if not self._options.is_ordered:
            owed = self._owed.get(answered, owed)
        del self._owed[owed.correlation_id]
        if self._owed and self._options.is_ordered:
            self._watch(self._oldest())
        self._announce_room()
        if answered != owed.correlation_id:
            problem: str | None = "replies out of order"
        else:
            problem = _settle(owed, frame)
            self._is_unanswered = self._is_unanswered and owed.response is None
        if problem is not None:
            error = ProtocolMismatchError(f"{self.address} answered {owed.api_name} with {problem}")
            if not owed.future.done():
                owed.future.set_exception(error)
            self._fail(error)

    def _fail(self, failure: ClientError, *, is_wanted: bool = False) -> None:
        """The first failure is the one that everybody gets to see."""
        if self._failure is not None:
            return
        self._failure = failure
        if self._alarm is not None:
            self._alarm.cancel()
        owed, self._owed = self._owed, {}
        for future in (each.future for each in owed.values()):
            if not future.done():
                future.set_exception(failure)
                # Nobody may be waiting for it any more: not worth a complaint at the end of the loop.
                future.exception()
        self._announce_room()
        if self._transport is not None and is_wanted:
            self._transport.close()
        elif self._transport is not None:
            self._transport.abort()


_UNSUPPORTED: Final = int(ErrorCode.UNSUPPORTED_VERSION)


def _settle(owed: _Owed, frame: memoryview) -> str | None:
    """Gives the reply to whoever waits for it; what is returned says why it cannot be read."""
    if owed.response is None:
        if not owed.future.done():
            owed.future.set_result(frame)
        return None
    decoded = decode_response(owed.response, owed.version, frame)
    if isinstance(decoded, Malformed):
        return f"bytes that are no such reply ({decoded.reason})"
    if not owed.future.done():
        owed.future.set_result(decoded[1])
    return None


def _reason(error: OSError) -> str:
    """`connection refused`, without the errno and the address that asyncio puts around it."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error)).lower()
