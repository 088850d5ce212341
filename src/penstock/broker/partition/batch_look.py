"""What a batch holds, looked at before it is taken: opened once, walked once.

    records            what the header says they are (`codec/batch/check`), or the batch is refused: no reader could
                       get past it
    keys, timestamps   what the topic asks of them
    delivery headers   whether some records are to be delivered later (`DeliverySearch`)

A batch that takes longer to look at than others can wait for is for a thread (`DelayedBatches`), which asks the same
questions; a producer's next batches wait behind it. Opened, a batch may have as many bytes as readers open at most.
With `penstock.record.check=false` on its topic the records are taken unseen.
"""

from __future__ import annotations

import mmap
import threading
from typing import Final

import msgspec

from penstock.base.view_place import place_in_buffer
from penstock.broker.partition.delivery_search import DeliverySearch
from penstock.broker.partition.outcome import AppendRefused, Refusal
from penstock.broker.partition.refusals import refuse_keyless, refuse_timestamps
from penstock.codec.batch.check import TooLong, check_records, check_some
from penstock.codec.batch.compression import Codec, CompressionError, decompress_into
from penstock.codec.batch.header import ATTRIBUTE_CODEC_MASK, HEADER_BYTES, BatchHeader, BatchProblem
from penstock.codec.batch.records import DECOMPRESSED_BYTES_MAX, read_payload
from penstock.codec.batch.single import is_single_record
from penstock.domain.config.definition import LONG_MAX
from penstock.domain.config.topic import TopicConfig

# What is opened on the loop, in plain: a millisecond's work or less (measured: zstd 0.6 ms for 1 MB, gzip 3 ms).
PLAIN_BYTES_MAX: Final = 1536 * 1024
GZIP_PLAIN_BYTES_MAX: Final = 320 * 1024
# Text shrinks to a fourth: what is larger than that is not tried in vain.
RATIO_EXPECTED: Final = 4
# What librdkafka puts into a batch at most by default. To compare them takes 0.4 ms if they have one size, 4 ms else.
LOOP_RECORDS_MAX: Final = 10_000
# Records and headers that are read field by field there, which takes a microsecond each.
LOOP_READS_MAX: Final = 2_000
# To find where more lies takes a microsecond, as long as to copy so much.
COPIED_BYTES_MAX: Final = 16 * 1024

Plain = bytes | bytearray | mmap.mmap


class TooMuch(msgspec.Struct, frozen=True):
    """To look at it here would keep others waiting."""


class BatchLook:
    """Of one partition."""

    __slots__ = ("_after_ms_max", "_config", "_has_rules", "_is_checked", "search")

    def __init__(self, search: DeliverySearch | None) -> None:
        # None where clients keep what they take back later: a stage of Spark's is no place to wait in.
        self.search = search

    def configure(self, config: TopicConfig) -> None:
        self._config = config
        self._is_checked = config.penstock_record_check
        # How old its oldest record is a batch does not say: where there is a limit, every batch is looked into.
        self._has_rules = config.is_compacted or (
            config.message_timestamp_before_max_ms != LONG_MAX and not config.uses_log_append_time
        )
        self._after_ms_max = LONG_MAX if config.uses_log_append_time else config.message_timestamp_after_max_ms
        if self.search is not None:
            self.search.is_on = config.penstock_delivery_headers

    def look(self, records: memoryview, header: BatchHeader, now_ms: int) -> AppendRefused | TooMuch | bool:
        """At a batch of a Kafka producer, who may have made it of anything. True: some of its records are to be
        delivered later."""
        search = self.search
        if (
            header.record_count == 1
            and not self._has_rules
            and not header.attributes & ATTRIBUTE_CODEC_MASK
            and header.max_timestamp <= now_ms + self._after_ms_max
            and is_single_record(records, header)
        ):
            return search is not None and search.finds(records)
        asks_rules = self._asks_rules(header, now_ms)
        must_open = self._is_checked or asks_rules
        # For the rules all are read, which is bounded only where they are checked before.
        records_max = (LOOP_READS_MAX if self._is_checked else 0) if asks_rules else LOOP_RECORDS_MAX
        is_large = header.record_count > records_max or len(records) > PLAIN_BYTES_MAX
        if not header.attributes & ATTRIBUTE_CODEC_MASK:
            if must_open:
                if is_large:
                    return TooMuch()
                plain, start = _plain_here(records)
                refused = self._refuse(header, plain, len(records) - HEADER_BYTES, now_ms, LOOP_READS_MAX, start)
                if refused is not None:
                    return refused
            return search is not None and search.finds(records)
        if not must_open and (search is None or not search.wants_opened()):
            return False
        opened = None if is_large else _open_here(records, header)
        if opened is None:
            return TooMuch() if must_open or (search is not None and search.is_on) else False
        buffer, size = opened
        refused = self._refuse(header, buffer, size, now_ms, LOOP_READS_MAX)
        if refused is not None:
            return refused
        return search is not None and search.finds(memoryview(buffer)[:size])

    def refuse_own(self, records: memoryview, header: BatchHeader, now_ms: int) -> AppendRefused | None:
        """Of a batch that was made here, from what a client sent: what the topic asks of its records."""
        if not self._asks_rules(header, now_ms):
            return None
        payload = read_payload(records, 0, header)
        assert not isinstance(payload, BatchProblem), payload.reason
        return self._refuse_rules(header, memoryview(payload), now_ms)

    def open_aside(self, records: memoryview, header: BatchHeader, now_ms: int) -> AppendRefused | memoryview | None:
        """Blocking: the records of a batch that was too much for the loop, in plain. None: nobody can read it, and its
        topic takes it all the same."""
        if header.codec == Codec.NONE:
            plain: Plain = bytes(records[HEADER_BYTES:])
            size = len(plain)
        else:
            # Not cleared and not copied: both would hold up every other thread, a tenth of a second for the largest.
            plain = mmap.mmap(-1, DECOMPRESSED_BYTES_MAX)
            try:
                size = decompress_into(Codec(header.codec), records[HEADER_BYTES:], plain)
            except CompressionError as error:
                if self._is_checked or self._asks_rules(header, now_ms):
                    return AppendRefused(Refusal.INVALID, str(error))
                return None
        refused = self._refuse(header, plain, size, now_ms, None)
        assert not isinstance(refused, TooMuch), "nobody waits here"
        return refused if refused is not None else memoryview(plain)[:size]

    def _asks_rules(self, header: BatchHeader, now_ms: int) -> bool:
        return self._has_rules or header.max_timestamp > now_ms + self._after_ms_max

    def _refuse(
        self, header: BatchHeader, plain: Plain, size: int, now_ms: int, reads_max: int | None, start: int = 0
    ) -> AppendRefused | TooMuch | None:
        if self._is_checked:
            if reads_max is None:
                problem: BatchProblem | TooLong | None = check_records(header, plain, size)
            else:
                problem = check_some(header, plain, start + size, reads_max=reads_max, start=start)
            if isinstance(problem, TooLong):
                return TooMuch()
            if problem is not None:
                return AppendRefused(Refusal.INVALID, problem.reason)
        if not self._asks_rules(header, now_ms):
            return None
        return self._refuse_rules(header, memoryview(plain)[start : start + size], now_ms)

    def _refuse_rules(self, header: BatchHeader, payload: memoryview, now_ms: int) -> AppendRefused | None:
        if self._config.is_compacted:
            refused = refuse_keyless(payload, header)
            if refused is not None:
                return refused
        return refuse_timestamps(header, payload, self._config, now_ms)


def _plain_here(records: memoryview) -> tuple[Plain, int]:
    """Plain records, and where they begin. Large ones are looked at where the connection has received them."""
    placed = place_in_buffer(records) if len(records) > COPIED_BYTES_MAX else None
    if placed is None:
        return bytes(records[HEADER_BYTES:]), 0
    buffer, place = placed
    return buffer, place + HEADER_BYTES


def _open_here(records: memoryview, header: BatchHeader) -> tuple[bytearray, int] | None:
    """None: it is too large to be opened here, or cannot be read."""
    codec = Codec(header.codec)
    scratch = _scratch.gzip if codec is Codec.GZIP else _scratch.plain
    if len(records) * RATIO_EXPECTED > len(scratch):
        return None
    try:
        return scratch, decompress_into(codec, records[HEADER_BYTES:], scratch)
    except CompressionError:
        return None


class _Scratch(threading.local):
    """Where batches are opened. Kept: memory that is new each time costs a fifth of the whole look. Each loop has a
    thread of its own."""

    def __init__(self) -> None:
        self.plain = bytearray(PLAIN_BYTES_MAX)
        self.gzip = bytearray(GZIP_PLAIN_BYTES_MAX)


_scratch: Final = _Scratch()
