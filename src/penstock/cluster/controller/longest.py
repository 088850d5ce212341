"""Partitions of which everybody who held what is committed lost its memory: the longest log leads, when all are back.

    every member is `unsure` ──► all of them live and are admitted ──► each is asked how far its log reaches
        ──► the longest leads, in an epoch that says that something may be lost

That is what `durability=replicated` means. An answer counts for the life that gave it: while nobody leads, nobody's log
grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from penstock.base.log_events import get_logger
from penstock.cluster.catalog.nodes import NodeCatalog
from penstock.cluster.controller.elections import Place
from penstock.domain.replication.election import choose_longest, is_lost_by_all, members_of
from penstock.domain.replication.state import PartitionState

# The last epoch in a node's log of the partition, and its end; None: it cannot tell now.
AskEnd = Callable[[int, Place], Awaitable[tuple[int, int] | None]]

# So many partitions at a time: after a power cut of everything there are thousands.
_ASKED_AT_ONCE: Final = 60

log = get_logger("controller")

# Of a node: its life when it answered, and what it said.
_Answer = tuple[int, tuple[int, int]]


class LongestLogs:
    def __init__(self, nodes: NodeCatalog) -> None:
        self._nodes = nodes
        # None: nobody can be asked, where nodes have no doors for each other.
        self.ask_end: AskEnd | None = None
        self._answers: dict[Place, dict[int, _Answer]] = {}

    def decide(self, place: Place, state: PartitionState) -> PartitionState | None:
        """By what is known by now; None: not all are back, or have answered."""
        view = self._nodes.view()
        answers = self._answers.get(place, {})
        ends = {node: end for node, (life, end) in answers.items() if node in view and view[node].life == life}
        after = choose_longest(state, view, ends)
        if after is not None:
            del self._answers[place]
            told = {node: f"epoch {epoch}, end {end}" for node, (epoch, end) in sorted(ends.items())}
            log.warning("possible loss: the longest log leads", place=place, leader=after.leader, ends=told)
        return after

    async def ask(self, lost: Iterable[tuple[Place, PartitionState]]) -> bool:
        """Whether everybody who has to be asked has answered for any of them."""
        view = self._nodes.view()
        due = [
            (place, members_of(state))
            for place, state in lost
            if is_lost_by_all(state) and all(node in view and view[node].is_admitted for node in members_of(state))
        ]
        told = await asyncio.gather(*(self._ask_all(place, members) for place, members in due[:_ASKED_AT_ONCE]))
        return any(told)

    async def _ask_all(self, place: Place, members: list[int]) -> bool:
        answers = await asyncio.gather(*(self._ask(place, node) for node in members))
        self._answers[place] = {node: each for node, each in zip(members, answers, strict=True) if each is not None}
        return None not in answers

    async def _ask(self, place: Place, node: int) -> _Answer | None:
        living = self._nodes.node(node)
        if self.ask_end is None or living is None:
            return None
        end = await self.ask_end(node, place)
        return None if end is None else (living.epoch, end)
