"""`format("penstock-table")`: a Delta table as the end of a stream or of a batch query, by delta-rs, exactly once.

Tasks write files, the driver commits them (`files`, `commit`). As in `connector/sink`, a writer is made anew
for each of its calls, and nothing crosses from `write` to `commit` but the messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.pipeline.sink.options import QUERY_ID_PROPERTY
from penstock.pipeline.source.options import OptionError
from penstock.pipeline.table import upkeep as table_upkeep
from penstock.pipeline.table.commit import commit_files, open_table
from penstock.pipeline.table.files import write_files
from penstock.pipeline.table.options import (
    FORMAT,
    NewFile,
    TableError,
    TableOptions,
    check_table_columns,
    parse_table_options,
)
from penstock.pipeline.table.task_files import told_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# In the name of a directory, a byte of a text that is not ASCII.
_ESCAPED: Final = re.compile("%[89A-Fa-f][0-9A-Fa-f]")
_UNESCAPED: Final = "decode(encode(`{}`, 'ISO-8859-1'), 'UTF-8')"


def register(spark: SparkSession) -> None:
    """Spark finds `penstock` by itself, but no second format of ours."""
    spark.dataSource.register(TableSink)


class TableSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        raise OptionError(
            f"{FORMAT} writes tables; they are read by penstock.pipeline.table.writer.read_table, or as Delta tables"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:  # noqa: N802  Spark's name
        options = self._options(schema)
        return TableStreamWriter(options, options.files_schema or schema_text(schema), replaces=overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> TableBatchWriter:
        return TableBatchWriter(self._options(schema), schema_text(schema), replaces=overwrite)

    def _options(self, schema: StructType) -> TableOptions:
        options = parse_table_options(dict(self.options))
        if options.files_schema is not None:
            return options
        check_table_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
        return options


@dataclass(frozen=True)
class WrittenFiles(WriterCommitMessage):
    """What one task has written."""

    query_id: str | None
    files: tuple[NewFile, ...]


class TableStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: TableOptions, schema_json: str, *, replaces: bool) -> None:
        self._options = options
        self._schema_json = schema_json
        # Output mode `complete`: each batch is the whole result.
        self._replaces = replaces

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        files, query_id = _gather(messages)
        if not files and not self._replaces:
            # What has no rows cannot be written twice.
            return
        query_id = query_id or self._options.query_id
        if query_id is None:
            raise OptionError("Spark does not tell the query's id: the option queryId must")
        commit_files(
            self._options, self._schema_json, files, writer_id=query_id, batch_id=batchId, replaces=self._replaces
        )
        every = self._options.compact_every
        if every and batchId % every == every - 1:
            table_upkeep.compact_quietly(self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Nothing: Spark calls this also when `commit` took effect and failed afterwards."""


class TableBatchWriter(DataSourceArrowWriter):
    """Exactly once within one run. In `foreachBatch`, with the options queryId and batchId, also over restarts."""

    def __init__(self, options: TableOptions, schema_json: str, *, replaces: bool) -> None:
        self._options = options
        self._schema_json = schema_json
        self._replaces = replaces

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files, _ = _gather(messages)
        options = self._options
        commit_files(
            options,
            self._schema_json,
            files,
            writer_id=options.query_id,
            batch_id=options.batch_id,
            replaces=self._replaces,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """As in a stream: nothing."""


def read_table(spark: SparkSession, path: str, *, version: int | None = None) -> DataFrame:
    """The table as it is now, or was at a version: Spark reads its files by itself."""
    table = open_table(path, version=version)
    if table is None:
        raise TableError(f"{path} is not a Delta table")
    schema, uris = table.schema().to_json(), table.file_uris()
    frame = read_files(spark, path, schema, [uri for uri in uris if not _ESCAPED.search(uri)])
    escaped = [uri for uri in uris if _ESCAPED.search(uri)]
    if not escaped:
        return frame
    # Spark makes a character of each byte; together they are the text.
    texts = set(table.metadata().partition_columns)
    texts &= {field.name for field in table.schema().fields if getattr(field.type, "type", "") == "string"}
    columns = [f"{_UNESCAPED.format(name)} as `{name}`" if name in texts else f"`{name}`" for name in frame.columns]
    return frame.union(read_files(spark, path, schema, escaped).selectExpr(*columns))


def read_files(spark: SparkSession, path: str, schema_json: str, uris: Sequence[str]) -> DataFrame:
    """Some files of a table. The schema is given: a directory `topic=7` would make topics numbers."""
    import json

    schema = StructType.fromJson(json.loads(schema_json))
    if not uris:
        return spark.createDataFrame([], schema)
    # Of moments in the names of directories: compaction by delta-rs leaves the zone out, and means this one.
    reader = spark.read.schema(schema).option("basePath", path).option("timeZone", "UTC")
    # They are files, not patterns: a bracket is a bracket.
    reader = reader.option("__globPaths__", "false")
    return reader.parquet(*uris).select(*schema.fieldNames())


def _write(options: TableOptions, rows: Iterator[pa.RecordBatch]) -> WrittenFiles:
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    query_id = None if context is None else context.getLocalProperty(QUERY_ID_PROPERTY)
    files = write_files(options, rows, task=task) if options.files_schema is None else told_files(rows)
    return WrittenFiles(query_id, tuple(files))


def _gather(messages: Sequence[Any]) -> tuple[list[NewFile], str | None]:
    files: list[NewFile] = []
    query_ids: set[str] = set()
    for message in messages:
        assert isinstance(message, WrittenFiles), f"a task told {message!r}"
        files += message.files
        if message.query_id is not None:
            query_ids.add(message.query_id)
    return files, min(query_ids, default=None)


def schema_text(schema: StructType) -> str:
    """Spark's text of a schema, which is Delta's. Rows without a null today are no promise for tomorrow's."""
    fields = [field.__class__(field.name, field.dataType, True, field.metadata) for field in schema.fields]
    return StructType(fields).json()
