"""Positions of groups: one that cannot be moved keeps none of the others away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, cast

import pytest

from penstock.client.kafka import groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.groups import ListedGroup, Place
from penstock.codec.kafka import ErrorCode
from penstock.net.errors import BrokerError
from penstock.pipeline.mirror.groups import mirror_groups
from penstock.pipeline.mirror.journal import Books
from penstock.pipeline.mirror.runs import RunBook, Stretch

SOURCE, TARGET = (cast("ClusterClient", name) for name in ("source", "target"))


async def test_a_group_that_may_not_be_moved_keeps_none_of_the_others_away(monkeypatch: pytest.MonkeyPatch) -> None:
    committed: dict[str, dict[Place, int]] = {}

    async def list_groups(_client: Any) -> list[ListedGroup]:
        return [ListedGroup(name, "classic", "Empty", "consumer") for name in ("alone", "billing", "packing")]

    async def committed_offsets(client: Any, _group: str) -> dict[Place, int]:
        return {("orders", 0): 7} if client == SOURCE else {}

    async def commit_offsets(_client: Any, group: str, offsets: Mapping[Place, int]) -> None:
        if group == "billing":
            raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "offsets of group 'billing'")
        committed[group] = dict(offsets)

    monkeypatch.setattr(groups, "list_groups", list_groups)
    monkeypatch.setattr(groups, "committed_offsets", committed_offsets)
    monkeypatch.setattr(groups, "commit_offsets", commit_offsets)
    books: Books = defaultdict(RunBook)
    book = books["orders", 0]
    book.add(book.make([Stretch(0, 100, 10)], 10))
    copies = {"orders": "west.orders"}
    assert await mirror_groups(SOURCE, TARGET, matches=lambda _: True, copies=copies, books=books) == 2
    assert committed == {"alone": {("west.orders", 0): 107}, "packing": {("west.orders", 0): 107}}
