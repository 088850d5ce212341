"""Who a node is to the others, and which of them may talk to each other.

Rules:
- Nodes of another cluster are strangers, whatever they know: an address may have been given to somebody else.
- Both act by the same feature level. One that acts by another reads the same request in another way, and would find
  that out too late.
"""

from __future__ import annotations

from typing import Final

import msgspec

# As whom every node logs in at every other.
NODE_USER: Final = "penstock.node"


class NodeIdentity(msgspec.Struct, frozen=True):
    cluster_id: str
    node_id: int
    # Its broker epoch: another one each time that it is registered.
    life: int
    feature_level: int


def login_password(secret: bytes) -> str:
    """What proves to be of the cluster. As text: a login's password is text."""
    return secret.hex()


def mismatch(one: NodeIdentity, other: NodeIdentity) -> str | None:
    """Why these two may not talk to each other, in a sentence for the log of either; None: they may."""
    if one.cluster_id != other.cluster_id:
        return (
            f"node {one.node_id} is of cluster {one.cluster_id!r}, node {other.node_id} of cluster {other.cluster_id!r}"
        )
    if one.feature_level != other.feature_level:
        return (
            f"node {one.node_id} acts by feature level {one.feature_level}, "
            f"node {other.node_id} by level {other.feature_level}"
        )
    return None
