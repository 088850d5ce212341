"""A streaming query in a process of its own, from topic to topic by the sink with faults: it can be killed as a whole.

python driver.py BOOTSTRAP SOURCE TARGET DIRECTORY FAULT [MASTER]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

SECONDS_MAX: Final = 120
ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"


def make_spark(master: str = "local[2,3]") -> Any:
    import pyspark.cloudpickle

    from penstock.pipeline.session.spark import open_session
    from support.spark import faulty_sink

    # Its workers do not have the tests on their path.
    pyspark.cloudpickle.register_pickle_by_value(faulty_sink)  # type: ignore[no-untyped-call]
    conf = {"spark.driver.memory": "1g", "spark.executor.memory": "512m"}
    spark = open_session("penstock-tests", master=master, conf=conf)
    spark.dataSource.register(faulty_sink.FaultySource)
    return spark


def run_query(log_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """This file as a process, in a group of its own: the JVM, which is the driver, dies with it."""
    with log_path.open("wb") as log:
        command = [sys.executable, __file__, *arguments]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def start_query(spark: Any, bootstrap: str, source: str, target: str, directory: str, fault: str) -> Any:
    """All that is in the source, in batches of some 1,000 rows."""
    frame = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "1000")
        .option("includeHeaders", "true")
        .load()
    )
    # Several pieces to a task, so that one can be stopped between two of them.
    spark.conf.set(ROWS_SETTING, "100")
    writer = frame.selectExpr("key", "value", "headers").writeStream.format("penstock-faulty")
    query = (
        writer.option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("kafka.test.fault", fault)
        .option("kafka.test.directory", directory)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    # The query has its copy of the settings; the session is everybody's.
    spark.conf.unset(ROWS_SETTING)
    return query


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    arguments, masters = sys.argv[1:6], sys.argv[6:]
    query = start_query(make_spark(*masters), *arguments)
    assert query.awaitTermination(SECONDS_MAX)
