"""Connections under everything at once: any chunks, any frame sizes, slow replies, slow readers, scarce memory.

Whatever the order of things: frames are seen whole and in order, replies leave in that order, nobody is stuck, and what
is held stays within its bounds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random

import pytest

from penstock.gateways.kafka.connection import LENGTH_BYTES, RECEIVE_BYTES, KafkaConnection
from penstock.gateways.kafka.reply_slot import ReplySlot
from support.door.scripted_connection import FakeServer, FakeTransport, frame

FRAME_BYTES_MAX = 300_000
MEMORY_BYTES_MAX = 450_000
WRITE_BYTES_MAX = 150_000
SHORT_REPLY_BYTES = 100
CONNECTIONS = 4
STEPS = 400


class PressedTransport(FakeTransport):
    """Takes what is written at the test's pace, and says so a turn later, as uvloop does."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: KafkaConnection | None = None
        self.unsent_bytes = 0
        self.unsent_bytes_max = 0
        self._is_full = False

    def write(self, data: bytes) -> None:
        super().write(data)
        self._grow(len(data))

    def writelines(self, parts: list[bytes]) -> None:
        super().writelines(parts)
        self._grow(sum(map(len, parts)))

    def _grow(self, size: int) -> None:
        assert not self.is_closed
        self.unsent_bytes += size
        self.unsent_bytes_max = max(self.unsent_bytes, self.unsent_bytes_max)
        if self.unsent_bytes > WRITE_BYTES_MAX and not self._is_full:
            self._is_full = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        assert self.connection is not None
        if self._is_full:
            self.connection.pause_writing()

    def take(self, size: int) -> None:
        """The client reads."""
        assert self.connection is not None
        self.unsent_bytes = max(0, self.unsent_bytes - size)
        if self._is_full and self.unsent_bytes <= WRITE_BYTES_MAX // 4:
            self._is_full = False
            self.connection.resume_writing()


class Peer:
    """One client: what it will send, and what the server does with it."""

    def __init__(self, server: ChanceServer, chance: Random, number: int) -> None:
        self.chance = chance
        self.transport = PressedTransport()
        self.connection = KafkaConnection(server, frame_bytes_max=FRAME_BYTES_MAX)  # type: ignore[arg-type]
        self.transport.connection = self.connection
        self.connection.connection_made(self.transport)
        server.peers[self.connection] = self
        self.bodies = [self._body(number, place) for place in range(chance.randint(5, 60))]
        self.unsent = b"".join(map(frame, self.bodies))
        self.seen: list[bytes] = []
        self.expected = bytearray()
        self.waiting: deque[tuple[ReplySlot, bytes]] = deque()
        self.busy: tuple[ReplySlot, bytes] | None = None
        self.is_gone = False

    def _body(self, number: int, place: int) -> bytes:
        sizes = [
            1,
            5,
            100,
            5000,
            RECEIVE_BYTES - LENGTH_BYTES - 1,
            RECEIVE_BYTES - LENGTH_BYTES,
            RECEIVE_BYTES,
            100_000,
        ]
        size = self.chance.choice([*sizes, *sizes, FRAME_BYTES_MAX])
        return (b"%d-%d-" % (number, place) * (size // 4 + 1))[:size]

    def push(self) -> None:
        """A chunk of any size, as far as there is room."""
        if self.is_gone or self.transport.is_reading_paused or not self.unsent:
            return
        room = self.connection.get_buffer(-1)
        assert len(room) > 0
        size = min(len(room), self.chance.choice([1, 3, 4, 5, 1000, 70_000, 10**6]), len(self.unsent))
        room[:size] = self.unsent[:size]
        self.unsent = self.unsent[size:]
        self.connection.buffer_updated(size)

    def fill_one(self) -> None:
        """Any of those that wait, not the oldest first."""
        if self.waiting:
            place = self.chance.randrange(len(self.waiting))
            slot, body = self.waiting[place]
            del self.waiting[place]
            slot.fill([body])

    def hang_up(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.connection.connection_lost(None)

    def finish(self) -> None:
        if self.busy is not None:
            (slot, body), self.busy = self.busy, None
            slot.fill([body])
            self.connection.become_free()


class ChanceServer(FakeServer):
    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance = chance
        self.config.write_buffer_bytes_max = WRITE_BYTES_MAX
        self.memory._bytes_max = MEMORY_BYTES_MAX
        self.peers: dict[KafkaConnection, Peer] = {}

    def handle(self, connection: KafkaConnection, frame: memoryview) -> None:
        peer = self.peers[connection]
        body = bytes(frame)
        peer.seen.append(body)
        kind = self.chance.random()
        if kind < 0.5:
            connection.reply([body[:10], body[10:]])
        elif kind < 0.6:
            connection.reply_one(body)
        elif kind < 0.9:
            # Only what waits for the disk is pipelined, and its replies are short.
            body = body[:SHORT_REPLY_BYTES]
            peer.waiting.append((connection.reserve(), body))
        else:
            connection.become_busy()
            peer.busy = (connection.reserve(), body)
        peer.expected += body


def check_bounds(server: ChanceServer) -> None:
    reply_bytes_max = FRAME_BYTES_MAX
    for connection, peer in server.peers.items():
        owed = connection._out_bytes + connection._held_bytes
        assert owed <= WRITE_BYTES_MAX + 2 * reply_bytes_max, f"{owed} bytes of replies are held"
        assert peer.transport.unsent_bytes_max <= 2 * WRITE_BYTES_MAX + 3 * reply_bytes_max
        assert len(connection._buffer) <= FRAME_BYTES_MAX + LENGTH_BYTES + RECEIVE_BYTES
    # One more than the bound may get through, so that a frame over it is not stuck for ever.
    assert server.memory.bytes_held <= MEMORY_BYTES_MAX + FRAME_BYTES_MAX + RECEIVE_BYTES + LENGTH_BYTES


async def do_something(server: ChanceServer, chance: Random) -> None:
    peer = chance.choice(list(server.peers.values()))
    what = chance.random()
    if what < 0.6:
        peer.push()
    elif what < 0.75:
        peer.fill_one()
    elif what < 0.85:
        peer.finish()
    elif what < 0.93:
        peer.transport.take(chance.choice([1, 1000, 10**6]))
    elif what < 0.95:
        peer.connection.release_memory()
    elif what < 0.951:
        peer.hang_up()
    else:
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(40))
async def test_all_is_seen_and_answered_in_order_within_bounds(seed: int) -> None:
    chance = Random(seed)
    server = ChanceServer(chance)
    peers = [Peer(server, chance, number) for number in range(CONNECTIONS)]
    for _ in range(STEPS):
        await do_something(server, chance)
        check_bounds(server)
    # From here on everybody does his part, so everything must come to its end.
    for _ in range(5000):
        for peer in peers:
            peer.push()
            peer.finish()
            peer.fill_one()
            peer.transport.take(10**9)
            peer.connection.release_memory()
        await asyncio.sleep(0)
        check_bounds(server)
        if all(peer.is_gone or (not peer.unsent and peer.transport.written == peer.expected) for peer in peers):
            break
    for peer in peers:
        if not peer.is_gone:
            assert peer.seen == peer.bodies
            assert peer.transport.written == peer.expected
            peer.connection.release_memory()
        assert peer.expected.startswith(peer.transport.written)
    assert server.memory.bytes_held == 0
    assert not server.faults
