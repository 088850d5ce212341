"""Which batches of a fetched piece of log belong to aborted transactions: the reader has to leave them out himself.

A read-committed Fetch comes with a list of (producer, first offset), one for each aborted transaction that has records
in the piece. From that offset on the producer's transactional batches are void, until its abort marker: after it the
same producer may begin anew. The list is all there is to know, also of a transaction that began before the piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.codec.batch.control import EndMarker, read_marker
from penstock.codec.batch.header import BatchBytes, walk_headers
from penstock.codec.kafka.messages.fetch import AbortedTransaction

NOTHING: Final[frozenset[int]] = frozenset()


def aborted_batches(data: BatchBytes, aborted: Sequence[AbortedTransaction] | None) -> frozenset[int]:
    """The base offsets of the batches to leave out."""
    if not aborted:
        return NOTHING
    to_come = sorted(aborted, key=lambda transaction: -transaction.first_offset)
    void_producers: set[int] = set()
    found: set[int] = set()
    for position, header in walk_headers(data):
        while to_come and to_come[-1].first_offset <= header.last_offset:
            void_producers.add(to_come.pop().producer_id)
        if not header.is_transactional or header.producer_id not in void_producers:
            continue
        if not header.is_control:
            found.add(header.base_offset)
        elif isinstance(marker := read_marker(data, position), EndMarker) and not marker.is_commit:
            void_producers.discard(header.producer_id)
    return frozenset(found)
