"""A task's work in a table: its rows as Parquet files, one for each group of rows that belong together.

Rows arrive as Arrow batches and leave as row groups; no row is looked at in Python. A file belongs to one value of
every column the table is partitioned by, so that the statistics which readers pass files over by are tight. What is
written here is nobody's until the driver commits it; what is never committed is found by the table's upkeep.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from penstock.base.chance import SYSTEM_CHANCE
from penstock.pipeline.table.options import NewFile, TableOptions

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pa_fs

# What is encoded at once: large enough for the columns to compress well, small enough for many groups in one task.
ROW_GROUP_ROWS_MAX: Final = 250_000
ROW_GROUP_BYTES_MAX: Final = 48 * 1024 * 1024
# All groups of a task together; the largest is written when there is more.
HELD_BYTES_MAX: Final = 192 * 1024 * 1024
# Before compression. A reader's task should not have to take more than this.
FILE_BYTES_MAX: Final = 1024 * 1024 * 1024

COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1
# Hive's name for null in a directory's name, which Delta took over.
_NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"
_MILLISECOND: Final = timedelta(milliseconds=1)
# Stands for "never ends" in many a table, and has none after it.
_LAST_MILLISECOND: Final = datetime.max.replace(tzinfo=UTC) - _MILLISECOND

Group = tuple[str | None, ...]


def open_directory(path: str) -> tuple[pa_fs.FileSystem, str]:
    """The file system that `path` means, and what the path is called there."""
    import pyarrow.fs as pa_fs

    if "://" in path:
        found, inner = pa_fs.FileSystem.from_uri(path)
        return found, inner
    return pa_fs.LocalFileSystem(), os.path.abspath(path)  # noqa: PTH100  Arrow wants text


def write_files(options: TableOptions, batches: Iterable[pa.RecordBatch], *, task: int = 0) -> list[NewFile]:
    """Returns once the files are on disk: whoever commits them relies on it."""
    writer = TableFiles(options, task=task)
    try:
        for batch in batches:
            writer.add(batch)
        return writer.finish()
    finally:
        writer.close()


class TableFiles:
    """Caller's duties: `finish`, and `close` on every way out."""

    def __init__(self, options: TableOptions, *, task: int, directory: str = "") -> None:
        """`directory`: where files go that are of one group already."""
        self._options = options
        self._task = task
        self._directory = directory
        self._file_system, self._root = open_directory(options.path)
        self._columns = (*options.partition_by, *options.split_by)
        self._open: dict[Group, _GroupFile] = {}
        self._written: list[NewFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        for group, rows in split_rows(batch, self._columns):
            held = self._open.get(group)
            if held is None:
                held = self._open[group] = _GroupFile(self._file_system, self._root, self._new_path(group))
            held.add(rows.drop_columns(list(self._options.partition_by)) if self._options.partition_by else rows)
            if held.written_bytes > FILE_BYTES_MAX:
                self._finish(group)
        while sum(held.held_bytes for held in self._open.values()) > HELD_BYTES_MAX:
            max(self._open.values(), key=lambda held: held.held_bytes).flush()

    def finish(self) -> list[NewFile]:
        for group in list(self._open):
            self._finish(group)
        return self._written

    def close(self) -> None:
        for held in self._open.values():
            held.abandon()
        self._open.clear()

    def _finish(self, group: Group) -> None:
        held = self._open.pop(group)
        values = dict(zip(self._columns, group, strict=True))
        self._written.append(
            held.finish(
                partition_values={name: values[name] for name in self._options.partition_by},
                split_values={name: values[name] for name in self._options.split_by},
            )
        )

    def _new_path(self, group: Group) -> str:
        directories = [
            f"{name}={_NULL_DIRECTORY if value is None else quote(value, safe=' ._-')}"
            for name, value in zip(self._options.partition_by, group, strict=False)
        ]
        if self._directory:
            directories = [self._directory]
        return "/".join([*directories, f"part-{self._task:05}-{SYSTEM_CHANCE.uuid()}.zstd.parquet"])


def split_rows(batch: pa.RecordBatch, columns: tuple[str, ...]) -> Iterator[tuple[Group, pa.RecordBatch]]:
    """The rows of each group, in their order. Many a batch is of one group: that is seen without a copy."""
    import numpy as np

    values = [_only_value(batch.column(name)) for name in columns]
    if all(value is not None for value in values):
        yield tuple(_text(value.as_py()) for value in values if value is not None), batch
        return
    # A number for each combination of values.
    numbers = np.zeros(batch.num_rows, dtype=np.int64)
    for name in columns:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        numbers = numbers * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
    # Stable: rows of a group stay in order, and those that lie together are not copied.
    order = np.argsort(numbers, kind="stable")
    edges = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1))
    for start, end in pairwise(edges.tolist()):
        rows = order[start:end]
        first, last = int(rows[0]), int(rows[-1])
        group = tuple(_text(batch.column(name)[first].as_py()) for name in columns)
        yield group, batch.slice(first, end - start) if last - first == end - start - 1 else batch.take(rows)


def _only_value(column: pa.Array) -> Any:
    """The value that all rows have, as Arrow holds it; None: there are several, or nulls."""
    import pyarrow.compute as pc

    if column.null_count:
        return None
    first = column[0]
    return first if pc.all(pc.equal(column, first)).as_py() else None


def _text(value: object) -> str | None:
    """A value as Delta writes it into paths and partition values."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        # Spark hands moments over in its own zone; one that is not named would be every reader's own.
        moment = value.astimezone(UTC).replace(tzinfo=None)
        return f"{moment.isoformat(timespec='microseconds')}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


class _GroupFile:
    """One Parquet file that is being written."""

    def __init__(self, file_system: pa_fs.FileSystem, root: str, path: str) -> None:
        self.path = path
        self.held_bytes = 0
        self.written_bytes = 0
        self._file_system = file_system
        self._root = root
        self._full_path = f"{root}/{path}"
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._row_count = 0
        self._writer: Any = None
        self._footers: list[Any] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self.held_bytes += batch.nbytes
        if self._held_rows >= ROW_GROUP_ROWS_MAX or self.held_bytes >= ROW_GROUP_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if not self._held:
            return
        table = pa.Table.from_batches(self._held)
        if self._writer is None:
            self._writer = self._open(table.schema)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._row_count += self._held_rows
        self.written_bytes += self.held_bytes
        self._held, self._held_rows, self.held_bytes = [], 0, 0

    def finish(self, *, partition_values: dict[str, str | None], split_values: dict[str, str | None]) -> NewFile:
        self.flush()
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        if self._file_system.type_name == "local":
            sync_path(self._full_path, root=self._root)
        lowest, highest, nulls = footer_statistics(self._footers[0])
        statistics = {
            "numRecords": self._row_count,
            "minValues": {name: floor_text(value) for name, value in lowest.items()},
            "maxValues": {name: ceiling_text(value) for name, value in highest.items()},
            "nullCount": nulls,
        }
        return NewFile(
            path=self.path,
            size_bytes=self._file_system.get_file_info(self._full_path).size,
            row_count=self._row_count,
            partition_values=partition_values,
            split_values=split_values,
            statistics=json.dumps(statistics, separators=(",", ":")),
            offset_first=lowest.get("offset", -1),
            offset_last=highest.get("offset", -1),
        )

    def abandon(self) -> None:
        """Nobody will commit it; what lies there already goes with the table's upkeep."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, schema: pa.Schema) -> Any:
        import pyarrow.parquet as pq

        self._file_system.create_dir(self._full_path.rpartition("/")[0], recursive=True)
        return pq.ParquetWriter(
            self._full_path,
            schema,
            filesystem=self._file_system,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            metadata_collector=self._footers,
            **encodings(schema),
        )


def encodings(schema: pa.Schema) -> dict[str, Any]:
    """How Parquet should write the columns. Texts that differ in every row are no dictionaries, and looking for one
    costs more than all the rest; statistics of them would be as long as they are."""
    import pyarrow as pa

    plain = {field.name for field in schema if pa.types.is_binary(field.type) or pa.types.is_nested(field.type)}
    counting = {field.name for field in schema if field.name == "offset" and pa.types.is_int64(field.type)}
    return {
        "use_dictionary": [name for name in schema.names if name not in plain and name not in counting],
        "column_encoding": dict.fromkeys(counting, "DELTA_BINARY_PACKED"),
        "write_statistics": [name for name in schema.names if name not in plain],
    }


def footer_statistics(footer: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Lowest, highest and nulls, by column, of the kinds that are worth passing files over by."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        parts = [footer.row_group(number).column(index) for number in range(footer.num_row_groups)]
        name = parts[0].path_in_schema
        known = [part.statistics for part in parts]
        if "." in name or not all(each is not None and each.has_null_count for each in known):
            continue
        nulls[name] = sum(each.null_count for each in known)
        bounds = [each for each in known if each.has_min_max]
        if not bounds or len(bounds) + sum(each.num_values == 0 for each in known) < len(known):
            continue
        try:
            values = [value for each in bounds for value in (each.min, each.max)]
        except (OverflowError, ValueError):
            # After the year 9999: neither Python nor Delta has a word for it, and no bound is better than a wrong one.
            continue
        if isinstance(values[0], int | date) and not isinstance(values[0], bool):
            lowest[name], highest[name] = min(values), max(values)
    return lowest, highest, nulls


def floor_text(value: object) -> object:
    """Delta's statistics know milliseconds: what is between two of them lies after the first …"""
    if isinstance(value, datetime):
        return f"{value.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
    return value.isoformat() if isinstance(value, date) else value


def ceiling_text(value: object) -> object:
    """… and before the second."""
    if isinstance(value, datetime) and value.microsecond % 1000 and value.replace(tzinfo=UTC) < _LAST_MILLISECOND:
        value += _MILLISECOND
    return floor_text(value)


def sync_path(path: str, *, root: str) -> None:
    """A file on this machine and its name outlive a power cut, with the directories above it up to the one that the
    table's lies in: each may be new. Other stores keep what they have taken."""
    names = [path]
    while len(names[-1]) >= len(root):
        names.append(os.path.dirname(names[-1]))  # noqa: PTH120  texts, as everywhere here
    for each in names:
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
