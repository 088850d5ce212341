"""Whether some records of a producer's batch say when they are to be delivered.

Every batch of every Kafka producer passes here, so this must cost next to nothing:

    plain         one search for what the names have in common, without copying
    compressed    opened, if that takes no longer than a millisecond; else a thread has to (`DelayedBatches`)

Where a topic has `penstock.delivery.headers=false` nothing is delayed, and who wanted that is warned of: plain batches
are still searched, of compressed ones one a second is opened.
"""

from __future__ import annotations

import threading
from typing import Final

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.search import find
from penstock.codec.batch_holes import holds_any
from penstock.codec.compression import Codec, CompressionError, decompress_into
from penstock.codec.record_batch import ATTRIBUTE_CODEC_MASK, HEADER_BYTES, BatchHeader
from penstock.domain.schedule_headers import SEARCHED_FOR

log_events = get_logger("delivery")

# What all of the names begin with. It stands in dead letters, too, so finding it is not enough.
SEARCHED_FIRST: Final = b"penstock-del"
assert all(name.startswith(SEARCHED_FIRST) for name in SEARCHED_FOR)

# What is opened on the loop, in plain: a millisecond's work or less (measured: zstd 0.6 ms for 1 MB, gzip 3 ms).
PLAIN_BYTES_MAX: Final = 1536 * 1024
GZIP_PLAIN_BYTES_MAX: Final = 320 * 1024
# Text shrinks to a fourth: what is larger than that is not tried in vain.
RATIO_EXPECTED: Final = 4

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

    def may_delay(self, records: memoryview, header: BatchHeader) -> bool:
        """Some of the records are to be delivered later, or it takes longer to find out than anybody can wait here."""
        if not header.attributes & ATTRIBUTE_CODEC_MASK:
            return find(records, SEARCHED_FIRST) >= 0 and holds_any(records, SEARCHED_FOR) and self._heeds()
        if self.is_on:
            return _is_found_inside(records, header) is not False
        return self._is_time_to_look() and _is_found_inside(records, header) is True and self._heeds()

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


def _is_found_inside(records: memoryview, header: BatchHeader) -> bool | None:
    """None: it is too large to be opened here, or cannot be read."""
    codec = Codec(header.codec)
    scratch = _scratch.gzip if codec is Codec.GZIP else _scratch.plain
    if len(records) * RATIO_EXPECTED > len(scratch):
        return None
    try:
        size_bytes = decompress_into(codec, records[HEADER_BYTES:], scratch)
    except CompressionError:
        return None
    return find(scratch, SEARCHED_FIRST, 0, size_bytes) >= 0 and holds_any(
        memoryview(scratch)[:size_bytes], SEARCHED_FOR
    )


class _Scratch(threading.local):
    """Where batches are opened. Kept: memory that is new each time costs a fifth of the whole look. Each loop has a
    thread of its own."""

    def __init__(self) -> None:
        self.plain = bytearray(PLAIN_BYTES_MAX)
        self.gzip = bytearray(GZIP_PLAIN_BYTES_MAX)


_scratch: Final = _Scratch()
