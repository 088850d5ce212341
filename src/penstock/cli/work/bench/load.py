"""The messages of a bench: batches built once and dated anew for each send.

What is measured is the node and the wire, so the encoder's and the compressor's time stays out of it. Dating
means a fresh timestamp and checksum: every batch that leaves is as valid as one from a real producer.
"""

from __future__ import annotations

import random
import struct
from typing import Final

from penstock.base.checksum import crc32c
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import CHECKSUM_START, HEADER_BYTES, LENGTH_PREFIX_BYTES
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.batch.varint import read_varint

# Sizes of a tick's batches differ by a few messages; a stall brings a few odd ones.
TEMPLATES_MAX: Final = 64
# Attributes, deltas, lengths: what a record without a key adds to its value.
RECORD_OVERHEAD_BYTES: Final = 10

_TIMESTAMPS = struct.Struct(">qq")
_TIMESTAMPS_POSITION: Final = 27
_INT32 = struct.Struct(">i")
_LENGTH_POSITION: Final = 8
_LAST_DELTA_POSITION: Final = 23
_COUNT_POSITION: Final = 57
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
    """Uncompressed, a batch of n messages is the beginning of a longer one, so one master serves every n.
    Compressed, each n has a template of its own.
    """

    def __init__(self, *, size_bytes: int, codec: Codec, seed: int = 1) -> None:
        self._codec = codec
        # A handful of different values: enough that a compressor does not see one value over and over.
        self._values = [payload(size_bytes, seed * 1000 + number) for number in range(16)]
        self._templates: dict[int, bytearray] = {}
        self._master = bytearray()
        # Where the batch of n messages ends.
        self._ends: list[int] = []

    def dated(self, count: int, now_ms: int) -> bytearray:
        """A batch of `count` messages whose timestamps are `now_ms`."""
        batch = self._beginning(count) if self._codec == Codec.NONE else bytearray(self._template(count))
        _TIMESTAMPS.pack_into(batch, _TIMESTAMPS_POSITION, now_ms, now_ms)
        _CHECKSUM.pack_into(batch, _CHECKSUM_POSITION, crc32c(memoryview(batch)[CHECKSUM_START:]))
        return batch

    def _beginning(self, count: int) -> bytearray:
        if count >= len(self._ends):
            self._master = self._build(1 << count.bit_length())
            self._ends = _record_ends(self._master)
        batch = self._master[: self._ends[count]]
        _INT32.pack_into(batch, _LENGTH_POSITION, len(batch) - LENGTH_PREFIX_BYTES)
        _INT32.pack_into(batch, _LAST_DELTA_POSITION, count - 1)
        _INT32.pack_into(batch, _COUNT_POSITION, count)
        return batch

    def _template(self, count: int) -> bytearray:
        template = self._templates.get(count)
        if template is None:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[count] = self._build(count)
        return template

    def _build(self, count: int) -> bytearray:
        values = self._values
        records = [Record(values[number % len(values)], timestamp_ms=0) for number in range(count)]
        return build_batch(records, codec=self._codec)


def _record_ends(batch: bytearray) -> list[int]:
    """The positions after 0, 1, 2… records of an uncompressed batch."""
    ends = [HEADER_BYTES]
    while ends[-1] < len(batch):
        size, position = read_varint(batch, ends[-1])
        ends.append(position + size)
    return ends
