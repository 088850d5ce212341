"""What a journal's records come to at one offset, in a file beside its log: where the next replay begins.

    <partition>/journal-snapshot    the offset, and the last value of every key below it in the order they were written;
                                    the epoch of the record before the offset

It is made of the file before it and of the log since then, never of the machine's own memory: the machine is ahead of
the disk, and reading a million positions out of it would hold up everybody. So a snapshot says nothing that is not in
the log, and one that is missing, damaged or ahead of its log is done without.

The order is kept because it can mean something: what was written later may count more than what was written before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from penstock.storage.files import Files
from penstock.storage.files.small import read_small_file, write_small_file
from penstock.storage.log.epochs import NO_EPOCH
from penstock.storage.log.saved_place import SavedPlace

# A key and its value; no value: a tombstone.
Entry = tuple[bytes, bytes | None]

SNAPSHOT_FILE: Final = "journal-snapshot"
# Rows that are handed on together: some ten milliseconds of a machine's work.
ROWS_AT_ONCE: Final = 10_000

_MAGIC: Final = b"PSTJRNL1"


class JournalSnapshot(msgspec.Struct, frozen=True, array_like=True):
    # The first offset that is not in it.
    offset: int
    keys: list[bytes] = []
    values: list[bytes] = []
    # Of the last record in it.
    epoch: int = NO_EPOCH

    def entries(self) -> Iterator[list[Entry]]:
        for start in range(0, len(self.keys), ROWS_AT_ONCE):
            end = start + ROWS_AT_ONCE
            yield list(zip(self.keys[start:end], self.values[start:end], strict=True))


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """The same without its rows, of which there may be a million."""

    offset: int
    keys: msgspec.Raw = msgspec.Raw()
    values: msgspec.Raw = msgspec.Raw()
    epoch: int = NO_EPOCH


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JournalSnapshot).decode
_decode_place = msgspec.msgpack.Decoder(_Place).decode


def read_snapshot(files: Files, directory: str) -> JournalSnapshot | None:
    """Blocking. None: there is none that can be used."""
    try:
        payload = read_small_file(files, directory, SNAPSHOT_FILE, _MAGIC)
        found = None if payload is None else _decode(payload)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found is not None and len(found.keys) == len(found.values) else None


def read_snapshot_place(files: Files, directory: str) -> SavedPlace | None:
    """Blocking: up to where it was made. None: there is none that can be used."""
    try:
        payload = read_small_file(files, directory, SNAPSHOT_FILE, _MAGIC)
        found = None if payload is None else _decode_place(payload)
    except (OSError, msgspec.DecodeError):
        return None
    return None if found is None else SavedPlace(found.offset, found.epoch)


def write_snapshot(files: Files, directory: str, snapshot: JournalSnapshot) -> None:
    """Blocking; durable when it returns. OSError: the one before is still there, or this one is."""
    write_small_file(files, directory, SNAPSHOT_FILE, _MAGIC, _encode(snapshot))


def remove_snapshot(files: Files, directory: str) -> None:
    """Blocking, and durable: it must not come back when the log has grown past it with other records."""
    files.remove(f"{directory}/{SNAPSHOT_FILE}")
    files.sync_directory(directory)


def merge(rows: dict[bytes, bytes], entries: Sequence[Entry]) -> None:
    """The last value of each key, in the order of the last write. Of what is gone nothing needs to be known."""
    for key, value in entries:
        rows.pop(key, None)
        if value is not None:
            rows[key] = value
