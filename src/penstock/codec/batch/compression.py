"""The four compressions that a record batch may use, each in the form that Kafka's clients expect.

    gzip    one member written, any number read
    snappy  written in xerial's framing (blocks of 32 KiB, as Java does), read in it or raw (librdkafka's way)
    lz4     the frame format with *independent* blocks: Java refuses linked ones, which is what cramjam would
            write, so the frame is put together here around cramjam's block compressor
    zstd    one frame written, any number read

What comes out of `decompress` is never larger than `bytes_max`, and neither is what is allocated on the way:
output goes into a buffer of a size that we chose, and a stream that does not fit is refused. A stream's own claim
about its size is a hint for that first buffer and nothing more.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

import cramjam

Data = bytes | bytearray | memoryview

# What Kafka's clients use by default.
GZIP_LEVEL: Final = 6
ZSTD_LEVEL: Final = 3

XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
XERIAL_MAGIC: Final = XERIAL_HEADER[:8]
XERIAL_BLOCK_BYTES: Final = 32 * 1024

# Magic, flags (version 1, independent blocks, no checksums: the batch has its own), 64 KiB blocks, checksum of
# those two bytes.
LZ4_HEADER: Final = bytes.fromhex("04224d18 60 40 82")
LZ4_BLOCK_BYTES: Final = 64 * 1024
LZ4_STORED: Final = 0x8000_0000
LZ4_END: Final = bytes(4)

# First guess at the output when the stream makes no claim, and how much more is tried when it was too little.
# Each failed try wastes its own work, so the waste stays below a seventh of the last try.
GUESS_FACTOR: Final = 8
GUESS_BYTES_MIN: Final = 64 * 1024
# The most that a claim is believed: deflate cannot expand further, and a lie must not make us clear much
# memory.
EXPANSION_MAX: Final = 1040

_INT32 = struct.Struct(">i")
_UINT32_LITTLE = struct.Struct("<I")

# How cramjam says that the output buffer is full (a test holds it to that).
_TOO_SMALL: Final = "failed to write whole buffer"


class Codec(IntEnum):
    """The values of the codec bits in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(Exception):
    """The bytes are not a stream of this codec, or hold more than the caller allows."""


def compress(codec: Codec, data: Data, level: int | None = None) -> bytes:
    """The same bytes every time: a batch that is sent again is known by them. `level`: of gzip (0 to 9) and zstd."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=GZIP_LEVEL if level is None else level))
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            return _compress_lz4(data)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=ZSTD_LEVEL if level is None else level))


def decompress(codec: Codec, data: Data, *, bytes_max: int) -> bytes:
    match codec:
        case Codec.NONE:
            if len(data) > bytes_max:
                raise CompressionError(f"{len(data)} bytes, at most {bytes_max} are allowed")
            return bytes(data)
        case Codec.GZIP:
            return _decompress_stream(cramjam.gzip.decompress_into, data, _gzip_claim(data), bytes_max)
        case Codec.SNAPPY:
            return _decompress_snappy(data, bytes_max)
        case Codec.LZ4:
            return _decompress_stream(cramjam.lz4.decompress_into, data, _lz4_claim(data), bytes_max)
        case Codec.ZSTD:
            return _decompress_stream(cramjam.zstd.decompress_into, data, _zstd_claim(data), bytes_max)


def decompress_into(codec: Codec, data: Data, output: bytearray | mmap.mmap) -> int:
    """The same into a buffer that is there already, whose size is the most that may come out: how many bytes did. For
    who looks at many and keeps none."""
    try:
        if codec is Codec.SNAPPY and data[: len(XERIAL_MAGIC)] == XERIAL_MAGIC:
            return _decompress_xerial_into(memoryview(data), memoryview(output))
        if codec is Codec.NONE:
            if len(data) > len(output):
                raise CompressionError(f"{len(data)} bytes, at most {len(output)} are allowed")
            output[: len(data)] = data
            return len(data)
        if codec is Codec.SNAPPY and not len(data):
            raise CompressionError("snappy block is empty")
        written: int = _INTO[codec](data, output)
    except cramjam.DecompressionError as error:
        if _TOO_SMALL in str(error):
            raise CompressionError(f"{len(data)} bytes decompress to more than {len(output)}") from error
        raise CompressionError(f"{len(data)} compressed bytes: {error}") from error
    return written


_INTO: Final[dict[Codec, Callable[[Data, bytearray | mmap.mmap], int]]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.SNAPPY: cramjam.snappy.decompress_raw_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def _decompress_stream(
    decompress_into: Callable[[Data, bytearray], int], data: Data, claim: int | None, bytes_max: int
) -> bytes:
    """Tries ever larger buffers, up to `bytes_max`."""
    guess = claim if claim is not None else max(GUESS_FACTOR * len(data), GUESS_BYTES_MIN)
    capacity = min(guess, EXPANSION_MAX * len(data), bytes_max)
    while True:
        output = bytearray(capacity)
        try:
            written = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _TOO_SMALL not in str(error):
                raise CompressionError(f"{len(data)} compressed bytes: {error}") from error
            if capacity >= bytes_max:
                raise CompressionError(f"{len(data)} bytes decompress to more than {bytes_max}") from error
            capacity = min(max(capacity * GUESS_FACTOR, GUESS_BYTES_MIN), bytes_max)
            continue
        return bytes(output) if written == capacity else bytes(memoryview(output)[:written])


def _gzip_claim(data: Data) -> int | None:
    """A member ends with its size (modulo 4 GiB). With several members it is the last one's: a low guess."""
    return _UINT32_LITTLE.unpack_from(data, len(data) - 4)[0] if len(data) >= 18 else None


def _lz4_claim(data: Data) -> int | None:
    """An upper bound, from the number of blocks: most writers leave the frame's content size out."""
    if len(data) < 7:
        return None
    flags, block_code = data[4], data[5] >> 4 & 7
    block_bytes_max = 1 << (8 + 2 * block_code)
    position = 7 + (8 if flags & 0b1000 else 0)
    block_extra = 8 if flags & 0b1_0000 else 4
    block_count = 0
    while position + 4 <= len(data):
        (size,) = _UINT32_LITTLE.unpack_from(data, position)
        if size == 0:
            return block_count * block_bytes_max
        block_count += 1
        position += (size & ~LZ4_STORED) + block_extra
    return None


def _zstd_claim(data: Data) -> int | None:
    """The frame's content size, which one-shot compressors write and streaming ones do not know."""
    if len(data) < 6:
        return None
    descriptor = data[4]
    size_code, is_single_segment = descriptor >> 6, bool(descriptor & 0b10_0000)
    position = 5 + (0 if is_single_segment else 1) + (0, 1, 2, 4)[descriptor & 0b11]
    size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[size_code]
    if size_bytes == 0 or position + size_bytes > len(data):
        return None
    size = int.from_bytes(data[position : position + size_bytes], "little")
    return size + 256 if size_bytes == 2 else size


def _compress_snappy(data: Data) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Data, bytes_max: int) -> bytes:
    view = memoryview(data)
    # A raw stream cannot begin like this: it would copy from before its own start.
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _decompress_snappy_block(view, bytes_max)
    parts: list[bytes] = []
    bytes_left = bytes_max
    for block in _xerial_blocks(view):
        parts.append(_decompress_snappy_block(block, bytes_left))
        bytes_left -= len(parts[-1])
    return b"".join(parts)


def _decompress_xerial_into(view: memoryview, output: memoryview) -> int:
    written = 0
    for block in _xerial_blocks(view):
        if cramjam.snappy.decompress_raw_len(block) > len(output) - written:
            raise CompressionError(f"{len(view)} bytes decompress to more than {len(output)}")
        written += cramjam.snappy.decompress_raw_into(block, output[written:])
    return written


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    if len(view) < len(XERIAL_HEADER):
        raise CompressionError(f"snappy header of {len(view)} bytes is cut off")
    position = len(XERIAL_HEADER)
    while position < len(view):
        if position + 4 > len(view):
            raise CompressionError(f"snappy block length at byte {position} is cut off")
        (size,) = _INT32.unpack_from(view, position)
        position += 4
        if size <= 0 or position + size > len(view):
            raise CompressionError(f"snappy block of {size} bytes at byte {position}, {len(view) - position} are left")
        yield view[position : position + size]
        position += size


def _decompress_snappy_block(block: memoryview, bytes_max: int) -> bytes:
    if not block:
        raise CompressionError("snappy block is empty")
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > bytes_max:
            raise CompressionError(f"{len(block)} bytes decompress to {size}, at most {bytes_max} are allowed")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CompressionError(f"{len(block)} bytes of snappy: {error}") from error


def _compress_lz4(data: Data) -> bytes:
    view = memoryview(data)
    parts = [LZ4_HEADER]
    for start in range(0, len(view), LZ4_BLOCK_BYTES):
        plain = view[start : start + LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (_UINT32_LITTLE.pack(len(block)), block)
        else:
            parts += (_UINT32_LITTLE.pack(len(plain) | LZ4_STORED), bytes(plain))
    parts.append(LZ4_END)
    return b"".join(parts)
