"""The sinks of files and of the terminal, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.declared.sinks.console import ConsoleSink
from penstock.pipeline.declared.sinks.contract import Claims, SinkContract, Target
from penstock.pipeline.declared.sinks.delta import DeltaSink
from penstock.pipeline.declared.sinks.parquet import ParquetSink

TYPES = {"id": "bigint", "day": "date"}


class FakeWriter:
    """Of a stream: keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self.write: Any = None

    def format(self, name: str) -> FakeWriter:
        self.told.append(("format", name))
        return self

    def option(self, name: str, value: str) -> FakeWriter:
        self.told.append((name, value))
        return self

    def partitionBy(self, *columns: str) -> FakeWriter:  # noqa: N802  Spark's name
        self.told.append(("partitionBy", *columns))
        return self

    def foreachBatch(self, write: Any) -> FakeWriter:  # noqa: N802  Spark's name
        self.write = write
        return self


class FakeRow:
    def __init__(self, number: int) -> None:
        self.number = number

    def asDict(self, *, recursive: bool) -> dict[str, int]:  # noqa: N802  Spark's name
        assert recursive
        return {"id": self.number}


class FakeBatch:
    columns = ("id",)

    def __init__(self, count: int) -> None:
        self.count = count

    def limit(self, count: int) -> FakeBatch:
        return FakeBatch(min(self.count, count))

    def collect(self) -> list[FakeRow]:
        return [FakeRow(number) for number in range(self.count)]


def complaints(sink: SinkContract) -> list[str]:
    problems = Problems()
    sink.check_columns(TYPES, ("sink",), problems)
    return [problem.sentence("f") for problem in problems.found]


@pytest.mark.parametrize(
    "sink", [DeltaSink(delta="d", partition_by=["dya"]), ParquetSink(parquet="p", partition_by=["dya"])]
)
def test_columns_of_partitions_must_be_there(sink: SinkContract) -> None:
    assert complaints(sink) == [
        "f: sink.partition_by: the result has no column 'dya'; did you mean 'day'? (it has id, day)"
    ]


def test_a_column_is_left_for_the_files() -> None:
    assert complaints(ParquetSink(parquet="p", partition_by=["day", "id"])) == [
        "f: sink.partition_by: one column at least must be left for the files"
    ]


def test_a_table_refuses_what_it_cannot_hold() -> None:
    problems = Problems()
    DeltaSink(delta="d").check_columns({"id": "void"}, ("sink",), problems)
    assert [problem.text for problem in problems.found] == [
        "column 'id' is void, which the table cannot hold: cast it first"
    ]


def test_files_lie_beside_the_pipeline_file_in_a_directory_of_their_own() -> None:
    sink, writer = ParquetSink(parquet="out", partition_by=["day"]), FakeWriter()
    sink.write(writer, Target(None, "here:9092", Path("/pipelines"), lambda *_: None))
    assert writer.told == [("format", "parquet"), ("path", "/pipelines/out"), ("partitionBy", "day")]
    assert sink.claims == Claims(directory="out")


def test_the_terminal_gets_so_many_rows_of_each_batch() -> None:
    shown: list[Any] = []
    writer = FakeWriter()
    target = Target(None, "here:9092", Path("/pipelines"), lambda *batch: shown.append(batch))
    ConsoleSink(console=2).write(writer, target)
    writer.write(FakeBatch(5), 7)
    assert shown == [([{"id": 0}, {"id": 1}], 7, ("id",))]
