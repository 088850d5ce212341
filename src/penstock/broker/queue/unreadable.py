"""Batches of an old log that nobody can read: they leave a queue for its dead letters, and say why.

One message stands for each of them (`QueueBatch`): its letter has no value, its text names the offsets and the reason,
and its headers the place where the batch lies.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.domain.queue.commands import Act, Settlement

# Offset, and why.
Unreadable = Sequence[tuple[int, str]]


def rejections(unreadable: Unreadable, number: int) -> list[Settlement]:
    return [Settlement(offset, offset, Act.REJECT, number, text=why) for offset, why in unreadable]


def without_unreadable(settlement: Settlement, unreadable: Unreadable) -> list[Settlement]:
    """The pieces of a settlement between them."""
    pieces: list[Settlement] = []
    first = settlement.first
    for offset, _ in unreadable:
        if first <= offset <= settlement.last:
            if first < offset:
                pieces.append(msgspec.structs.replace(settlement, first=first, last=offset - 1))
            first = offset + 1
    if first <= settlement.last:
        pieces.append(msgspec.structs.replace(settlement, first=first))
    return pieces
