"""etcd's own troubles: members that refuse, are paused or all away; logins; versions; a watch that has gone silent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.cluster.store.etcd.client import CALL_SECONDS_MAX
from penstock.cluster.store.etcd.engine import EtcdStore, is_old
from penstock.cluster.store.protocol import CompactedError, StoreUnavailableError
from penstock.cluster.store.settings import EtcdLocation, EtcdMember, MetadataConfig
from support.programs.etcd import EtcdCluster, make_certificates, require_etcd

pytestmark = pytest.mark.heavy

# What a busy machine adds to a limit that was kept.
SLACK_SECONDS = 1.5


def location(cluster: EtcdCluster, *, first: int = 0) -> EtcdLocation:
    ports = cluster.ports[first:] + cluster.ports[:first]
    return EtcdLocation(tuple(EtcdMember("127.0.0.1", port) for port in ports), "/own")


async def open_store(cluster: EtcdCluster, *, first: int = 0, silence_ms_max: int = 60_000) -> EtcdStore:
    config = MetadataConfig(allow_old_etcd=True)
    return await EtcdStore.open(location(cluster, first=first), config, silence_ms_max=silence_ms_max)


@pytest.fixture
async def store(etcd: EtcdCluster) -> AsyncIterator[EtcdStore]:
    store = await open_store(etcd)
    yield store
    await store.close()


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds + SLACK_SECONDS


def follower(cluster: EtcdCluster) -> int:
    """Without it etcd goes on at once: nobody has to be elected."""
    return (cluster.leader() + 1) % 3


@contextlib.contextmanager
def paused(cluster: EtcdCluster, member: int) -> Iterator[None]:
    cluster.pause(member)
    try:
        yield
    finally:
        cluster.resume(member)


# Members


async def test_a_paused_member_is_left_for_the_next(etcd: EtcdCluster) -> None:
    member = follower(etcd)
    store = await open_store(etcd, first=member)
    await store.txn(puts={"/t/a": b"1"})
    with paused(etcd, member):
        with at_most(CALL_SECONDS_MAX):
            assert await store.get("/t/a") is not None
        # It is not asked a second time.
        with at_most(0):
            assert (await store.txn(puts={"/t/a": b"2"})).ok
    await store.close()


async def test_a_transaction_that_a_paused_member_has_is_not_sent_to_another(etcd: EtcdCluster) -> None:
    member = follower(etcd)
    store = await open_store(etcd, first=member)
    before = (await store.txn(puts={"/t/a": b"1"})).revision
    with paused(etcd, member):
        with pytest.raises(StoreUnavailableError, match="may have been made or not"):
            await store.txn(puts={"/t/a": b"2"})
        assert (await store.range("/t/")).revision == before
    await store.close()


async def test_everybody_away_is_said_in_time_and_in_one_sentence(etcd: EtcdCluster, store: EtcdStore) -> None:
    session = await store.open_session(60_000)
    renewer = session.renewer()
    etcd.stop()
    try:
        for call in (store.get("/t/a"), store.range("/t/"), store.txn(puts={"/t/a": b""}), session.keep_alive()):
            with (
                at_most(CALL_SECONDS_MAX),
                pytest.raises(StoreUnavailableError, match=r"^metadata is out of reach: etcd"),
            ):
                await call
        with pytest.raises(StoreUnavailableError, match="out of reach"):
            await anext(store.watch("/t/", 1))
        with pytest.raises(StoreUnavailableError, match="out of reach"):
            await asyncio.to_thread(renewer.renew)
    finally:
        etcd.start()
    assert await session.keep_alive()
    assert await asyncio.to_thread(renewer.renew)
    renewer.close()


async def test_without_a_majority_calls_end_in_time(etcd: EtcdCluster) -> None:
    alive = etcd.leader()
    store = await open_store(etcd, first=alive)
    others = [member for member in range(3) if member != alive]
    with contextlib.ExitStack() as pauses:
        for member in others:
            pauses.enter_context(paused(etcd, member))
        for call in (store.get("/t/a"), store.txn(puts={"/t/a": b""})):
            with at_most(CALL_SECONDS_MAX), pytest.raises(StoreUnavailableError, match="out of reach"):
                await call
    await store.close()


async def test_an_etcd_that_is_not_there_is_no_start(etcd: EtcdCluster) -> None:
    nobody = EtcdLocation((EtcdMember("127.0.0.1", 1),))
    with pytest.raises(StoreUnavailableError, match=r"etcd at http://127.0.0.1:1 cannot be connected to"):
        await EtcdStore.open(nobody, MetadataConfig())


async def test_something_that_is_no_etcd_is_told(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hello, who are you?\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnavailableError, match="does not speak HTTP"):
            await EtcdStore.open(EtcdLocation((EtcdMember("127.0.0.1", port),)), MetadataConfig())


# Watches


async def test_a_watch_goes_on_when_its_member_is_killed(etcd: EtcdCluster) -> None:
    member = follower(etcd)
    store = await open_store(etcd, first=member)
    revisions = [(await store.txn(puts={"/t/a": b"0"})).revision]
    watch = store.watch("/t/", revisions[0])
    seen = [(await anext(watch)).revision]
    etcd.kill_member(member)
    try:
        writer = await open_store(etcd, first=(member + 1) % 3)
        revisions += [(await writer.txn(puts={"/t/a": str(number).encode()})).revision for number in range(5)]
        async with asyncio.timeout(20):
            seen += [(await anext(watch)).revision for _ in range(5)]
        await writer.close()
    finally:
        etcd.restart(member)
    assert seen == revisions
    await store.close()


async def test_a_watch_that_has_gone_silent_is_found_out(etcd: EtcdCluster) -> None:
    """A paused member keeps its connections, and says nothing."""
    member = follower(etcd)
    store = await open_store(etcd, first=member, silence_ms_max=300)
    writer = await open_store(etcd, first=(member + 1) % 3)
    start = (await writer.txn(puts={"/t/a": b"0"})).revision
    watch = store.watch("/t/", start)
    assert (await anext(watch)).revision == start
    with paused(etcd, member):
        revision = (await writer.txn(puts={"/t/a": b"1"})).revision
        async with asyncio.timeout(20):
            assert (await anext(watch)).revision == revision
    await store.close()
    await writer.close()


async def test_an_idle_watch_in_an_etcd_that_others_use_stays(etcd: EtcdCluster) -> None:
    store = await open_store(etcd, silence_ms_max=100)
    start = (await store.range("/t/")).revision + 1
    waiting = asyncio.ensure_future(anext(store.watch("/t/", start)))
    for number in range(10):
        await store.txn(puts={"/others": str(number).encode()})
        done, _ = await asyncio.wait([waiting], timeout=0.15)
        assert not done
    revision = (await store.txn(puts={"/t/a": b""})).revision
    async with asyncio.timeout(20):
        assert (await waiting).revision == revision
    await store.close()


async def test_a_deletion_at_the_compacted_revision_is_not_missed(etcd: EtcdCluster, store: EtcdStore) -> None:
    """etcd before 3.5.16 lets a watch begin there, and tells nothing of it. Here it is history that is gone."""
    await store.txn(puts={"/t/a": b"1"})
    deleted = (await store.txn(deletes=["/t/a"])).revision
    await store.txn(puts={"/t/a": b"2"})
    etcd.call("kv/compaction", {"revision": str(deleted), "physical": True})
    with pytest.raises(CompactedError):
        await anext(store.watch("/t/", deleted))
    batch = await anext(store.watch("/t/", deleted + 1))
    assert batch.events[0].value == b"2"


# Logins and versions


def text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[EtcdCluster]:
    """One member that asks for a login, and lets `node` at its own prefix only."""
    with EtcdCluster(require_etcd(), tmp_path / "guarded", members=1) as cluster:
        cluster.call("auth/user/add", {"name": "root", "password": "root's"})
        cluster.call("auth/user/grant", {"user": "root", "role": "root"})
        cluster.call("auth/role/add", {"name": "penstock"})
        permission = {"permType": "READWRITE", "key": text("/own"), "range_end": text("/owo")}
        cluster.call("auth/role/grant", {"name": "penstock", "perm": permission})
        cluster.call("auth/user/add", {"name": "node", "password": "s3cret"})
        cluster.call("auth/user/grant", {"user": "node", "role": "penstock"})
        cluster.call("auth/enable", {})
        yield cluster


async def test_a_node_logs_in_and_does_so_again_when_its_login_has_run_out(guarded: EtcdCluster) -> None:
    config = MetadataConfig(user="node", password="s3cret", allow_old_etcd=True)
    store = await EtcdStore.open(location(guarded), config)
    session = await store.open_session(60_000)
    renewer = session.renewer()
    await store.txn(puts={"/t/a": b"1"}, session=session)
    start = (await store.range("/t/")).revision
    watch = store.watch("/t/", start)
    assert (await anext(watch)).revision == start
    # A member that starts anew knows no login of its life before.
    guarded.kill_member(0)
    guarded.restart_guarded(0)
    assert await asyncio.to_thread(renewer.renew)
    guarded.kill_member(0)
    guarded.restart_guarded(0)
    revision = (await store.txn(puts={"/t/a": b"2"})).revision
    async with asyncio.timeout(20):
        assert (await anext(watch)).revision == revision
    renewer.close()
    await store.close()


async def test_a_wrong_password_is_told_without_the_password(guarded: EtcdCluster) -> None:
    config = MetadataConfig(user="node", password="guessed", allow_old_etcd=True)
    with pytest.raises(StoreUnavailableError, match="authentication failed") as caught:
        await EtcdStore.open(location(guarded), config)
    assert "guessed" not in f"{caught.value!r} {config!r}"


async def test_what_a_node_may_not_touch_is_told(guarded: EtcdCluster) -> None:
    config = MetadataConfig(user="node", password="s3cret", allow_old_etcd=True)
    elsewhere = EtcdLocation(location(guarded).members, "/elsewhere")
    with pytest.raises(StoreUnavailableError, match="permission denied"):
        await EtcdStore.open(elsewhere, config)


async def test_certificates_are_shown_and_asked_for(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "certificates")
    with EtcdCluster(require_etcd(), tmp_path / "tls", members=1, certificates=files) as cluster:
        where = EtcdLocation((EtcdMember("127.0.0.1", cluster.ports[0], is_tls=True),), "/own")
        mine = MetadataConfig(
            ca_file=files.ca_file, cert_file=files.cert_file, key_file=files.key_file, allow_old_etcd=True
        )
        store = await EtcdStore.open(where, mine)
        session = await store.open_session(60_000)
        renewer = session.renewer()
        assert await asyncio.to_thread(renewer.renew)
        renewer.close()
        start = (await store.txn(puts={"/t/a": b"1"})).revision
        assert (await anext(store.watch("/t/", start))).revision == start
        await store.close()
        with pytest.raises(StoreUnavailableError, match="cannot be connected to: unable to get local issuer"):
            await EtcdStore.open(where, MetadataConfig(allow_old_etcd=True))
        with pytest.raises(StoreUnavailableError, match="out of reach"):
            await EtcdStore.open(where, MetadataConfig(ca_file=files.ca_file, allow_old_etcd=True))


async def test_certificates_that_are_not_there_are_named(tmp_path: Path) -> None:
    where = EtcdLocation((EtcdMember("127.0.0.1", 1, is_tls=True),))
    with pytest.raises(StoreUnavailableError, match=r"certificates cannot be read \(missing.pem\): no such file"):
        await EtcdStore.open(where, MetadataConfig(ca_file="missing.pem"))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.4.23", True),
        ("3.5.1", True),
        ("3.5.12", True),
        ("3.5.13", False),
        ("3.6.0", False),
        ("4.0.0", False),
        ("?", True),
    ],
)
def test_versions_that_lose_changes_are_known(version: str, expected: bool) -> None:
    assert is_old(version) is expected


async def test_an_old_version_is_refused_unless_it_is_meant(etcd: EtcdCluster) -> None:
    version = etcd.call("maintenance/status", {})["version"]
    if not is_old(version):
        pytest.skip(f"this etcd is new enough: {version}")
    with pytest.raises(StoreUnavailableError, match=rf"is of version {version}.* 3.5.13 and later are supported"):
        await EtcdStore.open(location(etcd), MetadataConfig())
