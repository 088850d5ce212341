"""The short way into an archive: files that a source's task has written, told in rows of the source's own schema."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from penstock.pipeline.archive.snapshot import archive_options, open_archive, ranges_of  # noqa: E402
from penstock.pipeline.archive.source import first_since, is_needed  # noqa: E402
from penstock.pipeline.source.filters import Narrowing  # noqa: E402
from penstock.pipeline.table.commit import commit_files  # noqa: E402
from penstock.pipeline.table.task_files import told_files, with_date, write_archived  # noqa: E402

TYPES = {
    "key": "binary", "value": "binary", "topic": "string", "partition": "integer", "offset": "long",
    "timestamp": "timestamp", "date": "date",
}  # fmt: skip
SCHEMA = json.dumps({
    "type": "struct",
    "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in TYPES.items()],
})  # fmt: skip
DAY_US = 86_400_000_000


def rows(*moments_us: int, first: int = 0, partition: int = 0) -> Any:
    count = len(moments_us)
    return pa.record_batch({
        "key": pa.array([b"k"] * count),
        "value": pa.array([b"v"] * count),
        "topic": pa.array(["orders"] * count),
        "partition": pa.array([partition] * count, pa.int32()),
        "offset": pa.array(range(first, first + count), pa.int64()),
        "timestamp": pa.array(moments_us, pa.timestamp("us", tz="UTC")),
    })  # fmt: skip


def test_a_day_is_a_day_of_utc_before_1970_too() -> None:
    found = with_date(rows(0, DAY_US - 1, DAY_US, -1)).column("date").to_pylist()
    assert found == [date(1970, 1, 1), date(1970, 1, 1), date(1970, 1, 2), date(1969, 12, 31)]


def test_a_time_beyond_all_calendars_stops_no_archive(tmp_path: Path) -> None:
    """Microseconds that a producer took for milliseconds."""
    far_us = 1_760_000_000_000_000_000
    options = archive_options(str(tmp_path))
    files = told_files(write_archived(msgspec.json.encode(options).decode(), [rows(0, far_us)]))
    assert sorted(file.partition_values["date"] or "" for file in files) == ["1970-01-01", "9999-12-31"]
    commit_files(options, SCHEMA, files, writer_id="query", batch_id=0)
    snapshot = open_archive(options.path)
    assert snapshot is not None
    assert [file.offset_first for file in snapshot.files if is_needed(file, Narrowing(time_ms_min=10**12))] == [1]
    assert first_since(snapshot, "orders", 0, 10**12) == 1
    assert [each.timestamp_ms_last for each in ranges_of(snapshot)] == [0]


def test_rows_tell_of_the_files_that_hold_the_messages(tmp_path: Path) -> None:
    target = msgspec.json.encode(archive_options(str(tmp_path))).decode()
    source = [rows(0, 1, 2), rows(DAY_US, DAY_US + 1, first=3), rows(5, partition=1)]
    told = list(write_archived(target, source))
    assert all(batch.schema == source[0].schema for batch in told)
    files = told_files(told)
    found = sorted((file.split_values["partition"], file.partition_values["date"], file.row_count) for file in files)
    assert found == [("0", "1970-01-01", 3), ("0", "1970-01-02", 2), ("1", "1970-01-01", 1)]
    assert sorted((file.offset_first, file.offset_last) for file in files) == [(0, 0), (0, 2), (3, 4)]
    assert all((tmp_path / file.path).stat().st_size == file.size_bytes for file in files)


def test_nothing_is_told_of_nothing(tmp_path: Path) -> None:
    target = msgspec.json.encode(archive_options(str(tmp_path))).decode()
    assert list(write_archived(target, [])) == []
    assert list(tmp_path.iterdir()) == []
