"""Connections in memory between hosts that have names, and everything that happens to them on the way.

    write ──► link (from, to): latency, speed ──► in order, some time later ──► the other protocol

A link has a direction. A cut one keeps what is sent, as TCP does, until it is healed; nobody is told. A connection that
is reset is told to both ends, each over its own link. Whoever connects over a cut link waits.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, cast

from support.sim.loop import OWNER, SimLoop, host_of

LATENCY_SECONDS: Final = (0.000_05, 0.001_5)
BYTES_PER_SECOND: Final = 1e9
# What the values of simulated messages end with: bytes of records, and of nothing else.
FILLING: Final = b"." * 8
SPOILT: Final = b","
PORT_FIRST: Final = 40_000
# As asyncio's own transports.
HIGH_WATER_BYTES: Final = 64 * 1024

Address = tuple[str, int]


@dataclass(slots=True)
class Link:
    latency_seconds: tuple[float, float] = LATENCY_SECONDS
    bytes_per_second: float = BYTES_PER_SECOND
    is_cut: bool = False
    # The next filling of a message that is sent over it arrives with a byte changed.
    is_spoiling: bool = False
    # What was sent while it is cut, in order.
    held: list[Callable[[], None]] = field(default_factory=list)


class Network:
    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self._random = random
        self._links: dict[tuple[str, str], Link] = {}
        self._servers: dict[Address, SimServer] = {}
        self._transports: dict[SimTransport, None] = {}
        self._next_port = PORT_FIRST

    def link(self, source: str, target: str) -> Link:
        return self._links.setdefault((source, target), Link())

    # Faults

    def cut(self, source: str, target: str) -> None:
        """One way; the other one is another link."""
        self.link(source, target).is_cut = True

    def spoil(self, source: str, target: str) -> None:
        """Something between the two turns a bit over, and no checksum of theirs finds it."""
        self.link(source, target).is_spoiling = True

    def on_its_way(self, source: str, target: str, data: bytes) -> bytes:
        link = self.link(source, target)
        place = data.rfind(FILLING) if link.is_spoiling else -1
        if place < 0:
            return data
        link.is_spoiling = False
        return data[:place] + SPOILT + data[place + len(SPOILT) :]

    def heal(self) -> None:
        """Every link is as it was, and what was kept is on its way."""
        for link in self._links.values():
            link.latency_seconds, link.bytes_per_second, link.is_cut = LATENCY_SECONDS, BYTES_PER_SECOND, False
            link.is_spoiling = False
            held, link.held = link.held, []
            for send in held:
                send()

    def reset(self, source: str, target: str) -> None:
        """Of every connection between the two."""
        for transport in list(self._transports):
            if (transport.host, transport.peer_host) == (source, target):
                transport.reset()

    def end_owner(self, owner: str, *, silent_seconds: float = 0.0) -> None:
        """Its process is gone. A machine without power says nothing: others hear of it later."""
        for server in list(self._servers.values()):
            if server.owner == owner:
                server.close()
        for transport in list(self._transports):
            if transport.owner == owner:
                transport.vanish(silent_seconds)

    def forget(self) -> None:
        """Whoever is at either end. The world has ended."""
        self._servers.clear()
        self._transports.clear()
        self._links.clear()

    # For the loop

    def open_server(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> SimServer:
        if (host, port) in self._servers:
            raise OSError(98, f"{host}:{port} is taken")
        server = self._servers[host, port] = SimServer(self, factory, (host, port))
        return server

    def forget_server(self, server: SimServer) -> None:
        if self._servers.get(server.address) is server:
            del self._servers[server.address]

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], address: Address
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        owner = OWNER.get()
        source, target = host_of(owner), address[0]
        answer: asyncio.Future[SimTransport] = self.loop.create_future()
        context = contextvars.copy_context()
        self._next_port += 1
        here = (source, self._next_port)

        def arrive() -> None:
            server = self._servers.get(address)
            if server is None:
                self.send(target, source, 0, lambda: self._refuse(answer), context)
                return
            near = SimTransport(self, context, here, address)
            far = SimTransport(self, server.context, address, here)
            near.peer, far.peer = far, near
            server.context.run(far.attach, server.factory)
            self.send(target, source, 0, lambda: self._accept(answer, near), context)

        self.send(source, target, 0, arrive, contextvars.Context())
        transport = await answer
        transport.attach(factory)
        return transport, transport.get_protocol()

    def _refuse(self, answer: asyncio.Future[SimTransport]) -> None:
        if not answer.done():
            answer.set_exception(ConnectionRefusedError(111, "Connection refused"))

    def _accept(self, answer: asyncio.Future[SimTransport], transport: SimTransport) -> None:
        if answer.done():
            transport.abort()
        else:
            answer.set_result(transport)

    def send(
        self, source: str, target: str, size: int, arrive: Callable[[], None], context: contextvars.Context
    ) -> None:
        """Without an order of its own: see `SimTransport`."""
        link = self.link(source, target)
        if link.is_cut:
            link.held.append(lambda: self.send(source, target, size, arrive, context))
            return
        seconds = self._random.uniform(*link.latency_seconds) + size / link.bytes_per_second
        self.loop.call_later(seconds, arrive, context=context)

    def add(self, transport: SimTransport) -> None:
        self._transports[transport] = None

    def remove(self, transport: SimTransport) -> None:
        self._transports.pop(transport, None)


class SimServer:
    """As much of asyncio's Server as is asked for."""

    def __init__(self, network: Network, factory: Callable[[], asyncio.BaseProtocol], address: Address) -> None:
        self.factory = factory
        self.address = address
        self.context = contextvars.copy_context()
        self.owner = OWNER.get()
        self.sockets = (self,)
        self._network = network

    def getsockname(self) -> Address:
        return self.address

    def close(self) -> None:
        self._network.forget_server(self)

    async def wait_closed(self) -> None:
        return None


class SimTransport(asyncio.Transport):
    """One end. What it sends arrives in the order in which it was sent, the end of the connection last."""

    peer: SimTransport

    def __init__(self, network: Network, context: contextvars.Context, here: Address, there: Address) -> None:
        super().__init__({"peername": there, "sockname": here})
        self.host, self.peer_host = here[0], there[0]
        self.owner = context.get(OWNER, "")
        self._network = network
        self._context = context
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_closing = False
        self._is_lost = False
        self._is_reading = True
        self._inbox: deque[bytes] = deque()
        # On their way to this end, in order: the first one that has arrived waits for those before it.
        self._coming: deque[list[Callable[[], None]]] = deque()
        self._unsent_bytes = 0
        self._high_bytes = HIGH_WATER_BYTES
        self._is_write_paused = False
        network.add(self)

    def attach(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._protocol = factory()
        self._protocol.connection_made(self)
        self._drain()

    # Sending

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        sent = self._network.on_its_way(self.host, self.peer_host, bytes(data))
        self._unsent_bytes += len(sent)
        if self._unsent_bytes > self._high_bytes and not self._is_write_paused:
            self._is_write_paused = True
            cast(asyncio.Protocol, self._protocol).pause_writing()
        self._send(len(sent), lambda: self.peer._receive(sent))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(bytes(part) for part in parts))

    def _send(self, size: int, deliver: Callable[[], None]) -> None:
        peer, slot = self.peer, cast("list[Callable[[], None]]", [])
        peer._coming.append(slot)

        def arrive() -> None:
            slot.append(deliver)
            while peer._coming and peer._coming[0]:
                peer._coming.popleft()[0]()

        self._network.send(self.host, self.peer_host, size, arrive, peer._context)

    def _taken(self, size: int) -> None:
        self._unsent_bytes -= size
        if self._is_write_paused and self._unsent_bytes <= self._high_bytes // 4 and not self._is_lost:
            self._is_write_paused = False
            cast(asyncio.Protocol, self._protocol).resume_writing()

    # Receiving

    def _receive(self, data: bytes) -> None:
        if not self._is_closing:
            self._inbox.append(data)
            self._drain()
        sender = self.peer
        sender._network.loop.call_soon(sender._taken, len(data), context=sender._context)

    def _drain(self) -> None:
        while self._inbox and self._is_reading and not self._is_closing and self._protocol is not None:
            self._hand_over(self._inbox.popleft())

    def _hand_over(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, protocol).data_received(data)
            return
        view = memoryview(data)
        while view:
            if not self._is_reading or self._is_closing:
                self._inbox.appendleft(bytes(view))
                return
            room = memoryview(protocol.get_buffer(len(view)))
            size = min(len(room), len(view))
            room[:size] = view[:size]
            protocol.buffer_updated(size)
            view = view[size:]

    # The end

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._network.loop.call_soon(self._lose, error, context=self._context)
        self._send(0, lambda: self.peer._end(error))

    def reset(self) -> None:
        self._end(ConnectionResetError(104, "Connection reset by peer"))

    def vanish(self, silent_seconds: float) -> None:
        self._is_closing = self._is_lost = True
        self._network.remove(self)
        loop, peer = self._network.loop, self.peer
        error = ConnectionResetError(104, "Connection reset by peer")

        def tell() -> None:
            self._send(0, lambda: peer._end(error))

        loop.call_later(silent_seconds, tell, context=contextvars.Context())

    def _lose(self, error: Exception | None) -> None:
        self._is_lost = True
        self._network.remove(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # What a transport is asked for besides

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = HIGH_WATER_BYTES if high is None else high

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._inbox:
            self._network.loop.call_soon(self._drain, context=self._context)

    def is_reading(self) -> bool:
        return self._is_reading

    def can_write_eof(self) -> bool:
        return False


class NetworkedLoop(SimLoop):
    """A loop whose servers and connections are those of a network."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.network = Network(self, self.random)

    async def create_server(  # type: ignore[override]
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_options: object
    ) -> SimServer:
        return self.network.open_server(factory, host, port)

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_options: object
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.network.connect(factory, (host, port))
