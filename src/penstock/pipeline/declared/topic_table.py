"""`format("penstock-topic-table")`: a topic as a table that is read anew whenever it is used, in each batch too.

Spark asks a Python source for the parts of a table once in a query's life, so that the plain source would show a stream
for ever what was there when it started. Here the only part is "all of it", and what that is, is found out by the task.
One task, because several would look at several moments: meant for tables that one machine can read in a blink.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.pipeline.connector.source import BatchReader, PenstockSource
from penstock.pipeline.source.options import SourceOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT: Final = "penstock-topic-table"

# By format the sessions that know it: to be told twice is an error.
_KNOWN_IN: Final[dict[str, WeakSet[Any]]] = {}


class TopicTable(PenstockSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> TopicTableReader:  # type: ignore[override]  # noqa: ARG002  ours is fixed
        return TopicTableReader(parse_options(dict(self.options), is_streaming=False))


class TopicTableReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002  there is one
        now = BatchReader(self._options)
        for part in now.partitions():
            yield from now.read(part)


def read_topic_table(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    register_once(spark, TopicTable)
    with active(spark):
        return spark.read.format(FORMAT).options(**options).load()


# ------------------------------------------------------------------ formats of ours in sessions of ours


def register_once(spark: SparkSession, source: type[DataSource]) -> None:
    sessions = _KNOWN_IN.setdefault(source.name(), WeakSet())
    if spark not in sessions:
        # Spark looks in the thread's session whether the name is taken, and writes it into this one.
        with active(spark):
            spark.dataSource.register(source)
        sessions.add(spark)


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Spark looks formats up in the session of the thread, whoever asks: meanwhile, that is this one."""
    jvm_sessions: Any = SparkSession._get_j_spark_session_class(spark._jvm)  # noqa: SLF001  it has no door of its own
    # Of the JVM: Python's own `getActiveSession` is always the first that it made, and uses of this may be nested.
    former = jvm_sessions.getActiveSession()
    jvm_sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        if former.isDefined():
            jvm_sessions.setActiveSession(former.get())
