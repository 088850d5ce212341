"""What is said to etcd's JSON gateway, and what it says.

Bytes are base64 and 64-bit numbers are texts in its JSON; fields that have their default are left out. Names are
etcd's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from penstock.cluster.store.protocol import (
    Absent,
    Compare,
    CreateRevisionIs,
    Entry,
    Event,
    EventBatch,
    ModRevisionIs,
    ValueIs,
    prefix_end,
)

Body = dict[str, Any]

# The least key there can be: etcd takes no empty one.
_FIRST_KEY: Final = "\0"
# A key that is there has a revision above 0, and one that is not has 0: no key has this one.
_NO_REVISION: Final = -1
_DELETE: Final = "DELETE"


class Header(msgspec.Struct, frozen=True):
    revision: int = 0


class KeyValue(msgspec.Struct, frozen=True):
    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0


class RangeReply(msgspec.Struct, frozen=True):
    header: Header
    kvs: tuple[KeyValue, ...] = ()


class TxnReply(msgspec.Struct, frozen=True):
    header: Header
    succeeded: bool = False


class GrantReply(msgspec.Struct, frozen=True):
    ID: int
    TTL: int


class KeepAliveResult(msgspec.Struct, frozen=True):
    # Left out, or 0: there is no such lease any more.
    TTL: int = 0


class KeepAliveReply(msgspec.Struct, frozen=True):
    result: KeepAliveResult


class RevokeReply(msgspec.Struct, frozen=True):
    header: Header


class VersionReply(msgspec.Struct, frozen=True):
    etcdserver: str


class AuthenticateReply(msgspec.Struct, frozen=True):
    token: str


class WatchedEvent(msgspec.Struct, frozen=True):
    kv: KeyValue
    type: str = "PUT"
    prev_kv: KeyValue | None = None


class WatchResult(msgspec.Struct, frozen=True):
    header: Header = Header()
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    events: tuple[WatchedEvent, ...] = ()


class Refusal(msgspec.Struct, frozen=True):
    """In 3.4 and 3.5 also with `error`, which 3.6 has no more."""

    message: str = ""
    code: int = 0


class WatchMessage(msgspec.Struct, frozen=True):
    """One line of a watch's endless reply: a result, or why it ends."""

    result: WatchResult | None = None
    error: Refusal | None = None


# Made here, not where they are used: a thread that renews leases reads too (see base/typed_values).
range_reply: Final = msgspec.json.Decoder(RangeReply, strict=False)
txn_reply: Final = msgspec.json.Decoder(TxnReply, strict=False)
grant_reply: Final = msgspec.json.Decoder(GrantReply, strict=False)
keep_alive_reply: Final = msgspec.json.Decoder(KeepAliveReply, strict=False)
revoke_reply: Final = msgspec.json.Decoder(RevokeReply, strict=False)
version_reply: Final = msgspec.json.Decoder(VersionReply)
authenticate_reply: Final = msgspec.json.Decoder(AuthenticateReply, strict=False)
refusal: Final = msgspec.json.Decoder(Refusal, strict=False)
watch_message: Final = msgspec.json.Decoder(WatchMessage, strict=False)


class KeyRoom:
    """Keys as nodes know them, and as they stand in an etcd that others may use too."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def range_of_key(self, key: str) -> Body:
        return {"key": self._inside(key)}

    def range_of_prefix(self, prefix: str) -> Body:
        begin = self._prefix + prefix
        return {"key": (begin or _FIRST_KEY).encode(), "range_end": prefix_end(begin).encode()}

    def transaction(
        self, compares: Sequence[Compare], puts: Mapping[str, bytes], deletes: Sequence[str], lease: int
    ) -> Body:
        changes: list[Body] = [{"request_delete_range": {"key": self._inside(key)}} for key in deletes]
        changes += [
            {"request_put": {"key": self._inside(key), "value": value, "lease": lease}} for key, value in puts.items()
        ]
        if not changes:
            # Without any operation etcd would compare with what one member happens to know: a read has it ask all.
            read = {"request_range": {"key": self._inside("/"), "keys_only": True}}
            return {"compare": self._compares(compares), "success": [read], "failure": [read]}
        return {"compare": self._compares(compares), "success": changes}

    def entry(self, found: KeyValue) -> Entry:
        return Entry(self._outside(found.key), found.value, found.create_revision, found.mod_revision)

    def batches(self, events: Sequence[WatchedEvent]) -> Iterator[EventBatch]:
        """A message holds whole revisions, one or several."""
        for revision, changes in groupby(events, key=lambda event: event.kv.mod_revision):
            yield EventBatch(revision, tuple(self._event(change) for change in changes))

    def _event(self, change: WatchedEvent) -> Event:
        key, revision = self._outside(change.kv.key), change.kv.mod_revision
        if change.type != _DELETE:
            return Event(key, change.kv.value, change.kv.create_revision, revision)
        created = 0 if change.prev_kv is None else change.prev_kv.create_revision
        return Event(key, None, created, revision)

    def _compares(self, compares: Sequence[Compare]) -> list[Body]:
        return [self._compare(compare) for compare in compares]

    def _compare(self, compare: Compare) -> Body:
        start = {"key": self._inside(compare.key), "result": "EQUAL"}
        match compare:
            case Absent():
                return {**start, "target": "CREATE", "create_revision": 0}
            case ValueIs(_, value):
                return {**start, "target": "VALUE", "value": value}
            case CreateRevisionIs(_, revision):
                return {**start, "target": "CREATE", "create_revision": revision or _NO_REVISION}
            case ModRevisionIs(_, revision):
                return {**start, "target": "MOD", "mod_revision": revision or _NO_REVISION}

    def _inside(self, key: str) -> bytes:
        return f"{self._prefix}{key}".encode()

    def _outside(self, key: bytes) -> str:
        return key.decode().removeprefix(self._prefix)
