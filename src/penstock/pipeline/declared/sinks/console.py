"""Rows shown to whoever started the pipeline; nothing is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from penstock.pipeline.declared.problems import Path as Where
from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.declared.sinks.contract import Claims, Description, Mode, Place, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ConsoleSink(msgspec.Struct, frozen=True, kw_only=True):
    KEYS: ClassVar[tuple[str, ...]] = ("console",)

    # How many rows of each batch.
    console: int
    mode: Mode = Mode.APPEND

    @property
    def claims(self) -> Claims:
        return Claims()

    def describe(self) -> Description:
        return Description("console", "console")

    def check(self, read: Mapping[str, str], path: Where, problems: Problems) -> None:  # noqa: ARG002  of topics
        if self.console < 1:
            problems.add((*path, "console"), "how many rows of each batch are shown: at least 1")

    def check_columns(self, types: Mapping[str, str], path: Where, problems: Problems) -> None:
        """Whatever there is can be shown."""

    def check_place(self, spark: Any, place: Place, path: Where, problems: Problems) -> None:
        """Nothing is there before."""

    def columns(self, types: Mapping[str, str]) -> list[str]:  # noqa: ARG002  all of them
        return []

    def write(self, writer: Any, target: Target) -> Any:
        def write(batch: DataFrame, batch_id: int) -> None:
            rows = [row.asDict(recursive=True) for row in batch.limit(self.console).collect()]
            target.show(rows, batch_id, batch.columns)

        return writer.foreachBatch(write)
