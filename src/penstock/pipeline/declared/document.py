"""What a pipeline file says, as values: `reader` makes them out of YAML, everything else works with them.

    pipelines:
      revenue:
        sources:  {orders: {topic: orders, format: json, schema: "…"}}
        sql:      SELECT …
        sink:     {topic: revenue}

The names of the fields are the keys of the file. Which of several structs a mapping is, one of its keys tells: a source
with `topic` is a topic, one with `parquet` a table (`KEYS`). Sinks have a module each, in `sinks`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

import msgspec

from penstock.pipeline.declared.sinks.kinds import Sink

TRIGGER_DEFAULT: Final = "1 second"
RESTARTS_MAX_DEFAULT: Final = 10


class Format(StrEnum):
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    CSV = "csv"
    TEXT = "text"
    BINARY = "binary"


class Framing(StrEnum):
    """What stands before each value."""

    NONE = "none"
    # A zero byte and the four bytes of a schema's number (for Protobuf also which message it is).
    CONFLUENT = "confluent"


class KeyFormat(StrEnum):
    TEXT = "text"
    BINARY = "binary"


class OnBadRow(StrEnum):
    FAIL = "fail"
    DEAD_LETTER = "dead_letter"
    DROP = "drop"


class Restart(StrEnum):
    NEVER = "never"
    ON_FAILURE = "on-failure"


class Watermark(msgspec.Struct, frozen=True):
    """How late a row may come, by a column with its time."""

    column: str
    delay: str


class TopicSource(msgspec.Struct, frozen=True, kw_only=True):
    KEYS: ClassVar[tuple[str, ...]] = ("topic",)

    # One, or several separated by commas.
    topic: str
    format: Format = Format.JSON
    # Columns as Spark writes them: `id STRING, amount DOUBLE`. None: found in a sample (json, csv).
    schema: str | None = None
    # Avro's schema, or Protobuf's descriptor set (`protoc --descriptor_set_out=… --include_imports`).
    schema_file: str | None = None
    # Protobuf's message, with its package.
    message: str | None = None
    framing: Framing = Framing.NONE
    key_format: KeyFormat = KeyFormat.TEXT
    # A column `_headers`.
    headers: bool = False
    watermark: Watermark | None = None
    # Not a stream but a table: the last message of each key, read anew for every batch.
    as_table: bool = False
    # `earliest`, `latest` or a moment (2026-11-15T10:00:00Z); counts at the first start only.
    starting: str = "earliest"
    rows_per_batch_max: int | None = None
    # Conditions by name. A row for which one is not true is a bad row.
    expect: dict[str, str] = msgspec.field(default_factory=dict)
    # Those of Spark's readers of JSON and CSV.
    options: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def topics(self) -> tuple[str, ...]:
        """Each once, however often it is named."""
        return tuple(dict.fromkeys(name.strip() for name in self.topic.split(",") if name.strip()))


class TableSource(msgspec.Struct, frozen=True, kw_only=True):
    """Read as it is when the pipeline starts."""

    KEYS: ClassVar[tuple[str, ...]] = ("parquet", "csv", "delta")

    parquet: str | None = None
    csv: str | None = None
    delta: str | None = None
    schema: str | None = None
    options: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def kind(self) -> str:
        return next(name for name in self.KEYS if getattr(self, name) is not None)

    @property
    def path(self) -> str:
        return str(getattr(self, self.kind))


Source = TopicSource | TableSource


class SqlStep(msgspec.Struct, frozen=True, kw_only=True):
    KEYS: ClassVar[tuple[str, ...]] = ("sql",)

    sql: str
    # The view that later steps read it by.
    name: str | None = None


class PythonStep(msgspec.Struct, frozen=True, kw_only=True):
    """`module:function(spark, frames) -> DataFrame`; the module may lie beside the file."""

    KEYS: ClassVar[tuple[str, ...]] = ("python",)

    python: str
    name: str | None = None


Step = SqlStep | PythonStep


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    sources: dict[str, Source]
    sink: Sink
    # One of the three; none of them: the only source as it is.
    sql: str | None = None
    python: str | None = None
    steps: list[Step] = msgspec.field(default_factory=list)
    # How often, or `available_now`: what is there, and then the end.
    trigger: str = TRIGGER_DEFAULT
    on_bad_row: OnBadRow = OnBadRow.DEAD_LETTER
    dead_letter_topic: str | None = None
    checkpoint: str | None = None
    restart: Restart = Restart.NEVER
    restarts_max: int = RESTARTS_MAX_DEFAULT
    description: str = ""

    @property
    def all_steps(self) -> list[Step]:
        """In order; the last one's rows are written."""
        if self.sql is not None:
            return [SqlStep(sql=self.sql)]
        if self.python is not None:
            return [PythonStep(python=self.python)]
        return self.steps


class SparkSection(msgspec.Struct, frozen=True, kw_only=True):
    master: str | None = None
    conf: dict[str, str] = msgspec.field(default_factory=dict)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    pipelines: dict[str, Pipeline]
    bootstrap: str | None = None
    # Where checkpoints, inferred schemas and logs are kept, a directory for each pipeline.
    state_directory: str | None = None
    spark: SparkSection = SparkSection()
