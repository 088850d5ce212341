"""Elections that somebody asks for, by any node: the preferred replica is to lead again, or whoever is left although
something may be lost by it.

Who is asked need not be the controller: like a leader that hands over, it compares what it decided by, the partition's
state and the life of who is elected. A comparison that fails has changed nothing; the key is read and decided anew.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.cluster.catalog.nodes import NodeCatalog
from penstock.cluster.catalog.partition_image import Stated
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.controller.elections import Place, StateChange, minimum_of
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import CreateRevisionIs, MetadataStore, StoreUnavailableError
from penstock.cluster.store.values import decode, encode
from penstock.domain.replication.election import CHANGES_A_STEP_MAX, elect_preferred, elect_unclean
from penstock.domain.replication.state import PartitionState

# Others change the key by elections and by joining; who loses so often in a row should hear about it.
_ATTEMPTS_MAX: Final = 10

log = get_logger("controller")


class Wish(enum.Enum):
    PREFERRED = "preferred"
    # Also one that lacks something, where nobody else is there.
    UNCLEAN = "unclean"


class Elected(msgspec.Struct, frozen=True):
    leader: int
    epoch: int


class NotNeeded(msgspec.Struct, frozen=True):
    leader: int


class NotPossible(msgspec.Struct, frozen=True):
    reason: str


class NoPartition(msgspec.Struct, frozen=True):
    """There is none, or none any more."""


Outcome = Elected | NotNeeded | NotPossible | NoPartition


class RequestedElections:
    def __init__(self, store: MetadataStore, keys: KeySpace, topics: TopicCatalog, nodes: NodeCatalog) -> None:
        self._store = store
        self._keys = keys
        self._topics = topics
        self._nodes = nodes

    async def elect(self, places: Sequence[Place], wish: Wish) -> list[Outcome]:
        """One for each, in order. Raises StoreError: what was not told yet may or may not have happened."""
        outcomes: list[Outcome] = []
        for start in range(0, len(places), CHANGES_A_STEP_MAX):
            outcomes += await self._elect_some(places[start : start + CHANGES_A_STEP_MAX], wish)
        return outcomes

    async def _elect_some(self, places: Sequence[Place], wish: Wish) -> list[Outcome]:
        decided = [self._decide(place, self._topics.state(*place), wish) for place in places]
        changes = [each for each in decided if isinstance(each, StateChange)]
        if changes and not await self._write(changes, wish):
            # Somebody in there has changed meanwhile: each by itself, by what the store has.
            return [await self._elect_one(place, wish) for place in places]
        return [_elected(each) if isinstance(each, StateChange) else each for each in decided]

    async def _elect_one(self, place: Place, wish: Wish) -> Outcome:
        for _ in range(_ATTEMPTS_MAX):
            decided = self._decide(place, await self._read(place), wish)
            if not isinstance(decided, StateChange):
                return decided
            if await self._write([decided], wish):
                return _elected(decided)
        raise StoreUnavailableError(f"metadata key {self._keys.partition(*place)} is changed by others all the time")

    def _decide(self, place: Place, stated: Stated | None, wish: Wish) -> StateChange | Outcome:
        topic = self._topics.by_id(place[0])
        if topic is None or stated is None:
            return NoPartition()
        state, view = stated.state, self._nodes.view()
        leader = view.get(state.leader)
        is_led = leader is not None and leader.is_admitted and state.is_led_by(state.leader, leader.life)
        if is_led and (wish is Wish.UNCLEAN or state.leader == state.replicas[0]):
            return NotNeeded(state.leader)
        if wish is Wish.PREFERRED:
            after = elect_preferred(state, view)
        else:
            after = elect_unclean(state, view, minimum=minimum_of(topic, self._topics))
        if after is None or not after.has_leader:
            return NotPossible(_why_not(state, wish))
        return StateChange(place, stated, after)

    async def _write(self, changes: Sequence[StateChange], wish: Wish) -> bool:
        compares = [change.compare(self._keys) for change in changes]
        leaders = {change.after.leader: change.after.life for change in changes}
        alive = [CreateRevisionIs(self._keys.node(node), life) for node, life in sorted(leaders.items())]
        puts = {self._keys.partition(*change.place): encode(change.after) for change in changes}
        result = await self._store.txn([*compares, *alive], puts)
        if result.ok:
            tell = log.warning if wish is Wish.UNCLEAN else log.info
            tell("leaders elected on request", election=wish.value, partitions=len(changes), revision=result.revision)
            await self._topics.wait_for(result.revision)
        return result.ok

    async def _read(self, place: Place) -> Stated | None:
        key = self._keys.partition(*place)
        entry = await self._store.get(key)
        if entry is None:
            return self._topics.state(*place)
        return Stated(decode(key, entry.value, PartitionState), entry.mod_revision)


def _elected(change: StateChange) -> Elected:
    return Elected(change.after.leader, change.after.epoch)


def _why_not(state: PartitionState, wish: Wish) -> str:
    if wish is Wish.PREFERRED:
        first = state.replicas[0] if state.replicas else None
        return f"node {first}, which is preferred, is not in sync or does not serve: in sync are {list(state.in_sync)}"
    return f"none of its replicas {list(state.replicas)} runs"
