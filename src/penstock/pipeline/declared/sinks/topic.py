"""Rows as messages of a topic, exactly once: staged, then one transaction with a fence (docs/spark.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from penstock.codec.batch.compression import Codec
from penstock.domain.topic_rules import check_name
from penstock.pipeline.declared.problems import Path as Where
from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.declared.sinks.contract import Claims, Description, Mode, Place, Target, check_named
from penstock.pipeline.sink.options import QUERY_ID_PROPERTY
from penstock.pipeline.source.options import OptionError
from penstock.pipeline.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_BYTES: Final = frozenset({"string", "binary"})


class TopicSink(msgspec.Struct, frozen=True, kw_only=True):
    KEYS: ClassVar[tuple[str, ...]] = ("topic",)

    topic: str
    mode: Mode = Mode.APPEND
    # A column; as text.
    key: str | None = None
    # One column: its text or bytes as they are. Several: a JSON document of them. None: one of all columns.
    value: str | list[str] | None = None
    # A column of type array<struct<key: string, value: binary>>.
    headers: str | None = None
    # Of the topic, if the pipeline has to create it.
    partitions: int | None = None
    compression: str = "none"

    @property
    def claims(self) -> Claims:
        return Claims(topic=self.topic, partitions=self.partitions)

    def describe(self) -> Description:
        return Description(f"topic {self.topic}", self.topic, is_table=True)

    def check(self, read: Mapping[str, str], path: Where, problems: Problems) -> None:
        if told := check_name(self.topic):
            problems.add((*path, "topic"), told)
        if self.topic in read:
            told = f"the pipeline reads this topic as {read[self.topic]!r}: it would feed on what it writes"
            problems.add((*path, "topic"), told)
        if self.partitions is not None and self.partitions < 1:
            problems.add((*path, "partitions"), "must be at least 1")
        if isinstance(self.value, list) and not self.value:
            problems.add((*path, "value"), "names no column")
        codecs = [codec.name.lower() for codec in Codec]
        if self.compression not in codecs:
            problems.add((*path, "compression"), f"{self.compression!r} is none of {', '.join(codecs)}")

    def check_columns(self, types: Mapping[str, str], path: Where, problems: Problems) -> None:
        values = [self.value] if isinstance(self.value, str) else self.value or []
        single = [("key", self.key), ("headers", self.headers)]
        named = [(key, column) for key, column in single if column is not None]
        check_named([*named, *(("value", column) for column in values)], types, path, problems)
        kind = None if self.headers is None else types.get(self.headers)
        if kind not in (None, _HEADERS_TYPE):
            told = f"column {self.headers!r} is {kind}, {_HEADERS_TYPE} is meant"
            problems.add((*path, "headers"), told)

    def check_place(self, spark: Any, place: Place, path: Where, problems: Problems) -> None:
        """A topic takes what several write."""

    def columns(self, types: Mapping[str, str]) -> list[str]:
        columns = [f"{self._value(types)} AS value"]
        if self.key is not None:
            columns.append(f"{_as_bytes(self.key, types)} AS key")
        if self.headers is not None:
            columns.append(f"{quoted(self.headers)} AS headers")
        return columns

    def _value(self, types: Mapping[str, str]) -> str:
        if isinstance(self.value, str):
            return _as_bytes(self.value, types)
        apart = {self.key, self.headers}
        columns = self.value or [name for name in types if not name.startswith("_")] or list(types)
        left = [name for name in columns if name not in apart]
        # Text or bytes as they came need no document around them.
        if self.value is None and left == ["value"] and types["value"] in _BYTES:
            return "`value`"
        fields = ", ".join(quoted(name) for name in columns)
        return f"to_json(struct({fields}), map('ignoreNullFields', 'false'))"

    def write(self, writer: Any, target: Target) -> Any:
        options = {
            "kafka.bootstrap.servers": target.bootstrap,
            "topic": self.topic,
            "kafka.compression.type": self.compression,
        }
        if self.mode is not Mode.UPDATE:
            return writer.format("penstock").options(**options)

        # Spark has no update mode for Python's sinks. The number of the batch and the query's id, which outlives
        # restarts, make a repetition write nothing.
        def write(batch: DataFrame, batch_id: int) -> None:
            query_id = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
            if not query_id:
                # Another text in its place would be shared by all queries: each would take the others' batches for
                # its own.
                raise OptionError(
                    "Spark does not tell the query's id: nothing was written, for it could be written twice"
                )
            numbered = {**options, "queryId": query_id, "batchId": str(batch_id)}
            batch.write.format("penstock").options(**numbered).mode("append").save()

        return writer.foreachBatch(write)


def _as_bytes(column: str, types: Mapping[str, str]) -> str:
    return quoted(column) if types[column] in _BYTES else f"string({quoted(column)})"
