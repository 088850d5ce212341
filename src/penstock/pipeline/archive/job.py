"""`penstock archive`: topics into a Delta table, as a stream of Spark's.

The table alone says how far the archive is (`table/commit`): a run begins where the last commit ended, whoever made it
and however it ended, and Spark's own checkpoint lives and dies with the run. There is nothing beside the table that
could be lost, or disagree with it; and whoever was thought dead and writes on is refused, because his offsets are there
already.

The group named in the request follows behind the table, so the lag shows beside everyone else's, and a broker that
keeps messages until they are archived (`retention.after.archive`) sees what it may remove. It is never ahead.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.net.errors import ClientError
from penstock.pipeline.archive.snapshot import COLUMNS, PARTITION_BY, SCHEMA, SPLIT_BY, archive_options, open_archive
from penstock.pipeline.source import positions as source_positions
from penstock.pipeline.source.options import EARLIEST, OptionError, parse_options
from penstock.pipeline.source.ranges import Position, from_json, to_json
from penstock.pipeline.source.topic_identity import check_archived, identities
from penstock.pipeline.table import writer as table_writer
from penstock.pipeline.table.commit import check_may_begin
from penstock.pipeline.table.options import COMPACT_EVERY_DEFAULT, FORMAT
from penstock.pipeline.table.task_files import DAY_FIRST, DAY_LAST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

GROUP_DEFAULT: Final = "penstock-archive"
# A few seconds of work: enough rows for good files, few enough that a stop does not lose much.
ROWS_PER_BATCH: Final = 2_000_000
TRIGGER_MS_DEFAULT: Final = 10_000
# What Spark hands over to Python at once.
ARROW_ROWS: Final = 50_000
# What Spark is asked to count, where its rows are files.
OBSERVED: Final = "archive"
FORMATS: Final = {"json": "from_json", "csv": "from_csv"}

# Without the zone of the session: a day is a day of UTC, wherever the archive runs.
# Whole numbers only: a fraction of a day this large is not exact to the microsecond.
_DAY: Final = "(unix_micros(timestamp) - pmod(unix_micros(timestamp), 86400000000)) div 86400000000"
_DATE: Final = f"date_from_unix_date(cast(least(greatest({_DAY}, {DAY_FIRST}), {DAY_LAST}) as int)) as date"


class ArchiveRequest(msgspec.Struct, frozen=True):
    bootstrap: str
    topics: tuple[str, ...]
    path: str
    is_once: bool = False
    trigger_ms: int = TRIGGER_MS_DEFAULT
    rows_per_batch: int = ROWS_PER_BATCH
    compact_every: int = COMPACT_EVERY_DEFAULT
    group: str = GROUP_DEFAULT
    # Columns made of the values, as Spark writes a schema: `customer string, amount double`.
    value_schema: str | None = None
    value_format: str = "json"
    fails_on_data_loss: bool = True
    # The sink's name: tests have one that fails on order.
    sink: str = FORMAT


class ArchiveRun:
    """A run under way. Caller's duties: `report` now and then, `stop` on every way out."""

    def __init__(
        self, request: ArchiveRequest, query: StreamingQuery, checkpoint: str, topic_ids: dict[str, int]
    ) -> None:
        self.query = query
        self.row_count = 0
        self._request = request
        self._topic_ids = topic_ids
        self._checkpoint = checkpoint
        self._last_batch = -1
        self._reached: Position = {}
        self._reported: Position = {}

    def report(self) -> dict[str, Any] | None:
        """Tells the group how far the table is; Spark's word on the last batch, if there is a new one."""
        latest: dict[str, Any] | None = None
        # Spark tells progress of batches that did nothing too, and it keeps the last hundred.
        for progress in (json.loads(each.json) for each in self.query.recentProgress):
            if progress["batchId"] > self._last_batch and progress["numInputRows"] > 0:
                self._last_batch = progress["batchId"]
                observed = progress.get("observedMetrics", {}).get(OBSERVED, {})
                progress["row_count"] = observed.get("row_count") or progress["numInputRows"]
                self.row_count += progress["row_count"]
                latest = progress
        if latest is not None:
            self._reached = from_json(latest["sources"][0]["endOffset"])
        if self._reached != self._reported:
            # A broker that is away hears it the next time: the table has the rows, and the archive goes on.
            with contextlib.suppress(ClientError):
                source_positions.run(self._tell(self._reached))
                self._reported = self._reached
        return latest

    async def _tell(self, position: Position) -> None:
        options = parse_options(_source_options(self._request, self._topic_ids), is_streaming=False)
        async with source_positions.connect(options) as client:
            # Of another topic of that name the broker would take it for archived, and remove it.
            await source_positions.find_partitions(client, options)
            await source_positions.report_group(client, self._request.group, position)

    def stop(self) -> None:
        self.query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)


def start_archive(spark: SparkSession, request: ArchiveRequest) -> ArchiveRun:
    table_writer.register(spark)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ARROW_ROWS))
    start, topic_ids = source_positions.run(beginning(request))
    options = _source_options(request, topic_ids) | {
        "startingOffsets": json.dumps(to_json(start)),
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(request.rows_per_batch),
        "group": request.group,
    }
    if sum(map(len, start.values())) < (tasks := spark.sparkContext.defaultParallelism):
        # Few partitions are read by several tasks each; of many, the source gives some to each task.
        options["minPartitions"] = str(tasks)
    frame, files_schema = _stream(spark, options, request)
    checkpoint = tempfile.mkdtemp(prefix="penstock-archive-")
    writer = (
        frame.writeStream.format(request.sink)
        .option("files", files_schema)
        .queryName("penstock-archive")
        .option("path", request.path)
        .option("partitionBy", ",".join(PARTITION_BY))
        .option("splitBy", ",".join(SPLIT_BY))
        .option("positions", "true")
        .option("compactEvery", str(request.compact_every))
        .option("description", describe(request))
        .option("topicIds", options["topicIds"])
        .option("checkpointLocation", checkpoint)
    )
    if request.is_once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{request.trigger_ms} milliseconds")
    return ArchiveRun(request, writer.start(), checkpoint, topic_ids)


def _stream(spark: SparkSession, options: dict[str, str], request: ArchiveRequest) -> tuple[DataFrame, str]:
    """What the sink gets, and the schema of the table if that is not it: rows, or files that are written already."""
    from pyspark.sql.functions import expr
    from pyspark.sql.types import StructType

    source = spark.readStream.format("penstock").options(**options)
    if request.value_schema is not None:
        return with_parsed(archive_rows(source.load()), request.value_schema, request.value_format), ""
    target = msgspec.json.encode(archive_options(request.path)).decode()
    files = source.option("archiveTo", target).load().select("value")
    count = expr("sum(cast(get_json_object(cast(value as string), '$.row_count') as bigint)) as row_count")
    schema = StructType.fromDDL(SCHEMA)
    assert isinstance(schema, StructType)
    return files.observe(OBSERVED, count), table_writer.schema_text(schema)


async def beginning(request: ArchiveRequest) -> tuple[Position, dict[str, int]]:
    """Where the table ends; the beginning of the log, where it holds nothing yet. And which topics they are."""
    options = parse_options(_source_options(request, {}), is_streaming=False)
    async with source_positions.connect(options) as client:
        partitions = await source_positions.find_partitions(client, options)
        present = await identities(client, partitions)
    archive = open_archive(request.path, partitions=partitions)
    if archive is None:
        check_may_begin(request.path, PARTITION_BY)
    else:
        check_archived(request.path, archive.topic_ids, present)
    ends = {} if archive is None else archive.ends
    start = {
        topic: {partition: ends.get((topic, partition), EARLIEST) for partition in numbers}
        for topic, numbers in partitions.items()
    }
    return start, present


def archive_rows(frame: DataFrame) -> DataFrame:
    """The columns of an archive, out of those of the source."""
    return frame.selectExpr(*(name for name in COLUMNS if name != "date"), _DATE)


def with_parsed(frame: DataFrame, schema: str, value_format: str) -> DataFrame:
    """A column for each field of the value; null where it cannot be read: the value itself stays as it came."""
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(schema)
    except Exception as error:  # edge of Spark: its parser's errors have no common name
        raise OptionError(f"the schema {schema!r} is not understood: such as 'id bigint, name string'") from error
    assert isinstance(parsed, StructType)
    fields = parsed.fieldNames()
    taken = [name for name in fields if name.lower() in {column.lower() for column in COLUMNS}]
    if taken:
        raise OptionError(f"a field {taken[0]!r} of the value cannot be a column: the archive has one of that name")
    quoted = schema.replace("\\", "\\\\").replace("'", "\\'")
    parser = f"{FORMATS[value_format]}(cast(value as string), '{quoted}') as _parsed"
    return frame.selectExpr("*", parser).selectExpr(*frame.columns, "_parsed.*")


def describe(request: ArchiveRequest) -> str:
    """Kept with the table: readers make the same columns of what is not archived yet."""
    known = {"penstock": "archive", "schema": request.value_schema, "format": request.value_format}
    return json.dumps({name: value for name, value in known.items() if value is not None})


def _source_options(request: ArchiveRequest, topic_ids: dict[str, int]) -> dict[str, str]:
    return {
        "topicIds": msgspec.json.encode(topic_ids).decode(),
        "kafka.bootstrap.servers": request.bootstrap,
        "subscribe": ",".join(request.topics),
        # What is archived stays: nothing that may still be taken back.
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true" if request.fails_on_data_loss else "false",
    }
