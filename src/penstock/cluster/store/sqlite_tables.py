"""The metadata store's tables and the statements on them. It blocks, so `SqliteStore` gives it a thread.

    counters   revision, the revision up to which history was dropped, how many entries there are and their sum
    entries    what is there now
    events     what changed, by revision: the history that watches read
    sessions   id, TTL, deadline: see sqlite_sessions

Every change is one `BEGIN IMMEDIATE` transaction, so several processes on one file take turns and revisions
have no gaps. WAL with synchronous=FULL: when a commit returns, it is on disk. Every row that is read is checked, and a
range checks that no row is missing: see sqlite_seals, and sqlite_format for what is checked at the opening.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from penstock.cluster.store.copy import CopiedEntry, MetadataCopy
from penstock.cluster.store.private_file import make_private
from penstock.cluster.store.protocol import (
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
from penstock.cluster.store.sqlite_format import (
    ENTRY_ROWS,
    EVENT_ROWS,
    bring_up,
    check_everything,
    has_tables,
    is_current,
    make_tables,
    read_counters,
    write_counters,
)
from penstock.cluster.store.sqlite_seals import (
    Counters,
    EntryRow,
    EventRow,
    check_entries,
    check_entry,
    check_event,
    entry_checksum,
    event_checksum,
)
from penstock.cluster.store.sqlite_sessions import SqliteSessions

MEMORY: Final = ":memory:"
# The key of an event whose value must not be kept. Its revision stays, or the history would have a gap.
FORGOTTEN: Final = ""
# Switching a new file to WAL answers "locked" at once, without waiting, if another process does the same just
# then.
_WAL_ATTEMPTS: Final = 100
_WAL_RETRY_S: Final = 0.02
# One read of a watch: bounds memory when a watch resumes far behind. A revision is never split.
_EVENTS_PER_READ: Final = 1000


class SqliteTables:
    def __init__(
        self,
        path: str,
        *,
        busy_ms: int,
        history_revisions: int,
        is_secret: Callable[[str], bool] = lambda _key: False,
        boot_id: str = "",
        now_ms: int = 0,
    ) -> None:
        """Times are of the machine's monotonic clock, which the boot belongs to."""
        self._history_revisions = history_revisions
        # Keys of which the history keeps the last value only.
        self._is_secret = is_secret
        if path != MEMORY:
            make_private(path)
        # No implicit transactions: what is one is written as one.
        self._database = sqlite3.connect(path, timeout=busy_ms / 1000, isolation_level=None)
        self._sessions = SqliteSessions(self._database, boot_id=boot_id, now_ms=now_ms)
        try:
            self._prepare()
            self._forget_secrets()
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
        return self._counters().revision

    def get(self, key: str) -> Entry | None:
        row = self._row(key)
        return None if row is None else Entry(*row[:4])

    def range(self, prefix: str) -> Range:
        rows, counters = self.rows()
        end = prefix_end(prefix)
        return Range(tuple(Entry(*row[:4]) for row in rows if prefix <= row[0] < end), counters.revision)

    def rows(self) -> tuple[list[EntryRow], Counters]:
        """All of them, by key. Always all: that one is missing is seen from the sum alone, and whoever took a lost
        topic for a deleted one would delete its files."""
        # One transaction: entries and revision must belong together, or a watch would start too late.
        with self._transaction("DEFERRED"):
            counters = self._counters()
            rows = self._database.execute(ENTRY_ROWS + " ORDER BY key").fetchall()
        check_entries(rows, counters)
        return rows, counters

    def copy(self) -> MetadataCopy:
        rows, counters = self.rows()
        entries = tuple(CopiedEntry(row[0], row[1], row[3]) for row in rows if row[4] is None)
        return MetadataCopy(counters.revision, entries)

    def restore(self, entries: Mapping[str, bytes], revision: int) -> None:
        """Into tables that hold nothing: everything as of `revision`, without history."""
        with self._transaction("IMMEDIATE"):
            counters = self._counters()
            assert counters == Counters(), "only a new store can be filled"
            for key, value in sorted(entries.items()):
                counters = counters.with_entry(self._put(Entry(key, value, revision, revision), None))
            write_counters(self._database, msgspec.structs.replace(counters, revision=revision, compacted=revision))

    def events(self, prefix: str, from_revision: int) -> tuple[list[EventBatch], int]:
        """Batches from `from_revision` on, and the revision up to which everything has been looked at."""
        with self._transaction("DEFERRED"):
            counters = self._counters()
            compacted = counters.compacted
            if from_revision <= compacted:
                raise CompactedError(from_revision=from_revision, compacted_revision=compacted)
            rows = self._events(
                "revision >= ? AND key >= ? AND key < ? ORDER BY revision, position LIMIT ?",
                (from_revision, prefix, prefix_end(prefix), _EVENTS_PER_READ),
            )
            seen = counters.revision
            if len(rows) == _EVENTS_PER_READ:
                seen = rows[-1][0]
                # The limit may have cut the last revision: read that one whole.
                rows = [row for row in rows if row[0] != seen] + self._events(
                    "revision = ? AND key >= ? AND key < ? ORDER BY position", (seen, prefix, prefix_end(prefix))
                )
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
            if session_id is not None and not self._sessions.has(session_id):
                raise SessionExpiredError(f"session {session_id} has ended, so nothing can be bound to it")
            if not all(self._holds(compare) for compare in compares):
                return TxnResult(ok=False, revision=before)
            result = TxnResult(ok=True, revision=self._change(puts, deletes, session_id))
        if any(map(self._is_secret, (*puts, *deletes))):
            # What was overwritten is still in the log beside the file: it goes too.
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return result

    def expire(self, now_ms: int) -> int:
        """Ends the sessions whose time is over; the revision afterwards. Writes only if there are any."""
        if self._sessions.wants_change(now_ms):
            with self._transaction("IMMEDIATE"):
                self._expire(now_ms)
        return self.revision()

    def open_session(self, ttl_ms: int, now_ms: int) -> int:
        with self._transaction("IMMEDIATE"):
            return self._sessions.open(ttl_ms, now_ms)

    def keep_alive(self, session_id: int, now_ms: int) -> bool:
        with self._transaction("IMMEDIATE"):
            return self._sessions.renew(session_id, now_ms)

    def close_session(self, session_id: int) -> int:
        with self._transaction("IMMEDIATE"):
            return self._end_session(session_id)

    def _prepare(self) -> None:
        # One transaction: another process may be making the tables just now.
        with self._transaction("DEFERRED"):
            is_new = not has_tables(self._database)
        self._switch_to_wal()
        self._database.execute("PRAGMA synchronous = FULL")
        # What is deleted is overwritten, or it could be read from the file for years.
        self._database.execute("PRAGMA secure_delete = ON")
        if is_new:
            with self._transaction("IMMEDIATE"):
                make_tables(self._database)
            return
        if not is_current(self._database):
            with self._transaction("IMMEDIATE"):
                bring_up(self._database)
        with self._transaction("DEFERRED"):
            check_everything(self._database)

    def _forget_secrets(self) -> None:
        """Old values that a version before this one left in the history."""
        latest = self._database.execute("SELECT key, max(revision) FROM events GROUP BY key").fetchall()
        secret = [(key, revision) for key, revision in latest if self._is_secret(key)]
        if secret:
            with self._transaction("IMMEDIATE"):
                for key, revision in secret:
                    self._forget_events(key, before=revision)

    def _forget_events(self, key: str, *, before: int) -> None:
        """No prefix leads to the key that they have then, so no watch hears of them."""
        places = self._database.execute(
            "SELECT revision, position FROM events WHERE key = ? AND revision < ?", (key, before)
        ).fetchall()
        rows = [_event_row(position, Event(FORGOTTEN, None, 0, revision)) for revision, position in places]
        self._database.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)

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

    def _counters(self) -> Counters:
        return read_counters(self._database)

    def _row(self, key: str) -> EntryRow | None:
        row: EntryRow | None = self._database.execute(ENTRY_ROWS + " WHERE key = ?", (key,)).fetchone()
        if row is not None:
            check_entry(row)
        return row

    def _events(self, where: str, parameters: tuple[object, ...]) -> list[EventRow]:
        rows: list[EventRow] = self._database.execute(f"{EVENT_ROWS} WHERE {where}", parameters).fetchall()
        for row in rows:
            check_event(row)
        return rows

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
        counters = self._counters()
        revision = counters.revision + 1
        events: list[Event] = []
        for key in filter(self._is_secret, (*puts, *deletes)):
            self._forget_events(key, before=revision)
        for key in deletes:
            row = self._row(key)
            if row is not None:
                counters = counters.without_entry(row[-1])
                self._database.execute("DELETE FROM entries WHERE key = ?", (key,))
                events.append(Event(key, None, row[2], revision))
        for key, value in puts.items():
            row = self._row(key)
            counters = counters if row is None else counters.without_entry(row[-1])
            created = revision if row is None else row[2]
            counters = counters.with_entry(self._put(Entry(key, value, created, revision), session_id))
            events.append(Event(key, value, created, revision))
        if not events:
            return counters.revision
        self._database.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
            [_event_row(position, event) for position, event in enumerate(events)],
        )
        self._compact(msgspec.structs.replace(counters, revision=revision))
        return revision

    def _put(self, entry: Entry, session_id: int | None) -> int:
        """Its checksum."""
        fields = (entry.key, entry.value, entry.create_revision, entry.mod_revision, session_id)
        checksum = entry_checksum(*fields)
        self._database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)", (*fields, checksum))
        return checksum

    def _compact(self, counters: Counters) -> None:
        # Between one and two times the history is kept, so that dropping is rare and in one piece.
        if counters.revision - counters.compacted >= 2 * self._history_revisions:
            counters = msgspec.structs.replace(counters, compacted=counters.revision - self._history_revisions)
            self._database.execute("DELETE FROM events WHERE revision <= ?", (counters.compacted,))
        write_counters(self._database, counters)

    def _expire(self, now_ms: int) -> None:
        if self._sessions.wants_change(now_ms):
            self._sessions.take_over(now_ms)
            for session_id in self._sessions.due(now_ms):
                self._end_session(session_id)

    def _end_session(self, session_id: int) -> int:
        keys = self._database.execute(
            "SELECT key FROM entries WHERE session_id = ? ORDER BY key", (session_id,)
        ).fetchall()
        self._sessions.remove(session_id)
        return self._change({}, [key for (key,) in keys], None)


def _event_row(position: int, event: Event) -> EventRow:
    fields = (event.mod_revision, position, event.key, event.value, event.create_revision)
    return (*fields, event_checksum(*fields))


def _batches(rows: Sequence[EventRow]) -> list[EventBatch]:
    batches: list[EventBatch] = []
    events: list[Event] = []
    for place, (revision, _, key, value, create_revision, _) in enumerate(rows):
        events.append(Event(key, value, create_revision, revision))
        if place + 1 == len(rows) or rows[place + 1][0] != revision:
            batches.append(EventBatch(revision, tuple(events)))
            events = []
    return batches
