"""Which number a node has that was not given one, and whether another has its directory."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cluster.catalog.nodes import NodeRecord
from penstock.cluster.generation import FIRST_GENERATION, generation_of
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Absent, MetadataStore, Range, StoreUnavailableError
from penstock.cluster.store.values import decode, encode
from penstock.domain.replication.membership import MemberRecord

FIRST_ID: Final = 1
# Nodes that are started at the same moment want the same number; each time one of them gets it.
_ATTEMPTS_MAX: Final = 100


class KnownNodes(msgspec.Struct, frozen=True):
    """The ids of those that ever were members, and of those that live; with the directory of each."""

    members: dict[int, str]
    living: dict[int, str]
    # The store's, when it was asked.
    revision: int
    # Of the metadata.
    generation: int = FIRST_GENERATION

    def has_only(self, node_id: int) -> bool:
        """Nobody else ever was a member: what was made before there were any is this node's."""
        return all(member == node_id for member in self.members)

    def copy_of(self, directory_id: str, *, node_id: int) -> int | None:
        """Another node that has this very directory."""
        owners = [*self.members.items(), *self.living.items()]
        others = sorted(owner for owner, its_id in owners if its_id == directory_id and owner != node_id)
        return others[0] if others else None

    @property
    def free_id(self) -> int:
        """The lowest that nobody ever had."""
        taken = {*self.members, *self.living}
        return next(number for number in range(FIRST_ID, len(taken) + FIRST_ID + 1) if number not in taken)


def known_nodes(current: Range, keys: KeySpace) -> KnownNodes:
    """By everything that is stored."""
    members = [entry for entry in current.entries if entry.key.startswith(keys.members)]
    living = [entry for entry in current.entries if entry.key.startswith(keys.nodes)]
    return KnownNodes(
        {keys.member_of(each.key): decode(each.key, each.value, MemberRecord).directory_id for each in members},
        {keys.node_of(each.key): decode(each.key, each.value, NodeRecord).directory_id for each in living},
        current.revision,
        generation_of({entry.key: entry.value for entry in current.entries}, keys).number,
    )


async def claim_node_id(store: MetadataStore, keys: KeySpace, known: KnownNodes, directory_id: str) -> int:
    """One that is this directory's from now on."""
    for _ in range(_ATTEMPTS_MAX):
        node_id = known.free_id
        key = keys.member(node_id)
        claim = {key: encode(MemberRecord(directory_id=directory_id))}
        if (await store.txn([Absent(key), Absent(keys.node(node_id))], claim)).ok:
            return node_id
        known = known_nodes(await store.range(keys.root), keys)
    raise StoreUnavailableError("others take every free node id, try again")
