"""What every metadata engine promises: one more in `support.store_contract.ENGINES` is held to it too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.cluster.store.protocol import (
    OPERATIONS_MAX,
    Absent,
    CompactedError,
    Compare,
    CreateRevisionIs,
    Entry,
    Event,
    EventBatch,
    MetadataStore,
    ModRevisionIs,
    SessionExpiredError,
    StoreUnavailableError,
    TxnResult,
    ValueIs,
)
from support.store_contract import ENGINES, EtcdEngine, StoreEngine

ETCD = "etcd"


@pytest.fixture(params=[*sorted(ENGINES), pytest.param(ETCD, marks=pytest.mark.heavy)])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreEngine]:
    if request.param == ETCD:
        engine: StoreEngine = EtcdEngine(request.getfixturevalue("etcd"))
    else:
        engine = ENGINES[request.param](tmp_path)
    yield engine
    await engine.stop()


@pytest.fixture
async def store(engine: StoreEngine) -> MetadataStore:
    return await engine.start()


async def put(store: MetadataStore, **values: str) -> int:
    result = await store.txn(puts={f"/t/{key}": value.encode() for key, value in values.items()})
    assert result.ok
    return result.revision


async def next_batch(watch: AsyncIterator[EventBatch]) -> EventBatch:
    async with asyncio.timeout(5):
        return await anext(watch)


# Reading and writing


async def test_an_empty_store_has_no_entries(store: MetadataStore) -> None:
    assert (await store.range("/t/")).entries == ()
    assert await store.get("/t/a") is None


async def test_a_put_is_read_back_with_its_revision(store: MetadataStore) -> None:
    revision = await put(store, a="1")
    entry = Entry("/t/a", b"1", create_revision=revision, mod_revision=revision)
    assert await store.get("/t/a") == entry
    found = await store.range("/t/")
    assert (found.entries, found.revision) == ((entry,), revision)


async def test_a_changed_key_keeps_its_create_revision(store: MetadataStore) -> None:
    created = await put(store, a="1")
    changed = await put(store, a="2")
    assert changed == created + 1
    assert await store.get("/t/a") == Entry("/t/a", b"2", created, changed)


async def test_a_key_created_again_has_a_new_create_revision(store: MetadataStore) -> None:
    await put(store, a="1")
    await store.txn(deletes=["/t/a"])
    created = await put(store, a="1")
    assert await store.get("/t/a") == Entry("/t/a", b"1", created, created)


async def test_a_range_is_sorted_and_keeps_to_its_prefix(store: MetadataStore) -> None:
    await store.txn(puts={"/t/b": b"", "/t/a": b"", "/t": b"", "/t0": b"", "/t/a/x": b"", "/u/": b"", "/s/z": b""})
    assert [entry.key for entry in (await store.range("/t/")).entries] == ["/t/a", "/t/a/x", "/t/b"]


async def test_an_empty_prefix_is_everything(store: MetadataStore) -> None:
    await store.txn(puts={"/t/b": b"", "~": b""})
    assert [entry.key for entry in (await store.range("")).entries] == ["/t/b", "~"]


async def test_values_are_any_bytes(store: MetadataStore) -> None:
    value = bytes(range(256)) * 40
    await store.txn(puts={"/t/a": value, "/t/b": b""})
    assert [entry.value for entry in (await store.range("/t/")).entries] == [value, b""]


async def test_one_transaction_has_one_revision(store: MetadataStore) -> None:
    await put(store, gone="1")
    result = await store.txn(puts={"/t/a": b"1", "/t/b": b"2"}, deletes=["/t/gone"])
    assert [entry.mod_revision for entry in (await store.range("/t/")).entries] == [result.revision] * 2


async def test_what_changes_nothing_takes_no_revision(store: MetadataStore) -> None:
    revision = await put(store, a="1")
    assert await store.txn(deletes=["/t/missing"]) == TxnResult(ok=True, revision=revision)
    assert await store.txn([ValueIs("/t/a", b"1")]) == TxnResult(ok=True, revision=revision)
    assert await store.txn([Absent("/t/a")], {"/t/a": b"2"}) == TxnResult(ok=False, revision=revision)


# Compares


async def test_every_compare_that_holds_lets_the_transaction_pass(store: MetadataStore) -> None:
    created = await put(store, a="1")
    changed = await put(store, a="2")
    compares: list[Compare] = [
        Absent("/t/missing"),
        ValueIs("/t/a", b"2"),
        CreateRevisionIs("/t/a", created),
        ModRevisionIs("/t/a", changed),
    ]
    assert (await store.txn(compares, {"/t/b": b"new"})).ok


@pytest.mark.parametrize(
    "compare",
    [
        Absent("/t/a"),
        ValueIs("/t/a", b"2"),
        ValueIs("/t/missing", b""),
        CreateRevisionIs("/t/a", 99_999_999),
        CreateRevisionIs("/t/missing", 0),
        ModRevisionIs("/t/a", 99_999_999),
        ModRevisionIs("/t/missing", 0),
    ],
    ids=repr,
)
async def test_one_compare_that_fails_leaves_everything_as_it_was(store: MetadataStore, compare: Compare) -> None:
    await put(store, a="1", gone="1")
    before = await store.range("")
    result = await store.txn([Absent("/t/b"), compare], {"/t/b": b"new", "/t/a": b"9"}, ["/t/gone"])
    assert result == TxnResult(ok=False, revision=before.revision)
    assert await store.range("") == before


async def test_counting_by_compare_and_set_loses_nothing(engine: StoreEngine, store: MetadataStore) -> None:
    await put(store, n="0")

    async def count(client: MetadataStore) -> None:
        for _ in range(20):
            done = False
            while not done:
                entry = await client.get("/t/n")
                assert entry is not None
                value = str(int(entry.value) + 1).encode()
                done = (await client.txn([ModRevisionIs("/t/n", entry.mod_revision)], {"/t/n": value})).ok

    await asyncio.gather(count(store), count(await engine.another_client()), count(store))
    entry = await store.get("/t/n")
    assert entry is not None
    assert entry.value == b"60"


async def test_a_key_twice_in_one_transaction_is_a_mistake(store: MetadataStore) -> None:
    with pytest.raises(AssertionError):
        await store.txn(puts={"/t/a": b""}, deletes=["/t/a"])


async def test_a_transaction_has_a_limit_of_operations(store: MetadataStore) -> None:
    assert (await store.txn(puts={f"/t/{number}": b"" for number in range(OPERATIONS_MAX)})).ok
    with pytest.raises(AssertionError):
        await store.txn(puts={f"/t/{number}": b"" for number in range(OPERATIONS_MAX + 1)})


async def test_a_large_transaction_compares_and_changes_as_one(store: MetadataStore) -> None:
    """As a controller's: sixty partitions, each with two compares."""
    keys = [f"/t/{number:03}" for number in range(120)]
    created = (await store.txn(puts=dict.fromkeys(keys, b"0"))).revision
    compares: list[Compare] = [ModRevisionIs(key, created) for key in keys]
    result = await store.txn(compares, dict.fromkeys(keys[:60], b"1"))
    assert result == TxnResult(ok=True, revision=created + 1)
    assert not (await store.txn(compares, dict.fromkeys(keys[60:], b"2"))).ok
    assert [entry.value for entry in (await store.range("/t/")).entries] == [b"1"] * 60 + [b"0"] * 60


async def test_a_transaction_has_a_limit_of_compares(store: MetadataStore) -> None:
    compares = [Absent(f"/t/{number}") for number in range(OPERATIONS_MAX)]
    assert (await store.txn(compares)).ok
    with pytest.raises(AssertionError):
        await store.txn([*compares, Absent("/t/more")])


# Watches


async def test_a_watch_tells_every_change_in_order(store: MetadataStore) -> None:
    first = await put(store, a="1")
    second = await put(store, a="2", b="1")
    third = (await store.txn(deletes=["/t/a"])).revision
    watch = store.watch("/t/", first)
    assert await next_batch(watch) == EventBatch(first, (Event("/t/a", b"1", first, first),))
    batch = await next_batch(watch)
    assert batch.revision == second
    assert set(batch.events) == {Event("/t/a", b"2", first, second), Event("/t/b", b"1", second, second)}
    assert await next_batch(watch) == EventBatch(third, (Event("/t/a", None, first, third),))


async def test_a_watch_starts_where_it_is_told(store: MetadataStore) -> None:
    await put(store, a="1")
    second = await put(store, a="2")
    assert (await next_batch(store.watch("/t/", second))).revision == second


async def test_a_watch_waits_for_what_comes(store: MetadataStore) -> None:
    current = await store.range("/t/")
    waiting = asyncio.ensure_future(next_batch(store.watch("/t/", current.revision + 1)))
    await store.txn(puts={"/other/a": b""})
    await asyncio.sleep(0)
    assert not waiting.done()
    revision = await put(store, a="1")
    assert (await waiting).revision == revision


async def test_a_watch_from_the_future_skips_what_lies_before(store: MetadataStore) -> None:
    revision = await put(store, a="1")
    waiting = asyncio.ensure_future(next_batch(store.watch("/t/", revision + 3)))
    for number in range(3):
        await put(store, a=str(number))
    assert (await waiting).revision == revision + 3


async def test_a_watch_leaves_out_other_prefixes(store: MetadataStore) -> None:
    result = await store.txn(puts={"/t/a": b"", "/other/a": b"", "/t": b"", "/t0": b""})
    batch = await next_batch(store.watch("/t/", result.revision))
    assert [event.key for event in batch.events] == ["/t/a"]


async def test_a_watch_sees_what_another_client_does(engine: StoreEngine, store: MetadataStore) -> None:
    another = await engine.another_client()
    start = (await store.range("/t/")).revision + 1
    watch = store.watch("/t/", start)
    revision = await put(another, a="1")
    assert (await next_batch(watch)).revision == revision


async def test_two_watches_both_see_everything(store: MetadataStore) -> None:
    start = (await store.range("/t/")).revision + 1
    watches = [store.watch("/t/", start), store.watch("/t/", start)]
    revisions = [await put(store, a=str(number)) for number in range(5)]
    for watch in watches:
        assert [(await next_batch(watch)).revision for _ in revisions] == revisions


async def test_range_then_watch_misses_nothing(engine: StoreEngine, store: MetadataStore) -> None:
    writer = await engine.another_client()

    async def write() -> None:
        for number in range(1, 40):
            await put(writer, n=str(number))

    await put(store, n="0")
    writing = asyncio.ensure_future(write())
    await store.get("/t/n")
    found = await store.range("/t/")
    last = int(found.entries[0].value)
    watch = store.watch("/t/", found.revision + 1)
    while last < 39:
        (event,) = (await next_batch(watch)).events
        assert event.value == str(last + 1).encode()
        last += 1
    await writing


async def test_a_long_history_comes_whole_and_in_order(store: MetadataStore) -> None:
    keys = [f"/t/{number}" for number in range(120)]
    revisions = [(await store.txn(puts=dict.fromkeys(keys, b"x"))).revision for _ in range(20)]
    watch = store.watch("/t/", revisions[0])
    for revision in revisions:
        batch = await next_batch(watch)
        assert (batch.revision, len(batch.events)) == (revision, len(keys))


async def test_a_revision_is_never_split_nor_merged(engine: StoreEngine, store: MetadataStore) -> None:
    """Whether a watch is there when they are made or comes later."""
    start = (await store.range("/t/")).revision + 1
    early = store.watch("/t/", start)
    value = b"v" * 2000
    sizes = [128, 1, 90, 128, 2]
    for size in sizes:
        await store.txn(puts={f"/t/{number}": value for number in range(size)})
    for watch in (early, (await engine.another_client()).watch("/t/", start)):
        batches = [await next_batch(watch) for _ in sizes]
        assert [batch.revision for batch in batches] == [start + place for place in range(len(sizes))]
        assert [len(batch.events) for batch in batches] == sizes


async def test_a_watch_may_begin_right_after_what_is_forgotten(engine: StoreEngine, store: MetadataStore) -> None:
    await put(store, a="1")
    await engine.forget_history()
    revision = (await store.txn(deletes=["/t/a"])).revision
    batch = await next_batch(store.watch("/t/", revision))
    assert [(event.key, event.value) for event in batch.events] == [("/t/a", None)]


async def test_a_watch_of_forgotten_history_says_so(engine: StoreEngine, store: MetadataStore) -> None:
    revision = await put(store, a="1")
    await engine.forget_history()
    with pytest.raises(CompactedError, match=f"history from revision {revision}"):
        await next_batch(store.watch("/t/", revision))
    current = await store.range("/t/")
    assert [entry.key for entry in current.entries] == ["/t/a"]
    watch = store.watch("/t/", current.revision + 1)
    revision = await put(store, a="2")
    assert (await next_batch(watch)).revision == revision


# Sessions


async def test_keys_of_a_closed_session_vanish_in_one_revision(engine: StoreEngine, store: MetadataStore) -> None:
    session = await store.open_session(engine.ttl_ms)
    bound = await store.txn(puts={"/t/a": b"", "/t/b": b""}, session=session)
    await put(store, free="1")
    await session.close()
    assert [entry.key for entry in (await store.range("/t/")).entries] == ["/t/free"]
    watch = store.watch("/t/", bound.revision + 2)
    batch = await next_batch(watch)
    assert {(event.key, event.value) for event in batch.events} == {("/t/a", None), ("/t/b", None)}


async def test_keys_vanish_when_the_session_is_not_kept_alive(engine: StoreEngine, store: MetadataStore) -> None:
    session = await store.open_session(engine.ttl_ms)
    bound = await store.txn(puts={"/t/a": b""}, session=session)
    watch = store.watch("/t/", bound.revision + 1)
    await engine.outlast(session)
    assert [event.value for event in (await next_batch(watch)).events] == [None]
    assert await store.get("/t/a") is None
    assert not await session.keep_alive()


async def test_a_session_kept_alive_keeps_its_keys(engine: StoreEngine, store: MetadataStore) -> None:
    session = await store.open_session(engine.ttl_ms)
    await store.txn(puts={"/t/a": b""}, session=session)
    for _ in range(3):
        await engine.pass_time(engine.ttl_ms * 2 // 3)
        assert await session.keep_alive()
    assert await store.get("/t/a") is not None


async def test_an_ended_session_takes_no_keys(engine: StoreEngine, store: MetadataStore) -> None:
    session = await store.open_session(engine.ttl_ms)
    await engine.outlast(session)
    with pytest.raises(SessionExpiredError):
        await store.txn(puts={"/t/a": b""}, session=session)
    assert await store.get("/t/a") is None


async def test_a_key_put_without_its_session_is_free_of_it(engine: StoreEngine, store: MetadataStore) -> None:
    session = await store.open_session(engine.ttl_ms)
    await store.txn(puts={"/t/a": b"bound"}, session=session)
    await put(store, a="free")
    await session.close()
    entry = await store.get("/t/a")
    assert entry is not None
    assert entry.value == b"free"


async def test_sessions_do_not_share_a_fate(engine: StoreEngine, store: MetadataStore) -> None:
    first, second = await store.open_session(engine.ttl_ms), await store.open_session(engine.ttl_ms)
    await store.txn(puts={"/t/first": b""}, session=first)
    await store.txn(puts={"/t/second": b""}, session=second)
    async with asyncio.timeout(20):
        while await store.get("/t/first") is not None:
            await engine.pass_time(engine.ttl_ms // 4)
            assert await second.keep_alive()
    assert [entry.key for entry in (await store.range("/t/")).entries] == ["/t/second"]


async def test_another_client_sees_a_session_end(engine: StoreEngine, store: MetadataStore) -> None:
    session = await store.open_session(engine.ttl_ms)
    bound = await store.txn(puts={"/t/a": b""}, session=session)
    another = await engine.another_client()
    watch = another.watch("/t/", bound.revision)
    assert [event.key for event in (await next_batch(watch)).events] == ["/t/a"]
    await session.close()
    assert [event.value for event in (await next_batch(watch)).events] == [None]


async def test_a_session_is_renewed_from_a_thread(engine: StoreEngine, store: MetadataStore) -> None:
    session = await store.open_session(engine.ttl_ms)
    renewer = session.renewer()
    if renewer is None:
        pytest.skip("this engine has nothing to offer to a thread")
    await store.txn(puts={"/t/a": b""}, session=session)

    def renew() -> bool:
        try:
            return renewer.renew()
        finally:
            renewer.close()

    for _ in range(3):
        await engine.pass_time(engine.ttl_ms * 2 // 3)
        assert await asyncio.to_thread(renew)
    assert await store.get("/t/a") is not None
    await session.close()
    assert not await asyncio.to_thread(renew)


async def test_nobody_is_dead_when_the_engine_comes_back(engine: StoreEngine, store: MetadataStore) -> None:
    session = await store.open_session(engine.ttl_ms)
    await store.txn(puts={"/t/a": b""}, session=session)
    await engine.be_away(2 * engine.ttl_ms)
    assert await store.get("/t/a") is not None
    assert await session.keep_alive()
    assert await store.get("/t/a") is not None
    # It is no pardon for ever.
    await engine.outlast(session)
    assert await store.get("/t/a") is None


# What may go wrong on the way


async def test_a_change_whose_answer_is_lost_raises_and_is_made_once(engine: StoreEngine, store: MetadataStore) -> None:
    deaf = await engine.client_without_replies()
    if deaf is None:
        pytest.skip("this engine loses no answers")
    before = (await store.range("/t/")).revision
    with pytest.raises(StoreUnavailableError, match="out of reach"):
        await put(deaf, a="1")
    watch = store.watch("/t/", before + 1)
    assert (await next_batch(watch)).revision == before + 1
    # Sent once, though there were others to send it to: nothing else comes.
    assert await put(store, b="2") == before + 2


async def test_the_engine_does_without_one_of_its_members(engine: StoreEngine, store: MetadataStore) -> None:
    start = await put(store, a="0")
    watch = store.watch("/t/", start)
    assert (await next_batch(watch)).revision == start
    session = await store.open_session(20 * engine.ttl_ms)
    if not await engine.lose_member():
        pytest.skip("this engine is made of one")
    async with asyncio.timeout(20):
        revision = await put_when_possible(store)
    async with asyncio.timeout(20):
        assert (await anext(watch)).revision == revision
    assert await session.keep_alive()


async def put_when_possible(store: MetadataStore) -> int:
    """Until another member leads, changes fail: each is read back before it is tried again."""
    while True:
        try:
            return await put(store, b="1")
        except StoreUnavailableError:
            pass
        while True:
            try:
                entry = await store.get("/t/b")
            except StoreUnavailableError:
                continue
            if entry is not None:
                return entry.mod_revision
            break


# The end


async def test_a_watch_ends_when_the_store_is_closed(store: MetadataStore) -> None:
    start = (await store.range("/t/")).revision + 1

    async def follow() -> list[EventBatch]:
        return [batch async for batch in store.watch("/t/", start)]

    following = asyncio.ensure_future(follow())
    revision = await put(store, a="1")
    await store.range("/t/")
    await store.close()
    async with asyncio.timeout(5):
        assert [batch.revision for batch in await following] in ([revision], [])


async def test_a_closed_store_says_that_it_is_closed(store: MetadataStore) -> None:
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailableError, match="is closed"):
        await store.get("/t/a")
