"""Offsets that come late for their transaction are kept out (KIP-890).

Before the offsets of a transaction are taken, its coordinator is asked whether it is under way. By the time the answer
arrives it may be false: the transaction has ended meanwhile, and offsets that were taken now would wait for an end that
never comes, or be decided on by the end of the next transaction. So:

    guard = begin(producer)      before the coordinator is asked
    end(producer)                by every marker that arrives: whoever asks has asked about the past
    holds(producer, guard)       when the answer is good; the offsets are taken without a wait in between
    finish(producer, guard)      whatever came of it
"""

from __future__ import annotations

from typing import Final

NO_GUARD: Final = 0


class TransactionGuards:
    """Not state: whoever asks is gone with the process. As many as there are commits under way, which end by
    themselves; nothing stays.
    """

    __slots__ = ("_by_producer", "_last_guard")

    def __init__(self) -> None:
        self._by_producer: dict[int, set[int]] = {}
        self._last_guard = NO_GUARD

    def __len__(self) -> int:
        return sum(len(guards) for guards in self._by_producer.values())

    def begin(self, producer_id: int) -> int:
        self._last_guard += 1
        self._by_producer.setdefault(producer_id, set()).add(self._last_guard)
        return self._last_guard

    def end(self, producer_id: int) -> None:
        self._by_producer.pop(producer_id, None)

    def holds(self, producer_id: int, guard: int) -> bool:
        return guard in self._by_producer.get(producer_id, ())

    def finish(self, producer_id: int, guard: int) -> None:
        guards = self._by_producer.get(producer_id)
        if guards is not None:
            guards.discard(guard)
            if not guards:
                del self._by_producer[producer_id]
