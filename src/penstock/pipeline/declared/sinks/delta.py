"""Rows as a Delta table, exactly once: one Delta commit a batch, which names the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from penstock.pipeline.declared.paths import locate
from penstock.pipeline.declared.problems import Path as Where
from penstock.pipeline.declared.problems import Problems, check_filled
from penstock.pipeline.declared.sinks.contract import Claims, Description, Mode, Place, Target, check_named
from penstock.pipeline.source.options import OptionError
from penstock.pipeline.table.options import FORMAT, TableOptions, check_table_columns


class DeltaSink(msgspec.Struct, frozen=True, kw_only=True):
    KEYS: ClassVar[tuple[str, ...]] = ("delta",)

    delta: str
    mode: Mode = Mode.APPEND
    partition_by: list[str] = msgspec.field(default_factory=list)

    @property
    def claims(self) -> Claims:
        return Claims()

    def describe(self) -> Description:
        return Description(f"delta {self.delta}", self.delta, is_table=True)

    def check(self, read: Mapping[str, str], path: Where, problems: Problems) -> None:  # noqa: ARG002  of topics
        check_filled(self.delta, (*path, "delta"), problems)
        if self.mode is Mode.UPDATE:
            told = "a Delta table takes `append`, or `complete`, which replaces it; `update` is for topics"
            problems.add((*path, "mode"), told)

    def check_columns(self, types: Mapping[str, str], path: Where, problems: Problems) -> None:
        check_named([("partition_by", column) for column in self.partition_by], types, path, problems)
        try:
            check_table_columns(types, TableOptions(self.delta))
        except OptionError as error:
            problems.add(path, str(error))

    def check_place(self, spark: Any, place: Place, path: Where, problems: Problems) -> None:
        """A table takes what several write: each commit names its query."""

    def columns(self, types: Mapping[str, str]) -> list[str]:  # noqa: ARG002  all of them
        return []

    def write(self, writer: Any, target: Target) -> Any:
        # Both need Spark to be there already at their import.
        from penstock.pipeline.declared.topic_table import register_once
        from penstock.pipeline.table.writer import TableSink

        register_once(target.spark, TableSink)
        writer = writer.format(FORMAT).option("path", locate(self.delta, target.directory))
        return writer.option("partitionBy", ",".join(self.partition_by)) if self.partition_by else writer
