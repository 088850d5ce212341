"""The metadata store on SQLite: for one machine, with one node or with several on one file.

SQLite blocks, so it lives in one thread of its own; the loop never waits for the disk. Writes made through
this object wake its watches at once; writes of other processes are found by looking at the revision every
`poll_ms`.

    await SqliteStore.open(path, clock=...)   →   get, range, txn, watch, open_session   →   await close()

The path `:memory:` keeps everything in memory, for a node that leaves nothing behind.

A file that is damaged is refused, and so is one that is gone, empty or older than its copy (`copy`): a new
beginning in its place would look as if everything had been deleted. `keep_copy` has the copy written after changes.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.base.boot_id import read_boot_id
from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.cluster.store.copy import (
    SUFFIX,
    MetadataCopy,
    UnreadableCopy,
    read_copy,
    remove_unfinished_copies,
    write_copy,
)
from penstock.cluster.store.protocol import (
    NOTHING,
    Compare,
    Entry,
    EventBatch,
    Range,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreSession,
    StoreUnavailableError,
    TxnResult,
    check_operations,
)
from penstock.cluster.store.sqlite_format import ForeignDatabaseError
from penstock.cluster.store.sqlite_seals import DamagedTablesError
from penstock.cluster.store.sqlite_sessions import SqliteRenewer
from penstock.cluster.store.sqlite_tables import MEMORY, SqliteTables

# Half of it is how late another process's change is seen on average; a look costs some 30 µs of a thread.
POLL_MS: Final = 50
# Enough for a watch that was away for minutes of steady change; about 10 MB of topics' values.
HISTORY_REVISIONS: Final = 10_000
# How long a transaction waits for another process's. Ours take milliseconds, so 5 s means that somebody is
# stuck.
BUSY_MS: Final = 5000
# The low byte of an error's code says what it is, the rest where.
PRIMARY_CODE: Final = 0xFF

# A large store is copied less often: copying takes at most a twentieth of its thread's time.
COPY_SPACING: Final = 20

# UnicodeDecodeError: SQLite's sentence quotes damaged text.
_FAILURES: Final = (sqlite3.Error, ForeignDatabaseError, DamagedTablesError, UnicodeDecodeError)
# SQLITE_ERROR: a table or column that we made is not there.
_DAMAGE_CODES: Final = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR}
)

T = TypeVar("T")


class SqliteStore:
    def __init__(
        self, path: str, clock: Clock, executor: ThreadPoolExecutor, tables: SqliteTables, boot_id: str
    ) -> None:
        """Use `open`."""
        self._path = path
        self._clock = clock
        self._executor = executor
        self._tables = tables
        self._boot_id = boot_id
        self._log = get_logger("metadata")
        self._tasks = TaskSupervisor(self._log)
        self._seen_revision = 0
        self._changed = asyncio.Event()
        self._is_closed = False
        self._is_failing = False
        self._keeps_copy = False
        self._is_copy_failing = False
        self._copied_revision = -1
        self._copy_not_before_ms = 0

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        clock: Clock,
        poll_ms: int = POLL_MS,
        history_revisions: int = HISTORY_REVISIONS,
        busy_ms: int = BUSY_MS,
        is_secret: Callable[[str], bool] = lambda _key: False,
        boot_id: str | None = None,
    ) -> SqliteStore:
        """The history keeps the last value only of keys that are secret. Without a boot id: the machine's."""
        text = str(path)
        boot = read_boot_id() if boot_id is None else boot_id
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")

        def connect() -> SqliteTables:
            copy = None if text == MEMORY else _copy_to_trust(text)
            tables = SqliteTables(
                text,
                busy_ms=busy_ms,
                history_revisions=history_revisions,
                is_secret=is_secret,
                boot_id=boot,
                now_ms=clock.monotonic_ms(),
            )
            revision = tables.revision()
            if copy is not None and revision < copy.revision:
                tables.close()
                raise DamagedTablesError(
                    f"it is at revision {revision}, and its copy {text}{SUFFIX} was made at {copy.revision}: "
                    "it is an older one, or has lost its last changes"
                )
            if text != MEMORY:
                remove_unfinished_copies(text + SUFFIX)
            return tables

        try:
            tables = await asyncio.get_running_loop().run_in_executor(executor, connect)
        except _FAILURES as error:
            executor.shutdown(wait=False)
            raise _store_error(text, error) from error
        store = cls(text, clock, executor, tables, boot)
        store._tasks.every(poll_ms, "metadata poll", store.poll)
        return store

    async def get(self, key: str) -> Entry | None:
        now_ms = self._clock.monotonic_ms()

        def read() -> Entry | None:
            self._tables.expire(now_ms)
            return self._tables.get(key)

        return await self._run(read)

    async def range(self, prefix: str) -> Range:
        now_ms = self._clock.monotonic_ms()

        def read() -> Range:
            self._tables.expire(now_ms)
            return self._tables.range(prefix)

        return await self._run(read)

    async def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] = NOTHING,
        deletes: Sequence[str] = (),
        session: StoreSession | None = None,
    ) -> TxnResult:
        check_operations(puts, deletes, compares)
        session_id = None if session is None else session.id
        now_ms = self._clock.monotonic_ms()
        result = await self._run(lambda: self._tables.txn(compares, puts, deletes, session_id, now_ms))
        self._wake(result.revision)
        return result

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[EventBatch]:
        next_revision = from_revision
        while True:
            try:
                batches, seen = await self._run(partial(self._tables.events, prefix, next_revision))
            except StoreClosedError:
                return
            for batch in batches:
                yield batch
            next_revision = max(next_revision, seen + 1)
            while self._seen_revision < next_revision and not self._is_closed:
                await self._changed.wait()

    async def open_session(self, ttl_ms: int) -> SqliteSession:
        assert ttl_ms > 0
        now_ms = self._clock.monotonic_ms()
        session_id = await self._run(lambda: self._tables.open_session(ttl_ms, now_ms))
        return SqliteSession(self, session_id, ttl_ms)

    async def close(self) -> None:
        """Ends watches, waits for what is under way, lets the file go. Sessions stay until their TTL ends."""
        if self._is_closed:
            return
        if self._keeps_copy and self._copied_revision != self._seen_revision:
            await self._copy()
        self._is_closed = True
        self._notify()
        await self._tasks.stop()
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._tables.close)
        finally:
            self._executor.shutdown(wait=False)

    async def poll(self) -> None:
        """Ends sessions whose time is over and looks whether another process has changed something."""
        now_ms = self._clock.monotonic_ms()
        try:
            revision = await self._run(lambda: self._tables.expire(now_ms))
        except StoreError as error:
            # Told once: the same sentence twenty times a second would hide everything else.
            if not self._is_failing:
                self._log.error("metadata store failed", path=self._path, error=str(error))
            self._is_failing = True
            return
        if self._is_failing:
            self._log.info("metadata store works again", path=self._path)
        self._is_failing = False
        self._wake(revision)
        await self._copy_if_due()

    def keep_copy(self) -> None:
        """From now on. Not before the store is known to be the right one: the copy of an empty one would replace the
        last that is known of the lost one."""
        self._keeps_copy = self._path != MEMORY

    async def _copy_if_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._keeps_copy and self._copied_revision != self._seen_revision and now_ms >= self._copy_not_before_ms:
            await self._copy()
            took_ms = self._clock.monotonic_ms() - now_ms
            self._copy_not_before_ms = now_ms + COPY_SPACING * took_ms

    async def _copy(self) -> None:
        try:
            self._copied_revision = await self._run(self._write_copy)
        except (OSError, StoreError) as error:
            if not self._is_copy_failing:
                self._log.warning("metadata not copied", path=self._path + SUFFIX, error=str(error))
            self._is_copy_failing = True
            return
        self._is_copy_failing = False

    def _write_copy(self) -> int:
        copy = self._tables.copy()
        write_copy(self._path + SUFFIX, copy)
        return copy.revision

    async def keep_alive(self, session_id: int) -> bool:
        now_ms = self._clock.monotonic_ms()
        return await self._run(lambda: self._tables.keep_alive(session_id, now_ms))

    def renewer(self, session_id: int) -> SqliteRenewer | None:
        """A database in memory belongs to one connection."""
        if self._path == MEMORY:
            return None
        return SqliteRenewer(self._path, session_id, boot_id=self._boot_id, clock=self._clock)

    async def close_session(self, session_id: int) -> None:
        self._wake(await self._run(lambda: self._tables.close_session(session_id)))

    def _wake(self, revision: int) -> None:
        if revision > self._seen_revision:
            self._seen_revision = revision
            self._notify()

    def _notify(self) -> None:
        # Whoever waits holds the old event; whoever comes later gets a new one and checks the revision first.
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise StoreClosedError(f"metadata store {self._path} is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._run_with_room, work)
        except sqlite3.ProgrammingError as error:
            # It was handed to the thread before `close` was, and came to its turn after it.
            raise StoreClosedError(f"metadata store {self._path} is closed") from error
        except _FAILURES as error:
            raise _store_error(self._path, error) from error

    def _run_with_room(self, work: Callable[[], T]) -> T:
        """In the thread. Without a free block the write-ahead log cannot grow, but it can be emptied into the pages
        that it changes, which have their blocks. The transaction was rolled back, so it can be tried once more."""
        try:
            return work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & PRIMARY_CODE != sqlite3.SQLITE_FULL or not self._tables.empty_log():
                raise
            return work()


class SqliteSession:
    def __init__(self, store: SqliteStore, session_id: int, ttl_ms: int) -> None:
        self._store = store
        self._id = session_id
        self._ttl_ms = ttl_ms

    @property
    def id(self) -> int:
        return self._id

    @property
    def ttl_ms(self) -> int:
        return self._ttl_ms

    async def keep_alive(self) -> bool:
        return await self._store.keep_alive(self._id)

    def renewer(self) -> SqliteRenewer | None:
        return self._store.renewer(self._id)

    async def close(self) -> None:
        await self._store.close_session(self._id)


def _copy_to_trust(path: str) -> MetadataCopy | None:
    """Raises if there is one and nothing that it could be of: looked at before SQLite makes a new file."""
    copy = read_copy(path + SUFFIX)
    size = Path(path).stat().st_size if Path(path).exists() else -1
    if copy is not None and size <= 0:
        raise DamagedTablesError(f"it is {'empty' if size == 0 else 'gone'}, but its copy {path}{SUFFIX} is there")
    if isinstance(copy, UnreadableCopy):
        get_logger("metadata").warning("copy of the metadata cannot be read, it is made anew", path=copy.path)
        return None
    return copy


def _store_error(path: str, error: Exception) -> StoreError:
    """SQLite's own words are short to the point of riddles ("unable to open database file")."""
    words = str(error)
    where = f"metadata store {path}"
    if isinstance(error, ForeignDatabaseError):
        return StoreDamagedError(f"{where} cannot be used: {words}")
    if isinstance(error, DamagedTablesError | UnicodeDecodeError):
        return StoreDamagedError(f"{where} is damaged: {words}")
    # The primary code is the lower byte; the rest says more about it.
    if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF in _DAMAGE_CODES or "decode" in words.lower():
        return StoreDamagedError(f"{where} is damaged or not a database: {words}")
    if "locked" in words or "busy" in words:
        return StoreUnavailableError(f"{where} is held by another process that does not let go of it")
    if "unable to open" in words:
        return StoreUnavailableError(f"{where} cannot be opened: no such folder, or no permission")
    if "readonly" in words:
        return StoreUnavailableError(f"{where} may not be written to")
    if "full" in words:
        return StoreFullError(f"{where} cannot be written: the disk is full")
    return StoreUnavailableError(f"{where} failed: {words}")
