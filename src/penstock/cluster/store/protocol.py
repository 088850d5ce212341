"""What every metadata engine does: a small, strictly ordered store of keys that nodes share.

It is etcd's model, cut to what is needed. Every transaction that changes something gets the next *revision*;
a key remembers the revision that created it and the one that changed it last. Whoever has read everything at
revision r and watches from r + 1 has missed nothing.

Rules for callers:
- A transaction that raises may or may not have happened. Read again before trying again; never repeat it
  blindly.
- A key stands at most once among a transaction's puts and deletes, and a transaction has at most
  `OPERATIONS_MAX` of them, and at most as many compares.
- A watch whose start is older than the kept history raises `CompactedError`: range again, watch from there.
- A watch ends when the store is closed. While the engine is out of reach it raises; resume by revision.
- Keys bound to a session vanish together, in one revision, when it is closed or not kept alive for its TTL.
  That gives liveness and nothing else: a paused process does not know that its session has ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

# etcd's own limit (--max-txn-ops) is 128.
OPERATIONS_MAX: Final = 128

NOTHING: Final[Mapping[str, bytes]] = MappingProxyType({})


class StoreError(Exception):
    """The metadata store failed; the text is one sentence for the operator."""


class StoreUnavailableError(StoreError):
    """The engine cannot be reached or cannot do its work."""


class StoreFullError(StoreUnavailableError):
    """The engine's disk has no room: what is there can be read, nothing can be changed."""


class StoreClosedError(StoreUnavailableError):
    """This node has closed the store."""


class StoreDamagedError(StoreError):
    """What the engine holds cannot be read."""


class SessionExpiredError(StoreError):
    """The session has ended, so nothing can be bound to it any more."""


class CompactedError(StoreError):
    """The history that a watch asked for is gone."""

    def __init__(self, *, from_revision: int, compacted_revision: int) -> None:
        super().__init__(f"the history from revision {from_revision} on is gone, it begins at {compacted_revision + 1}")
        self.compacted_revision = compacted_revision


class Entry(msgspec.Struct, frozen=True):
    key: str
    value: bytes
    create_revision: int
    mod_revision: int


class Range(msgspec.Struct, frozen=True):
    """All entries under a prefix, by key, as they stood together at `revision`."""

    entries: tuple[Entry, ...]
    revision: int


class Absent(msgspec.Struct, frozen=True):
    key: str


class ValueIs(msgspec.Struct, frozen=True):
    key: str
    value: bytes


class CreateRevisionIs(msgspec.Struct, frozen=True):
    key: str
    revision: int


class ModRevisionIs(msgspec.Struct, frozen=True):
    key: str
    revision: int


Compare = Absent | ValueIs | CreateRevisionIs | ModRevisionIs


class TxnResult(msgspec.Struct, frozen=True):
    """`ok` is False if a compare failed: then nothing was changed. `revision` is the store's afterwards."""

    ok: bool
    revision: int


class Event(msgspec.Struct, frozen=True):
    """A key was put, or deleted: then `value` is None, and the create revision 0 if the engine has forgotten it."""

    key: str
    value: bytes | None
    create_revision: int
    mod_revision: int


class EventBatch(msgspec.Struct, frozen=True):
    """What one revision changed under the watched prefix. Never split, never merged with another."""

    revision: int
    events: tuple[Event, ...]


class SessionRenewer(Protocol):
    """Renews one session from a thread, which alone uses it; it blocks, and shares nothing with the loop."""

    def renew(self) -> bool:
        """As `keep_alive`."""
        ...

    def close(self) -> None: ...


class StoreSession(Protocol):
    @property
    def id(self) -> int: ...

    @property
    def ttl_ms(self) -> int: ...

    async def keep_alive(self) -> bool:
        """Renews the TTL. False: the session had ended and its keys are gone; open another."""
        ...

    def renewer(self) -> SessionRenewer | None:
        """For a thread. None: this engine has none to offer, and `keep_alive` is asked on the loop."""
        ...

    async def close(self) -> None: ...


class MetadataStore(Protocol):
    async def get(self, key: str) -> Entry | None: ...

    async def range(self, prefix: str) -> Range: ...

    async def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] = NOTHING,
        deletes: Sequence[str] = (),
        session: StoreSession | None = None,
    ) -> TxnResult:
        """All or nothing. Puts are bound to `session`, or freed from an earlier one if there is none."""
        ...

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[EventBatch]:
        """Every change from `from_revision` on, that one included, in order. It may lie in the future."""
        ...

    async def open_session(self, ttl_ms: int) -> StoreSession: ...

    def keep_copy(self) -> None:
        """Called when the store is known to be the right one: an engine that keeps a copy of everything for the day it
        is lost begins to."""
        ...

    async def close(self) -> None: ...


def check_operations(puts: Mapping[str, bytes], deletes: Sequence[str], compares: Sequence[Compare] = ()) -> None:
    """What each engine asserts first, so that a mistake shows on every one of them."""
    assert len(compares) <= OPERATIONS_MAX, f"{len(compares)} compares in one transaction"
    keys = [*puts, *deletes]
    assert len(keys) <= OPERATIONS_MAX, f"{len(keys)} operations in one transaction"
    assert len(set(keys)) == len(keys), "a key stands twice in one transaction"
    # Engines order keys by their bytes; for ASCII that is also Python's order.
    assert all(key and key.isascii() for key in keys)


def prefix_end(prefix: str) -> str:
    """The first key after all that begin with `prefix`."""
    assert prefix.isascii()
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "\x7f"
