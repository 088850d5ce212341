"""A Kafka connection between a scripted transport and a server that answers as it is told: no socket, no node."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from penstock.base.log_events import get_logger
from penstock.gateways.caller import Caller
from penstock.gateways.kafka.connection import KafkaConnection
from penstock.gateways.kafka.reply_slot import ReplySlot
from penstock.gateways.request_memory import RequestMemory

FRAME_BYTES_MAX: Final = 1_000_000
MEMORY_BYTES_MAX: Final = 1_500_000


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_reading_paused = False
        self.is_closed = self.is_aborted = False

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

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True


class FakeServer:
    """Answers every frame with its own bytes, unless told to keep it waiting."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(write_buffer_bytes_max=10_000_000)
        self.door = "kafka"
        self.log = get_logger(self.door)
        self.memory = RequestMemory(MEMORY_BYTES_MAX)
        self.bytes_in = self.bytes_out = self.refused_connections = 0
        self.charged: list[tuple[int, int]] = []
        self.frames: list[bytes] = []
        self.faults: list[Exception] = []
        self.slots: list[ReplySlot] = []
        self.on_frame: Callable[[KafkaConnection, bytes], None] = self.answer

    def on_connected(self, connection: KafkaConnection) -> None: ...
    def on_disconnected(self, connection: KafkaConnection) -> None: ...
    def on_memory_wanted(self) -> None: ...

    def charge(self, caller: Caller, request_count: int, received_bytes: int) -> None:
        self.charged.append((request_count, received_bytes))

    def on_fault(self, connection: KafkaConnection, error: Exception) -> None:
        self.faults.append(error)
        connection.abort("a fault")

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


class ScriptedTalk:
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


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body
