"""Sessions in the metadata store's file: id, TTL, deadline, and the boot of the machine that the deadline is of.

Everybody who has the file open is on one machine, so they share its monotonic clock: a wall clock that is set ends
nobody. After a start of the machine that clock begins anew; a session of an earlier boot gets one TTL from when it is
first seen. Somebody who has not looked for a while spares the others (see pauses).

A session is over when somebody has ended it, not before: it may be renewed late, as long as it is there.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from penstock.base.clock import Clock
from penstock.cluster.store.pauses import Pauses
from penstock.cluster.store.protocol import StoreUnavailableError

_RENEW: Final = "UPDATE sessions SET deadline_ms = ? + ttl_ms, boot = ? WHERE id = ?"
_HAS_STRANGE: Final = "SELECT 1 FROM sessions WHERE boot != ? OR deadline_ms > ? + ttl_ms LIMIT 1"
_TAKE_OVER: Final = "UPDATE sessions SET deadline_ms = ? + ttl_ms, boot = ? WHERE boot != ? OR deadline_ms > ? + ttl_ms"
_DUE: Final = "SELECT id, ttl_ms FROM sessions WHERE boot = ? AND deadline_ms <= ? ORDER BY id"
# A renewal is due again by then.
_RENEWAL_BUSY_SECONDS: Final = 1.0


class SqliteSessions:
    """In the caller's transactions."""

    def __init__(self, database: sqlite3.Connection, *, boot_id: str, now_ms: int) -> None:
        self._database = database
        self._boot_id = boot_id
        self._pauses = Pauses(now_ms)

    def open(self, ttl_ms: int, now_ms: int) -> int:
        cursor = self._database.execute(
            "INSERT INTO sessions (ttl_ms, deadline_ms, boot) VALUES (?, ?, ?)",
            (ttl_ms, now_ms + ttl_ms, self._boot_id),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def renew(self, session_id: int, now_ms: int) -> bool:
        return self._database.execute(_RENEW, (now_ms, self._boot_id, session_id)).rowcount == 1

    def has(self, session_id: int) -> bool:
        return self._database.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is not None

    def remove(self, session_id: int) -> None:
        self._database.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def wants_change(self, now_ms: int) -> bool:
        """Whether there is anything for `take_over` or `due`. Writes nothing."""
        self._pauses.look(now_ms)
        strange = self._database.execute(_HAS_STRANGE, (self._boot_id, now_ms)).fetchone()
        return strange is not None or bool(self.due(now_ms))

    def take_over(self, now_ms: int) -> None:
        """Those whose deadline is by another clock than ours."""
        self._database.execute(_TAKE_OVER, (now_ms, self._boot_id, self._boot_id, now_ms))

    def due(self, now_ms: int) -> list[int]:
        rows = self._database.execute(_DUE, (self._boot_id, now_ms)).fetchall()
        return [session_id for session_id, ttl_ms in rows if not self._pauses.spare(ttl_ms, now_ms)]


class SqliteRenewer:
    """Over a connection of its own, which belongs to the thread that uses it."""

    def __init__(self, path: str, session_id: int, *, boot_id: str, clock: Clock) -> None:
        self._path = path
        self._session_id = session_id
        self._boot_id = boot_id
        self._clock = clock
        self._database: sqlite3.Connection | None = None

    def renew(self) -> bool:
        try:
            database = self._connected()
            values = (self._clock.monotonic_ms(), self._boot_id, self._session_id)
            return database.execute(_RENEW, values).rowcount == 1
        except sqlite3.Error as error:
            self.close()
            raise StoreUnavailableError(f"session not renewed in metadata store {self._path}: {error}") from error

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _connected(self) -> sqlite3.Connection:
        if self._database is None:
            # Only a file that is there: a new one in its place would be taken for the store.
            place = f"{Path(self._path).absolute().as_uri()}?mode=rw"
            self._database = sqlite3.connect(place, uri=True, timeout=_RENEWAL_BUSY_SECONDS, isolation_level=None)
            # A deadline need not outlive a power cut, after which the boot is another: no sync every second.
            self._database.execute("PRAGMA synchronous = NORMAL")
        return self._database
