"""A small client for the HTTP door of a node, or of several: one connection, JSON both ways, each failure one sentence.

Blocking, because the command line does one thing at a time. A node that cannot be reached is passed over for the next
one. A call that changes nothing is sent again once, to the next node, if the connection it was to go over had been
closed; any other is not, for whether it took effect is not known: the next call goes to the next node.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from penstock.base.slow_waits import told_if_slow
from penstock.base.typed_values import read_json
from penstock.codec.http.fields import ANSWERED_AS
from penstock.net.address import Address, parse_address
from penstock.net.errors import (
    BrokerUnreachableError,
    ClientError,
    ConnectionLostError,
    ProtocolMismatchError,
    RequestTimeoutError,
)

HTTP_PORT_DEFAULT: Final = 8080
# A long poll may take a minute; everything else is answered at once.
TIMEOUT_SECONDS: Final = 90.0
# A page of messages with their values; what is larger than this did not come from a node.
REPLY_BYTES_MAX: Final = 1 << 30
_JSON: Final = "application/json"
_PROBLEM: Final = "application/problem+json"
_FAILED_FROM: Final = 400

ReplyT = TypeVar("ReplyT")


class HttpProblem(msgspec.Struct, frozen=True):
    """What a node says of a request it refuses (RFC 9457)."""

    title: str = ""
    status: int = 0
    detail: str = ""


class RefusedError(ClientError):
    """The node answered, and said no. The text is its own sentence."""

    def __init__(self, problem: HttpProblem) -> None:
        super().__init__(problem.detail or problem.title)
        self.status = problem.status


class HttpClient:
    def __init__(self, addresses: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """`addresses`: one, or several with commas between them, each of another node of the cluster."""
        self._addresses = [_parse(each.strip()) for each in addresses.split(",")]
        self._timeout_seconds = timeout_seconds
        self._turn_to(self._addresses[0])
        # As whom the node took us, where its rules are on and the answer may be short of something.
        self.answered_as: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def get(self, path: str, kind: type[ReplyT], query: Mapping[str, object] | None = None) -> ReplyT:
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        return self._decode(self._call("GET", f"{path}?{urlencode(wanted)}" if wanted else path), kind)

    def post(self, path: str, kind: type[ReplyT], body: object = None, *, meant_seconds: float = 0.0) -> ReplyT:
        """`meant_seconds` is how long the node is asked to wait before it answers."""
        return self._decode(self._call("POST", path, body, meant_seconds=meant_seconds), kind)

    def put(self, path: str, kind: type[ReplyT], body: object) -> ReplyT:
        return self._decode(self._call("PUT", path, body), kind)

    def patch(self, path: str, kind: type[ReplyT], body: object) -> ReplyT:
        return self._decode(self._call("PATCH", path, body), kind)

    def delete(self, path: str, kind: type[ReplyT]) -> ReplyT:
        return self._decode(self._call("DELETE", path), kind)

    # Inside

    def _turn_to(self, address: Address) -> None:
        self._address = address
        self._connection = http.client.HTTPConnection(address.host, address.port, timeout=self._timeout_seconds)
        self._is_used = False

    def _next(self) -> None:
        """The node did not answer: from now on the one behind it is asked, and after the last one the first."""
        if len(self._addresses) > 1:
            self._connection.close()
            place = self._addresses.index(self._address)
            self._turn_to(self._addresses[(place + 1) % len(self._addresses)])

    def _call(self, method: str, path: str, body: object = None, *, meant_seconds: float = 0.0) -> bytes:
        with told_if_slow(f"no answer from the HTTP door at {self._address} yet", meant_seconds=meant_seconds):
            return self._call_and_wait(method, path, body)

    def _call_and_wait(self, method: str, path: str, body: object) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"accept": _JSON} if data is None else {"accept": _JSON, "content-type": _JSON}
        try:
            return self._exchange(method, path, data, headers)
        except (ConnectionLostError, RequestTimeoutError) as error:
            is_known_door = self._is_used and isinstance(error, ConnectionLostError)
            self._next()
            # A node closes connections that were silent for long.
            if method != "GET" or not (is_known_door or len(self._addresses) > 1):
                raise
            return self._exchange(method, path, data, headers)

    def _exchange(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> bytes:
        self._connect()
        try:
            self._connection.request(method, path, body=data, headers=headers)
            reply = self._connection.getresponse()
            received = reply.read(REPLY_BYTES_MAX)
        except TimeoutError as error:
            self._connection.close()
            raise RequestTimeoutError(f"{self._address} did not answer in time") from error
        except (http.client.BadStatusLine, ConnectionError) as error:
            self._connection.close()
            if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
                raise _no_door(self._address) from error
            hint = "" if self._is_used else " before it answered (is it the Kafka door?)"
            raise ConnectionLostError(f"the connection to {self._address} was lost{hint}") from error
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            raise ConnectionLostError(f"the connection to {self._address} was lost: {error}") from error
        self._is_used = True
        self.answered_as = reply.getheader(ANSWERED_AS) or self.answered_as
        if reply.status >= _FAILED_FROM:
            raise self._refusal(reply, received)
        return received

    def _connect(self) -> None:
        if self._connection.sock is not None:
            return
        failures: list[BrokerUnreachableError] = []
        for _ in self._addresses:
            try:
                self._connection.connect()
                return
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                failures.append(BrokerUnreachableError(f"cannot reach the HTTP door at {self._address}: {reason}"))
                self._next()
        raise failures[0] if len(failures) == 1 else BrokerUnreachableError("; ".join(map(str, failures)))

    def _refusal(self, reply: http.client.HTTPResponse, received: bytes) -> ClientError:
        if (reply.getheader("content-type") or "").partition(";")[0] != _PROBLEM:
            return _no_door(self._address)
        return RefusedError(self._decode(received, HttpProblem))

    def _decode(self, received: bytes, kind: type[ReplyT]) -> ReplyT:
        try:
            # 204 has no body: None is what is expected then.
            return read_json(received or b"null", kind)
        except msgspec.DecodeError as error:
            raise ProtocolMismatchError(f"{self._address} answered with something else: {error}") from error


def path_of(*parts: str) -> str:
    """`/v1/…`, whatever characters the parts hold."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _parse(text: str) -> Address:
    """As for brokers, but with the HTTP door's port, and with `http://` before it if somebody likes that."""
    plain = text.removeprefix("http://").rstrip("/")
    has_port = plain.rpartition("]")[2].count(":") == 1
    return parse_address(plain if has_port else f"{plain}:{HTTP_PORT_DEFAULT}")


def _no_door(address: Address) -> ProtocolMismatchError:
    return ProtocolMismatchError(f"what listens at {address} is no HTTP door of Penstock (is it the Kafka door?)")
