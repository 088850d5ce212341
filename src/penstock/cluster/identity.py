"""The cluster's own id: made once by whoever comes first, the same for all nodes ever after."""

from __future__ import annotations

import base64
from collections.abc import Callable

from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Absent, MetadataStore
from penstock.cluster.store.values import decode, encode


async def ensure_cluster_id(store: MetadataStore, keys: KeySpace, new_uuid: Callable[[], bytes]) -> str:
    # Asked first: on a full disk a start must not need a write for what is there already.
    entry = await store.get(keys.cluster_id)
    if entry is None:
        mine = _cluster_id(new_uuid)
        if (await store.txn([Absent(keys.cluster_id)], {keys.cluster_id: encode(mine)})).ok:
            return mine
        entry = await store.get(keys.cluster_id)
    assert entry is not None, "nobody deletes a cluster id"
    return decode(keys.cluster_id, entry.value, str)


def _cluster_id(new_uuid: Callable[[], bytes]) -> str:
    """22 characters, as Kafka writes a uuid. No dash in front, which tools would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(new_uuid()).rstrip(b"=").decode()
        assert len(text) == 22
        if not text.startswith("-"):
            return text
