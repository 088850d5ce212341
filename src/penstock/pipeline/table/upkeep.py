"""What a table needs from time to time: small files put together, old days removed, files that nobody reads deleted.

In a table of topics a file holds one partition of one topic on one day, in the order of the offsets. Compaction keeps
it so (that is why it is ours and not delta-rs's): what a reader passes over by its statistics is passed over afterwards
too.
A compaction that is overtaken by a commit removing its files gives up; nothing was changed, its own file is left over.

Files are deleted some time after they left the table, because a query may still read the version that had them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec

from penstock.base.clock import SystemClock
from penstock.pipeline.table.commit import open_table
from penstock.pipeline.table.files import TableFiles, open_directory
from penstock.pipeline.table.options import NewFile, TableError, TableOptions

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import RemoveAction

# A file of this size is not touched again: large enough to be read well.
TARGET_BYTES: Final = 128 * 1024 * 1024
# So many small ones at least, or one new file would have all the old ones of its day written again and again.
FILES_MIN: Final = 4
# One compaction of a stream's should not hold it up for longer than a few seconds; the rest comes with the next.
STREAM_BYTES_MAX: Final = 512 * 1024 * 1024
# Delta's own default: no query is thought to run for a week.
VACUUM_AFTER_MS: Final = 7 * 24 * 3_600_000
HOUR_MS: Final = 3_600_000


class StoredFile(msgspec.Struct, frozen=True):
    """A file of the table, with what its statistics say. Times in microseconds."""

    path: str
    size_bytes: int
    row_count: int
    partition_values: dict[str, str | None]
    lowest: dict[str, Any]
    highest: dict[str, Any]


class Compacted(msgspec.Struct, frozen=True):
    files_before: int = 0
    files_after: int = 0
    size_bytes_before: int = 0
    size_bytes_after: int = 0


def stored_files(table: DeltaTable) -> list[StoredFile]:
    import pyarrow as pa

    found = pa.table(table.get_add_actions(flatten=True))
    files: list[StoredFile] = []
    for row in found.to_pylist():
        files.append(
            StoredFile(
                path=row["path"],
                size_bytes=row["size_bytes"],
                row_count=row["num_records"] or 0,
                partition_values=_under(row, "partition."),
                lowest={name: value for name, value in _under(row, "min.").items() if value is not None},
                highest={name: value for name, value in _under(row, "max.").items() if value is not None},
            )
        )
    return files


def _under(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def compact_quietly(options: TableOptions) -> None:
    """Within a stream: whatever comes in between, the batch is committed and the stream goes on. What was left over is
    tried again by the next one; nothing can be told from here, a worker of Spark has no log of its own."""
    from deltalake.exceptions import DeltaError

    with contextlib.suppress(DeltaError, OSError, TableError):
        compact(options, bytes_max=STREAM_BYTES_MAX)


def compact(options: TableOptions, *, bytes_max: int | None = None, files: type[TableFiles] = TableFiles) -> Compacted:
    table = open_table(options.path)
    if table is None:
        raise TableError(f"{options.path} is not a Delta table")
    if not options.has_positions:
        return _compact_any(table)
    total = Compacted()
    left = bytes_max
    for run in runs_to_compact(stored_files(table)):
        size_bytes = sum(file.size_bytes for file in run)
        if left is not None and size_bytes > left:
            break
        left = None if left is None else left - size_bytes
        total = _add(total, _compact_run(options, run, files))
    return total


def runs_to_compact(files: Sequence[StoredFile]) -> Iterator[list[StoredFile]]:
    """Neighbours in one partition of a topic on one day, small enough that they fit into one file together. Pure."""
    groups: dict[tuple[object, ...], list[StoredFile]] = {}
    for file in files:
        partition = file.lowest.get("partition")
        if partition is None or partition != file.highest.get("partition") or "offset" not in file.lowest:
            # Not written by us: left as it is.
            continue
        key: tuple[object, ...] = (
            file.partition_values.get("topic"),
            str(file.partition_values.get("date")),
            partition,
        )
        groups.setdefault(key, []).append(file)
    for _, group in sorted(groups.items(), key=lambda entry: str(entry[0])):
        run: list[StoredFile] = []
        size_bytes = 0
        for file in sorted(group, key=lambda file: file.lowest["offset"]):
            if run and size_bytes + file.size_bytes > TARGET_BYTES:
                if len(run) >= FILES_MIN:
                    yield run
                run, size_bytes = [], 0
            if file.size_bytes < TARGET_BYTES // 2:
                run.append(file)
                size_bytes += file.size_bytes
        if len(run) >= FILES_MIN:
            yield run


def _compact_run(options: TableOptions, run: Sequence[StoredFile], files: type[TableFiles]) -> Compacted:
    import pyarrow.parquet as pq

    file_system, root = open_directory(options.path)
    # One value of each column is known already: nothing has to be split.
    writer = files(TableOptions(options.path), task=0, directory=run[0].path.rpartition("/")[0])
    try:
        for file in run:
            with pq.ParquetFile(f"{root}/{file.path}", filesystem=file_system) as parquet:
                for batch in parquet.iter_batches(batch_size=65_536):
                    writer.add(batch)
        written = writer.finish()
    finally:
        writer.close()
    assert sum(file.row_count for file in written) == sum(file.row_count for file in run)
    _replace(options, run, written)
    return Compacted(
        len(run), len(written), sum(file.size_bytes for file in run), sum(file.size_bytes for file in written)
    )


def _replace(options: TableOptions, run: Sequence[StoredFile], written: Sequence[NewFile]) -> None:
    """One commit: the new files for the old. Overtaken, it tries again while all the old are there."""
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction

    now_ms = SystemClock().now_ms()
    values = _texts(run[0].partition_values)
    for _ in range(20):
        table = open_table(options.path)
        assert table is not None
        present = {file.path for file in stored_files(table)}
        if not all(file.path in present for file in run):
            raise TableError(f"{options.path}: files were removed while they were being compacted, nothing was changed")
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, values, now_ms, False, file.statistics) for file in written
        ]
        actions += [removal(file, now_ms, is_change=False) for file in run]
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                list(table.metadata().partition_columns),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            continue
        return
    raise TableError(f"{options.path}: overtaken by other writers while compacting, nothing was changed")


def removal(file: StoredFile, now_ms: int, *, is_change: bool) -> RemoveAction:
    """`is_change`: the rows go too."""
    from deltalake.transaction import RemoveAction

    return RemoveAction(
        path=file.path,
        deletion_timestamp=now_ms,
        data_change=is_change,
        partition_values=_texts(file.partition_values),
        size=file.size_bytes,
    )


def _texts(values: dict[str, str | None]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in values.items()}


def _compact_any(table: DeltaTable) -> Compacted:
    """A table of somebody's own columns: delta-rs does it."""
    from deltalake import WriterProperties

    before = stored_files(table)
    table.optimize.compact(target_size=TARGET_BYTES, writer_properties=WriterProperties(compression="ZSTD"))
    after = stored_files(table)
    return Compacted(
        len(before),
        len(after),
        sum(file.size_bytes for file in before),
        sum(file.size_bytes for file in after),
    )


def _add(left: Compacted, right: Compacted) -> Compacted:
    return Compacted(
        left.files_before + right.files_before,
        left.files_after + right.files_after,
        left.size_bytes_before + right.size_bytes_before,
        left.size_bytes_after + right.size_bytes_after,
    )


def keep_days(path: str, *, keep_ms: int, now_ms: int) -> int:
    """Removes the days that ended longer than `keep_ms` ago, whole days only; how many rows they had. How far each
    partition is archived stays known, so that none of it comes back."""
    from datetime import UTC, datetime

    table = open_table(path)
    if table is None:
        raise TableError(f"{path} is not a Delta table")
    if "date" not in table.metadata().partition_columns:
        raise TableError(f"{path} is not partitioned by days (a column `date`): nothing can be removed by age")
    first = (datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(milliseconds=keep_ms)).date()
    removed = table.delete(f"date < '{first.isoformat()}'")
    return int(removed.get("num_deleted_rows") or 0)


def _is_ours(path: str, partition_by: Sequence[str]) -> bool:
    """Whether it is called as the files of a table are. What is not was put there by somebody."""
    directory, _, name = unquote(path).rpartition("/")
    parts = directory.split("/") if directory else []
    names = [part.partition("=")[0] for part in parts]
    return names == list(partition_by) and name.startswith("part-") and name.endswith(".parquet")


def vacuum(path: str, *, after_ms: int = VACUUM_AFTER_MS) -> int:
    """Deletes files that left the table, or never got into it, so long ago; how many."""
    table = open_table(path)
    if table is None:
        raise TableError(f"{path} is not a Delta table")
    hours = max(1, -(-after_ms // HOUR_MS))
    doomed = table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
    strange = [file for file in doomed if not _is_ours(file, table.metadata().partition_columns)]
    if strange:
        raise TableError(f"{path}: {strange[0]} is not a file of a table, nothing was deleted: move it elsewhere")
    deleted = table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
    table.create_checkpoint()
    table.cleanup_metadata()
    return len(deleted)
