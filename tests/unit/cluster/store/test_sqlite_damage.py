"""A metadata store whose file is damaged, gone or older than it was: never one entry fewer in silence."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from penstock.base.clock import ManualClock
from penstock.cluster.store.copy import SUFFIX, MetadataCopy, read_copy
from penstock.cluster.store.protocol import StoreDamagedError, StoreError, StoreSession
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.sqlite_format import EVENT_ROWS
from penstock.cluster.store.sqlite_salvage import salvage
from penstock.cluster.store.sqlite_tables import SqliteTables

# Some seconds; every place of the file was tried once, by hand.
FLIPS: Final = 400
HISTORY: Final = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


def content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b"nothing is there"


def put(path: Path, data: bytes | bytearray) -> None:
    path.write_bytes(data)


def mode(path: str) -> int:
    return Path(path).stat().st_mode & 0o777


async def open_store(path: Path) -> SqliteStore:
    return await SqliteStore.open(path, clock=ManualClock(), poll_ms=3_600_000, history_revisions=HISTORY)


async def fill(store: SqliteStore) -> None:
    for number in range(50):
        await store.txn(puts={f"/p/topics/t{number}": b'{"topic_id":"%d"}' % number * 20, "/p/ids": b"%d" % number})
    for number in range(0, 30, 3):
        await store.txn(deletes=[f"/p/topics/t{number}"])


async def stored(store: SqliteStore) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in (await store.range("/p/")).entries}


async def made(path: Path, *, keeps_copy: bool = False) -> dict[str, bytes]:
    store = await open_store(path)
    await fill(store)
    if keeps_copy:
        store.keep_copy()
        await store.poll()
    values = await stored(store)
    await store.close()
    return values


@pytest.mark.heavy
async def test_no_flipped_bit_takes_anything_away_in_silence(path: Path, tmp_path: Path) -> None:
    await made(path)
    raw = content(path)
    tables = SqliteTables(str(path), busy_ms=100, history_revisions=HISTORY)
    first = tables.rows()[1].compacted + 1
    wanted = tables.rows(), tables.events("/p/", first)
    tables.close()
    chance = random.Random(12)
    refused = 0
    for number in range(FLIPS):
        flipped = bytearray(raw)
        flipped[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        victim = tmp_path / f"{number}.sqlite"
        victim.write_bytes(flipped)
        try:
            store = await open_store(victim)
        except StoreError:
            refused += 1
            continue
        await store.close()
        tables = SqliteTables(str(victim), busy_ms=100, history_revisions=HISTORY)
        assert (tables.rows(), tables.events("/p/", first)) == wanted
        tables.close()
    assert refused > FLIPS // 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DELETE FROM entries WHERE key = '/p/topics/t1'", "39 entries, and should hold 40|40 entries.* hold 41"),
        ("UPDATE entries SET value = x'00' WHERE key = '/p/topics/t1'", "'/p/topics/t1' does not fit its checksum"),
        ("UPDATE entries SET key = '/p/topics/x1' WHERE key = '/p/topics/t1'", "'/p/topics/x1' does not fit"),
        ("UPDATE entries SET create_revision = 1 WHERE key = '/p/topics/t1'", "does not fit its checksum"),
        ("UPDATE counters SET value = 7 WHERE name = 'revision'", "counters do not fit their seal"),
        ("DELETE FROM counters WHERE name = 'seal'", "its counters are"),
        ("DELETE FROM events WHERE revision = (SELECT max(revision) - 3 FROM events)", "its history goes from"),
        ("DELETE FROM events WHERE revision = (SELECT max(revision) FROM events)", "its history ends at"),
        ("UPDATE events SET value = NULL", "does not fit its checksum"),
    ],
)
async def test_what_was_changed_behind_its_back_is_told(path: Path, change: str, said: str) -> None:
    await made(path)
    database = sqlite3.connect(path)
    database.execute(change)
    database.commit()
    database.close()
    with pytest.raises(StoreDamagedError, match=said):
        await open_store(path)


async def test_a_row_lost_while_the_store_is_open_is_no_deletion(path: Path) -> None:
    await made(path)
    store = await open_store(path)
    database = sqlite3.connect(path)
    database.execute("DELETE FROM entries WHERE key = '/p/topics/t1'")
    database.commit()
    database.close()
    with pytest.raises(StoreDamagedError, match="should hold"):
        await store.range("/p/topics/")
    await store.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "it is gone, but its copy .* is there"),
        (lambda path: path.write_bytes(b""), "it is empty, but its copy"),
        (lambda path: path.write_bytes(bytes(8192)), "damaged or not a database"),
    ],
)
async def test_a_store_that_is_gone_is_not_begun_anew(path: Path, damage: Callable[[Path], object], said: str) -> None:
    await made(path, keeps_copy=True)
    damage(path)
    before = content(path)
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match=said):
            await open_store(path)
    assert content(path) == before


async def test_a_store_without_its_last_changes_is_refused(path: Path, tmp_path: Path) -> None:
    store = await open_store(path)
    store.keep_copy()
    await store.txn(puts={"/p/topics/a": b"1"})
    await store.poll()
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    # The write-ahead log holds everything, and is lost.
    for name in (path.name, path.name + SUFFIX):
        shutil.copy(path.parent / name, crashed / name)
    with pytest.raises(StoreDamagedError, match=r"gone|older one|not a database|empty"):
        await open_store(crashed / path.name)
    await store.close()
    old = content(path)
    store = await open_store(path)
    store.keep_copy()
    await store.txn(puts={"/p/topics/b": b"1"})
    await store.close()
    put(path, old)
    with pytest.raises(StoreDamagedError, match=r"it is at revision 1, and its copy .* was made at 2"):
        await open_store(path)


async def test_the_copy_holds_everything_but_what_is_bound_to_a_session(path: Path) -> None:
    store = await open_store(path)
    await fill(store)
    store.keep_copy()
    session: StoreSession = await store.open_session(10_000)
    await store.txn(puts={"/p/nodes/1": b"here"}, session=session)
    wanted = await stored(store)
    del wanted["/p/nodes/1"]
    await store.close()
    copy = read_copy(str(path) + SUFFIX)
    assert isinstance(copy, MetadataCopy)
    assert {entry.key: entry.value for entry in copy.entries} == wanted
    assert mode(str(path) + SUFFIX) == 0o600


async def test_a_copy_that_a_kill_interrupted_is_gone_after_the_next_start(path: Path) -> None:
    """Whoever wrote it had another number, or the same one, as the first process of a container has."""
    wanted = await made(path, keeps_copy=True)
    copy = Path(str(path) + SUFFIX)
    left = [copy.with_name(f"{copy.name}.{process}.tmp") for process in (1, os.getpid(), 4_000_000)]
    others = [copy.with_name(f"{copy.name}.mine.tmp"), copy.with_name("another.sqlite.copy.1.tmp")]
    for each in (*left, *others):
        put(each, b"psmeta_1 and then")
    store = await open_store(path)
    assert [each for each in left if each.exists()] == []
    assert all(each.exists() for each in (copy, *others))
    assert await stored(store) == wanted
    await store.close()


async def test_a_damaged_copy_is_made_anew(path: Path) -> None:
    wanted = await made(path, keeps_copy=True)
    copy_path = Path(str(path) + SUFFIX)
    damaged = bytearray(content(copy_path))
    damaged[40] ^= 1
    put(copy_path, damaged)
    store = await open_store(path)
    store.keep_copy()
    await store.poll()
    assert await stored(store) == wanted
    await store.close()
    assert isinstance(read_copy(str(copy_path)), MetadataCopy)


async def test_a_store_of_the_format_without_checksums_is_brought_up(path: Path) -> None:
    wanted = await made(path)
    database = sqlite3.connect(path)
    for table in ("entries", "events"):
        database.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
    database.execute("ALTER TABLE sessions DROP COLUMN boot")
    database.execute("DELETE FROM counters WHERE name NOT IN ('revision', 'compacted')")
    database.execute("PRAGMA user_version = 1")
    database.commit()
    database.close()
    store = await open_store(path)
    assert await stored(store) == wanted
    await store.txn(puts={"/p/topics/new": b"1"})
    await store.close()
    store = await open_store(path)
    assert await stored(store) == {**wanted, "/p/topics/new": b"1"}
    await store.close()
    database = sqlite3.connect(path)
    assert all(row[-1] for row in database.execute(EVENT_ROWS))
    database.close()


async def test_what_is_whole_of_a_damaged_store_is_salvaged(path: Path) -> None:
    wanted = await made(path)
    assert salvage(str(path)).problem is None
    raw = content(path)
    place = raw.index(b"/p/topics/t1" + wanted["/p/topics/t1"])
    put(path, raw[: place + 20] + b"X" + raw[place + 21 :])
    found = salvage(str(path))
    assert found.problem is not None
    assert {entry.key for entry in found.entries} == set(wanted) - {"/p/topics/t1"}
    assert content(path)[place + 20 : place + 21] == b"X"
