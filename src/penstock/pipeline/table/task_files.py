"""The short way into an archive: the task that reads messages writes its files itself.

Between a Python source and a Python sink Spark makes rows of Arrow's columns and columns of the rows again, which costs
more than reading and writing together. Where nothing is asked of the values, the source therefore hands on the files it
has written, one row for each with what the commit must know, and the sink commits those. A task that is repeated writes
other files; only those of the attempt that Spark counts are committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.typed_values import read_json
from penstock.pipeline.table.files import write_files
from penstock.pipeline.table.options import NewFile, TableOptions

if TYPE_CHECKING:
    import pyarrow as pa

_DAY_US: Final = 86_400_000_000
# 0001-01-01 and 9999-12-31. A producer that takes microseconds for milliseconds writes into the year 57,000, for which
# Delta has no text: the day is the nearest that there is, and the timestamp stays what it was.
DAY_FIRST: Final = -719_162
DAY_LAST: Final = 2_932_896


def write_archived(target: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`target` is the table, as `TableOptions` in JSON; what comes out has the schema of what goes in."""
    options = read_json(target, TableOptions)
    schema: list[pa.Schema] = []

    def dated() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            schema[:] = [batch.schema]
            yield with_date(batch)

    files = write_files(options, dated())
    if files:
        yield _as_rows(files, schema[0])


def with_date(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The day of each message, of UTC."""
    import numpy as np
    import pyarrow as pa

    micros = batch.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
    days = np.clip(np.floor_divide(micros, _DAY_US), DAY_FIRST, DAY_LAST).astype(np.int32)
    return batch.append_column("date", pa.array(days).cast(pa.date32()))


def _as_rows(files: list[NewFile], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    told = pa.array([msgspec.json.encode(file) for file in files], pa.binary())
    columns = [told if field.name == "value" else pa.nulls(len(files), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def told_files(batches: Iterable[pa.RecordBatch]) -> list[NewFile]:
    """What `write_archived` said, at the other end."""
    return [read_json(told, NewFile) for batch in batches for told in batch.column("value").to_pylist()]
