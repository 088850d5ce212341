"""What can still be read from a metadata store's file, however damaged. Blocking; changes nothing.

The file is copied and the copy is read: SQLite would otherwise bring the write-ahead log into it, or drop that.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock.cluster.store.copy import CopiedEntry
from penstock.cluster.store.sqlite_format import (
    ENTRY_ROWS,
    ForeignDatabaseError,
    check_everything,
    has_checksums,
    has_tables,
    read_counters,
)
from penstock.cluster.store.sqlite_seals import DamagedTablesError, EntryRow, check_entry, entry_checksum

# What SQLite keeps beside its file: changes that are not in it yet, and where they stand.
SIDE_SUFFIXES: Final = ("-wal", "-shm", "-journal")
_UNREADABLE: Final = (sqlite3.Error, DamagedTablesError, ForeignDatabaseError, UnicodeDecodeError)
_ROWS_WITHOUT_CHECKSUMS: Final = "SELECT key, value, create_revision, mod_revision, session_id FROM entries"


class Salvage(msgspec.Struct, frozen=True):
    entries: tuple[CopiedEntry, ...] = ()
    # As far as is known: that of the store, or the highest of an entry.
    revision: int = 0
    # None: everything is there and whole.
    problem: str | None = None


def salvage(path: str) -> Salvage:
    if not Path(path).exists() or not Path(path).stat().st_size:
        return Salvage(problem="it is empty" if Path(path).exists() else "it is not there")
    with tempfile.TemporaryDirectory(prefix="penstock-metadata-") as directory:
        copy = Path(directory) / "store"
        shutil.copyfile(path, copy)
        # The index of the write-ahead log is made anew from it.
        for suffix in ("-wal", "-journal"):
            if Path(path + suffix).exists():
                shutil.copyfile(path + suffix, f"{copy}{suffix}")
        database = sqlite3.connect(copy, isolation_level=None)
        try:
            return _read(database)
        except _UNREADABLE as error:
            return Salvage(problem=str(error))
        finally:
            database.close()


def _read(database: sqlite3.Connection) -> Salvage:
    if not has_tables(database):
        return Salvage(problem="it holds nothing")
    problem = _problem_of(database)
    rows: dict[str, EntryRow] = {}
    # From both ends: a page that cannot be read stops the one and not what lies behind it.
    for order in ("", " ORDER BY key DESC"):
        for row in _rows(database, order):
            rows[row[0]] = row
    entries = tuple(CopiedEntry(row[0], row[1], row[3]) for row in rows.values() if row[4] is None)
    highest = max((entry.mod_revision for entry in entries), default=0)
    return Salvage(entries, max(highest, _revision_of(database)), problem)


def _problem_of(database: sqlite3.Connection) -> str | None:
    try:
        if has_checksums(database):
            check_everything(database)
        return None
    except _UNREADABLE as error:
        return str(error)


def _rows(database: sqlite3.Connection, order: str) -> Iterator[EntryRow]:
    """Those that are whole, until one cannot be reached."""
    is_checked = has_checksums(database)
    cursor = database.execute((ENTRY_ROWS if is_checked else _ROWS_WITHOUT_CHECKSUMS) + order)
    while True:
        try:
            row = cursor.fetchone()
        except _UNREADABLE:
            return
        if row is None:
            return
        try:
            whole: EntryRow = row if is_checked else (*row, entry_checksum(*row))
            check_entry(whole)
        except DamagedTablesError:
            continue
        yield whole


def _revision_of(database: sqlite3.Connection) -> int:
    try:
        return read_counters(database).revision if has_checksums(database) else 0
    except _UNREADABLE:
        return 0
