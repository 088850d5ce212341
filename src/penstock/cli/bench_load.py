"""The messages of a bench: batches built once and dated anew for each send.

What is measured is the node and the wire, so the encoder's and the compressor's time stays out of it. Dating
means a fresh timestamp and checksum: every batch that leaves is as valid as one from a real producer.
"""

from __future__ import annotations

import random
import struct
from typing import Final

from penstock.base.checksum import crc32c
from penstock.codec.compression import Codec
from penstock.codec.record_batch import CHECKSUM_START, HEADER_BYTES
from penstock.codec.records import Record, build_batch

# Sizes of a tick's batches differ by a few messages; a stall brings a few odd ones.
TEMPLATES_MAX: Final = 64
# Attributes, deltas, lengths: what a record without a key adds to its value.
RECORD_OVERHEAD_BYTES: Final = 10

_TIMESTAMPS = struct.Struct(">qq")
_TIMESTAMPS_POSITION: Final = 27
_CHECKSUM = struct.Struct(">I")
_CHECKSUM_POSITION: Final = 17

_WORDS: Final = b"penstock sluice turbine head race tail water gate valve surge tank intake spillway".split()


def payload(size_bytes: int, seed: int) -> bytes:
    """Text of words: compresses about as log lines do, the same for the same seed."""
    chance = random.Random(seed)  # noqa: S311  a load, not a secret
    parts: list[bytes] = []
    length = 0
    while length < size_bytes:
        word = chance.choice(_WORDS) + b" " + str(chance.randrange(10_000)).encode() + b" "
        parts.append(word)
        length += len(word)
    return b"".join(parts)[:size_bytes]


def messages_per_batch(size_bytes: int, batch_bytes: int) -> int:
    return max((batch_bytes - HEADER_BYTES) // (size_bytes + RECORD_OVERHEAD_BYTES), 1)


class BatchTemplates:
    def __init__(self, *, size_bytes: int, codec: Codec, seed: int = 1) -> None:
        self._codec = codec
        # A handful of different values: enough that a compressor does not see one value over and over.
        self._values = [payload(size_bytes, seed * 1000 + number) for number in range(16)]
        self._templates: dict[int, bytearray] = {}

    def dated(self, count: int, now_ms: int) -> bytes:
        """A batch of `count` messages whose timestamps are `now_ms`."""
        template = self._templates.get(count)
        if template is None:
            template = self._build(count)
        _TIMESTAMPS.pack_into(template, _TIMESTAMPS_POSITION, now_ms, now_ms)
        _CHECKSUM.pack_into(template, _CHECKSUM_POSITION, crc32c(memoryview(template)[CHECKSUM_START:]))
        return bytes(template)

    def _build(self, count: int) -> bytearray:
        if len(self._templates) >= TEMPLATES_MAX:
            self._templates.clear()
        values = self._values
        records = [Record(values[number % len(values)], timestamp_ms=0) for number in range(count)]
        template = build_batch(records, codec=self._codec)
        self._templates[count] = template
        return template
