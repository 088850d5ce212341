"""Whether a transaction's first batch may come into a partition: the coordinator must know of it (KIP-890).

A batch that nobody vouches for could arrive after its transaction has ended: it would begin one that nobody ever
ends, and no reader of committed records would get past it. So, before the first batch of a transaction:

    guard = begin(...)            then ask the coordinator: add the partition (version 2), or verify that it was added
    holds(..., guard)             when the answer is good; the batch is written without a wait in between
    clear(...)                    by the first batch, and by a marker: whoever still asks has asked about the past

The guard is taken before the coordinator is asked. A marker that is written after the coordinator's answer takes it
away, so a good answer that has become false by the time it arrives lets nothing in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_GUARD: Final = 0
# Those that ask and never come back stay until a sweep. A client with a bug, or worse, could ask for a new producer in
# every request: some 200 bytes each, so this is 2 MB. The oldest gives way, and is refused when it comes.
VERIFICATIONS_MAX: Final = 10_000


@dataclass(slots=True)
class _Verification:
    guard: int
    producer_epoch: int
    # The lowest that asked and was not written: a higher one must wait for it, or it would be out of order for ever.
    lowest_sequence: int
    version: int
    began_ms: int


class TransactionVerifications:
    """Not state: whoever asks is gone with the process."""

    __slots__ = ("_by_producer", "_next_guard")

    def __init__(self) -> None:
        self._by_producer: dict[int, _Verification] = {}
        self._next_guard = NO_GUARD + 1

    def __len__(self) -> int:
        return len(self._by_producer)

    def begin(self, producer_id: int, producer_epoch: int, sequence: int, *, version: int, now_ms: int) -> int:
        """The guard that the coming batch must show. Batches of one epoch that come together share it."""
        known = self._by_producer.get(producer_id)
        if known is not None and known.producer_epoch == producer_epoch:
            known.lowest_sequence = min(known.lowest_sequence, sequence)
            return known.guard
        if known is not None and known.producer_epoch > producer_epoch:
            # Fenced, and the coordinator will say so: whatever it says, this guard opens nothing.
            return NO_GUARD
        guard = self._next_guard
        self._next_guard += 1
        self._by_producer[producer_id] = _Verification(guard, producer_epoch, sequence, version, now_ms)
        if len(self._by_producer) > VERIFICATIONS_MAX:
            del self._by_producer[next(iter(self._by_producer))]
        return guard

    def holds(self, producer_id: int, producer_epoch: int, guard: int) -> bool:
        known = self._by_producer.get(producer_id)
        return known is not None and (known.guard, known.producer_epoch) == (guard, producer_epoch)

    def expected_sequence(self, producer_id: int) -> tuple[int, int]:
        """The lowest sequence that waits, and the protocol's version."""
        known = self._by_producer[producer_id]
        return known.lowest_sequence, known.version

    def is_open(self, producer_id: int) -> bool:
        return producer_id in self._by_producer

    def clear(self, producer_id: int) -> None:
        self._by_producer.pop(producer_id, None)

    def clear_all(self) -> None:
        self._by_producer.clear()

    def expire(self, now_ms: int, *, expiration_ms: int) -> None:
        """Of producers that asked and never came back."""
        horizon = now_ms - expiration_ms
        self._by_producer = {
            producer_id: known for producer_id, known in self._by_producer.items() if known.began_ms > horizon
        }
