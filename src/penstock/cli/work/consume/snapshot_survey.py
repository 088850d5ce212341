"""The first reading of a snapshot: which offset is the last of each key as of a moment, and what nobody knows any more.

A record counts if it stands below the wanted offset and is stamped before the wanted time; of those of one key the last
one in the log is the key's value. What compaction has taken out in the meantime shows as offsets without a record:

    offset   0   1   2   3   4   5   6   7   8
    key      .   .   a   .   . | .   b   c   .          | = as of offset 5
                                     ^ the first record kept behind the last one that counts

Each of them was a value which a later record of its key replaced, or a tombstone whose time was up. If what replaced it
counts too, nothing is lost. If it does not, then either the key is one of those of which only records that do not count
were seen (here `b` and `c`): it had a value then, or it came later, and nobody can tell. Or the key was deleted since
then, and its tombstone is one of the holes behind (here 8). So at most as many keys are lost as there are such keys and
holes behind together, and at most as many as there are holes before, up to the first record kept behind the last one
that counts. If there are none of either, the snapshot is exact. As of a time a hole between the last record that counts
and the first behind it may be of either side: a value that counted, or the tombstone that came too late to count. (This
takes for granted that what was removed behind that record was stamped later: a record that came late and was removed
there is not counted.)

Memory: 24 bytes a key of one partition, up to 64 at times (storage/cleaner/key_offsets), at most `MEMORY_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.chance import SYSTEM_CHANCE
from penstock.client.kafka.consumer import Fetched
from penstock.client.kafka.rows import UnreadableBatchError
from penstock.codec.batch.header import BatchProblem, check_batch
from penstock.codec.batch.records import read_payload
from penstock.codec.columns.keys import read_keys
from penstock.codec.columns.read import Batch
from penstock.net.errors import ClientError
from penstock.storage.cleaner.key_offsets import KEY_BYTES_MAX, KeyOffsets

if TYPE_CHECKING:
    import polars as pl

# 16 million keys in one partition.
MEMORY_BYTES_MAX: Final = 1 << 30
# In the map: the key was seen, but in no record that counts.
_ONLY_LATER: Final = -1


class TooManyKeysError(ClientError):
    """The keys of one partition do not fit into the memory that a snapshot may take."""


class Survey(msgspec.Struct, frozen=True):
    # Of the last record of each key that counts, ascending; tombstones among them.
    offsets: pl.Series
    # At most so many keys had a value then that is gone.
    lost_keys_max: int
    # Keys of which only records that do not count are there.
    newer_key_count: int
    # Offsets without a record among those that might have counted.
    hole_count: int
    # Records without a key: they have no last value.
    keyless_count: int


class PartitionSurvey:
    """Caller's duties: `add` every fetched piece in order, then `finish`. What stands at or behind `until_offset` need
    not be read where there is no hole before it.
    """

    def __init__(
        self, *, start: int, end: int, moment_ms: int | None, until_offset: int, bytes_max: int = MEMORY_BYTES_MAX
    ) -> None:
        assert start <= until_offset <= end
        self._start = start
        self._end = end
        self._moment_ms = moment_ms
        self._until_offset = until_offset
        self._bytes_max = bytes_max
        self._keys = KeyOffsets(bytes_max=bytes_max, seeds=(SYSTEM_CHANCE.below(1 << 63), SYSTEM_CHANCE.below(1 << 63)))
        self._keyless_count = 0
        self._seen_count = 0
        # Offsets seen up to the last record that counts, and the first one seen behind it.
        self._seen_through_last = 0
        self._next_behind: int | None = None
        self._last_counted = start - 1

    def add(self, fetched: Fetched) -> None:
        import polars as pl

        batches, voids = _open(fetched)
        found = read_keys(batches)
        if found.unreadable:
            raise UnreadableBatchError(f"{_where(fetched)}: a record does not fit its batch")
        is_asked = (pl.col("offset") >= fetched.position) & (pl.col("offset") < self._end)
        rows = found.frame.select("offset", "timestamp_ms", "key").filter(is_asked)
        rows = rows.with_columns(is_counted=self._counts())
        self._note_places(rows, [offset for offset in voids if fetched.position <= offset < self._end])
        keyed = rows.filter(pl.col("key").is_not_null())
        self._keyless_count += int((rows["is_counted"] & rows["key"].is_null()).sum())
        self._keys.add(keyed["key"], keyed.select(self._noted_offset()).to_series())
        if self._keys.is_full:
            count = self._bytes_max // KEY_BYTES_MAX
            raise TooManyKeysError(
                f"partition {fetched.partition} of topic {fetched.topic!r} has more than {count:,} keys: "
                "a snapshot does not hold more"
            )

    @property
    def hole_count(self) -> int:
        return max(self._boundary - self._start - self._seen_through_last, 0)

    @property
    def _boundary(self) -> int:
        return self._until_offset if self._next_behind is None else min(self._next_behind, self._until_offset)

    @property
    def _undated_hole_count(self) -> int:
        return 0 if self._moment_ms is None else max(self._boundary - self._last_counted - 1, 0)

    def finish(self) -> Survey:
        self._keys.seal()
        offsets = self._keys.offsets
        only_later = int((offsets == _ONLY_LATER).sum())
        holes_behind = self._end - self._start - self._seen_count - self.hole_count if self.hole_count else 0
        return Survey(
            offsets=offsets.filter(offsets != _ONLY_LATER).sort(),
            lost_keys_max=min(self.hole_count, only_later + holes_behind + self._undated_hole_count),
            newer_key_count=only_later,
            hole_count=self.hole_count,
            keyless_count=self._keyless_count,
        )

    def _counts(self) -> pl.Expr:
        import polars as pl

        is_below = pl.col("offset") < self._until_offset
        return is_below if self._moment_ms is None else is_below & (pl.col("timestamp_ms") < self._moment_ms)

    def _noted_offset(self) -> pl.Expr:
        import polars as pl

        return pl.when(pl.col("is_counted")).then(pl.col("offset")).otherwise(_ONLY_LATER)

    def _note_places(self, rows: pl.DataFrame, voids: list[int]) -> None:
        """Markers and aborted records fill their offsets, but never count."""
        import polars as pl

        void_rows = pl.DataFrame({"offset": pl.Series(voids, dtype=pl.Int64)}).with_columns(is_counted=pl.lit(False))
        places = pl.concat([rows.select("offset", "is_counted"), void_rows]).sort("offset")
        if len(places) == 0:
            return
        counted = places["is_counted"].arg_true()
        if len(counted):
            last = int(counted[-1])
            self._seen_through_last = self._seen_count + last + 1
            self._last_counted = int(places["offset"][last])
            self._next_behind = int(places["offset"][last + 1]) if last + 1 < len(places) else None
        elif self._next_behind is None:
            self._next_behind = int(places["offset"][0])
        self._seen_count += len(places)


def _open(fetched: Fetched) -> tuple[list[Batch], list[int]]:
    """Batches with records to look at, and the offsets of those that are nobody's messages."""
    batches: list[Batch] = []
    voids: list[int] = []
    for batch in _walk(fetched):
        header = batch.header
        if header.is_control or header.base_offset in fetched.aborted:
            voids += range(header.base_offset, header.next_offset)
        elif header.record_count:
            batches.append(batch)
    return batches, voids


def _walk(fetched: Fetched) -> Iterator[Batch]:
    data, position = fetched.data, 0
    while position < len(data):
        header = check_batch(data, position)
        payload = header if isinstance(header, BatchProblem) else read_payload(data, position, header)
        if isinstance(header, BatchProblem) or isinstance(payload, BatchProblem):
            problem = header if isinstance(header, BatchProblem) else payload
            assert isinstance(problem, BatchProblem)
            raise UnreadableBatchError(f"{_where(fetched)}: {problem.reason}")
        yield Batch(position, header, payload)
        position += header.size_bytes


def _where(fetched: Fetched) -> str:
    return f"partition {fetched.partition} of topic {fetched.topic!r} after offset {fetched.position}"
