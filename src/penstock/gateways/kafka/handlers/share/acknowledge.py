"""What a member says became of messages: the acknowledgements in ShareFetch and ShareAcknowledge, as settlements.

Each batch of them has one type for all its offsets or one for each. Kafka's rules: in order, not overlapping, all of
a partition or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, Protocol

from penstock.domain.queue.commands import Act, Settlement

# Types of an acknowledgement that a client may send, by their numbers.
_ACTS: Final = {int(act): act for act in (Act.GAP, Act.ACCEPT, Act.RELEASE, Act.REJECT, Act.RENEW)}


class AcknowledgementBatch(Protocol):
    """Of either request."""

    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def acknowledge_types(self) -> Sequence[int]: ...


def read_acknowledgements(batches: Iterable[AcknowledgementBatch], *, may_renew: bool) -> list[Settlement] | str:
    """The settlements, or what is wrong, in a sentence."""
    items: list[Settlement] = []
    expected = 0
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if first > last or first < expected:
            return f"the offsets {first} to {last} are not in order"
        expected = last + 1
        if len(types) not in (1, last - first + 1):
            return f"{len(types)} acknowledge types for {last - first + 1} offsets"
        for act in set(types):
            if act not in _ACTS or (act == Act.RENEW and not may_renew):
                return f"the acknowledge type {act} is not allowed here"
        items += [Settlement(first, last, _ACTS[types[0]])] if len(types) == 1 else _runs(first, types)
    return items


def _runs(offset: int, types: Sequence[int]) -> list[Settlement]:
    """One settlement for each run of the same type."""
    items: list[Settlement] = []
    for act, run in groupby(types):
        size = sum(1 for _ in run)
        items.append(Settlement(offset, offset + size - 1, _ACTS[act]))
        offset += size
    return items
