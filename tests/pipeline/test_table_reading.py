"""A table's rows as Spark reads them: what stands in the names of directories comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

import pyarrow as pa
from deltalake import DeltaTable

from penstock.pipeline.table import upkeep as table_upkeep
from penstock.pipeline.table import writer as table_writer
from penstock.pipeline.table.commit import commit_files
from penstock.pipeline.table.files import write_files
from penstock.pipeline.table.options import TableOptions

CITIES = ["Köln/Süd: 50%", "plain", None, "東京", "Ã©"]


# Midnights, one before 1970, one before there were zones, the hour that is there twice in Berlin, and none.
MOMENTS = [
    "2026-03-01T00:00:00Z", "2026-02-28T23:59:59.999999Z", "1969-12-31T23:59:59.5Z", "1850-01-01T00:00:00Z",
    "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", None,
]  # fmt: skip


@pytest.fixture
def zone(spark: Any) -> Iterator[Callable[[str], None]]:
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda name: spark.conf.set("spark.sql.session.timeZone", name)
    spark.conf.set("spark.sql.session.timeZone", before)


def test_moments_that_divide_a_table_are_the_same_in_every_zone(
    spark: Any, tmp_path: Path, zone: Callable[[str], None]
) -> None:
    path = str(tmp_path / "moments")
    table_writer.register(spark)
    rows = spark.createDataFrame([(MOMENTS,)], "texts array<string>").selectExpr("posexplode(texts) as (number, text)")
    for writer_zone in ("Europe/Berlin", "America/New_York"):
        zone(writer_zone)
        frame = rows.selectExpr("number", "cast(text as timestamp) as moment", "date(cast(text as timestamp)) as day")
        writer = frame.write.format("penstock-table").options(path=path, partitionBy="moment").mode("append")
        writer.save()

    def read() -> list[tuple[Any, ...]]:
        wanted = table_writer.read_table(spark, path).selectExpr("number", "unix_micros(moment) as moment")
        return sorted(tuple(row) for row in wanted.collect())

    expected = sorted([(number, micros(text)) for number, text in enumerate(MOMENTS)] * 2)
    for is_compacted in (False, True):
        for reader_zone in ("UTC", "Europe/Berlin", "Asia/Kolkata"):
            zone(reader_zone)
            assert read() == expected, (reader_zone, is_compacted)
        found = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert sorted((row["number"], micros(row["moment"])) for row in found) == expected
        table_upkeep.compact(TableOptions(path))


def micros(moment: str | datetime | None) -> int | None:
    if moment is None:
        return None
    found = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_texts_of_all_languages_divide_a_table(spark: Any, tmp_path: Path) -> None:
    options = TableOptions(str(tmp_path), partition_by=("city",))
    types = {"city": "string", "number": "long"}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    rows = pa.record_batch({"city": pa.array(CITIES), "number": pa.array(range(len(CITIES)), pa.int64())})
    for batch_id in range(2):
        files = write_files(options, [rows])
        schema = json.dumps({"type": "struct", "fields": fields})
        commit_files(options, schema, files, writer_id="query", batch_id=batch_id)

    def read() -> list[tuple[int, str | None]]:
        return sorted((row["number"], row["city"]) for row in table_writer.read_table(spark, str(tmp_path)).collect())

    expected = sorted([*enumerate(CITIES), *enumerate(CITIES)])
    assert read() == expected
    table_upkeep.compact(options)
    assert read() == expected
