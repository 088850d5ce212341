"""Which partition each row goes to, for whole columns at once: the rule of `domain/partitioner`, by numpy.

a number in the column `partition`   that one
a key                                murmur2 of it, as every Kafka client does
neither                              one partition for a whole column, the next for the next
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    Hashes = npt.NDArray[np.uint32]
    Numbers = npt.NDArray[np.int64]

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_POSITIVE: Final = 0x7FFF_FFFF


def murmur2_all(keys: Sequence[bytes]) -> Hashes:
    """As `domain.partitioner.murmur2`, of each key.

    All keys lie end to end in one buffer; step n mixes in the n-th word of every key that has one, so the work in
    numpy is that of the bytes, and the number of steps that of the longest key.
    """
    import numpy as np

    multiplier = np.uint32(_MULTIPLIER)
    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    starts = np.cumsum(lengths) - lengths
    # Behind the last key: its tail is read as a whole word too.
    joined = b"".join(keys) + bytes(4)
    words: Hashes = np.ndarray((len(joined) - 3,), dtype="<u4", buffer=joined, strides=(1,))
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    whole = lengths // 4
    for step in range(int(whole.max(initial=0))):
        rows = slice(None) if step < whole.min() else np.flatnonzero(whole > step)
        block = words[starts[rows] + 4 * step] * multiplier
        block = (block ^ (block >> np.uint32(24))) * multiplier
        hashes[rows] = (hashes[rows] * multiplier) ^ block
    rest = np.flatnonzero(lengths & 3)
    masks = np.array([0, 0xFF, 0xFFFF, 0xFF_FFFF], dtype=np.uint32)
    tails = words[starts[rest] + 4 * whole[rest]] & masks[lengths[rest] & 3]
    hashes[rest] = (hashes[rest] ^ tails) * multiplier
    hashes = (hashes ^ (hashes >> np.uint32(13))) * multiplier
    return cast("Hashes", hashes ^ (hashes >> np.uint32(15)))


def choose_partitions(
    keys: pl.Series | None, chosen: pl.Series | None, *, partition_count: int, keyless: int
) -> Numbers:
    """`chosen` is the column `partition`; `keyless` is where rows with neither go."""
    import numpy as np

    row_count = len(keys) if keys is not None else len(chosen) if chosen is not None else 0
    partitions = np.full(row_count, keyless, dtype=np.int64)
    if keys is not None and keys.null_count() < row_count:
        rows = keys.is_not_null().arg_true().to_numpy()
        hashes = murmur2_all(keys.drop_nulls().to_list())
        partitions[rows] = (hashes & np.uint32(_POSITIVE)) % np.uint32(partition_count)
    if chosen is not None and chosen.null_count() < row_count:
        rows = chosen.is_not_null().arg_true().to_numpy()
        partitions[rows] = chosen.drop_nulls().to_numpy()
    return partitions
