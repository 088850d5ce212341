"""Rules and credentials in the metadata store: what one node writes every node sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.base.long_work import all_at_once
from penstock.cluster.catalog.access import AccessCatalog, AccessChange, AccessImage, AclsChanged, UserChanged
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Event, Range, StoreDamagedError
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.values import encode
from penstock.domain.security.access import Operation, ResourceType
from penstock.domain.security.acl import AclBinding, AclFilter, PatternType, Permission
from penstock.domain.security.scram import Mechanism, ScramCredential

KEYS = KeySpace()
ANYTHING = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)
CREDENTIAL = ScramCredential(Mechanism.SCRAM_SHA_256, 4096, b"salt", b"stored", b"server")


def rule(name: str) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, name, PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
    )


class Listening:
    """A node's catalog and what it was told."""

    def __init__(self, store: SqliteStore) -> None:
        self.catalog = AccessCatalog(MetadataWatch(store, KEYS))
        self.heard: list[AccessChange] = []
        self.woken = asyncio.Event()
        self.catalog.on_change(self._hear)

    def _hear(self, change: AccessChange) -> None:
        self.heard.append(change)
        self.woken.set()

    async def hear(self) -> AccessChange:
        async with asyncio.timeout(10):
            while not self.heard:
                self.woken.clear()
                await self.woken.wait()
        return self.heard.pop(0)


@asynccontextmanager
async def node(path: Path) -> AsyncIterator[Listening]:
    store = await SqliteStore.open(path / "metadata.sqlite", clock=SystemClock())
    listening = Listening(store)
    await listening.catalog.start()
    try:
        yield listening
    finally:
        await listening.catalog.stop()
        await store.close()


async def test_rule_of_one_node_reaches_the_other(tmp_path: Path) -> None:
    async with node(tmp_path) as first, node(tmp_path) as second:
        await first.catalog.create_acls([rule("b"), rule("a")])
        assert await second.hear() == AclsChanged((rule("a"), rule("b")))
        await second.catalog.delete_acls([rule("a")])
        assert all_at_once(second.catalog.matching(ANYTHING)) == [rule("b")]
        assert await first.hear() == AclsChanged((rule("a"), rule("b")))
        assert await first.hear() == AclsChanged((rule("b"),))


async def test_same_rule_twice_is_one_rule_and_no_change(tmp_path: Path) -> None:
    async with node(tmp_path) as only:
        await only.catalog.create_acls([rule("a")])
        await only.catalog.create_acls([rule("a")])
        assert only.heard == [AclsChanged((rule("a"),))]


async def test_node_that_starts_hears_of_everything(tmp_path: Path) -> None:
    async with node(tmp_path) as first:
        await first.catalog.create_acls([rule("a")])
        await first.catalog.replace_credentials("alice", [CREDENTIAL])
    async with node(tmp_path) as again:
        assert again.heard == [UserChanged("alice"), AclsChanged((rule("a"),))]
        assert again.catalog.users() == ["alice"]
        assert again.catalog.credentials("alice") == {Mechanism.SCRAM_SHA_256: CREDENTIAL}
        await again.catalog.replace_credentials("alice", [])
        assert again.catalog.users() == []


def test_image_follows_a_range_in_which_keys_are_gone() -> None:
    image = AccessImage(KEYS)
    image.apply([Event(KEYS.acl("x"), encode(rule("a")), 1, 1), Event(KEYS.user("bob"), encode([CREDENTIAL]), 1, 1)])
    assert image.users() == ["bob"]
    assert image.apply(image.events_to(Range((), 2))) == [UserChanged("bob"), AclsChanged(())]
    assert not image.bindings()
    assert not image.users()


def test_damaged_rule_changes_nothing() -> None:
    image = AccessImage(KEYS)
    with pytest.raises(StoreDamagedError):
        image.apply([Event(KEYS.acl("a"), encode(rule("a")), 1, 1), Event(KEYS.acl("b"), b"{", 1, 1)])
    assert not image.bindings()
