"""Checksums of what stands in the metadata store's tables: SQLite itself has none.

    entries, events   each row with a checksum of all that it says, its key among it
    counters          with a seal of their own: revision, history, how many entries, and the sum of their checksums

A changed row is seen by its checksum, a lost, doubled or foreign one by the sum. Sums need no order and are brought up
row by row, so a transaction costs what it changes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

import msgspec

_NUMBER: Final = struct.Struct("<q")
_LENGTH: Final = struct.Struct("<I")
_SUMS: Final = 1 << 64

EntryRow = tuple[str, bytes, int, int, int | None, int]
EventRow = tuple[int, int, str, bytes | None, int, int]


class DamagedTablesError(Exception):
    """What stands in the tables is not what was written there; the text says which and how."""


class Counters(msgspec.Struct, frozen=True):
    revision: int = 0
    compacted: int = 0
    entry_count: int = 0
    entry_sum: int = 0

    def seal(self) -> int:
        return _checksum(b"counters", [self.revision, self.compacted, self.entry_count, self.entry_sum])

    def with_entry(self, checksum: int) -> Counters:
        return self._moved(1, checksum)

    def without_entry(self, checksum: int) -> Counters:
        return self._moved(-1, -checksum)

    def _moved(self, count: int, checksum: int) -> Counters:
        total = _signed((self.entry_sum + checksum) % _SUMS)
        return msgspec.structs.replace(self, entry_count=self.entry_count + count, entry_sum=total)


def entry_checksum(key: str, value: bytes, create_revision: int, mod_revision: int, session_id: int | None) -> int:
    return _checksum(b"entry", [key, value, create_revision, mod_revision, session_id])


def event_checksum(revision: int, position: int, key: str, value: bytes | None, create_revision: int) -> int:
    return _checksum(b"event", [revision, position, key, value, create_revision])


def check_entry(row: EntryRow) -> None:
    if _checksum(b"entry", row[:-1]) != row[-1]:
        raise DamagedTablesError(f"the entry {str(row[0])!r} does not fit its checksum")


def check_event(row: EventRow) -> None:
    if _checksum(b"event", row[:-1]) != row[-1]:
        raise DamagedTablesError(f"the change of {str(row[2])!r} at revision {row[0]} does not fit its checksum")


def check_entries(rows: Iterable[EntryRow], counters: Counters) -> None:
    """That they are all of them, and no others."""
    count = total = 0
    for row in rows:
        check_entry(row)
        count += 1
        total += row[-1]
    if count != counters.entry_count:
        raise DamagedTablesError(f"it holds {count} entries, and should hold {counters.entry_count}")
    if _signed(total % _SUMS) != counters.entry_sum:
        raise DamagedTablesError("its entries are each whole, and together not those that were written")


def _checksum(kind: bytes, fields: Iterable[object]) -> int:
    """Of the fields and of what each is: a flipped bit can also make a text of bytes, or nothing of a number."""
    parts = [kind]
    for field in fields:
        if isinstance(field, str):
            text = field.encode(errors="surrogatepass")
            parts += [b"t", _LENGTH.pack(len(text)), text]
        elif isinstance(field, bytes):
            parts += [b"b", _LENGTH.pack(len(field)), field]
        elif isinstance(field, int):
            parts += [b"i", _NUMBER.pack(field)]
        else:
            parts.append(repr(field).encode())
    return _signed(int.from_bytes(hashlib.blake2b(b"".join(parts), digest_size=8).digest(), "little"))


def _signed(number: int) -> int:
    """As SQLite keeps whole numbers."""
    return number - _SUMS if number >= _SUMS // 2 else number
