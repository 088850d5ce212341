"""Cuts a byte stream into frames: a 4-byte length, then that many bytes.

Bytes land first in one staging buffer that serves many small frames with one read. A frame that is longer
than what is there gets memory of its own, and the rest of it is received straight into that: a fetched
megabyte is written once.

    staging:  [len frame][len frame][len fra…         → two frames out, the rest moved to the front
    large:    [len fr…] + own buffer  ←── next reads

Frames handed out own their memory, so they may be kept for as long as their records are used.
"""

from __future__ import annotations

from typing import Final

import msgspec

# One read of a loopback socket rarely gives more than 64 KiB unless a large frame is under way.
STAGING_BYTES: Final = 64 * 1024


class FrameTooLarge(msgspec.Struct, frozen=True):
    """The length that the other side announced; what follows cannot be made sense of."""

    length: int


class FrameReader:
    """Caller's duties: fill what `buffer()` returns, then tell `received(n)` how much; stop after
    `FrameTooLarge`.
    """

    def __init__(self, *, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._staging = bytearray(STAGING_BYTES)
        self._staged = 0
        self._frame: bytearray | None = None
        self._filled = 0

    def buffer(self) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return memoryview(self._staging)[self._staged :]

    def received(self, count: int) -> list[memoryview] | FrameTooLarge:
        if self._frame is None:
            self._staged += count
            return self._cut_staging()
        self._filled += count
        if self._filled < len(self._frame):
            return []
        frame, self._frame = memoryview(self._frame), None
        return [frame]

    def _cut_staging(self) -> list[memoryview] | FrameTooLarge:
        frames: list[memoryview] = []
        staging, position = self._staging, 0
        while self._staged - position >= 4:
            length = int.from_bytes(staging[position : position + 4], "big", signed=True)
            if not 0 <= length <= self._frame_bytes_max:
                return FrameTooLarge(length)
            position += 4
            have = self._staged - position
            if length > have:
                self._begin_frame(length, position)
                return frames
            frames.append(memoryview(bytes(memoryview(staging)[position : position + length])))
            position += length
        rest = self._staged - position
        staging[:rest] = staging[position : self._staged]
        self._staged = rest
        return frames

    def _begin_frame(self, length: int, position: int) -> None:
        frame = bytearray(length)
        self._filled = self._staged - position
        frame[: self._filled] = memoryview(self._staging)[position : self._staged]
        self._frame = frame
        self._staged = 0
