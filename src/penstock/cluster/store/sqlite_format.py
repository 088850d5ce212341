"""The metadata store's file: its tables, made, brought up from an earlier format, and looked through at each opening.

Nothing is believed before SQLite has found its own pages in order (`integrity_check`) and every row and the whole of
them fit their checksums: a store that had lost a row in silence would let a topic begin anew at offset 0.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from penstock.cluster.store.sqlite_seals import (
    Counters,
    DamagedTablesError,
    check_entries,
    check_event,
    entry_checksum,
    event_checksum,
)

# "PNST": tells our file from any other SQLite database.
APPLICATION_ID: Final = 0x504E5354
# 3: sessions have deadlines by the monotonic clock. 2: by the wall clock. 1: and rows had no checksums.
FORMAT: Final = 3
_BY_WALL_CLOCK: Final = 2
_WITHOUT_CHECKSUMS: Final = 1
# One is enough to refuse the file; the others would be told to nobody.
_PROBLEMS_ASKED: Final = 1

ENTRY_ROWS: Final = "SELECT key, value, create_revision, mod_revision, session_id, checksum FROM entries"
EVENT_ROWS: Final = "SELECT revision, position, key, value, create_revision, checksum FROM events"
_COUNTERS: Final = (*Counters.__struct_fields__, "seal")

_SCHEMA: Final = (
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL,"
    " create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL, session_id INTEGER,"
    " checksum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX entries_by_session ON entries (session_id) WHERE session_id IS NOT NULL",
    "CREATE TABLE events (revision INTEGER NOT NULL, position INTEGER NOT NULL,"
    " key TEXT NOT NULL, value BLOB, create_revision INTEGER NOT NULL,"
    " checksum INTEGER NOT NULL, PRIMARY KEY (revision, position)) WITHOUT ROWID",
    # AUTOINCREMENT: an ended session's id must never come back and hold its keys.
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL,"
    " deadline_ms INTEGER NOT NULL, boot TEXT NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
)


class ForeignDatabaseError(Exception):
    """The file is a SQLite database, but not one of ours."""


def has_tables(database: sqlite3.Connection) -> bool:
    """Raises if they are somebody else's, or of a format that this version does not know."""
    if not number(database, "SELECT count(*) FROM sqlite_master"):
        return False
    if number(database, "PRAGMA application_id") != APPLICATION_ID:
        raise ForeignDatabaseError("it is a SQLite database of something else")
    version = number(database, "PRAGMA user_version")
    if not _WITHOUT_CHECKSUMS <= version <= FORMAT:
        raise ForeignDatabaseError(f"its format is {version}, this version of penstock knows {FORMAT}")
    return True


def is_current(database: sqlite3.Connection) -> bool:
    return number(database, "PRAGMA user_version") == FORMAT


def has_checksums(database: sqlite3.Connection) -> bool:
    return number(database, "PRAGMA user_version") >= _BY_WALL_CLOCK


def make_tables(database: sqlite3.Connection) -> None:
    """In the caller's transaction, as the others. Another process may have been faster."""
    if has_tables(database):
        return
    for statement in _SCHEMA:
        database.execute(statement)
    write_counters(database, Counters())
    database.execute(f"PRAGMA user_version = {FORMAT}")


def bring_up(database: sqlite3.Connection) -> None:
    """From an earlier format. Another process may have been faster."""
    check_pages(database)
    if not has_checksums(database):
        _add_checksums(database)
    if not is_current(database):
        # Of no boot: whoever has a session gets one TTL from now.
        database.execute("ALTER TABLE sessions ADD COLUMN boot TEXT NOT NULL DEFAULT ''")
        database.execute(f"PRAGMA user_version = {FORMAT}")


def _add_checksums(database: sqlite3.Connection) -> None:
    """What had been damaged before stays so: nobody can tell any more."""
    for table in ("entries", "events"):
        database.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
    kept = dict(database.execute("SELECT name, value FROM counters").fetchall())
    counters = Counters(kept["revision"], kept["compacted"])
    rows = database.execute("SELECT key, value, create_revision, mod_revision, session_id FROM entries").fetchall()
    for row in rows:
        checksum = entry_checksum(*row)
        counters = counters.with_entry(checksum)
        database.execute("UPDATE entries SET checksum = ? WHERE key = ?", (checksum, row[0]))
    changes = database.execute("SELECT revision, position, key, value, create_revision FROM events").fetchall()
    database.executemany(
        "UPDATE events SET checksum = ? WHERE revision = ? AND position = ?",
        [(event_checksum(*row), row[0], row[1]) for row in changes],
    )
    write_counters(database, counters)
    database.execute(f"PRAGMA user_version = {_BY_WALL_CLOCK}")


def check_everything(database: sqlite3.Connection) -> None:
    """Raises DamagedTablesError. 10,000 topics take a tenth of a second."""
    check_pages(database)
    counters = read_counters(database)
    check_entries(database.execute(ENTRY_ROWS), counters)
    expected = counters.compacted
    for row in database.execute(EVENT_ROWS + " ORDER BY revision, position"):
        check_event(row)
        expected = _next_revision(row[0], expected)
    if expected != counters.revision:
        raise DamagedTablesError(f"its history ends at revision {expected}, and should end at {counters.revision}")


def _next_revision(revision: int, last: int) -> int:
    """Each revision has changed something, so none is missing."""
    if revision not in (last, last + 1):
        raise DamagedTablesError(f"its history goes from revision {last} to {revision}")
    return revision


def check_pages(database: sqlite3.Connection) -> None:
    problems = database.execute(f"PRAGMA integrity_check({_PROBLEMS_ASKED})").fetchall()
    if problems != [("ok",)]:
        words = str(problems[0][0]).rpartition("***")[2] if problems else "it cannot be looked through"
        raise DamagedTablesError(" ".join(words.split()))


def read_counters(database: sqlite3.Connection) -> Counters:
    kept = dict(database.execute("SELECT name, value FROM counters").fetchall())
    if set(kept) != set(_COUNTERS) or not all(isinstance(value, int) for value in kept.values()):
        raise DamagedTablesError(f"its counters are {', '.join(sorted(map(str, kept))) or 'gone'}")
    counters = Counters(**{name: kept[name] for name in Counters.__struct_fields__})
    if counters.seal() != kept["seal"]:
        raise DamagedTablesError(f"its counters do not fit their seal (revision {counters.revision})")
    return counters


def write_counters(database: sqlite3.Connection, counters: Counters) -> None:
    rows = [(name, getattr(counters, name)) for name in Counters.__struct_fields__]
    database.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?)", [*rows, ("seal", counters.seal())])


def number(database: sqlite3.Connection, query: str) -> int:
    return int(database.execute(query).fetchone()[0])
