"""Which messages are replayed, in which order: decided by Spark, and laid down in files before the first is sent.

The order is that of time, and within a partition that of the offsets, whatever the times say (a message is due when the
youngest before it is). So what was sent of a partition is always everything below some offset, and that offset is all
that a replay has to remember.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.domain.queue.dead_letter import OFFSET_HEADER, PARTITION_HEADER, TOPIC_HEADER
from penstock.domain.schedule.headers import DELAY_HEADER, DELIVER_AT_HEADER, WRITTEN_AT_HEADER
from penstock.pipeline.archive.frame import PLAIN_COLUMNS, TopicRange, raw_rows
from penstock.pipeline.archive.query import QueryError, python_error
from penstock.pipeline.archive.snapshot import COLUMNS

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

# What the driver holds at once.
READ_ROWS: Final = 50_000

# What is due later would be due later once more; the rest is kept, and where it came from is added.
_HEADERS: Final = f"""
concat(
  filter(coalesce(headers, array()), each -> each.key not in ('{DELAY_HEADER}', '{DELIVER_AT_HEADER}')),
  array(
    named_struct('key', '{TOPIC_HEADER}', 'value', cast(topic as binary)),
    named_struct('key', '{PARTITION_HEADER}', 'value', cast(cast(partition as string) as binary)),
    named_struct('key', '{OFFSET_HEADER}', 'value', cast(cast(offset as string) as binary)),
    named_struct('key', '{WRITTEN_AT_HEADER}', 'value', cast(cast(unix_millis(timestamp) as string) as binary))
  )
) as headers"""
_DUE: Final = (
    "unix_millis(max(timestamp) over (partition by topic, partition order by offset "
    "rows between unbounded preceding and current row)) as due_ms"
)


class PartitionCount(msgspec.Struct, frozen=True):
    partition: int
    count: int
    first_offset: int
    last_offset: int
    timestamp_ms_first: int
    timestamp_ms_last: int


def chosen_rows(
    spark: SparkSession, wanted: TopicRange, *, where: str | None, key: str | None, done: Mapping[int, int]
) -> DataFrame:
    """The columns of an archive. `done` has the offset below which a partition is replayed already."""
    from pyspark.sql import functions
    from pyspark.sql.functions import col

    frame = raw_rows(spark, wanted)
    for partition, offset in sorted(done.items()):
        frame = frame.where(f"not (partition = {partition} and offset < {offset})")
    if key is not None:
        frame = frame.where(col("key") == functions.lit(key.encode()))
    if where is None:
        return frame
    parsed = [f"`{name}`" for name in frame.columns if name not in COLUMNS]
    try:
        readable = frame.selectExpr("struct(*) as _raw", *PLAIN_COLUMNS, *parsed)
        return readable.where(where).select("_raw.*")
    except Exception as error:  # edge of Spark: what a condition can be wrong by has many names
        raise QueryError(f"--where: {python_error(str(error))}") from error


def count_rows(frame: DataFrame) -> list[PartitionCount]:
    from pyspark.sql.functions import expr

    wanted = (
        "count(*)",
        "min(offset)",
        "max(offset)",
        "unix_millis(min(timestamp))",
        "unix_millis(max(timestamp))",
    )
    rows = frame.groupBy("partition").agg(*map(expr, wanted)).orderBy("partition").collect()
    return [PartitionCount(*row) for row in rows]


def lay_down(frame: DataFrame, directory: Path) -> int:
    """Writes the rows in order below the directory; how many there are."""
    import pyarrow.parquet as pq

    ordered = frame.selectExpr("topic", "partition", "offset", _DUE, "key", "value", _HEADERS).orderBy(
        "due_ms", "partition", "offset"
    )
    ordered.write.option("compression", "zstd").mode("overwrite").parquet(str(directory))
    return sum(pq.read_metadata(path).num_rows for path in _files(directory))


def rows_in(directory: Path) -> Iterator[pl.DataFrame]:
    """In order, so many at a time."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in _files(directory):
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(batch_size=READ_ROWS):
                frame = pl.from_arrow(pa.Table.from_batches([batch]))
                assert isinstance(frame, pl.DataFrame)
                yield frame


def _files(directory: Path) -> list[Path]:
    # Spark numbers the files of a sorted result by their place in the order.
    return sorted(directory.glob("part-*.parquet"))
