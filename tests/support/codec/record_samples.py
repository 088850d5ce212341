"""Random records and batches for tests of the codec, the same for the same seed."""

from __future__ import annotations

from random import Random

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Headers, Record, build_batch
from penstock.codec.batch.varint import encode_varint

BASE_MS = 1_700_000_000_000


def random_bytes(random: Random, size_max: int = 300) -> bytes:
    # Mostly small, sometimes empty, sometimes over the one-byte varint (63) and the two-byte one (8191).
    size = random.choice((0, 1, 2, 7, 8, 9, 40, 63, 64, 100, 200, random.randrange(size_max + 1)))
    return random.randbytes(9000 if random.random() < 0.005 else size)


def random_headers(random: Random, count: int) -> Headers:
    names = ("", "trace", "content-type", "ключ", "x" * 70)
    return tuple((random.choice(names), None if random.random() < 0.2 else random_bytes(random)) for _ in range(count))


def random_records(random: Random, count: int) -> list[Record]:
    """One of many shapes: nulls nowhere, anywhere or everywhere; headers none, as many each, or any number."""
    null_key, null_value = random.choice((0.0, 0.3, 1.0)), random.choice((0.0, 0.0, 0.3, 1.0))
    header_counts = random.choice(((0,), (0,), (1,), (3,), (0, 1, 2, 5), (0, 0, 0, 40)))
    spread_ms = random.choice((0, 5, 100_000, 10**10, 10**12))
    hole = random.choice((0.0, 0.0, 0.1))
    records: list[Record] = []
    delta = 0
    for _ in range(count):
        delta += random.choice((1, 2, 100, 20_000)) if random.random() < hole else 0
        records.append(
            Record(
                value=None if random.random() < null_value else random_bytes(random),
                key=None if random.random() < null_key else random_bytes(random, 40),
                timestamp_ms=BASE_MS + random.randint(-spread_ms, spread_ms),
                headers=random_headers(random, random.choice(header_counts)),
                offset_delta=delta,
            )
        )
        delta += 1
    return records


def random_batch(random: Random, base_offset: int = 0) -> tuple[bytearray, list[Record]]:
    records = random_records(random, random.choice((0, 1, 2, 10, 50)))
    return build_batch(records, codec=random.choice(tuple(Codec)), base_offset=base_offset), records


# What a client may send: a checksum that is right (nobody looks at it here) over content that is wrong.


def batch_of(payload: bytes, *, record_count: int = 1, last_offset_delta: int = 100) -> bytearray:
    batch = build_batch([], last_offset_delta=last_offset_delta)
    batch[57:61] = record_count.to_bytes(4, "big", signed=True)
    batch[8:12] = (49 + len(payload)).to_bytes(4, "big")
    return batch + payload


def record_of(*numbers_and_bytes: int | bytes, size: int | None = None) -> bytes:
    """A record: attributes, then varints and bytes as given, behind their size or one that is a lie."""
    body = b"\x00" + b"".join(part if isinstance(part, bytes) else encode_varint(part) for part in numbers_and_bytes)
    return encode_varint(len(body) if size is None else size) + body


GOOD_RECORD = record_of(0, 0, -1, 1, b"v", 0)

HOSTILE_BATCHES = {
    "nothing where a record should be": batch_of(b""),
    "more records than bytes": batch_of(GOOD_RECORD, record_count=2**31 - 1),
    "one record fewer than said": batch_of(GOOD_RECORD * 3, record_count=4),
    "one record more than said": batch_of(GOOD_RECORD * 3, record_count=2),
    "bytes after the last record": batch_of(GOOD_RECORD + b"\x00"),
    "bytes and no records": batch_of(GOOD_RECORD, record_count=0),
    "record cut off": batch_of(GOOD_RECORD[:-1] + b""),
    "record size too small": batch_of(record_of(0, 0, -1, 1, b"v", 0, size=5)),
    "record size too large": batch_of(record_of(0, 0, -1, 1, b"v", 0, size=8)),
    "record size negative": batch_of(record_of(0, 0, -1, 1, b"v", 0, size=-7)),
    "record size huge": batch_of(record_of(0, 0, -1, 1, b"v", 0, size=2**62)),
    "key past the end": batch_of(record_of(0, 0, 1000, b"k", 1, b"v", 0)),
    "key of half the address space": batch_of(record_of(0, 0, 2**62, b"k", 1, b"v", 0)),
    "key size below -1": batch_of(record_of(0, 0, -2, 1, b"v", 0)),
    "value past the end": batch_of(record_of(0, 0, -1, 5, b"v", 0)),
    "value size below -1": batch_of(record_of(0, 0, -1, -2, 0, 0)),
    "value size of nine bytes": batch_of(record_of(0, 0, -1, b"\x80" * 8 + b"\x02", 0, 0)),
    "header count and no header": batch_of(record_of(0, 0, -1, 1, b"v", 1)),
    "first of two headers without key": batch_of(record_of(0, 0, -1, 1, b"v", 2, -1, 1, b"v", 1, b"k", 1, b"v")),
    "header count of nine bytes": batch_of(record_of(0, 0, -1, 1, b"v", b"\x80" * 9 + b"\x00", b"\x00")),
    "negative header count": batch_of(record_of(0, 0, -1, 1, b"v", -1)),
    "endless headers": batch_of(record_of(0, 0, -1, 1, b"v", 2**40)),
    "more headers than there are": batch_of(record_of(0, 0, -1, 1, b"v", 2, 1, b"k", 1, b"v")),
    "header without key": batch_of(record_of(0, 0, -1, 1, b"v", 1, -1, 1, b"v")),
    "header value past the end": batch_of(record_of(0, 0, -1, 1, b"v", 1, 1, b"k", 9, b"v")),
    "varint that does not end": batch_of(record_of(b"\xff" * 60)),
    "varint of more than 64 bits": batch_of(record_of(b"\xff" * 9 + b"\x7f", 0, -1, 1, b"v", 0)),
    "negative offset delta": batch_of(record_of(0, -1, -1, 1, b"v", 0)),
    "offset delta after the last": batch_of(record_of(0, 101, -1, 1, b"v", 0)),
    "timestamp at the end of time": batch_of(record_of(2**63 - 1, 0, -1, 1, b"v", 0)),
}


def shaped_records(null_keys: str, null_values: str, header_counts: tuple[int, ...]) -> list[Record]:
    """Forty records, of which none, some or all have no key, no value; with so many headers each."""
    random = Random(5)
    share = {"none": 0.0, "some": 0.4, "all": 1.0}
    return [
        Record(
            None if random.random() < share[null_values] else b"value %d" % index,
            None if random.random() < share[null_keys] else b"key %d" % index,
            BASE_MS + index,
            random_headers(random, random.choice(header_counts)),
        )
        for index in range(40)
    ]
