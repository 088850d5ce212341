"""When messages of a queue were finished: pages of its journal that a node writes and a client reads."""

from __future__ import annotations

import msgspec


class Settled(msgspec.Struct, frozen=True, array_like=True):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int
    at_ms: int


class SettlementPage(msgspec.Struct, frozen=True):
    settled: list[Settled]
    # Where the next page begins, to be given as `after`; None: this was the last.
    next: int | None
