"""A topic whose `compression.type` is a codec has every batch in that codec: what comes in another one is recompressed.

    producer's batch, small     on the loop, with its look (`BatchLook`)
    producer's batch, larger    in a thread (`DelayedBatches`); a level that takes long: every batch
    made here, in a thread      released messages, dead letters: any size
    made here, on the loop      what comes by HTTP: up to OWN_BYTES_MAX, at the codec's default level; a single message
                                that is larger stays as it is

Records, offsets, dates, producer and sequence stay as they were sent; codec, length and checksum are made anew. A retry
is recompressed like the batch before it, to the same bytes, so it is asked about by the checksum of those: what was
stored is what is remembered, also after a restart.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from penstock.broker.partition.batch_look import BatchLook
from penstock.broker.partition.outcome import AppendRefused, Refusal
from penstock.codec.batch.compression import GZIP_LEVEL, ZSTD_LEVEL, Codec, CompressionError, decompress
from penstock.codec.batch.header import HEADER_BYTES, BatchHeader, BatchProblem
from penstock.codec.batch.records import read_payload
from penstock.codec.batch.rewrite import header_of, recode_batch
from penstock.domain.config.topic import AS_SENT, TopicConfig

_KIB: Final = 1024
# Plain bytes that are compressed on the loop: half a millisecond's work or less.
LOOP_BYTES_MAX: Final = {
    Codec.NONE: 256 * _KIB,
    Codec.GZIP: 16 * _KIB,
    Codec.SNAPPY: 256 * _KIB,
    Codec.LZ4: 256 * _KIB,
    Codec.ZSTD: 64 * _KIB,
}
# Some more than a batch of `Publisher`: gzip takes five milliseconds for it, as long as it took to be made.
OWN_BYTES_MAX: Final = 144 * _KIB

_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_DEFAULT_LEVELS: Final = {Codec.GZIP: GZIP_LEVEL, Codec.ZSTD: ZSTD_LEVEL}
# What gzip's level is where a topic leaves it to gzip.
_ITS_OWN: Final = -1


class Recompression(msgspec.Struct, frozen=True):
    """What the batches of one topic are stored in."""

    codec: Codec
    # None: the codec's default, or it has none.
    level: int | None
    batch_bytes_max: int

    @property
    def _loop_bytes_max(self) -> int:
        is_slow = self.level is not None and self.level > _DEFAULT_LEVELS[self.codec]
        return 0 if is_slow else LOOP_BYTES_MAX[self.codec]

    def changes(self, header: BatchHeader) -> bool:
        # Without a record there is nothing to be compressed.
        return header.codec != self.codec and header.record_count > 0

    def take(
        self, look: BatchLook, records: memoryview, header: BatchHeader, now_ms: int, *, is_produced: bool
    ) -> memoryview | AppendRefused | None:
        """A batch that it changes, as it is to be written. None: some of it is for later, or it takes too long here."""
        if not is_produced:
            return look.refuse_own(records, header, now_ms) or self._take_own(records, header)
        seen = look.look(records, header, now_ms)
        if isinstance(seen, AppendRefused):
            return seen
        plain = self._open_here(records, header) if seen is False else None
        if plain is None:
            return None
        recompressed = self.recompress(header, plain)
        return recompressed if isinstance(recompressed, AppendRefused) else memoryview(recompressed)

    def recompress(self, header: BatchHeader, plain: bytes | memoryview) -> bytearray | AppendRefused:
        """The batch of these plain records. Blocking, if they are many."""
        refused = self._refuse_size(HEADER_BYTES + len(plain)) if self.codec is Codec.NONE else None
        if refused is not None:
            return refused  # before a copy of it is made
        batch = recode_batch(header, plain, codec=self.codec, level=self.level)
        return self._refuse_size(len(batch)) or batch

    def recompress_batch(self, records: memoryview, header: BatchHeader) -> memoryview | AppendRefused:
        """Blocking. As it is, if it is as it should be."""
        if not self.changes(header):
            return records
        plain = read_payload(records, 0, header)
        if isinstance(plain, BatchProblem):
            return self.refuse_unreadable(plain.reason)
        recompressed = self.recompress(header, plain)
        return recompressed if isinstance(recompressed, AppendRefused) else memoryview(recompressed)

    def recompress_own(self, batch: bytearray) -> bytearray:
        """Of one that was made here, in plain. Blocking."""
        header = header_of(batch)
        if not self.changes(header):
            return batch
        return recode_batch(header, memoryview(batch)[HEADER_BYTES:], codec=self.codec, level=self.level)

    def refuse_unreadable(self, problem: str) -> AppendRefused:
        wanted = "uncompressed" if self.codec is Codec.NONE else self.codec.name.lower()
        return AppendRefused(
            Refusal.INVALID, f"the topic's compression.type is {wanted}, and the batch is not: {problem}"
        )

    def _take_own(self, records: memoryview, header: BatchHeader) -> memoryview:
        if header.codec != Codec.NONE or len(records) > OWN_BYTES_MAX:
            return records
        return memoryview(recode_batch(header, records[HEADER_BYTES:], codec=self.codec))

    def _open_here(self, records: memoryview, header: BatchHeader) -> bytes | memoryview | None:
        bytes_max = self._loop_bytes_max
        payload = records[HEADER_BYTES:]
        if len(payload) > bytes_max:
            return None
        if header.codec == Codec.NONE:
            return payload
        try:
            return decompress(Codec(header.codec), payload, bytes_max=bytes_max)
        except CompressionError:
            return None

    def _refuse_size(self, size_bytes: int) -> AppendRefused | None:
        if size_bytes <= self.batch_bytes_max:
            return None
        name = "uncompressed" if self.codec is Codec.NONE else f"compressed by {self.codec.name.lower()}"
        reason = f"batch of {size_bytes} bytes {name}, max.message.bytes is {self.batch_bytes_max}"
        return AppendRefused(Refusal.TOO_LARGE, reason)


def recompression_of(config: TopicConfig) -> Recompression | None:
    """None: batches are stored as they are sent."""
    if config.compression_type == AS_SENT:
        return None
    codec = _CODECS[config.compression_type]
    levels = {Codec.GZIP: config.compression_gzip_level, Codec.ZSTD: config.compression_zstd_level}
    level = levels.get(codec)
    is_own = codec is Codec.GZIP and level == _ITS_OWN
    return Recompression(codec, None if is_own else level, config.max_message_bytes)


async def recompress_own_aside(recompression: Recompression | None, batch: bytearray) -> bytearray:
    """Of a batch that was made here: in a thread, where there is anything to do."""
    return batch if recompression is None else await asyncio.to_thread(recompression.recompress_own, batch)
