"""Fetched batches as they are sent on: as they are where that can be, put together anew where it cannot.

A client's batch is dense and says nothing of a log. What compaction has thinned, what begins before the place that was
asked for, and what carries a log's own times or horizons is decoded and built again with the same codec. Markers and
aborted records stay behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from penstock.client.kafka.consumer import Fetched
from penstock.client.kafka.rows import UnreadableBatchError
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    BatchProblem,
    check_batch,
)
from penstock.codec.batch.records import Record, StoredRecord, build_batch, read_records
from penstock.pipeline.mirror.runs import Stretch

_AS_CLIENTS_SEND: Final = ATTRIBUTE_CODEC_MASK


class Outgoing(msgspec.Struct, frozen=True):
    partition: int
    data: bytearray
    record_count: int
    # Where its records came from; targets are counted from the batch's first record.
    origins: tuple[Stretch, ...]

    def stretches(self, base_offset: int) -> list[Stretch]:
        return [Stretch(origin.source, base_offset + origin.target, origin.count) for origin in self.origins]


def outgoing(piece: Fetched, *, keeps_transactional: bool) -> Iterator[Outgoing]:
    """`keeps_transactional`: whoever sends it signs it as a part of a transaction anyway."""
    data, position = piece.data, 0
    while position < len(data):
        header = check_batch(data, position)
        if isinstance(header, BatchProblem):
            raise _unreadable(piece, header)
        start, position = position, position + header.size_bytes
        if header.is_control or header.base_offset in piece.aborted or header.record_count == 0:
            continue
        legal = _AS_CLIENTS_SEND | (ATTRIBUTE_TRANSACTIONAL if keeps_transactional else 0)
        if _is_dense(header) and header.base_offset >= piece.position and not header.attributes & ~legal:
            whole = bytearray(data[start:position])
            origin = Stretch(header.base_offset, 0, header.record_count)
            yield Outgoing(piece.partition, whole, header.record_count, (origin,))
        else:
            records = read_records(data, start)
            if isinstance(records, BatchProblem):
                raise _unreadable(piece, records)
            wanted = [record for record in records if record.offset >= piece.position]
            if wanted:
                yield _rebuilt(piece.partition, wanted, Codec(header.attributes & ATTRIBUTE_CODEC_MASK))


def _is_dense(header: BatchHeader) -> bool:
    return header.record_count == header.last_offset_delta + 1


def _rebuilt(partition: int, stored: Sequence[StoredRecord], codec: Codec) -> Outgoing:
    records = [Record(record.value, record.key, record.timestamp_ms, record.headers) for record in stored]
    origins: list[Stretch] = []
    for index, record in enumerate(stored):
        last = origins[-1] if origins else None
        if last is not None and last.source + last.count == record.offset:
            origins[-1] = Stretch(last.source, last.target, last.count + 1)
        else:
            origins.append(Stretch(record.offset, index, 1))
    return Outgoing(partition, build_batch(records, codec=codec), len(records), tuple(origins))


def _unreadable(piece: Fetched, problem: BatchProblem) -> UnreadableBatchError:
    where = f"partition {piece.partition} of topic {piece.topic!r} after offset {piece.position}"
    return UnreadableBatchError(f"{where}: {problem.reason}")
