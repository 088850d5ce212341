"""The metadata store on etcd, for nodes on several machines, by its JSON gateway.

    await EtcdStore.open(location, config)   →   get, range, txn, watch, open_session   →   await close()

Every read asks a majority of etcd's members, as every change does. A transaction is sent once: if no answer comes,
it raises, and whether the change was made is not known. Reads and renewals are asked of the next member.

Secrets' old values stay in etcd's history until it is compacted: let etcd do that by itself (docs/metadata.md).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from penstock.base.log_events import get_logger
from penstock.cluster.store.etcd import messages
from penstock.cluster.store.etcd.access import Access
from penstock.cluster.store.etcd.client import EtcdClient
from penstock.cluster.store.etcd.faults import NOT_FOUND, MemberFaultError, RefusedError
from penstock.cluster.store.etcd.lease import EtcdSession
from penstock.cluster.store.etcd.messages import KeyRoom
from penstock.cluster.store.etcd.watch import SILENCE_MS_MAX, EtcdWatch
from penstock.cluster.store.protocol import (
    NOTHING,
    Compare,
    Entry,
    EventBatch,
    Range,
    SessionExpiredError,
    StoreSession,
    StoreUnavailableError,
    TxnResult,
    check_operations,
)
from penstock.cluster.store.settings import EtcdLocation, EtcdMember, MetadataConfig

# Versions before it may lose changes that a watch should have told of, after a compaction.
VERSION_MIN: Final = (3, 5, 13)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")

log = get_logger("metadata")


class EtcdStore:
    def __init__(self, location: EtcdLocation, access: Access, *, silence_ms_max: int = SILENCE_MS_MAX) -> None:
        """Use `open`, which also looks at etcd's version."""
        self._room = KeyRoom(location.prefix)
        self._client = EtcdClient(location.members, access)
        self._silence_ms_max = silence_ms_max

    @classmethod
    async def open(
        cls, location: EtcdLocation, config: MetadataConfig, *, silence_ms_max: int = SILENCE_MS_MAX
    ) -> EtcdStore:
        """Raises StoreUnavailableError if it cannot be read, or a member is of a version that is not to be trusted."""
        has_tls = any(member.is_tls for member in location.members)
        store = cls(location, Access(config, has_tls=has_tls), silence_ms_max=silence_ms_max)
        try:
            await store._check_versions(allow_old=config.allow_old_etcd)
            # There is a gateway, a majority, and we may read.
            await store.get("/")
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> Entry | None:
        found = await self._range(self._room.range_of_key(key))
        return found.entries[0] if found.entries else None

    async def range(self, prefix: str) -> Range:
        return await self._range(self._room.range_of_prefix(prefix))

    async def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] = NOTHING,
        deletes: Sequence[str] = (),
        session: StoreSession | None = None,
    ) -> TxnResult:
        check_operations(puts, deletes, compares)
        body = self._room.transaction(compares, puts, deletes, 0 if session is None else session.id)
        try:
            reply = await self._client.call("kv/txn", body, messages.txn_reply, is_repeatable=False)
        except RefusedError as error:
            if session is not None and error.status == NOT_FOUND and error.code:
                raise SessionExpiredError(f"session {session.id} has ended, so nothing can be bound to it") from error
            raise error.store_error() from error
        return TxnResult(ok=reply.succeeded, revision=reply.header.revision)

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[EventBatch]:
        watch = EtcdWatch(self._client, self._room, prefix, from_revision, silence_ms_max=self._silence_ms_max)
        async with aclosing(watch.batches()) as batches:
            async for batch in batches:
                yield batch

    async def open_session(self, ttl_ms: int) -> EtcdSession:
        assert ttl_ms > 0
        # Whole seconds; etcd itself gives no less than two.
        body = {"TTL": -(-ttl_ms // 1000)}
        try:
            reply = await self._client.call("lease/grant", body, messages.grant_reply)
        except RefusedError as error:
            raise error.store_error() from error
        return EtcdSession(self._client, reply.ID, ttl_ms)

    def keep_copy(self) -> None:
        """etcd has copies of its own; its snapshots are what an operator backs up."""

    async def close(self) -> None:
        await self._client.close()

    async def _range(self, where: messages.Body) -> Range:
        try:
            reply = await self._client.call("kv/range", where, messages.range_reply)
        except RefusedError as error:
            raise error.store_error() from error
        return Range(tuple(map(self._room.entry, reply.kvs)), reply.header.revision)

    async def _check_versions(self, *, allow_old: bool) -> None:
        """Of every member that answers; one is enough for a start."""
        answered = False
        fault: MemberFaultError | None = None
        for member in self._client.members:
            try:
                version = await self._client.version(member)
            except MemberFaultError as error:
                self._client.leave(member)
                fault = error
                continue
            answered = True
            if is_old(version):
                _refuse_old(member, version, allow_old=allow_old)
        if not answered:
            assert fault is not None, "there is always a member"
            raise fault.store_error() from fault


def is_old(version: str) -> bool:
    found = _VERSION.match(version)
    return found is None or tuple(map(int, found.groups())) < VERSION_MIN


def _refuse_old(member: EtcdMember, version: str, *, allow_old: bool) -> None:
    wanted = ".".join(map(str, VERSION_MIN))
    if not allow_old:
        raise StoreUnavailableError(
            f"etcd at {member} is of version {version}, which may lose changes; {wanted} and later are supported "
            "(--allow-old-etcd for development)"
        )
    log.warning("this etcd may lose changes: for development only", member=str(member), version=version, needed=wanted)
