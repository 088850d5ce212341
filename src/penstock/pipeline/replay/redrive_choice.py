"""Dead letters picked by a condition in SQL: Spark looks at all of them, the node moves those that were picked.

Moving stays with the node, so that it is exactly once and the letters are known to be gone, as with every redrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.domain.queue.dead_letter import (
    DELIVERIES_HEADER,
    FIRST_FAILURE_HEADER,
    GROUP_HEADER,
    LAST_FAILURE_HEADER,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TEXT_HEADER,
    TOPIC_HEADER,
)
from penstock.domain.queue.redrive import Choice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What a condition may speak of, and where it comes from.
_TEXTS: Final = {
    "reason": REASON_HEADER,
    "error": TEXT_HEADER,
    "origin_topic": TOPIC_HEADER,
    "origin_group": GROUP_HEADER,
}
_NUMBERS: Final = {
    "origin_partition": PARTITION_HEADER,
    "origin_offset": OFFSET_HEADER,
    "delivery_count": DELIVERIES_HEADER,
}
_TIMES: Final = {"first_failure": FIRST_FAILURE_HEADER, "last_failure": LAST_FAILURE_HEADER}
# The class of SQL states that says: something in the data does not go with the expression.
_DATA_STATE: Final = "22"
COLUMNS: Final = (
    "partition", "offset", "timestamp", "key", "value", "headers", *_TEXTS, *_NUMBERS, *_TIMES
)  # fmt: skip


class ConditionError(Exception):
    """The condition is no SQL, speaks of a column that there is not, or fails on some letter: one sentence."""


class SparkFailedError(Exception):
    """Spark could not look through them: one sentence."""


def dead_letters(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """A table of them: what their headers tell as columns, key and value as text, all headers as a map."""
    from pyspark.sql import functions as f

    stored = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        # What retention takes meanwhile cannot be moved any more.
        .option("failOnDataLoss", "false")
        .option("subscribe", topic)
        .load()
    )
    # A header may stand there twice: the last one counts, as for the node.
    spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    texts = f.transform("headers", lambda each: f.struct(each["key"], each["value"].cast("string")))
    rows = stored.withColumn("headers", f.map_from_entries(texts))
    told = [f.col("headers")[header].alias(name) for name, header in _TEXTS.items()]
    told += [f.expr(f"try_cast(headers['{header}'] as long)").alias(name) for name, header in _NUMBERS.items()]
    told += [
        f.expr(f"timestamp_millis(try_cast(headers['{header}'] as long))").alias(name)
        for name, header in _TIMES.items()
    ]
    return rows.select(
        "partition",
        "offset",
        "timestamp",
        f.col("key").cast("string").alias("key"),
        f.col("value").cast("string").alias("value"),
        "headers",
        *told,
    )


def choose(letters: DataFrame, condition: str) -> Iterator[Choice]:
    """Runs of neighbours that fit, in the order of their places."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    try:
        fitting = letters.where(condition).select("partition", "offset")
        # Nothing is run by this: whether it could be, is found out.
        fitting.schema  # noqa: B018
    except (AnalysisException, ParseException) as error:
        columns = f"columns are {', '.join(COLUMNS)}"
        raise ConditionError(f"--where {condition!r}: {_first_line(str(error))} ({columns})") from error
    place = Window.partitionBy("partition").orderBy("offset")
    runs = (
        fitting.withColumn("run", f.col("offset") - f.row_number().over(place))
        .groupBy("partition", "run")
        .agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
        .orderBy("partition", "first")
    )
    try:
        for row in runs.toLocalIterator():
            yield row["partition"], row["first"], row["last"]
    except PySparkException as error:
        sentence = _first_line(str(error))
        if (error.getSqlState() or "").startswith(_DATA_STATE):
            raise ConditionError(f"--where {condition!r}: {sentence}") from error
        raise SparkFailedError(f"dead letters were not read: {sentence}") from error


def _first_line(text: str) -> str:
    """Spark explains at length, with the plan behind it."""
    return text.strip().splitlines()[0].rstrip(".")
