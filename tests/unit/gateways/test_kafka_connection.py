"""Frames in, replies out: a connection between a scripted transport and a server that answers as it is told."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.gateways.kafka_connection import PENDING_REPLIES_MAX, RECEIVE_BYTES, KafkaConnection, ReplySlot
from penstock.gateways.request_memory import RequestMemory

FRAME_BYTES_MAX = 1_000_000
MEMORY_BYTES_MAX = 1_500_000


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_reading_paused = False
        self.is_closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5)

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.written += part

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class FakeServer:
    """Answers every frame with its own bytes, unless told to keep it waiting."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(write_buffer_bytes_max=10_000_000)
        self.memory = RequestMemory(MEMORY_BYTES_MAX)
        self.bytes_in = self.bytes_out = self.refused_connections = 0
        self.frames: list[bytes] = []
        self.slots: list[ReplySlot] = []
        self.on_frame: Callable[[KafkaConnection, bytes], None] = self.answer

    def on_connected(self, connection: KafkaConnection) -> None: ...
    def on_disconnected(self, connection: KafkaConnection) -> None: ...

    def handle(self, connection: KafkaConnection, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self.on_frame(connection, bytes(frame))

    def answer(self, connection: KafkaConnection, frame: bytes) -> None:
        connection.reply([frame])

    def keep_waiting(self, connection: KafkaConnection, frame: bytes) -> None:
        self.slots.append(connection.reserve())

    def become_busy(self, connection: KafkaConnection, frame: bytes) -> None:
        connection.become_busy()
        self.slots.append(connection.reserve())


class Talk:
    def __init__(self, server: FakeServer | None = None) -> None:
        self.server = server or FakeServer()
        self.transport = FakeTransport()
        self.connection = KafkaConnection(self.server, frame_bytes_max=FRAME_BYTES_MAX)  # type: ignore[arg-type]
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> int:
        """What the connection has room for, as a socket would give it; the number of bytes it took."""
        taken = 0
        while taken < len(data) and not self.transport.is_reading_paused and not self.transport.is_closed:
            room = self.connection.get_buffer(-1)
            assert len(room) > 0, "a transport must never be given an empty buffer"
            piece = data[taken : taken + len(room)]
            room[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))
            taken += len(piece)
        return taken


@pytest.fixture
async def talk() -> Talk:
    return Talk()


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def test_frames_may_arrive_in_any_pieces(talk: Talk) -> None:
    bodies = [bytes([number]) * (number * 37 % 500 + 1) for number in range(1, 60)]
    stream = b"".join(map(frame, bodies))
    for start in range(0, len(stream), 7):
        talk.send(stream[start : start + 7])
    assert talk.server.frames == bodies
    assert talk.transport.written == b"".join(bodies)


async def test_a_frame_larger_than_the_buffer_is_taken_and_its_memory_given_back(talk: Talk) -> None:
    body = bytes(range(256)) * 3000
    talk.send(frame(b"a") + frame(body) + frame(b"b"))
    assert talk.server.frames == [b"a", body, b"b"]
    talk.connection.release_memory()
    assert len(talk.connection.get_buffer(-1)) == RECEIVE_BYTES


async def test_replies_leave_in_the_order_of_the_requests(talk: Talk) -> None:
    talk.server.on_frame = talk.server.keep_waiting
    talk.send(frame(b"1") + frame(b"2"))
    talk.server.on_frame = talk.server.answer
    talk.send(frame(b"3"))
    talk.server.slots[1].fill([b"two"])
    await asyncio.sleep(0)
    assert talk.transport.written == b""
    talk.server.slots[0].fill([b"one"])
    await asyncio.sleep(0)
    assert talk.transport.written == b"onetwo3"


async def test_a_busy_connection_leaves_later_frames_until_it_is_free(talk: Talk) -> None:
    talk.server.on_frame = talk.server.become_busy
    talk.send(frame(b"fetch") + frame(b"later"))
    assert talk.server.frames == [b"fetch"]
    talk.server.on_frame = talk.server.answer
    talk.server.slots[0].fill([b"fetched"])
    talk.connection.become_free()
    assert talk.server.frames == [b"fetch", b"later"]
    await asyncio.sleep(0)
    assert talk.transport.written == b"fetchedlater"


async def test_a_slow_reader_is_not_read_from(talk: Talk) -> None:
    talk.connection.pause_writing()
    taken = talk.send(frame(b"x" * 100) * 10_000)
    assert talk.transport.is_reading_paused
    assert taken <= RECEIVE_BYTES
    assert talk.server.frames == []
    talk.connection.resume_writing()
    assert not talk.transport.is_reading_paused
    assert len(talk.server.frames) == taken // 104


async def test_requests_that_wait_for_the_disk_are_bounded(talk: Talk) -> None:
    talk.server.on_frame = talk.server.keep_waiting
    talk.send(frame(b"p") * (PENDING_REPLIES_MAX + 50_000))
    assert len(talk.server.slots) == PENDING_REPLIES_MAX
    assert talk.transport.is_reading_paused
    for slot in list(talk.server.slots):
        slot.fill([b"."])
    await asyncio.sleep(0)
    assert len(talk.server.slots) > PENDING_REPLIES_MAX
    assert talk.transport.written == b"." * PENDING_REPLIES_MAX


@pytest.mark.parametrize("size", [0, -1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
async def test_an_impossible_length_closes_the_connection_after_what_is_owed(talk: Talk, size: int) -> None:
    talk.send(frame(b"good") + struct.pack(">i", size) + b"rest")
    assert talk.server.frames == [b"good"]
    assert talk.transport.is_closed
    assert talk.transport.written == b"good"
    assert talk.server.refused_connections == 1


async def test_a_draining_connection_tells_when_all_is_answered(talk: Talk) -> None:
    told: list[str] = []
    talk.server.on_frame = talk.server.keep_waiting
    talk.send(frame(b"1"))
    talk.connection.drain(lambda: told.append("idle"))
    assert told == []
    talk.server.slots[0].fill([b"one"])
    await asyncio.sleep(0)
    assert told == ["idle"]
    assert talk.transport.written == b"one"


async def test_large_requests_of_all_connections_together_are_bounded(talk: Talk) -> None:
    other = Talk(talk.server)
    large = frame(b"x" * 900_000)
    talk.send(large[:500_000])
    taken = other.send(large)
    assert other.transport.is_reading_paused
    assert taken <= RECEIVE_BYTES
    talk.send(large[500_000:])
    assert talk.server.frames == [b"x" * 900_000]
    assert not other.transport.is_reading_paused
    other.send(large[taken:])
    assert len(talk.server.frames) == 2
    for one in (talk, other):
        one.connection.connection_lost(None)
    assert talk.server.memory.bytes_held == 0
