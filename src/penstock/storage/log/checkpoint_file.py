"""The node's checkpoint: for each log how far it is whole, durable and indexed. An unclean start reads only past it.

    magic (8) · length (4) · CRC-32C (4) · entries, each: length (4) · one log's facts in MessagePack

One file for the node, because one sync is cheaper than a thousand. Each log's entry is packed once when it changes and
joined as bytes: packing all of 10,000 logs would hold the interpreter's lock for 20 ms.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.storage.files.protocols import Files
from penstock.storage.files.small import read_small_file, write_small_file

CHECKPOINT_FILE: Final = "checkpoint"
CHECKPOINT_MAGIC: Final = b"pscheck1"

LogKey = tuple[bytes, int]

_LENGTH = struct.Struct("<I")


class SegmentCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    base_offset: int
    next_offset: int
    size_bytes: int
    record_count: int
    max_timestamp: int
    begun_ms: int


class LogCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """Everything in `segments` is durable, checked, and indexed in the files."""

    topic_id: bytes
    partition: int
    segments: tuple[SegmentCheckpoint, ...]
    # The saved producers are of this offset or later; -1: there were none.
    producers_offset: int = -1
    # The saved leader epochs hold at least this one; -1: there were none.
    latest_epoch: int = -1
    # False: read the rest of the log even after a clean shutdown, for example because it was damaged.
    is_clean: bool = True
    # Everybody could read up to there: the high watermark of a replica. -1: saved before there were replicas.
    readable_end: int = -1

    @property
    def key(self) -> LogKey:
        return self.topic_id, self.partition

    @property
    def end_offset(self) -> int:
        """0: all of the log is read, however it ends."""
        return self.segments[-1].next_offset if self.segments else 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogCheckpoint)


def pack_entry(entry: LogCheckpoint) -> bytes:
    data = _encoder.encode(entry)
    return _LENGTH.pack(len(data)) + data


def unpack_entries(payload: bytes) -> dict[LogKey, LogCheckpoint]:
    entries = {}
    view = memoryview(payload)
    position = 0
    while position < len(view):
        (length,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        entry = _decoder.decode(view[position : position + length])
        entries[entry.key] = entry
        position += length
    return entries


def write_checkpoint(files: Files, root: str, packed_entries: Iterable[bytes]) -> None:
    """Durable when it returns."""
    write_small_file(files, root, CHECKPOINT_FILE, CHECKPOINT_MAGIC, b"".join(packed_entries))


def read_checkpoint(files: Files, root: str) -> bytes | None:
    """The entries' bytes; None when there is no checkpoint that can be believed: then everything is read."""
    return read_small_file(files, root, CHECKPOINT_FILE, CHECKPOINT_MAGIC)
