"""`penstock archive list|show|compact` and what `penstock query` makes of rows: without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("deltalake", reason="the extra `spark` is not installed")

from penstock.cli.app import app, run  # noqa: E402
from penstock.cli.work.query import plain, show  # noqa: E402
from penstock.pipeline.archive.query import QueryError, python_error, topic_of  # noqa: E402
from penstock.pipeline.archive.snapshot import archive_options  # noqa: E402
from penstock.pipeline.table.commit import commit_files  # noqa: E402
from penstock.pipeline.table.files import write_files  # noqa: E402

BASE_US = 1_767_225_600_000_000
TYPES = {"topic": "string", "partition": "integer", "offset": "long", "timestamp": "timestamp", "date": "date"}
SCHEMA = json.dumps({
    "type": "struct",
    "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in TYPES.items()],
})  # fmt: skip


@pytest.fixture
def archive(tmp_path: Path) -> str:
    options = archive_options(str(tmp_path / "kept" / "orders"))
    for number in range(4):
        batch = pa.record_batch({
            "topic": pa.array(["orders"] * 5),
            "partition": pa.array([1] * 5, pa.int32()),
            "offset": pa.array(range(number * 5, number * 5 + 5), pa.int64()),
            "timestamp": pa.array([BASE_US] * 5, pa.timestamp("us", tz="UTC")),
            "date": pa.array([date(2026, 1, 1)] * 5),
        })  # fmt: skip
        commit_files(options, SCHEMA, write_files(options, [batch]), writer_id="query", batch_id=number)
    return options.path


def test_an_archive_is_shown_by_partition(archive: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["archive", "show", archive, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["version"] == 3
    (found,) = shown["partitions"]
    assert found.pop("size_bytes") > 0
    assert found == {
        "topic": "orders", "partition": 1, "first_offset": 0, "end_offset": 20, "row_count": 20, "file_count": 4,
        "timestamp_ms_first": BASE_US // 1000, "timestamp_ms_last": BASE_US // 1000,
    }  # fmt: skip
    assert run(app, ["archive", "show", archive]) == 0
    assert "orders" in capsys.readouterr().out
    assert run(app, ["archive", "show", archive, "--topic", "payments"]) == 1
    assert "holds nothing of topic 'payments'" in capsys.readouterr().err


def test_archives_are_found_below_a_directory(archive: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["archive", "list", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["archives"]
    assert (found["path"], found["topics"], found["message_count"]) == (archive, ["orders"], 20)
    assert run(app, ["archive", "list", str(tmp_path / "kept")]) == 0
    assert "20" in capsys.readouterr().out


def test_small_files_are_put_together_on_demand(archive: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["archive", "compact", archive, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["files_before"], done["files_after"], done["removed_count"]) == (4, 1, 0)
    assert run(app, ["archive", "compact", archive, "--keep", "1d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed_count"] == 20


def test_what_is_no_archive_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["archive", "show", str(tmp_path)]) == 1
    assert "there is no Delta table" in capsys.readouterr().err
    assert run(app, ["archive", "orders"]) == 2
    assert "--to" in capsys.readouterr().err


def test_values_become_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    row = (None, True, 1.5, "ü", b"text", b"\xff", datetime(2026, 1, 1, tzinfo=UTC), Decimal("1.10"), {"a": [b"b"]})
    names = ("null", "bool", "float", "str", "bytes", "binary", "time", "decimal", "map")
    assert [plain(value) for value in row] == [
        None, True, 1.5, "ü", "text", "/w==", "2026-01-01T00:00:00+00:00", "1.10", {"a": ["b"]},
    ]  # fmt: skip
    show(names, [row], as_json=False, as_csv=True)
    assert capsys.readouterr().out.splitlines()[1] == (
        ',True,1.5,ü,text,/w==,2026-01-01T00:00:00+00:00,1.10,"{""a"": [""b""]}"'
    )
    show(names, [row], as_json=False, as_csv=False)
    show(names, [], as_json=False, as_csv=False)
    assert "no rows" in capsys.readouterr().err


def test_names_of_topics_are_read_as_spark_writes_them() -> None:
    assert topic_of("`orders`") == "orders"
    assert topic_of("`my.orders-2`") == "my.orders-2"
    with pytest.raises(QueryError, match=r"written in backquotes: `my\.orders`"):
        topic_of("`my`.`orders`")


def test_of_sparks_long_story_the_last_sentence_is_told() -> None:
    story = (
        "[JOB_FAILED] it failed\nTraceback\n  File x\npenstock.pipeline.row_batches.DataLossError: 5 are gone.\n\tat y"
    )
    assert python_error(story) == "5 are gone."
    assert (
        python_error("[UNRESOLVED] A column `a` is not known. SQLSTATE: 42703; line 1") == "A column `a` is not known."
    )


def test_columns_of_one_name_are_all_there_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    show(["key", "key_2", "key"], [("a", "b", "c")], as_json=True, as_csv=False)
    assert json.loads(capsys.readouterr().out) == [{"key": "a", "key_2": "b", "key_3": "c"}]


def test_a_replay_from_an_archive_that_has_nothing_of_the_topic_is_not_one_from_the_log(
    archive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its older messages would be left out, and nobody would know."""
    assert run(app, ["replay", "orders", "--to", "again", "--archive", f"{archive}-mistyped"]) == 1
    assert "mistyped is not an archive" in capsys.readouterr().err
    assert run(app, ["replay", "payments", "--to", "again", "--archive", archive]) == 1
    assert "holds nothing of topic 'payments'" in capsys.readouterr().err


def test_the_cause_of_a_full_disk_is_told() -> None:
    arrow = "\x1b[31m↳\x1b[0m"
    text = f"OSError: Generic LocalFileSystem error\n    {arrow} Unable to copy\n     {arrow} No space left\n\n"
    assert python_error(text) == "Generic LocalFileSystem error: Unable to copy: No space left"
