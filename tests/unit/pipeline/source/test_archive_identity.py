"""An archive holds one topic of a name: another one that was made after it is told apart by its id. No Spark."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("deltalake", reason="the extra `spark` is not installed")

from penstock.cli.app import app, run  # noqa: E402
from penstock.pipeline.archive.snapshot import ArchiveSnapshot, archive_options, open_archive  # noqa: E402
from penstock.pipeline.source.topic_identity import OtherTopicError, check_archived, identity_of, is_other  # noqa: E402
from penstock.pipeline.table import upkeep as table_upkeep  # noqa: E402
from penstock.pipeline.table.commit import commit_files, open_table  # noqa: E402
from penstock.pipeline.table.files import write_files  # noqa: E402

TYPES = {"topic": "string", "partition": "integer", "offset": "long", "timestamp": "timestamp", "date": "date"}
SCHEMA = json.dumps({
    "type": "struct",
    "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in TYPES.items()],
})  # fmt: skip
FORMER = identity_of(UUID("9b2f0c6e-4f1d-4c58-9a55-2b8d30f7a001").bytes)
LATER = identity_of(UUID("9b2f0c6e-4f1d-4c58-9a55-2b8d30f7a002").bytes[::-1])


def add(path: str, start: int, end: int, topic_id: int, *, topic: str = "orders", batch_id: int = 0) -> None:
    options = msgspec.structs.replace(archive_options(path), topic_ids={topic: topic_id})
    count = end - start
    rows = pa.record_batch({
        "topic": pa.array([topic] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(start, end), pa.int64()),
        "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
        "date": pa.array([date(1970, 1, 1)] * count),
    })  # fmt: skip
    commit_files(options, SCHEMA, write_files(options, [rows]), writer_id=f"{topic}-{start}", batch_id=batch_id)


def archive_at(path: str) -> ArchiveSnapshot:
    found = open_archive(path, partitions={"orders": [0]})
    assert found is not None
    return found


def test_an_id_is_told_from_another_and_none_from_every_other() -> None:
    assert 0 < FORMER < 2**63
    assert is_other(FORMER, LATER)
    assert not is_other(FORMER, FORMER)
    nobody = identity_of(bytes(16))
    assert not is_other(FORMER, nobody)
    assert not is_other(nobody, FORMER)
    assert not is_other(None, FORMER)


def test_rows_of_a_topic_made_anew_are_refused_and_nothing_is_added(tmp_path: Path) -> None:
    path = str(tmp_path / "archive")
    add(path, 0, 10, FORMER)
    add(path, 10, 20, FORMER)
    with pytest.raises(OtherTopicError, match=f"archive forget {path} orders"):
        add(path, 20, 30, LATER)
    assert archive_at(path).ends == {("orders", 0): 20}
    with pytest.raises(OtherTopicError, match="another topic 'orders'"):
        check_archived(path, archive_at(path).topic_ids, {"orders": LATER})
    # Another topic in the same table is none of its business.
    add(path, 0, 10, LATER, topic="payments")


def test_an_archive_from_before_ids_takes_the_first_that_comes(tmp_path: Path) -> None:
    path = str(tmp_path / "archive")
    add(path, 0, 10, 0)
    assert archive_at(path).topic_ids == {}
    check_archived(path, {}, {"orders": LATER})
    add(path, 10, 20, LATER)
    assert archive_at(path).topic_ids == {"orders": LATER}
    with pytest.raises(OtherTopicError):
        add(path, 20, 30, FORMER)


def test_a_topics_id_outlives_checkpoints_compaction_and_the_topics_last_day(tmp_path: Path) -> None:
    path = str(tmp_path / "archive")
    for number in range(4):
        add(path, number * 10, number * 10 + 10, FORMER)
    assert table_upkeep.compact(archive_options(path)).files_after == 1
    table = open_table(path)
    assert table is not None
    table.create_checkpoint()
    assert table_upkeep.keep_days(path, keep_ms=0, now_ms=10 * 86_400_000) == 40
    assert archive_at(path).topic_ids == {"orders": FORMER}


def test_a_forgotten_topic_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "archive")
    add(path, 0, 10, FORMER)
    add(path, 0, 5, FORMER, topic="payments")
    assert run(app, ["archive", "forget", path, "orders", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"topic": "orders", "message_count": 10, "file_count": 1}
    assert archive_at(path).topics == ["payments"]
    assert run(app, ["archive", "forget", path, "orders"]) == 1
    assert "holds nothing of topic 'orders'" in capsys.readouterr().err
    add(path, 3, 7, LATER)
    assert archive_at(path).ends == {("orders", 0): 7, ("payments", 0): 5}
    assert archive_at(path).topic_ids == {"orders": LATER, "payments": FORMER}


def test_an_archive_that_forgot_only_the_id_goes_on_under_another(tmp_path: Path) -> None:
    path = str(tmp_path / "archive")
    add(path, 0, 10, FORMER)
    assert run(app, ["archive", "forget", path, "orders", "--only-id"]) == 0
    add(path, 10, 20, LATER)
    assert archive_at(path).ends == {("orders", 0): 20}
    assert sum(file.row_count for file in archive_at(path).files) == 20
    assert archive_at(path).topic_ids == {"orders": LATER}
