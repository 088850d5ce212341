"""Files, commits and upkeep of a Delta table, without Spark: exactly once, and nothing lost by looking after it."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("deltalake", reason="the extra `spark` is not installed")

from penstock.pipeline.archive.snapshot import archive_options, open_archive, ranges_of  # noqa: E402
from penstock.pipeline.table import files as table_files  # noqa: E402
from penstock.pipeline.table import upkeep as table_upkeep  # noqa: E402
from penstock.pipeline.table.commit import OverlapError, check_may_begin, commit_files, open_table  # noqa: E402
from penstock.pipeline.table.files import split_rows, write_files  # noqa: E402
from penstock.pipeline.table.options import (  # noqa: E402
    OptionError,
    TableError,
    TableOptions,
    check_table_columns,
    parse_table_options,
)

DAY_MS = 86_400_000
# 2026-01-01
BASE_US = 1_767_225_600_000_000


def schema_of(**types: str) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


ARCHIVE_SCHEMA = schema_of(
    topic="string", partition="integer", offset="long", timestamp="timestamp", value="binary", date="date"
)


def messages(start: int, end: int, *, partition: int = 0, day: int = 0) -> Any:
    count = end - start
    return pa.record_batch({
        "topic": pa.array(["orders"] * count),
        "partition": pa.array([partition] * count, pa.int32()),
        "offset": pa.array(range(start, end), pa.int64()),
        "timestamp": pa.array(
            [BASE_US + day * DAY_MS * 1000 + number for number in range(start, end)], pa.timestamp("us", tz="UTC")
        ),
        "value": pa.array([b"value"] * count),
        "date": pa.array([date(2026, 1, 1 + day)] * count),
    })  # fmt: skip


def add(options: TableOptions, *batches: Any, batch_id: int, writer_id: str = "query") -> bool:
    files = write_files(options, batches)
    return commit_files(options, ARCHIVE_SCHEMA, files, writer_id=writer_id, batch_id=batch_id).is_new


def offsets_in(path: str) -> list[int]:
    table = open_table(path)
    assert table is not None
    return sorted(table.to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


@pytest.fixture
def options(tmp_path: Path) -> TableOptions:
    return archive_options(str(tmp_path / "table"))


def test_a_batch_that_is_repeated_is_committed_once(options: TableOptions) -> None:
    assert add(options, messages(0, 10), batch_id=0)
    assert add(options, messages(10, 20), batch_id=1)
    assert not add(options, messages(10, 20), batch_id=1)
    assert not add(options, messages(0, 10), batch_id=0)
    assert offsets_in(options.path) == list(range(20))


def test_a_checkpoint_of_the_table_remembers_batches_and_positions(options: TableOptions) -> None:
    for number in range(52):
        add(options, messages(number, number + 1), batch_id=number)
    log = Path(options.path) / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet"))
    # As the cleaning of old versions will.
    for number in range(40):
        (log / f"{number:020}.json").unlink()
    assert not add(options, messages(51, 52), batch_id=51)
    with pytest.raises(OverlapError):
        add(options, messages(51, 52), batch_id=0, writer_id="another")
    assert offsets_in(options.path) == list(range(52))


def test_another_writer_of_the_same_messages_is_refused(options: TableOptions) -> None:
    add(options, messages(0, 10), batch_id=0)
    with pytest.raises(OverlapError, match="up to offset 10, and 5 was to be added"):
        add(options, messages(5, 15), batch_id=0, writer_id="another")
    assert offsets_in(options.path) == list(range(10))


def test_of_many_that_commit_the_same_batch_at_once_one_does(options: TableOptions) -> None:
    add(options, messages(0, 10), batch_id=0)
    results: list[bool] = []

    def commit() -> None:
        results.append(add(options, messages(10, 20), batch_id=1))

    threads = [threading.Thread(target=commit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [False] * 5 + [True]
    assert offsets_in(options.path) == list(range(20))


def test_of_many_that_make_the_table_at_once_one_does(options: TableOptions) -> None:
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(add(options, messages(0, 10), batch_id=0))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [False] * 3 + [True]
    assert offsets_in(options.path) == list(range(10))


def test_a_file_has_one_partition_and_one_day_and_says_so(options: TableOptions) -> None:
    mixed = pa.concat_batches([messages(0, 5), messages(0, 5, partition=1), messages(5, 8, day=1)])
    add(options, mixed, batch_id=0)
    snapshot = open_archive(options.path)
    assert snapshot is not None
    found = [(each.partition, each.day, each.offset_first, each.offset_last) for each in snapshot.files]
    assert found == [(0, "2026-01-01", 0, 4), (0, "2026-01-02", 5, 7), (1, "2026-01-01", 0, 4)]
    # Rounded to the outside: a reader must not pass over the file that has the microsecond it looks for.
    assert snapshot.files[0].timestamp_ms_first == BASE_US // 1000
    assert snapshot.files[0].timestamp_ms_last == BASE_US // 1000 + 1
    assert snapshot.ends == {("orders", 0): 8, ("orders", 1): 5}


def test_compaction_keeps_every_message_and_the_bounds_tight(options: TableOptions) -> None:
    for number in range(5):
        batch = [messages(number * 10, number * 10 + 10, partition=each) for each in (0, 1)]
        add(options, *batch, batch_id=number)
    done = table_upkeep.compact(options)
    assert (done.files_before, done.files_after) == (10, 2)
    snapshot = open_archive(options.path)
    assert snapshot is not None
    assert [(each.first_offset, each.end_offset, each.row_count, each.file_count) for each in ranges_of(snapshot)] == [
        (0, 50, 50, 1), (0, 50, 50, 1)
    ]  # fmt: skip
    table = open_table(options.path)
    assert table is not None
    rows = table.to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    assert len(rows) == 100
    assert add(options, messages(50, 60), batch_id=5)


def test_what_a_compaction_replaces_must_still_be_there(options: TableOptions) -> None:
    for number in range(4):
        add(options, messages(number * 10, number * 10 + 10), batch_id=number)

    class RemovedMeanwhile(table_files.TableFiles):
        def finish(self) -> Any:
            files = super().finish()
            table_upkeep.keep_days(options.path, keep_ms=0, now_ms=BASE_US // 1000 + 5 * DAY_MS)
            return files

    with pytest.raises(TableError, match="files were removed while they were being compacted"):
        table_upkeep.compact(options, files=RemovedMeanwhile)
    assert offsets_in(options.path) == []


def test_old_days_go_and_their_place_stays_known(options: TableOptions) -> None:
    add(options, messages(0, 10), messages(10, 20, day=3), batch_id=0)
    assert table_upkeep.keep_days(options.path, keep_ms=DAY_MS, now_ms=BASE_US // 1000 + 3 * DAY_MS) == 10
    assert offsets_in(options.path) == list(range(10, 20))
    table_upkeep.keep_days(options.path, keep_ms=DAY_MS, now_ms=BASE_US // 1000 + 30 * DAY_MS)
    snapshot = open_archive(options.path, partitions={"orders": [0]})
    assert snapshot is not None
    assert snapshot.ends == {("orders", 0): 20}
    with pytest.raises(OverlapError):
        add(options, messages(0, 10), batch_id=0, writer_id="another")


def test_files_that_no_version_has_are_deleted_when_they_are_old(options: TableOptions) -> None:
    add(options, messages(0, 10), batch_id=0)
    # Of a task whose batch was never committed; one is at work at this moment, the other was a month ago.
    write_files(options, [messages(10, 20)])
    (left_over,) = write_files(options, [messages(10, 20)])
    os.utime(Path(options.path) / left_over.path, (0, 0))
    assert table_upkeep.vacuum(options.path) == 1
    assert not (Path(options.path) / left_over.path).exists()
    assert offsets_in(options.path) == list(range(10))


def test_a_new_column_is_added_and_a_changed_one_refused(tmp_path: Path) -> None:
    options = TableOptions(str(tmp_path / "table"))

    def put(schema: str, batch: Any, batch_id: int) -> None:
        commit_files(options, schema, write_files(options, [batch]), writer_id="query", batch_id=batch_id)

    put(schema_of(a="long"), pa.record_batch({"a": pa.array([1], pa.int64())}), 0)
    wider = pa.record_batch({"a": pa.array([2], pa.int64()), "b": pa.array(["x"])})
    put(schema_of(a="long", b="string"), wider, 1)
    with pytest.raises(TableError, match=r"column 'a' is long in .*, and string was to be added"):
        put(schema_of(a="string"), pa.record_batch({"a": pa.array(["1"])}), 2)
    table = open_table(options.path)
    assert table is not None
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["a"])
    assert rows == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_a_complete_result_replaces_the_one_before(tmp_path: Path) -> None:
    options = TableOptions(str(tmp_path / "table"))
    for number in range(3):
        files = write_files(options, [pa.record_batch({"a": pa.array([number], pa.int64())})])
        commit_files(options, schema_of(a="long"), files, writer_id="query", batch_id=number, replaces=True)
    table = open_table(options.path)
    assert table is not None
    assert table.to_pyarrow_table()["a"].to_pylist() == [2]


def test_odd_values_make_directories_that_are_read_back(tmp_path: Path) -> None:
    options = TableOptions(str(tmp_path / "table"), ("a",))
    names = ["x/y ü%", "b", None, "2026-01-01"]
    files = write_files(options, [pa.record_batch({"a": pa.array(names), "v": pa.array(range(4), pa.int64())})])
    commit_files(options, schema_of(a="string", v="long"), files, writer_id="query", batch_id=0)
    table = open_table(options.path)
    assert table is not None
    assert {row["v"]: row["a"] for row in table.to_pyarrow_table().to_pylist()} == dict(enumerate(names))


def test_rows_keep_their_order_within_a_group() -> None:
    batch = pa.record_batch({"p": pa.array([1, 2, 1, None, 2]), "v": pa.array(range(5))})
    found = {group: rows.column("v").to_pylist() for group, rows in split_rows(batch, ("p",))}
    assert found == {("1",): [0, 2], ("2",): [1, 4], (None,): [3]}


def test_options_that_mean_nothing_are_told() -> None:
    with pytest.raises(OptionError, match="option 'pathh' is not known"):
        parse_table_options({"pathh": "x"})
    with pytest.raises(OptionError, match="says where"):
        parse_table_options({})
    with pytest.raises(OptionError, match="queryId must say"):
        parse_table_options({"path": "x", "batchId": "3"})
    with pytest.raises(OptionError, match="cast it first"):
        check_table_columns({"a": "void"}, TableOptions("x"))
    with pytest.raises(OptionError, match="no such column"):
        check_table_columns({"a": "int"}, TableOptions("x", ("b",)))


def test_new_directories_outlive_a_power_cut_as_their_files_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may delete what it hears that the table has."""
    synced: set[str] = set()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    root = tmp_path / "made" / "anew"
    add(archive_options(str(root)), messages(0, 3), batch_id=0)
    for path in root.rglob("*"):
        assert str(path) in synced, path
    assert {str(root), str(root.parent)} <= synced


def test_a_batch_with_a_new_column_is_there_once_whoever_comes_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake.table import TableAlterer

    options = TableOptions(str(tmp_path))
    commit_files(options, schema_of(a="long"), write_files(options, [pa.record_batch({"a": [1]})]), writer_id="q",
                 batch_id=0)  # fmt: skip

    def second_batch() -> bool:
        files = write_files(options, [pa.record_batch({"a": [2], "b": [3]})])
        return commit_files(options, schema_of(a="long", b="long"), files, writer_id="q", batch_id=1).is_new

    add_columns = TableAlterer.add_columns
    others: list[bool] = []

    def overtaken(alterer: TableAlterer, *arguments: Any, **named: Any) -> None:
        add_columns(alterer, *arguments, **named)
        if not others:
            others.append(second_batch())

    monkeypatch.setattr(TableAlterer, "add_columns", overtaken)
    assert second_batch() is not others[0]
    table = open_table(str(tmp_path))
    assert table is not None
    assert sorted(table.to_pyarrow_table()["a"].to_pylist()) == [1, 2]


def test_statistics_hold_the_first_and_the_last_moment_that_there_is(tmp_path: Path) -> None:
    last = datetime.max.replace(tzinfo=UTC)
    moments = pa.array([datetime(900, 1, 1, tzinfo=UTC), last], pa.timestamp("us", tz="America/New_York"))
    (file,) = write_files(TableOptions(str(tmp_path)), [pa.record_batch({"moment": moments})])
    told = json.loads(file.statistics)
    assert told["minValues"] == {"moment": "0900-01-01T00:00:00.000Z"}
    assert told["maxValues"] == {"moment": "9999-12-31T23:59:59.999Z"}


def test_a_table_is_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TableError, match="file is a file: a table is a directory"):
        open_table(str(tmp_path / "file"))
    with pytest.raises(TableError, match="cannot have a % in it"):
        open_table(str(tmp_path / "a%41"))
    with pytest.raises(TableError, match="the table's path is empty"):
        open_table("")
    with pytest.raises(TableError, match="is not a table, and file is there"):
        check_may_begin(str(tmp_path), ("topic", "date"))
    (tmp_path / "file").unlink()
    for name in ("topic=orders", "_delta_log", ".hidden", "lost+found"):
        (tmp_path / name).mkdir()
    check_may_begin(str(tmp_path), ("topic", "date"))


def test_files_that_somebody_else_put_there_are_not_deleted(options: TableOptions) -> None:
    add(options, messages(0, 10), batch_id=0)
    leftover = write_files(options, [messages(10, 20)])[0].path
    letter = Path(options.path) / "letter.txt"
    letter.touch()
    for path in (letter, Path(options.path) / leftover):
        os.utime(path, (0, 0))
    with pytest.raises(TableError, match=r"letter\.txt is not a file of a table, nothing was deleted"):
        table_upkeep.vacuum(options.path)
    assert letter.exists()
    letter.unlink()
    assert table_upkeep.vacuum(options.path) == 1
    assert not (Path(options.path) / leftover).exists()
