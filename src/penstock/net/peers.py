"""The other nodes of the cluster, as one node sees them: a connection for each lane to each, opened when first used.

    call ─► the line to (node, lane) ─► open? ─ no ─► wait for its turn, connect, log in, Hello
                                          │ yes
                                          ▼
                                  send ─► reply | PeerLostError

Rules:
- A connection that has broken is tried again at once; one that cannot be opened is tried later and later, with jitter,
  so that a hundred nodes do not come back to a restarted one in the same millisecond.
- Whoever waited for an attempt that failed is told so. The next caller makes the next attempt.
- Nothing is sent twice: who gets PeerLostError decides itself whether asking again is harmless.
- A node that was registered anew, or whose address has changed, is talked to by a new connection.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.seldom import Seldom
from penstock.codec.kafka.schema import Request, Response
from penstock.domain.replication.identity import NodeIdentity
from penstock.net.address import Address
from penstock.net.connection import Connection
from penstock.net.errors import (
    ClientError,
    ConnectionLostError,
    PeerError,
    PeerLostError,
    PeerMismatchError,
    PeerRefusedError,
    PeerUnreachableError,
    ProtocolMismatchError,
    RequestTimeoutError,
)
from penstock.net.peer import PeerOptions, open_peer

log = get_logger("cluster")

R = TypeVar("R", bound=Response)

# A connection may break between the look at it and the request; one that does so twice is a node in trouble.
SENDS_MAX: Final = 2
OPTIONS_DEFAULT: Final = PeerOptions()


class Lane(enum.StrEnum):
    """What need not wait for each other has a connection of its own."""

    SYNCED = "synced"
    FAST = "fast"
    CATCH_UP = "catch-up"
    REST = "rest"
    # Work of doors; and what is parked at the other node, so that nothing waits behind it.
    DOORS = "doors"
    WAITS = "waits"
    # Questions that take their time: nobody waits behind them.
    SLOW = "slow"


@dataclass(slots=True)
class _Line:
    """To one node, for one lane."""

    connection: Connection | None = None
    # By whom it was greeted, and where the node was then.
    greeted: tuple[NodeIdentity, Address] | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Why the last attempt failed, and how many have failed since one succeeded.
    failure: PeerError | None = None
    failure_count: int = 0
    # By the loop's clock: not before.
    next_try: float = 0.0
    # Nobody finds it any more, so nobody would close what is opened for it.
    is_dropped: bool = False


class Peers:
    """`address_of`: where a node's internal door is, as far as is known. `jitter`: from 0 to 1, at random.
    `on_refused` hears of each attempt at which nobody listened there."""

    def __init__(
        self,
        identity: Callable[[], NodeIdentity],
        secret: Callable[[], bytes],
        address_of: Callable[[int], Address | None],
        *,
        clock: Clock,
        jitter: Callable[[], float],
        on_refused: Callable[[int], None] = lambda _node_id: None,
        options: PeerOptions = OPTIONS_DEFAULT,
    ) -> None:
        self._identity = identity
        self._secret = secret
        self._address_of = address_of
        self._jitter = jitter
        self._on_refused = on_refused
        self._options = options
        # One for each node and lane that was ever asked for; `forget` is for nodes that are gone for good.
        self._lines: dict[tuple[int, Lane], _Line] = {}
        self._is_closed = False
        self._seldom = Seldom(clock)

    async def call(self, node_id: int, lane: Lane, request: Request, response: type[R], *, timeout_ms: int) -> R:
        """The reply, or a PeerError after `timeout_ms` at the latest."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        reply = await self._send(node_id, lane, request, response, deadline)
        try:
            return await reply
        except ProtocolMismatchError as error:
            raise PeerMismatchError(f"node {node_id}: {error}") from error
        except ClientError as error:
            raise PeerLostError(f"node {node_id}: {error}") from error

    async def until_lost(self, node_id: int) -> None:
        """Connects, unless it is, and returns when that connection has ended: so one hears of a node's death."""
        line = self._lines.setdefault((node_id, Lane.REST), _Line())
        connection = await self._connected(node_id, line)
        await connection.wait_closed()

    async def _send(
        self, node_id: int, lane: Lane, request: Request, response: type[R], deadline: float
    ) -> asyncio.Future[R]:
        loop = asyncio.get_running_loop()
        line = self._lines.setdefault((node_id, lane), _Line())
        try:
            async with asyncio.timeout_at(deadline):
                for _ in range(SENDS_MAX):
                    connection = await self._connected(node_id, line)
                    left_ms = max(1, int((deadline - loop.time()) * 1000))
                    try:
                        return await connection.send(request, response, timeout_ms=left_ms)
                    except (ConnectionLostError, RequestTimeoutError):
                        continue  # it ended for another request, and this one was not sent: the next look sees it
                    except ProtocolMismatchError as error:
                        raise PeerMismatchError(f"node {node_id}: {error}") from error
        except TimeoutError as error:
            raise line.failure or PeerUnreachableError(f"node {node_id} could not be asked in time") from error
        raise PeerUnreachableError(f"node {node_id} ends its connections at once")

    def forget(self, node_id: int) -> None:
        for key in [key for key in self._lines if key[0] == node_id]:
            _drop(self._lines.pop(key))

    def close(self) -> None:
        """For good: whoever waits for a reply gets PeerLostError."""
        self._is_closed = True
        for line in self._lines.values():
            _drop(line)
        self._lines.clear()

    # Connecting

    async def _connected(self, node_id: int, line: _Line) -> Connection:
        failure_count = line.failure_count
        if (connection := _usable(line, self._greeting(node_id))) is not None:
            return connection
        async with line.opening:
            # Asked again after each wait: by now it may be another.
            if (connection := _usable(line, self._greeting(node_id))) is not None:
                return connection
            if line.failure_count != failure_count and line.failure is not None:
                raise line.failure
            await asyncio.sleep(line.next_try - asyncio.get_running_loop().time())
            return await self._open(node_id, line, self._greeting(node_id))

    def _greeting(self, node_id: int) -> tuple[NodeIdentity, Address]:
        if self._is_closed:
            raise PeerUnreachableError(f"node {node_id} is not asked any more: this node is stopping")
        address = self._address_of(node_id)
        if address is None:
            raise PeerUnreachableError(f"node {node_id} is not there: nobody knows its address")
        return self._identity(), address

    async def _open(self, node_id: int, line: _Line, greeting: tuple[NodeIdentity, Address]) -> Connection:
        _close(line)
        identity, address = greeting
        try:
            connection = await open_peer(node_id, address, identity, self._secret(), self._options)
        except PeerError as error:
            self._on_failed(node_id, line, error)
            raise
        if line.is_dropped:
            connection.close()
            raise PeerUnreachableError(f"node {node_id} is not asked any more: it is gone, or this node is stopping")
        line.connection, line.greeted = connection, greeting
        line.failure, line.failure_count, line.next_try = None, 0, 0.0
        return connection

    def _on_failed(self, node_id: int, line: _Line, error: PeerError) -> None:
        line.failure = error
        wait_ms = backoff_ms(self._options, failure_count=line.failure_count, chance=self._jitter())
        line.next_try = asyncio.get_running_loop().time() + wait_ms / 1000
        line.failure_count += 1
        if isinstance(error, PeerRefusedError):
            self._on_refused(node_id)
        if self._seldom.is_due((node_id, type(error))):
            what = "node refused us" if isinstance(error, PeerMismatchError) else "node out of reach"
            log.warning(what, node=node_id, reason=str(error))


def backoff_ms(options: PeerOptions, *, failure_count: int, chance: float) -> float:
    """How long nobody tries again: half of it for certain, the other half by chance."""
    # So many doublings are longer than any bound.
    whole_ms = min(options.backoff_ms_max, options.backoff_ms_min << min(failure_count, 16))
    return whole_ms * (1 + chance) / 2


def _usable(line: _Line, greeting: tuple[NodeIdentity, Address]) -> Connection | None:
    connection = line.connection
    is_usable = connection is not None and not connection.is_closed and line.greeted == greeting
    return connection if is_usable else None


def _drop(line: _Line) -> None:
    line.is_dropped = True
    _close(line)


def _close(line: _Line) -> None:
    if line.connection is not None:
        line.connection.close()
        line.connection = None
