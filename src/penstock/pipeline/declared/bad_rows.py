"""Bad rows as dead letters: the message as it was, and headers that say what is wrong, where, and where it came from.

The headers are those of a queue's dead letters, as far as they fit, so that `penstock dlq` lists and redrives both. Two
are new: the pipeline's name, and the stage at which the row failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.domain.queue.dead_letter import (
    GROUP_HEADER,
    KAFKA_PREFIX,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TEXT_HEADER,
    TOPIC_HEADER,
)
from penstock.pipeline.declared.document import Format
from penstock.pipeline.declared.sources import PARSE, Reading, TopicPlan, bad_rows, struct_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

REASON: Final = "bad-row"
PIPELINE_HEADER: Final = "penstock-pipeline"
STAGE_HEADER: Final = "penstock-stage"
GROUP_PREFIX: Final = "penstock-spark-"

_TEXT_CHARACTERS_MAX: Final = 300
_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})
_WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_LETTER: Final = "key binary, value binary, headers array<struct<key: string, value: binary>>"


def dead_letters(spark: SparkSession, plan: TopicPlan, reading: Reading, pipeline: str) -> DataFrame:
    """`key, value, headers`: what the dead-letter topic gets of one source."""
    rows = bad_rows(spark, plan, reading)
    source, kind = plan.name, plan.source.format
    # Not as a text: a worker has no JVM to read it with.
    schema_json = struct_of(plan.columns).json()

    def as_letters(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from make_letters(batches, pipeline=pipeline, source=source, kind=kind, schema_json=schema_json)

    return rows.mapInArrow(as_letters, _LETTER)


def make_letters(
    batches: Iterable[pa.RecordBatch], *, pipeline: str, source: str, kind: Format, schema_json: str
) -> Iterator[pa.RecordBatch]:
    """In Spark's workers, of the bad rows only: there are few, so one by one is fast enough."""
    import pyarrow as pa

    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    for batch in batches:
        rows = batch.to_pylist()
        headers = [
            [*_own_headers(row), *_letter_headers(row, pipeline, source, explain(row, kind, schema_json))]
            for row in rows
        ]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([row["key"] for row in rows], pa.binary()),
                pa.array([row["value"] for row in rows], pa.binary()),
                pa.array(headers, header),
            ],
            names=["key", "value", "headers"],
        )


def _own_headers(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Without those of an earlier death."""
    return [
        header
        for header in row.get("headers") or ()
        if not str(header["key"]).startswith((KAFKA_PREFIX, "penstock-dead-letter-", "penstock-origin-"))
        and header["key"] not in (PIPELINE_HEADER, STAGE_HEADER)
    ]


def _letter_headers(row: dict[str, Any], pipeline: str, source: str, text: str) -> Iterator[dict[str, Any]]:
    group = f"{GROUP_PREFIX}{pipeline}"
    told = {
        REASON_HEADER: REASON,
        TEXT_HEADER: text,
        TOPIC_HEADER: row["topic"],
        PARTITION_HEADER: row["partition"],
        OFFSET_HEADER: row["offset"],
        GROUP_HEADER: group,
        PIPELINE_HEADER: pipeline,
        STAGE_HEADER: f"{source}: {row['stage']}",
        f"{KAFKA_PREFIX}topic": row["topic"],
        f"{KAFKA_PREFIX}partition": row["partition"],
        f"{KAFKA_PREFIX}offset": row["offset"],
        f"{KAFKA_PREFIX}group": group,
        f"{KAFKA_PREFIX}message": text,
    }
    for name, value in told.items():
        yield {"key": name, "value": str(value).encode()}


# ------------------------------------------------------------------ why


def explain_row(plans: Mapping[str, TopicPlan], row: dict[str, Any]) -> str:
    """The same of a row that has ended its query, in the driver."""
    plan = plans[row["source"]]
    return explain(row, plan.source.format, struct_of(plan.columns).json())


def explain(row: dict[str, Any], kind: Format, schema_json: str) -> str:
    """One sentence on a bad row."""
    if row["stage"] != PARSE:
        return str(row["stage"]).replace("expect ", "not as expected: ", 1)
    if row["error"]:
        return str(row["error"])
    text = row["value"]
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            return f"no UTF-8 at byte {error.start}"
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(schema_json))
    told = _explain_json(text, schema) if kind is Format.JSON else None
    meant = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
    return (told or f"no {kind} with the columns {meant}")[:_TEXT_CHARACTERS_MAX]


def _explain_json(text: str, schema: StructType) -> str | None:
    try:
        document = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}" if text.strip() else "no JSON: the value is empty"
    if not isinstance(document, dict):
        return f"a JSON object is meant, not {_named(document)}"
    for field in schema.fields:
        value = document.get(field.name)
        if value is not None and not _fits(value, field.dataType.simpleString()):
            return f"field {field.name!r} is {_named(value)}, {field.dataType.simpleString()} is meant"
    return None


def _fits(value: object, kind: str) -> bool:
    """As Spark's parser has it: any value can be read as a text."""
    if kind in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return isinstance(value, int) or kind not in _WHOLE
    if kind == "boolean":
        return isinstance(value, bool)
    if kind.startswith("struct"):
        return isinstance(value, dict)
    if kind.startswith("map"):
        return isinstance(value, dict)
    if kind.startswith("array"):
        return isinstance(value, list)
    if kind in ("timestamp", "date"):
        return isinstance(value, int | float) or (isinstance(value, str) and value[:4].isdigit())
    return True


def _named(value: object) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
