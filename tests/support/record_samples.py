"""Random records and batches for tests of the codec, the same for the same seed."""

from __future__ import annotations

from random import Random

from penstock.codec.compression import Codec
from penstock.codec.records import Headers, Record, build_batch

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
