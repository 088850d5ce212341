"""A watch of one prefix that outlives its connections: it goes on with the next member, from the next revision.

    connect → "created" → is the history still there? → events, revision by revision
       ↑________ broken off, silent though the store went on, without a leader ________|

A connection may be silent because nothing happens, or because it is dead or its member is cut off from the others.
After `silence_ms_max` without a word the watch asks the store for its revision; if that has moved, it takes another
member. While something is written every second (a cluster's `tick`) that never happens to a watch that works.

It raises `StoreUnavailableError` when every member has failed one after the other and nothing came in between.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.cluster.store.etcd import messages
from penstock.cluster.store.etcd.client import REQUEST_SECONDS_MAX, EtcdClient
from penstock.cluster.store.etcd.connection import Connection
from penstock.cluster.store.etcd.faults import OUT_OF_RANGE, MemberFaultError, RefusedError, UnansweredError
from penstock.cluster.store.etcd.messages import KeyRoom, WatchResult
from penstock.cluster.store.etcd.wire import NEEDS_LEADER, ReplyReader
from penstock.cluster.store.protocol import CompactedError, EventBatch, StoreClosedError

# Five ticks of a cluster's controller.
SILENCE_MS_MAX: Final = 5000

# With one member too: the login may have run out, and is made anew for the second try.
_FAILURES_MIN: Final = 2

log = get_logger("metadata")


class SilentError(MemberFaultError):
    """Nothing came, and something may have been missed."""


class EtcdWatch:
    def __init__(
        self, client: EtcdClient, room: KeyRoom, prefix: str, from_revision: int, *, silence_ms_max: int
    ) -> None:
        self._client = client
        self._room = room
        self._where = room.range_of_prefix(prefix)
        self._next_revision = from_revision
        self._silence_seconds_max = silence_ms_max / 1000
        # Connections that failed since one was known to work.
        self._failures = 0

    async def batches(self) -> AsyncGenerator[EventBatch, None]:
        """Ends when the store is closed."""
        while not self._client.is_closed:
            try:
                async with aclosing(self._one_connection()) as batches:
                    async for batch in batches:
                        yield batch
            except StoreClosedError:
                return
            except SilentError as error:
                # No failure: others may write to the same etcd, under other prefixes.
                log.debug("watch begins anew", reason=str(error), from_revision=self._next_revision)
            except MemberFaultError as error:
                self._failures += 1
                if self._failures >= max(_FAILURES_MIN, len(self._client.members)) and not self._client.is_closed:
                    raise error.store_error() from error
                log.info("watch goes on with another member", reason=str(error), from_revision=self._next_revision)

    async def _one_connection(self) -> AsyncGenerator[EventBatch, None]:
        """Until it fails, or has been silent though it should not have been."""
        begin = {**self._where, "start_revision": self._next_revision, "prev_kv": True}
        connection, reply = await self._client.begin_watch({"create_request": begin}, extra=NEEDS_LEADER)
        try:
            await self._begun(connection, reply)
            while True:
                result = await self._next_result(connection, reply)
                for batch in self._room.batches(result.events):
                    self._next_revision = batch.revision + 1
                    self._failures = 0
                    yield batch
        except MemberFaultError as error:
            if isinstance(error, RefusedError) and error.wants_login:
                self._client.forget_login()
            self._client.leave(connection.member)
            raise
        finally:
            self._client.drop(connection)

    async def _begun(self, connection: Connection, reply: ReplyReader) -> None:
        try:
            line = await connection.next_line(reply, seconds_max=REQUEST_SECONDS_MAX)
        except TimeoutError as error:
            raise UnansweredError(connection.member, "did not begin a watch") from error
        await self._check_history(self._read(connection, line))

    async def _check_history(self, created: WatchResult) -> None:
        """etcd lets a watch begin at the very revision that it has compacted to, where versions before 3.5.16 have lost
        what was deleted. So the revision before must still be there too."""
        before = self._next_revision - 1
        if not 0 < before < created.header.revision:
            return
        body = {**self._where, "revision": before, "limit": 1, "keys_only": True}
        try:
            await self._client.call("kv/range", body, messages.range_reply)
        except RefusedError as error:
            if error.code == OUT_OF_RANGE:
                raise self._compacted(self._next_revision) from error
            raise

    async def _next_result(self, connection: Connection, reply: ReplyReader) -> WatchResult:
        while True:
            try:
                line = await connection.next_line(reply, seconds_max=self._silence_seconds_max)
            except TimeoutError as error:
                if await self._revision() >= self._next_revision:
                    raise SilentError(connection.member, "is silent though the metadata have changed") from error
                self._failures = 0
                continue
            return self._read(connection, line)

    async def _revision(self) -> int:
        body = {**self._where, "limit": 1, "count_only": True}
        return (await self._client.call("kv/range", body, messages.range_reply)).header.revision

    def _read(self, connection: Connection, line: bytes) -> WatchResult:
        result = _decode(connection, line)
        if result.compact_revision:
            raise self._compacted(result.compact_revision)
        if result.canceled:
            raise UnansweredError(connection.member, f"ended a watch: {result.cancel_reason or 'no reason given'}")
        return result

    def _compacted(self, compacted_revision: int) -> CompactedError:
        return CompactedError(from_revision=self._next_revision, compacted_revision=compacted_revision)


def _decode(connection: Connection, line: bytes) -> WatchResult:
    try:
        message = messages.watch_message.decode(line)
    except msgspec.DecodeError as error:
        raise UnansweredError(connection.member, f"answered with something else: {error}") from error
    if message.result is None:
        words = message.error.message if message.error is not None else "no reason given"
        raise UnansweredError(connection.member, f"ended a watch: {words}")
    return message.result
