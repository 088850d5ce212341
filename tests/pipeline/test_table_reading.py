"""A table's rows as Spark reads them: what stands in the names of directories comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

import pyarrow as pa

from penstock.pipeline import table_upkeep
from penstock.pipeline.table_commit import commit_files
from penstock.pipeline.table_files import write_files
from penstock.pipeline.table_options import TableOptions

CITIES = ["Köln/Süd: 50%", "plain", None, "東京", "Ã©"]


def test_texts_of_all_languages_divide_a_table(spark: Any, tmp_path: Path) -> None:
    from penstock.pipeline.table_writer import read_table

    options = TableOptions(str(tmp_path), partition_by=("city",))
    types = {"city": "string", "number": "long"}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    rows = pa.record_batch({"city": pa.array(CITIES), "number": pa.array(range(len(CITIES)), pa.int64())})
    for batch_id in range(2):
        files = write_files(options, [rows])
        schema = json.dumps({"type": "struct", "fields": fields})
        commit_files(options, schema, files, writer_id="query", batch_id=batch_id)

    def read() -> list[tuple[int, str | None]]:
        return sorted((row["number"], row["city"]) for row in read_table(spark, str(tmp_path)).collect())

    expected = sorted([*enumerate(CITIES), *enumerate(CITIES)])
    assert read() == expected
    table_upkeep.compact(options)
    assert read() == expected
