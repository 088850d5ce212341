"""The sources of a pipeline as Spark frames.

    topic ──► raw ──► parsed ──┬─► good rows: the view that SQL reads
              bytes   row or   └─► bad rows: dead letters
                      error

A view has the fields of the message, and `_key`, `_topic`, `_partition`, `_offset`, `_timestamp` (`_headers`, if asked
for). Formats text and binary have the one field `value`. A message without a value (a tombstone) is no row, but for
text and binary, where it is a null. Of a topic that is read `as_table` it deletes its key.

A row is bad that cannot be parsed, that misses a field declared NOT NULL, or for which a condition is not true.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.pipeline.declared.avro import AvroDecoder
from penstock.pipeline.declared.decoding import ERROR, ROW, Decoder, SchemaError, decode_batches
from penstock.pipeline.declared.document import Format, Framing, KeyFormat, OnBadRow, TableSource, TopicSource
from penstock.pipeline.declared.errors import BAD_ROW, SHOWN_CHARACTERS
from penstock.pipeline.declared.paths import locate
from penstock.pipeline.declared.protobuf import ProtobufDecoder
from penstock.pipeline.declared.times import EARLIEST, LATEST, duration_ms, moment_ms
from penstock.pipeline.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

RAW: Final = "__raw"
FAILED: Final = "__failed"
# The stage of a row that could not be parsed; others are named by their condition.
PARSE: Final = "parse"
HEADERS: Final = "_headers"
METADATA: Final = ("_key", "_topic", "_partition", "_offset", "_timestamp")

_CORRUPT: Final = "__corrupt"
_STRUCTURED: Final = frozenset({Format.JSON, Format.CSV, Format.AVRO, Format.PROTOBUF})


class TopicPlan(msgspec.Struct, frozen=True):
    """A topic source with its columns known."""

    name: str
    source: TopicSource
    # As Spark writes them.
    columns: str
    decoder: Decoder | None = None


class Reading(msgspec.Struct, frozen=True):
    """How topics are read."""

    bootstrap: str
    # The group shows how far the query is by this name.
    query_name: str
    is_streaming: bool = True


def decoder_of(source: TopicSource, directory: Path) -> Decoder | None:
    """None: Spark parses it by itself. Raises `SchemaError` or `OSError`."""
    if source.format not in (Format.AVRO, Format.PROTOBUF):
        return None
    assert source.schema_file is not None
    content = (directory / source.schema_file).expanduser().read_bytes()
    is_framed = source.framing is Framing.CONFLUENT
    if source.format is Format.PROTOBUF:
        assert source.message is not None
        return ProtobufDecoder(content, source.message, is_framed)
    try:
        return AvroDecoder(content.decode(), is_framed)
    except UnicodeDecodeError as error:
        raise SchemaError(f"no Avro schema: {error}") from error


def columns_of(source: TopicSource, decoder: Decoder | None) -> str | None:
    """None: nothing says it, a sample of the topic must."""
    if decoder is not None:
        return decoder.columns()
    if source.format is Format.TEXT:
        return "value STRING"
    if source.format is Format.BINARY:
        return "value BINARY"
    return source.schema


# ------------------------------------------------------------------ topics


def good_rows(spark: SparkSession, plan: TopicPlan, reading: Reading, on_bad_row: OnBadRow) -> DataFrame:
    """The view; bad rows are left out, or end the query."""
    from pyspark.sql import functions as sql

    if plan.source.as_table:
        reading = msgspec.structs.replace(reading, is_streaming=False)
    checked = _checked(spark, plan, reading)
    if on_bad_row is OnBadRow.FAIL:
        told = (
            f"concat('{BAD_ROW}', to_json(struct({FAILED} AS stage, '{plan.name}' AS source, {RAW}.topic, "
            f"{RAW}.partition, {RAW}.offset, coalesce({ERROR}, '') AS error, "
            f"substring(string({RAW}.value), 1, {SHOWN_CHARACTERS}) AS value)))"
        )
        checked = checked.filter(sql.expr(f"if({FAILED} IS NULL, true, raise_error({told}))"))
    else:
        checked = checked.filter(sql.col(FAILED).isNull())
    frame = checked.drop(RAW, FAILED, ERROR)
    mark = plan.source.watermark
    return (
        frame if mark is None else frame.withWatermark(quoted(mark.column), f"{duration_ms(mark.delay)} milliseconds")
    )


def bad_rows(spark: SparkSession, plan: TopicPlan, reading: Reading) -> DataFrame:
    """`key, value, headers, topic, partition, offset, stage, error`, as they came."""
    from pyspark.sql import functions as sql

    checked = _checked(spark, plan, reading, with_headers=True)
    failed = checked.filter(sql.col(FAILED).isNotNull())
    return failed.select(f"{RAW}.*", sql.col(FAILED).alias("stage"), sql.col(ERROR).alias("error"))


def _checked(spark: SparkSession, plan: TopicPlan, reading: Reading, *, with_headers: bool = False) -> DataFrame:
    """Fields, metadata, and why a row is bad."""

    source = plan.source
    raw = _raw(spark, source, reading, with_headers=with_headers or source.headers)
    if source.as_table and not reading.is_streaming:
        raw = _last_of_each_key(raw)
    parsed = _parsed(raw, plan)
    key = "key" if source.key_format is KeyFormat.BINARY else "string(key)"
    metadata = [f"{key} AS _key", "topic AS _topic", "partition AS _partition", "offset AS _offset"]
    metadata += ["timestamp AS _timestamp"] + ([f"headers AS {HEADERS}"] if source.headers else [])
    kept = ["key", "value", "topic", "partition", "offset"] + (["headers"] if with_headers else [])
    flat = parsed.selectExpr(f"{ROW}.*", *metadata, f"struct({', '.join(kept)}) AS {RAW}", ERROR)
    return flat.withColumn(FAILED, _failure(plan))


def _raw(spark: SparkSession, source: TopicSource, reading: Reading, *, with_headers: bool) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": reading.bootstrap,
        "subscribe": ",".join(source.topics),
        "includeHeaders": "true" if with_headers else "false",
        # What is not committed may never have happened.
        "kafka.isolation.level": "read_committed",
    }
    if source.starting in (EARLIEST, LATEST):
        options["startingOffsets"] = source.starting
    else:
        options["startingTimestamp"] = str(moment_ms(source.starting))
        options["startingOffsetsByTimestampStrategy"] = "latest"
    if not reading.is_streaming:
        if source.starting == LATEST:
            # A table of what comes later has no rows; what is there is meant.
            options["startingOffsets"] = EARLIEST
        if source.as_table:
            # It needs Spark to be there already at its import.
            from penstock.pipeline.declared.topic_table import read_topic_table

            return read_topic_table(spark, options)
        return spark.read.format("penstock").options(**options).load()
    options["queryName"] = reading.query_name
    if source.rows_per_batch_max is not None:
        options["maxOffsetsPerTrigger"] = str(source.rows_per_batch_max)
    return spark.readStream.format("penstock").options(**options).load()


def _last_of_each_key(raw: DataFrame) -> DataFrame:
    """A key stays in its partition, so that its largest offset is its last."""
    from pyspark.sql import functions as sql

    rest = [name for name in raw.columns if name != "key"]
    last = raw.groupBy("key").agg(sql.max_by(sql.struct(*rest), sql.col("offset")).alias("last"))
    return last.select("key", "last.*").filter("value IS NOT NULL").select(*raw.columns)


def _parsed(raw: DataFrame, plan: TopicPlan) -> DataFrame:
    """With `ROW`, a struct, and `ERROR`, a text that is null for a good row."""
    from pyspark.sql import functions as sql

    if plan.source.format in _STRUCTURED:
        raw = raw.filter("value IS NOT NULL")
    if plan.decoder is not None:
        return _decoded(raw, plan)
    if plan.source.format is Format.BINARY:
        return raw.withColumn(ROW, sql.expr("struct(value)")).withColumn(ERROR, sql.lit(None).cast("string"))
    is_text = "is_valid_utf8(string(value))"
    if plan.source.format is Format.TEXT:
        rows = raw.withColumn(ROW, sql.expr("struct(string(value) AS value)"))
        return rows.withColumn(ERROR, sql.expr(f"if(value IS NULL OR {is_text}, NULL, 'no UTF-8')"))
    options = {**plan.source.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parse = sql.from_json if plan.source.format is Format.JSON else sql.from_csv
    schema = write_columns(_for_parser(struct_of(plan.columns)))
    text = sql.col("value").cast("string")
    both = raw.withColumn(ROW, parse(text, schema, options))
    bad = sql.expr(f"{ROW} IS NULL OR {ROW}.{_CORRUPT} IS NOT NULL OR trim(string(value)) = '' OR NOT {is_text}")
    if plan.source.format is Format.JSON:
        bad |= ~_is_one_document(text, plan.source.options)
    # Why, is found out for the few that are bad: Spark does not say it.
    told = sql.when(bad, sql.lit(""))
    return both.withColumn(ERROR, told).withColumn(ROW, sql.col(ROW).dropFields(_CORRUPT))


def _is_one_document(text: Column, options: dict[str, str]) -> Column:
    """Spark's parser reads one and passes over what follows, another row for example. A document without others in it
    ends with its first brace; of the rest each is looked at once more, as the only one of a list."""
    from pyspark.sql import functions as sql

    blanks = sql.lit(" \t\r\n")
    after = sql.substring(text, sql.locate("}", text) + sql.lit(1), sql.length(text))
    alone = sql.concat(sql.lit("["), text, sql.lit("\n]"))
    # The first of them is the faster one, and has no options: it takes what is JSON by the book.
    by_the_book = sql.json_array_length(alone)
    listed = sql.size(sql.from_json(alone, "array<struct<__nothing: boolean>>", options | {"mode": "PERMISSIVE"}))
    is_alone = [sql.coalesce(count == 1, sql.lit(False)) for count in (by_the_book, listed)]
    return (sql.trim(after, blanks) == "") | is_alone[0] | is_alone[1]


def _decoded(raw: DataFrame, plan: TopicPlan) -> DataFrame:
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    assert plan.decoder is not None
    row = struct_of(plan.columns)
    schema = StructType([*raw.schema.fields, StructField(ROW, row), StructField(ERROR, StringType())])
    return raw.mapInArrow(partial(decode_batches, plan.decoder, to_arrow_type(row, timezone="UTC")), schema)


def _failure(plan: TopicPlan) -> Column:
    """The first stage that a row did not pass; names are anybody's, so that no text is put together of them."""
    from pyspark.sql import functions as sql

    stage = sql.when(sql.col(ERROR).isNotNull(), sql.lit(PARSE))
    for field in struct_of(plan.columns).fields:
        if not field.nullable:
            stage = stage.when(sql.col(quoted(field.name)).isNull(), sql.lit(f"{field.name} is null"))
    for name, condition in plan.source.expect.items():
        is_met = sql.coalesce(sql.expr(condition), sql.lit(False))
        stage = stage.when(~is_met, sql.lit(f"expect {name}"))
    return stage


# ------------------------------------------------------------------ tables


def table_rows(spark: SparkSession, source: TableSource, directory: Path) -> DataFrame:
    path = locate(source.path, directory)
    if source.kind == "delta":
        # Needs Spark to be there already at import.
        from penstock.pipeline.table.writer import read_table

        return read_table(spark, path)
    reader: Any = spark.read.options(**source.options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    elif source.kind == "csv":
        reader = reader.options(**{"header": "true", "inferSchema": "true"} | source.options)
    frame: DataFrame = reader.csv(path) if source.kind == "csv" else reader.parquet(path)
    return frame


# ------------------------------------------------------------------ schemas


def struct_of(columns: str) -> StructType:
    """In the driver only: Spark's JVM reads it."""
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(columns)
    assert isinstance(parsed, StructType)
    return parsed


def write_columns(schema: StructType) -> str:
    """A schema as a text that `struct_of` reads."""
    return ", ".join(
        f"{quoted(field.name)} {_type_text(field.dataType)}{'' if field.nullable else ' NOT NULL'}"
        for field in schema.fields
    )


def _type_text(kind: Any) -> str:
    """Names in backticks: those of JSON may be anything."""
    match kind.typeName():
        case "struct":
            return (
                f"struct<{', '.join(f'{quoted(field.name)}: {_type_text(field.dataType)}' for field in kind.fields)}>"
            )
        case "array":
            return f"array<{_type_text(kind.elementType)}>"
        case "map":
            return f"map<{_type_text(kind.keyType)}, {_type_text(kind.valueType)}>"
    return str(kind.simpleString())


def _for_parser(schema: StructType) -> StructType:
    """What must not be null is looked at afterwards: a parser would fail the whole query."""
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [StructField(field.name, field.dataType) for field in schema.fields]
    return StructType([*fields, StructField(_CORRUPT, StringType())])
