"""A source that costs nothing but Spark: the same rows as a topic's, made once in memory and handed over as Arrow.

What Spark achieves with it is the ceiling for any Python source, ours included. Its stream has rows as soon as they are
asked for, and never asks anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
ROWS_PER_BATCH: Final = 50_000
TIME_US: Final = 1_700_000_000_000_000


class RowRange(InputPartition):
    def __init__(self, partition: int, start: int, end: int) -> None:
        self.partition = partition
        self.start = start
        self.end = end


class SyntheticSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "synthetic"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> Reader:
        return Reader(dict(self.options))

    def streamReader(self, schema: Any) -> StreamReader:  # noqa: N802  Spark's name
        return StreamReader(dict(self.options))


def read_range(partition: InputPartition, value_bytes: int) -> Iterator[Any]:
    import numpy as np
    import pyarrow as pa

    assert isinstance(partition, RowRange)
    count = min(partition.end - partition.start, ROWS_PER_BATCH)
    zeros = pa.array(np.zeros(count, dtype=np.int32))
    offsets = np.arange(count, dtype=np.int64)
    fields = {
        "key": pa.array([f"k{number % 1000:07d}".encode() for number in range(count)], pa.binary()),
        "value": pa.array([b"v" * value_bytes], pa.binary()).take(zeros),
        "topic": pa.array(["synthetic"], pa.string()).take(zeros),
        "partition": pa.array([partition.partition], pa.int32()).take(zeros),
        "offset": pa.array(offsets),
        "timestamp": pa.array(offsets + TIME_US).cast(pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array(np.zeros(count, dtype=np.int32)),
    }
    batch = pa.RecordBatch.from_pydict(fields)
    for start in range(partition.start, partition.end, count):
        yield batch.slice(0, min(count, partition.end - start))


class Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._rows = int(options["rows"])
        self._count = int(options["partitions"])
        self._value_bytes = int(options["valuebytes"])

    def partitions(self) -> Sequence[InputPartition]:
        share = self._rows // self._count
        return [RowRange(number, 0, share) for number in range(self._count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_range(partition, self._value_bytes)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self._rows = int(options["rows"])
        self._per_trigger = int(options["rowspertrigger"])
        self._value_bytes = int(options["valuebytes"])

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        return {"row": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """The end is known."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return ReadMaxRows(self._per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        assert not isinstance(limit, ReadAllAvailable)
        return {"row": min(self._rows, start["row"] + self._per_trigger)}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        return {"row": self._rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [RowRange(0, start["row"], end["row"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_range(partition, self._value_bytes)

    def commit(self, end: dict[str, Any]) -> None:
        """Nobody follows."""

    def stop(self) -> None:
        """Nothing is held."""
