"""The cluster's own id, and the secret that its nodes share: made once by whoever comes first, the same for all nodes
ever after."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TypeVar

from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Absent, MetadataStore
from penstock.cluster.store.values import decode, encode

T = TypeVar("T")


async def ensure_cluster_id(store: MetadataStore, keys: KeySpace, new_uuid: Callable[[], bytes]) -> str:
    return await _ensure(store, keys.cluster_id, str, lambda: _cluster_id(new_uuid))


async def ensure_cluster_secret(store: MetadataStore, keys: KeySpace, new_secret: Callable[[], bytes]) -> bytes:
    """What nodes prove themselves to each other with."""
    return await _ensure(store, keys.cluster_secret, bytes, new_secret)


async def _ensure(store: MetadataStore, key: str, kind: type[T], make: Callable[[], T]) -> T:
    # Asked first: on a full disk a start must not need a write for what is there already.
    entry = await store.get(key)
    if entry is None:
        mine = make()
        if (await store.txn([Absent(key)], {key: encode(mine)})).ok:
            return mine
        entry = await store.get(key)
    assert entry is not None, "nobody deletes it"
    return decode(key, entry.value, kind)


def _cluster_id(new_uuid: Callable[[], bytes]) -> str:
    """22 characters, as Kafka writes a uuid. No dash in front, which tools would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(new_uuid()).rstrip(b"=").decode()
        assert len(text) == 22
        if not text.startswith("-"):
            return text
