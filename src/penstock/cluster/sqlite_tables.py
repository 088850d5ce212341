"""The metadata store's tables and the statements on them. It blocks, so `SqliteStore` gives it a thread.

    counters   revision, and the revision up to which history was dropped
    entries    what is there now
    events     what changed, by revision: the history that watches read
    sessions   id, TTL, deadline

Every change is one `BEGIN IMMEDIATE` transaction, so several processes on one file take turns and revisions
have no gaps. WAL with synchronous=FULL: when a commit returns, it is on disk.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.cluster.metadata_store import (
    Absent,
    CompactedError,
    Compare,
    CreateRevisionIs,
    Entry,
    Event,
    EventBatch,
    ModRevisionIs,
    Range,
    SessionExpiredError,
    TxnResult,
    ValueIs,
    prefix_end,
)

# "PNST": tells our file from any other SQLite database.
APPLICATION_ID: Final = 0x504E5354
FORMAT: Final = 1
# Switching a new file to WAL answers "locked" at once, without waiting, if another process does the same just
# then.
_WAL_ATTEMPTS: Final = 100
_WAL_RETRY_S: Final = 0.02
# One read of a watch: bounds memory when a watch resumes far behind. A revision is never split.
_EVENTS_PER_READ: Final = 1000

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT OR IGNORE INTO counters VALUES ('revision', 0), ('compacted', 0)",
    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL,"
    " create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL, session_id INTEGER) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS entries_by_session ON entries (session_id) WHERE session_id IS NOT NULL",
    "CREATE TABLE IF NOT EXISTS events (revision INTEGER NOT NULL, position INTEGER NOT NULL,"
    " key TEXT NOT NULL, value BLOB,"
    " create_revision INTEGER NOT NULL, PRIMARY KEY (revision, position)) WITHOUT ROWID",
    # AUTOINCREMENT: an ended session's id must never come back and hold its keys.
    "CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL,"
    " deadline_ms INTEGER NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)


class ForeignDatabaseError(Exception):
    """The file is a SQLite database, but not one of ours."""


class SqliteTables:
    def __init__(self, path: str, *, busy_ms: int, history_revisions: int) -> None:
        self._history_revisions = history_revisions
        # No implicit transactions: what is one is written as one.
        self._database = sqlite3.connect(path, timeout=busy_ms / 1000, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        self._database.close()

    def empty_log(self) -> bool:
        """Moves the write-ahead log into the database, so that the next commit begins it anew; False: it is in use."""
        busy, _, _ = self._database.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        return not busy

    def revision(self) -> int:
        return self._counter("revision")

    def get(self, key: str) -> Entry | None:
        row = self._database.execute(
            "SELECT key, value, create_revision, mod_revision FROM entries WHERE key = ?", (key,)
        ).fetchone()
        return None if row is None else Entry(*row)

    def range(self, prefix: str) -> Range:
        # One transaction: entries and revision must belong together, or a watch would start too late.
        with self._transaction("DEFERRED"):
            rows = self._database.execute(
                "SELECT key, value, create_revision, mod_revision FROM entries WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, prefix_end(prefix)),
            ).fetchall()
            return Range(tuple(Entry(*row) for row in rows), self.revision())

    def events(self, prefix: str, from_revision: int) -> tuple[list[EventBatch], int]:
        """Batches from `from_revision` on, and the revision up to which everything has been looked at."""
        with self._transaction("DEFERRED"):
            compacted = self._counter("compacted")
            if from_revision <= compacted:
                raise CompactedError(from_revision=from_revision, compacted_revision=compacted)
            rows = self._database.execute(
                "SELECT revision, key, value, create_revision FROM events"
                " WHERE revision >= ? AND key >= ? AND key < ? ORDER BY revision, position LIMIT ?",
                (from_revision, prefix, prefix_end(prefix), _EVENTS_PER_READ),
            ).fetchall()
            seen = self.revision()
            if len(rows) == _EVENTS_PER_READ:
                seen = rows[-1][0]
                # The limit may have cut the last revision: read that one whole.
                rows = [row for row in rows if row[0] != seen] + self._database.execute(
                    "SELECT revision, key, value, create_revision FROM events"
                    " WHERE revision = ? AND key >= ? AND key < ? ORDER BY position",
                    (seen, prefix, prefix_end(prefix)),
                ).fetchall()
        return _batches(rows), seen

    def txn(
        self,
        compares: Sequence[Compare],
        puts: Mapping[str, bytes],
        deletes: Sequence[str],
        session_id: int | None,
        now_ms: int,
    ) -> TxnResult:
        with self._transaction("IMMEDIATE"):
            self._expire(now_ms)
            before = self.revision()
            if session_id is not None and not self._has_session(session_id):
                raise SessionExpiredError(f"session {session_id} has ended, so nothing can be bound to it")
            if not all(self._holds(compare) for compare in compares):
                return TxnResult(ok=False, revision=before)
            return TxnResult(ok=True, revision=self._change(puts, deletes, session_id))

    def expire(self, now_ms: int) -> int:
        """Ends the sessions whose time is over; the revision afterwards. Writes only if there are any."""
        due = self._database.execute(
            "SELECT 1 FROM sessions WHERE deadline_ms <= ? OR deadline_ms > ? + ttl_ms LIMIT 1",
            (now_ms, now_ms),
        ).fetchone()
        if due is not None:
            with self._transaction("IMMEDIATE"):
                self._expire(now_ms)
        return self.revision()

    def open_session(self, ttl_ms: int, now_ms: int) -> int:
        with self._transaction("IMMEDIATE"):
            cursor = self._database.execute(
                "INSERT INTO sessions (ttl_ms, deadline_ms) VALUES (?, ?)", (ttl_ms, now_ms + ttl_ms)
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def keep_alive(self, session_id: int, now_ms: int) -> bool:
        with self._transaction("IMMEDIATE"):
            cursor = self._database.execute(
                "UPDATE sessions SET deadline_ms = ? + ttl_ms WHERE id = ? AND deadline_ms > ?",
                (now_ms, session_id, now_ms),
            )
        return cursor.rowcount == 1

    def close_session(self, session_id: int) -> int:
        with self._transaction("IMMEDIATE"):
            return self._end_session(session_id)

    def _prepare(self) -> None:
        # One transaction: another process may be making the tables just now.
        with self._transaction("DEFERRED"):
            tables = self._number("SELECT count(*) FROM sqlite_master")
            known = self._number("PRAGMA application_id")
            version = self._number("PRAGMA user_version")
        if tables and known != APPLICATION_ID:
            raise ForeignDatabaseError("it is a SQLite database of something else")
        if tables and version != FORMAT:
            raise ForeignDatabaseError(f"its format is {version}, this version of penstock knows {FORMAT}")
        self._switch_to_wal()
        self._database.execute("PRAGMA synchronous = FULL")
        if not tables:
            with self._transaction("IMMEDIATE"):
                for statement in _SCHEMA:
                    self._database.execute(statement)

    def _switch_to_wal(self) -> None:
        for attempt in range(_WAL_ATTEMPTS):
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or attempt == _WAL_ATTEMPTS - 1:
                    raise
                time.sleep(_WAL_RETRY_S)
            else:
                return

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        self._database.execute(f"BEGIN {kind}")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            # A failed commit (disk full) may have rolled back by itself.
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def _counter(self, name: str) -> int:
        return self._number("SELECT value FROM counters WHERE name = ?", name)

    def _number(self, query: str, *parameters: str) -> int:
        return int(self._database.execute(query, parameters).fetchone()[0])

    def _has_session(self, session_id: int) -> bool:
        return self._database.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is not None

    def _holds(self, compare: Compare) -> bool:
        entry = self.get(compare.key)
        match compare:
            case Absent():
                return entry is None
            case ValueIs(_, value):
                return entry is not None and entry.value == value
            case CreateRevisionIs(_, revision):
                return entry is not None and entry.create_revision == revision
            case ModRevisionIs(_, revision):
                return entry is not None and entry.mod_revision == revision

    def _change(self, puts: Mapping[str, bytes], deletes: Sequence[str], session_id: int | None) -> int:
        """The revision afterwards: the next one, or the same if nothing was changed."""
        revision = self.revision()
        events: list[Event] = []
        for key in deletes:
            event = self._delete(key, revision + 1)
            if event is not None:
                events.append(event)
        for key, value in puts.items():
            events.append(self._put(key, value, session_id, revision + 1))
        if not events:
            return revision
        self._database.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
            [
                (revision + 1, position, event.key, event.value, event.create_revision)
                for position, event in enumerate(events)
            ],
        )
        self._database.execute("UPDATE counters SET value = ? WHERE name = 'revision'", (revision + 1,))
        self._compact(revision + 1)
        return revision + 1

    def _put(self, key: str, value: bytes, session_id: int | None, revision: int) -> Event:
        (create_revision,) = self._database.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
            " value = excluded.value, mod_revision = excluded.mod_revision, session_id = excluded.session_id"
            " RETURNING create_revision",
            (key, value, revision, revision, session_id),
        ).fetchone()
        return Event(key, value, create_revision, revision)

    def _delete(self, key: str, revision: int) -> Event | None:
        row = self._database.execute("DELETE FROM entries WHERE key = ? RETURNING create_revision", (key,)).fetchone()
        return None if row is None else Event(key, None, row[0], revision)

    def _compact(self, revision: int) -> None:
        # Between one and two times the history is kept, so that dropping is rare and in one piece.
        if revision - self._counter("compacted") < 2 * self._history_revisions:
            return
        compacted = revision - self._history_revisions
        self._database.execute("DELETE FROM events WHERE revision <= ?", (compacted,))
        self._database.execute("UPDATE counters SET value = ? WHERE name = 'compacted'", (compacted,))

    def _expire(self, now_ms: int) -> None:
        # The wall clock is the only one that processes share. If it was set back, no deadline may lie
        # further ahead than a TTL, or a dead node would stay listed for as long as the clock jumped.
        self._database.execute(
            "UPDATE sessions SET deadline_ms = ? + ttl_ms WHERE deadline_ms > ? + ttl_ms", (now_ms, now_ms)
        )
        due = self._database.execute("SELECT id FROM sessions WHERE deadline_ms <= ? ORDER BY id", (now_ms,)).fetchall()
        for (session_id,) in due:
            self._end_session(session_id)

    def _end_session(self, session_id: int) -> int:
        keys = self._database.execute(
            "SELECT key FROM entries WHERE session_id = ? ORDER BY key", (session_id,)
        ).fetchall()
        self._database.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        return self._change({}, [key for (key,) in keys], None)


def _batches(rows: Sequence[tuple[int, str, bytes | None, int]]) -> list[EventBatch]:
    batches: list[EventBatch] = []
    events: list[Event] = []
    for position, (revision, key, value, create_revision) in enumerate(rows):
        events.append(Event(key, value, create_revision, revision))
        if position + 1 == len(rows) or rows[position + 1][0] != revision:
            batches.append(EventBatch(revision, tuple(events)))
            events = []
    return batches
