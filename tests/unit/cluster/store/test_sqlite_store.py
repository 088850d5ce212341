"""SQLite's own troubles: damaged and foreign files, locks, kills, clocks that jump, several processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.base.clock import ManualClock, SystemClock
from penstock.cluster.store.protocol import Absent, CompactedError, StoreDamagedError, StoreUnavailableError
from penstock.cluster.store.sqlite import SqliteStore

SOURCE = Path(__file__).parents[4] / "src"

WRITER = """
import asyncio, sys
from penstock.base.clock import SystemClock
from penstock.cluster.store.sqlite import SqliteStore

async def main(path, name):
    store = await SqliteStore.open(path, clock=SystemClock())
    print("open", flush=True)
    number = 0
    while True:
        await store.txn(puts={f"/t/{name}/{number:06}": b"v" * 500, f"/last/{name}": str(number).encode()})
        print(number, flush=True)
        number += 1

asyncio.run(main(*sys.argv[1:]))
"""

HOLDER = """
import asyncio, sys, threading, time
from penstock.base.clock import SystemClock
from penstock.cluster.store.sqlite import SqliteStore

def renew(renewer):
    while renewer.renew():
        print("renewed", flush=True)
        time.sleep(0.25)

async def main(path):
    store = await SqliteStore.open(path, clock=SystemClock())
    session = await store.open_session(500)
    await store.txn(puts={"/t/held": b""}, session=session)
    renewing = threading.Thread(target=renew, args=[session.renewer()])
    renewing.start()
    renewing.join()

asyncio.run(main(sys.argv[1]))
"""


@contextmanager
def writer(path: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    with another_process(WRITER, str(path), name) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process


@contextmanager
def another_process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def acknowledged(process: subprocess.Popen[str], count: int) -> list[int]:
    return [int(line) for line in lines(process, count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


# What was acknowledged is there


async def test_what_a_killed_process_had_acknowledged_is_there(path: Path) -> None:
    for life in range(3):
        with writer(path, f"life{life}") as process:
            acked = acknowledged(process, 25 + 10 * life)
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            # A line may be cut by the kill; only whole ones were told.
            acked += [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        store = await SqliteStore.open(path, clock=SystemClock())
        keys = [entry.key for entry in (await store.range(f"/t/life{life}/")).entries]
        last = await store.get(f"/last/life{life}")
        await store.close()
        assert keys[: len(acked)] == [f"/t/life{life}/{number:06}" for number in acked]
        # All or nothing: the two keys of a transaction agree, acknowledged or not.
        assert last is not None
        assert keys[-1] == f"/t/life{life}/{int(last.value):06}"


async def test_everything_is_there_after_a_clean_close(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock())
    revision = (await store.txn(puts={"/t/a": b"1"})).revision
    await store.close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    store = await SqliteStore.open(path, clock=SystemClock())
    assert (await store.txn(puts={"/t/b": b"2"})).revision == revision + 1
    watch = store.watch("/t/", revision)
    assert [(await anext(watch)).revision for _ in range(2)] == [revision, revision + 1]
    await store.close()


# Several processes on one file


async def test_processes_on_one_file_take_turns_and_see_each_other(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock(), poll_ms=5)
    watch = store.watch("/t/", 1)
    with writer(path, "first") as first, writer(path, "second") as second:
        for process in (first, second):
            acknowledged(process, 20)
        for number in range(20):
            assert (await store.txn(puts={f"/own/{number}": b""})).ok
        seen: dict[str, int] = {}
        revision = 0
        async with asyncio.timeout(20):
            while min(seen.get("first", 0), seen.get("second", 0)) < 20:
                batch = await anext(watch)
                assert batch.revision > revision
                revision = batch.revision
                (event,) = batch.events
                _, _, name, number_text = event.key.split("/")
                assert int(number_text) == seen.get(name, 0)
                seen[name] = int(number_text) + 1
    await store.close()


async def test_many_stores_may_create_the_file_at_once(path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(path, clock=SystemClock()) for _ in range(8)))
    made = [(await store.txn([Absent("/t/once")], {"/t/once": b""})).ok for store in stores]
    assert made.count(True) == 1
    for store in stores:
        await store.close()


async def test_one_of_two_processes_may_be_killed_while_the_other_goes_on(path: Path) -> None:
    with writer(path, "first") as first, writer(path, "second") as second:
        acknowledged(first, 5)
        first.kill()
        assert len(acknowledged(second, 20)) == 20


# Watches


async def test_writes_through_the_store_wake_its_watches_without_polling(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock(), poll_ms=3_600_000)
    watch = store.watch("/t/", 1)
    waiting = asyncio.ensure_future(anext(watch))
    await store.range("/t/")
    async with asyncio.timeout(5):
        session = await store.open_session(10_000)
        first = await store.txn(puts={"/t/a": b""}, session=session)
        assert (await waiting).revision == first.revision
        waiting = asyncio.ensure_future(anext(watch))
        await store.range("/t/")
        await session.close()
        assert (await waiting).revision == first.revision + 1
    await store.close()


async def test_history_ends_exactly_where_it_says(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock(), history_revisions=5)
    for _ in range(10):
        await store.txn(puts={"/t/a": b""})
    with pytest.raises(CompactedError) as caught:
        await anext(store.watch("/t/", 5))
    assert caught.value.compacted_revision == 5
    assert (await anext(store.watch("/t/", 6))).revision == 6
    await store.close()


# Sessions and clocks


async def open_quiet(path: Path, clock: ManualClock, *, boot_id: str = "this boot") -> SqliteStore:
    """Looks only when the test says so."""
    return await SqliteStore.open(path, clock=clock, poll_ms=3_600_000, boot_id=boot_id)


async def pass_time(clock: ManualClock, milliseconds: int, *stores: SqliteStore) -> None:
    """While they look all the time."""
    for _ in range(10):
        clock.advance_ms(milliseconds // 10)
        for store in stores:
            await store.poll()


async def test_a_wall_clock_that_is_set_ends_no_session(path: Path) -> None:
    clock = ManualClock()
    store = await open_quiet(path, clock)
    session = await store.open_session(10_000)
    await store.txn(puts={"/t/a": b""}, session=session)
    for step_ms in (86_400_000, -2 * 86_400_000):
        clock.step_wall_ms(step_ms)
        await store.poll()
        assert await store.get("/t/a") is not None
    await pass_time(clock, 11_000, store)
    assert await store.get("/t/a") is None
    await store.close()


async def test_whoever_was_away_ends_nobody_for_one_ttl(path: Path) -> None:
    clock = ManualClock()
    store = await open_quiet(path, clock)
    session = await store.open_session(10_000)
    await store.txn(puts={"/t/a": b""}, session=session)
    clock.advance_ms(60_000)
    await store.poll()
    await pass_time(clock, 9_000, store)
    assert await store.get("/t/a") is not None
    await pass_time(clock, 2_000, store)
    assert await store.get("/t/a") is None
    await store.close()


async def test_whoever_was_not_away_ends_sessions_in_time(path: Path) -> None:
    clock = ManualClock()
    slept, awake = await open_quiet(path, clock), await open_quiet(path, clock)
    session = await slept.open_session(10_000)
    await slept.txn(puts={"/t/a": b""}, session=session)
    await pass_time(clock, 11_000, awake)
    assert await awake.get("/t/a") is None
    assert not await session.keep_alive()
    await slept.close()
    await awake.close()


@pytest.mark.parametrize(("uptime_before_ms", "uptime_ms"), [(1_000_000, 0), (0, 1_000_000)])
async def test_a_session_of_an_earlier_boot_gets_one_more_ttl(
    path: Path, uptime_before_ms: int, uptime_ms: int
) -> None:
    clock = ManualClock()
    clock.advance_ms(uptime_before_ms)
    before = await open_quiet(path, clock, boot_id="first boot")
    session = await before.open_session(10_000)
    await before.txn(puts={"/t/a": b""}, session=session)
    await before.close()
    # The machine's monotonic clock begins anew.
    clock = ManualClock()
    clock.advance_ms(uptime_ms)
    after = await open_quiet(path, clock, boot_id="second boot")
    await pass_time(clock, 9_000, after)
    assert await after.get("/t/a") is not None
    await pass_time(clock, 2_000, after)
    assert await after.get("/t/a") is None
    await after.close()


async def test_a_store_whose_sessions_go_by_the_wall_clock_is_brought_up(path: Path) -> None:
    clock = ManualClock()
    store = await open_quiet(path, clock)
    session = await store.open_session(10_000)
    await store.txn(puts={"/t/a": b""}, session=session)
    await store.close()
    database = sqlite3.connect(path)
    database.execute("ALTER TABLE sessions DROP COLUMN boot")
    database.execute("UPDATE sessions SET deadline_ms = ?", (clock.now_ms() + 10_000,))
    database.execute("PRAGMA user_version = 2")
    database.commit()
    database.close()
    store = await open_quiet(path, clock)
    await pass_time(clock, 9_000, store)
    assert await store.get("/t/a") is not None
    await pass_time(clock, 2_000, store)
    assert await store.get("/t/a") is None
    await store.close()


async def test_a_renewal_in_a_thread_needs_no_sync_and_makes_no_file(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock())
    session = await store.open_session(10_000)
    renewer = session.renewer()
    assert renewer is not None

    def renew() -> int:
        assert renewer.renew()
        assert renewer._database is not None
        level = int(renewer._database.execute("PRAGMA synchronous").fetchone()[0])
        renewer.close()
        return level

    assert await asyncio.to_thread(renew) == 1
    await store.close()
    os.unlink(path)
    with pytest.raises(StoreUnavailableError, match="not renewed"):
        await asyncio.to_thread(renew)
    assert os.listdir(path.parent) == []


async def test_sessions_outlive_a_restart_of_the_store(path: Path) -> None:
    clock = ManualClock()
    store = await SqliteStore.open(path, clock=clock)
    session = await store.open_session(10_000)
    await store.txn(puts={"/t/a": b""}, session=session)
    await store.close()
    clock.advance_ms(9_000)
    store = await SqliteStore.open(path, clock=clock)
    assert await store.get("/t/a") is not None
    clock.advance_ms(1_001)
    assert await store.get("/t/a") is None
    await store.close()


async def test_a_process_that_dies_is_seen_to_by_the_other(path: Path) -> None:
    """Two real processes on one file: one renews its session in a thread until it is killed."""
    store = await SqliteStore.open(path, clock=SystemClock())
    watch = store.watch("/t/", 1)
    with another_process(HOLDER, str(path)) as process:
        async with asyncio.timeout(20):
            assert [event.key for event in (await anext(watch)).events] == ["/t/held"]
        # Three TTLs of renewals, while its loop does nothing.
        assert lines(process, 6) == ["renewed\n"] * 6
        assert await store.get("/t/held") is not None
        process.kill()
        async with asyncio.timeout(20):
            assert [event.value for event in (await anext(watch)).events] == [None]
    await store.close()


# Files that cannot be used


async def test_a_missing_folder_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"missing/m.sqlite cannot be opened: no such folder"):
        await SqliteStore.open(tmp_path / "missing" / "m.sqlite", clock=SystemClock())


async def test_a_folder_in_place_of_the_file_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        await SqliteStore.open(tmp_path, clock=SystemClock())


async def open_and_close(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock())
    await store.close()


def test_a_file_that_is_no_database_is_not_touched(path: Path) -> None:
    path.write_bytes(b"not a database at all\n" * 500)
    with pytest.raises(StoreDamagedError, match="damaged or not a database"):
        asyncio.run(open_and_close(path))
    assert path.read_bytes() == b"not a database at all\n" * 500


def test_somebody_elses_database_is_not_touched(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE theirs (id INTEGER)")
    database.commit()
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreDamagedError, match="database of something else"):
        asyncio.run(open_and_close(path))
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(path: Path) -> None:
    asyncio.run(open_and_close(path))
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreDamagedError, match="its format is 99"):
        asyncio.run(open_and_close(path))


async def test_a_damaged_page_is_told_and_not_served(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock())
    await store.txn(puts={f"/t/{number}": b"v" * 2000 for number in range(100)})
    await store.close()
    overwrite_from(path, 8192)
    with pytest.raises(StoreDamagedError, match="is damaged"):
        await read_everything(path)


def overwrite_from(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position:] = b"\x5a" * (len(data) - position)
    path.write_bytes(data)


async def read_everything(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock())
    try:
        await store.range("")
    finally:
        await store.close()


async def test_a_file_locked_for_too_long_fails_the_transaction_but_not_the_store(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock(), busy_ms=20)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="held by another process"):
        await store.txn(puts={"/t/a": b""})
    assert (await store.range("/t/")).entries == ()
    other.execute("ROLLBACK")
    assert (await store.txn(puts={"/t/a": b""})).ok
    other.close()
    await store.close()


async def test_a_full_disk_changes_nothing_and_passes(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock())
    await store.txn(puts={"/t/a": b"1"})
    database = store._tables._database
    await store._run(lambda: database.execute("PRAGMA max_page_count = 12").fetchall())
    with pytest.raises(StoreUnavailableError, match="disk is full"):
        await store.txn(puts={"/t/b": b"v" * 100_000})
    assert [entry.key for entry in (await store.range("/t/")).entries] == ["/t/a"]
    await store._run(lambda: database.execute("PRAGMA max_page_count = 1000000").fetchall())
    assert (await store.txn(puts={"/t/b": b"v" * 100_000})).ok
    await store.close()


async def test_writes_are_synced_before_they_are_acknowledged(path: Path) -> None:
    store = await SqliteStore.open(path, clock=SystemClock())
    database = store._tables._database
    mode = await store._run(lambda: database.execute("PRAGMA journal_mode").fetchone()[0])
    synchronous = await store._run(lambda: database.execute("PRAGMA synchronous").fetchone()[0])
    await store.close()
    assert (mode, synchronous) == ("wal", 2)


def modes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}


async def test_only_its_owner_may_read_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    store = await SqliteStore.open(path, clock=SystemClock())
    await store.txn(puts={"/a": b"1"})
    assert modes(tmp_path) == {
        "metadata.sqlite": 0o600,
        "metadata.sqlite-wal": 0o600,
        "metadata.sqlite-shm": 0o600,
    }
    await store.close()
    # As an earlier version left it.
    path.chmod(0o644)
    store = await SqliteStore.open(path, clock=SystemClock())
    assert path.stat().st_mode & 0o777 == 0o600
    await store.close()


async def test_old_values_of_secret_keys_are_nowhere_in_the_files(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"

    def files() -> bytes:
        return b"".join(file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm"))

    # A version that kept them.
    store = await SqliteStore.open(path, clock=SystemClock())
    for value in (b"first secret", b"second secret"):
        await store.txn(puts={"/users/a": value})
    await store.close()
    assert b"first secret" in files()
    store = await SqliteStore.open(path, clock=SystemClock(), is_secret=lambda key: key.startswith("/users/"))
    watch = store.watch("/", 1)
    assert (await anext(watch)).events[0].value == b"second secret"
    await store.txn(puts={"/users/a": b"third secret", "/users/b": b"fourth secret"})
    await store.txn(deletes=["/users/b"])
    data = files()
    assert b"third secret" in data
    assert [old for old in (b"first secret", b"second secret", b"fourth secret") if old in data] == []
    assert {event.key: event.value for batch in [await anext(watch), await anext(watch)] for event in batch.events} == {
        "/users/a": b"third secret",
        "/users/b": None,
    }
    await store.close()
