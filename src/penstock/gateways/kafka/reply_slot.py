"""A place in the order of a connection's replies, kept until its reply is known."""

from __future__ import annotations

from typing import Protocol

ReplyParts = list[bytes | bytearray | memoryview]


class SlotOwner(Protocol):
    def on_filled(self, parts: ReplyParts) -> None: ...


class ReplySlot:
    __slots__ = ("_connection", "parts")

    def __init__(self, connection: SlotOwner) -> None:
        self._connection = connection
        self.parts: ReplyParts | None = None

    def fill(self, parts: ReplyParts) -> None:
        self.parts = parts
        self._connection.on_filled(parts)
