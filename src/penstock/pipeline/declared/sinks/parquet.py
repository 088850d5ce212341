"""Rows as Parquet files, exactly once for those who read by Spark: its file sink keeps a list of what counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from penstock.pipeline.declared.errors import read_complaint
from penstock.pipeline.declared.paths import locate
from penstock.pipeline.declared.problems import Path as Where
from penstock.pipeline.declared.problems import Problems, check_filled
from penstock.pipeline.declared.sinks.contract import Claims, Description, Mode, Place, Target, check_named


class ParquetSink(msgspec.Struct, frozen=True, kw_only=True):
    KEYS: ClassVar[tuple[str, ...]] = ("parquet",)

    parquet: str
    partition_by: list[str] = msgspec.field(default_factory=list)

    @property
    def mode(self) -> Mode:
        return Mode.APPEND

    @property
    def claims(self) -> Claims:
        return Claims(directory=self.parquet)

    def describe(self) -> Description:
        return Description(f"parquet {self.parquet}", self.parquet)

    def check(self, read: Mapping[str, str], path: Where, problems: Problems) -> None:  # noqa: ARG002  of topics
        check_filled(self.parquet, (*path, "parquet"), problems)

    def check_columns(self, types: Mapping[str, str], path: Where, problems: Problems) -> None:
        check_named([("partition_by", column) for column in self.partition_by], types, path, problems)
        if set(types) <= set(self.partition_by):
            problems.add((*path, "partition_by"), "one column at least must be left for the files")

    def check_place(self, spark: Any, place: Place, path: Where, problems: Problems) -> None:
        """Spark's list of files in a Parquet directory goes by the numbers of batches. To a query that begins anew,
        those of its predecessor are its own: it would write nothing until it has more of them."""
        from py4j.protocol import Py4JError

        where = (*path, "parquet")
        files = locate(self.parquet, place.directory)
        try:
            is_begun = _is_there(spark, f"{files}/_spark_metadata")
            is_taken = is_begun and not _is_there(spark, f"{place.checkpoint}/metadata")
        except Py4JError as error:
            problems.add(where, f"{files} cannot be looked at: {read_complaint(error).text}")
            return
        if is_taken:
            told = f"{files} was written by another query, whose batches Spark would take for these: remove it"
            problems.add(where, told)

    def columns(self, types: Mapping[str, str]) -> list[str]:  # noqa: ARG002  all of them
        return []

    def write(self, writer: Any, target: Target) -> Any:
        writer = writer.format("parquet").option("path", locate(self.parquet, target.directory))
        return writer.partitionBy(*self.partition_by) if self.partition_by else writer


def _is_there(spark: Any, path: str) -> bool:
    there = spark._jvm.org.apache.hadoop.fs.Path(path)  # noqa: SLF001  Spark's files have no other door
    return bool(there.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(there))  # noqa: SLF001
