"""Positions of groups: one that cannot be moved keeps none of the others away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import cast

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.groups import ListedGroup, Place
from penstock.codec.kafka import ErrorCode
from penstock.net.errors import BrokerError
from penstock.pipeline.mirror.groups import GroupsOfClusters, mirror_groups
from penstock.pipeline.mirror.journal import Books
from penstock.pipeline.mirror.runs import RunBook, Stretch

SOURCE, TARGET = (cast("ClusterClient", name) for name in ("source", "target"))


async def test_a_group_that_may_not_be_moved_keeps_none_of_the_others_away() -> None:
    committed: dict[str, dict[Place, int]] = {}

    class FakeClusters(GroupsOfClusters):
        async def list(self, client: ClusterClient) -> list[ListedGroup]:
            return [ListedGroup(name, "classic", "Empty", "consumer") for name in ("alone", "billing", "packing")]

        async def committed(self, client: ClusterClient, group: str) -> dict[Place, int]:
            return {("orders", 0): 7} if client == SOURCE else {}

        async def commit(self, client: ClusterClient, group: str, offsets: Mapping[Place, int]) -> None:
            if group == "billing":
                raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "offsets of group 'billing'")
            committed[group] = dict(offsets)

    books: Books = defaultdict(RunBook)
    book = books["orders", 0]
    book.add(book.make([Stretch(0, 100, 10)], 10))
    copies = {"orders": "west.orders"}
    clusters = FakeClusters()
    moved = await mirror_groups(SOURCE, TARGET, matches=lambda _: True, copies=copies, books=books, clusters=clusters)
    assert moved == 2
    assert committed == {"alone": {("west.orders", 0): 107}, "packing": {("west.orders", 0): 107}}
