"""Record batches into columns, without looking at the records one by one.

A record begins with its own size as a zigzag varint: to Avro that is a value of type `bytes`. So the records of
a batch, as they are, are a block of an Avro file whose schema is one field of bytes, and Polars' native reader
cuts them apart: many batches are many blocks of one file. The fields inside are found for all rows at once by
`varint`, and keys, values and headers are cut out by offset and length.

    container header | count, size, records of batch 1, sync | count, size, records of batch 2, sync | …

Any mixture of nulls, holes and header counts goes this way. (A schema with every field of a record decodes twice
as fast, but only where all records have the same nulls and the same number of headers. Where one has not, Polars
loses its place in the middle of perfectly good data and panics, with a stack trace on standard error. To find out
first costs more than the schema saves.)

Every size is checked against the others, so that what comes out is exactly what the loop of `records` would
give. A batch with a row that does not come out right (numbers of more than eight bytes, very many headers, damage)
goes through that loop, which says what is wrong with it.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.codec.batch.header import BatchHeader
from penstock.codec.batch.varint import encode_varint
from penstock.codec.columns.fields import Field, read_field, read_headers
from penstock.codec.columns.varint import bytes_through, find_stops, number, word_at

if TYPE_CHECKING:
    import polars as pl

# Sizes from which on a varint is one byte longer.
SIZE_STEPS: Final = tuple(1 << bits for bits in (6, 13, 20, 27))

_SYNC: Final = b"penstock-columns"
_SCHEMA: Final = b'{"type":"record","name":"records","fields":[{"name":"body","type":"bytes"}]}'
assert len(_SYNC) == 16


def _avro_bytes(data: bytes) -> bytes:
    return encode_varint(len(data)) + data


_CONTAINER_HEADER: Final = b"".join((
    b"Obj\x01",
    encode_varint(2),
    _avro_bytes(b"avro.schema"),
    _avro_bytes(_SCHEMA),
    _avro_bytes(b"avro.codec"),
    _avro_bytes(b"null"),
    encode_varint(0),
    _SYNC,
))  # fmt: skip


class Batch(msgspec.Struct, frozen=True):
    """A batch to be decoded: its place in the caller's bytes, its header, its records in plain."""

    position: int
    header: BatchHeader
    payload: bytes | memoryview


class Decoded(msgspec.Struct, frozen=True):
    """The rows of all batches in order. Those of a batch in `failed` are there too, with nonsense in them."""

    frame: pl.DataFrame
    failed: frozenset[int]


def decode(batches: list[Batch]) -> Decoded | None:
    """The columns of `columns.read_columns`. None: the records do not even end where they should."""
    import polars as pl

    bodies = cut_apart(batches)
    if bodies is None:
        return None
    timestamp_delta, offset_delta, key = read_front(bodies)
    value = read_field(bodies, key.end)
    headers, end = read_headers(bodies, value.end)
    owner = owners(batches)
    last_offset_delta = of_owner(owner, [batch.header.last_offset_delta for batch in batches])
    is_right = (
        key.is_right
        & value.is_right
        & (end == bodies.bin.size())
        & (offset_delta >= 0)
        & (offset_delta <= last_offset_delta)
    )
    frame = pl.DataFrame(
        {
            "offset": offset_delta + of_owner(owner, [batch.header.base_offset for batch in batches]),
            "timestamp_ms": timestamps(batches, owner, timestamp_delta),
            "key": key.cut(),
            "value": value.cut(),
            "headers": headers,
        }
    )
    return Decoded(frame, _failed_batches(owner, is_right))


class Container(msgspec.Struct, frozen=True):
    """An Avro file of batches, one block each: its bytes, where each payload begins in them, and its rows."""

    data: bytes
    payload_starts: list[int]
    bodies: pl.Series


def cut_container(batches: list[Batch]) -> Container | None:
    """One row a record: all of it but its size. Whether the sizes add up is for the caller to check."""
    parts: list[bytes | memoryview] = [_CONTAINER_HEADER]
    payload_starts: list[int] = []
    position = len(_CONTAINER_HEADER)
    for batch in batches:
        count, size = batch.header.record_count, len(batch.payload)
        assert count > 0, "to Polars a block without rows is the end of the file"
        front = encode_varint(count) + encode_varint(size)
        parts += (front, batch.payload, _SYNC)
        position += len(front)
        payload_starts.append(position)
        position += size + len(_SYNC)
    data = b"".join(parts)
    bodies = _read_container(data)
    return None if bodies is None else Container(data, payload_starts, bodies)


def _read_container(data: bytes) -> pl.Series | None:
    import polars as pl

    try:
        return pl.read_avro(BytesIO(data))["body"]
    # A record size that goes past the end is a panic in Polars' reader: caught like any error, though it writes
    # to standard error as well. Only a forged record does that.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        return None


def cut_apart(batches: list[Batch], *, as_one_block: bool = False) -> pl.Series | None:
    """One row a record: all of it but its size. As one block it is faster for many small batches, and the caller has
    to check that each of them has as many records as it says."""
    if as_one_block:
        payloads = [batch.payload for batch in batches]
        count = sum([batch.header.record_count for batch in batches])
        front = encode_varint(count) + encode_varint(sum(map(len, payloads)))
        bodies = _read_container(b"".join((_CONTAINER_HEADER, front, *payloads, _SYNC)))
    else:
        container = cut_container(batches)
        bodies = None if container is None else container.bodies
    if bodies is None:
        return None
    # The reader does not mind bytes left over after a block's last record, so the sizes must add up. Such bytes
    # and a size written longer than need be cannot hide each other: both make the sum too small.
    size = bodies.bin.size()
    size_bytes = len(bodies) + sum(int((size >= limit).sum()) for limit in SIZE_STEPS)
    expected = sum(len(batch.payload) for batch in batches)
    return bodies if int(size.sum()) + size_bytes == expected else None


def read_front(bodies: pl.Series) -> tuple[pl.Series, pl.Series, Field]:
    """Timestamp delta, offset delta and key; where those are nonsense, so is the key, and it is not right."""
    start = 1  # after the attributes, which have no meaning yet
    word = word_at(bodies, start)
    timestamp_stop, offset_stop, size_stop = find_stops(word, 3)
    timestamp_delta = number(word, None, timestamp_stop)
    if (size_stop != 0).all():
        offset_delta = number(word, timestamp_stop, offset_stop)
        key_size = number(word, offset_stop, size_stop)
        return timestamp_delta, offset_delta, Field(bodies, bytes_through(size_stop) + start, key_size)
    # Timestamps hours apart make deltas so long that not all three numbers fit one word.
    position = bytes_through(timestamp_stop) + start
    word = word_at(bodies, position)
    offset_stop, size_stop = find_stops(word, 2)
    offset_delta = number(word, None, offset_stop)
    key = Field(bodies, position + bytes_through(size_stop), number(word, offset_stop, size_stop))
    key.is_right &= (timestamp_stop != 0) & (size_stop != 0)
    return timestamp_delta, offset_delta, key


def owners(batches: list[Batch]) -> pl.Series | None:
    """The index of each row's batch; None when there is one batch only."""
    import polars as pl

    if len(batches) == 1:
        return None
    counts = pl.DataFrame({"count": [batch.header.record_count for batch in batches]}).with_row_index("owner")
    return counts.select(pl.col("owner").repeat_by("count").explode()).to_series()


def of_owner(owner: pl.Series | None, numbers: list[int]) -> pl.Series | int:
    import polars as pl

    return numbers[0] if owner is None else pl.Series(numbers, dtype=pl.Int64).gather(owner)


def timestamps(batches: list[Batch], owner: pl.Series | None, delta: pl.Series) -> pl.Series:
    factors, bases = timestamp_bases(batches)
    if not all(factors):
        delta = delta * of_owner(owner, factors)
    return delta + of_owner(owner, bases)


def timestamp_bases(batches: list[Batch]) -> tuple[list[int], list[int]]:
    """Of each batch, how often the delta counts (not at all if the broker dated the batch) and what it is added to."""
    headers = [batch.header for batch in batches]
    factors = [0 if header.has_log_append_time else 1 for header in headers]
    bases = [header.max_timestamp if header.has_log_append_time else header.base_timestamp for header in headers]
    return factors, bases


def _failed_batches(owner: pl.Series | None, is_right: pl.Series) -> frozenset[int]:
    failed_rows = (~is_right.fill_null(value=False)).arg_true()
    if not len(failed_rows):
        return frozenset()
    return frozenset((0,)) if owner is None else frozenset(owner.gather(failed_rows).unique().to_list())
