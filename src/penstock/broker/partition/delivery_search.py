"""Whether some records of a producer's batch say when they are to be delivered.

Every batch of every Kafka producer passes here, so this must cost next to nothing: one search for what the names have
in common, without copying. Compressed batches are opened before (`BatchLook`).

Where a topic has `penstock.delivery.headers=false` nothing is delayed, and who wanted that is warned of: what is opened
anyway is still searched, and of batches that need not be opened one a second is.
"""

from __future__ import annotations

from typing import Final

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.search import find
from penstock.codec.batch.holes import holds_any
from penstock.domain.schedule.headers import SEARCHED_FOR

log_events = get_logger("delivery")

# What all of the names begin with. It stands in dead letters, too, so finding it is not enough.
SEARCHED_FIRST: Final = b"penstock-del"
assert all(name.startswith(SEARCHED_FIRST) for name in SEARCHED_FOR)

LOOK_EVERY_MS: Final = 1_000
WARN_EVERY_MS: Final = 60_000


class DeliverySearch:
    """Of one partition."""

    __slots__ = ("_clock", "_look_at_ms", "_partition", "_topic", "_warn_at_ms", "ignored_count", "is_on")

    def __init__(self, topic: str, partition: int, *, clock: Clock) -> None:
        self.is_on = False
        # Batches with a delivery header that nobody heeds.
        self.ignored_count = 0
        self._topic = topic
        self._partition = partition
        self._clock = clock
        self._look_at_ms = 0
        self._warn_at_ms = 0

    def finds(self, plain: memoryview) -> bool:
        """Some of these records are to be delivered later."""
        return find(plain, SEARCHED_FIRST) >= 0 and holds_any(plain, SEARCHED_FOR) and self._heeds()

    def wants_opened(self) -> bool:
        """A compressed batch that nobody else opens."""
        return self.is_on or self._is_time_to_look()

    def _heeds(self) -> bool:
        if self.is_on:
            return True
        self.ignored_count += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._warn_at_ms:
            self._warn_at_ms = now_ms + WARN_EVERY_MS
            log_events.warning(
                "delivery header ignored",
                topic=self._topic,
                partition=self._partition,
                batches=self.ignored_count,
                advice="set penstock.delivery.headers=true on the topic to have its records delayed",
            )
        return False

    def _is_time_to_look(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._look_at_ms:
            return False
        self._look_at_ms = now_ms + LOOK_EVERY_MS
        return True
