"""Whether a transaction's first batch may come into a partition: the coordinator must know of it (KIP-890).

A batch that nobody vouches for could arrive after its transaction has ended: it would begin one that nobody ever
ends, and no reader of committed records would get past it. So, before the first batch of a transaction:

    guard = begin(...)            then ask the coordinator: add the partition (version 2), or verify that it was added
    holds(..., guard)             when the answer is good; the batch is written without a wait in between
    clear(...)                    by the first batch, and by a marker: whoever still asks has asked about the past

The guard is taken before the coordinator is asked. A marker that is written after the coordinator's answer takes it
away, so a good answer that has become false by the time it arrives lets nothing in.

Anybody may ask in the name of any producer and epoch; the coordinator knows who may. So each epoch has a guard of its
own, and `withdraw` takes back what was refused: neither may stand in the way of the producer whose name it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_GUARD: Final = 0
# Those that ask and never come back stay until a sweep. A client with a bug, or worse, could ask for a new producer in
# every request: some 200 bytes each, so this is 2 MB. The oldest gives way, and is refused when it comes.
VERIFICATIONS_MAX: Final = 10_000
# Of one producer: the one that it has, the next, and some that others claim.
EPOCHS_MAX: Final = 8


@dataclass(slots=True)
class _Verification:
    guard: int
    # The lowest that asked and was not written: a higher one must wait for it, or it would be out of order for ever.
    lowest_sequence: int
    version: int
    began_ms: int
    # Batches that wait for the coordinator's answer, or had a good one.
    asking: int = 1


class TransactionVerifications:
    """Not state: whoever asks is gone with the process."""

    __slots__ = ("_by_producer", "_next_guard")

    def __init__(self) -> None:
        # By epoch for each producer.
        self._by_producer: dict[int, dict[int, _Verification]] = {}
        self._next_guard = NO_GUARD + 1

    def __len__(self) -> int:
        return sum(map(len, self._by_producer.values()))

    def begin(self, producer_id: int, producer_epoch: int, sequence: int, *, version: int, now_ms: int) -> int:
        """The guard that the coming batch must show. Batches of one epoch that come together share it."""
        epochs = self._by_producer.setdefault(producer_id, {})
        known = epochs.get(producer_epoch)
        if known is not None:
            known.asking += 1
            known.lowest_sequence = min(known.lowest_sequence, sequence)
            return known.guard
        guard = self._next_guard
        self._next_guard += 1
        if len(epochs) >= EPOCHS_MAX:
            del epochs[next(iter(epochs))]
        epochs[producer_epoch] = _Verification(guard, sequence, version, now_ms)
        if len(self._by_producer) > VERIFICATIONS_MAX:
            del self._by_producer[next(iter(self._by_producer))]
        return guard

    def withdraw(self, producer_id: int, producer_epoch: int, guard: int) -> None:
        """The coordinator refused one of those that share the guard."""
        epochs = self._by_producer.get(producer_id, {})
        known = epochs.get(producer_epoch)
        if known is None or known.guard != guard:
            return
        known.asking -= 1
        if known.asking == 0:
            del epochs[producer_epoch]
            if not epochs:
                del self._by_producer[producer_id]

    def holds(self, producer_id: int, producer_epoch: int, guard: int) -> bool:
        known = self._by_producer.get(producer_id, {}).get(producer_epoch)
        return known is not None and known.guard == guard

    def expected_sequence(self, producer_id: int, producer_epoch: int) -> tuple[int, int]:
        """The lowest sequence that waits, and the protocol's version."""
        known = self._by_producer[producer_id][producer_epoch]
        return known.lowest_sequence, known.version

    def is_open(self, producer_id: int) -> bool:
        return producer_id in self._by_producer

    def clear(self, producer_id: int) -> None:
        self._by_producer.pop(producer_id, None)

    def clear_all(self) -> None:
        self._by_producer.clear()

    def follow(self, earlier: TransactionVerifications) -> None:
        """Whoever asked there and comes here must not find its guard to be another's."""
        self._next_guard = max(self._next_guard, earlier._next_guard)

    def expire(self, now_ms: int, *, expiration_ms: int) -> None:
        """Of producers that asked and never came back."""
        horizon = now_ms - expiration_ms
        kept = {
            producer_id: {epoch: known for epoch, known in epochs.items() if known.began_ms > horizon}
            for producer_id, epochs in self._by_producer.items()
        }
        self._by_producer = {producer_id: epochs for producer_id, epochs in kept.items() if epochs}
