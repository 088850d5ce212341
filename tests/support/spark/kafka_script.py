"""Spark's own Kafka connector at work on a broker, in a process of its own: its jars must be there at the start.

python kafka_script.py BOOTSTRAP DIRECTORY JARS    prints one JSON line with what was read
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

ROWS: Final = 1_000
SECONDS_MAX: Final = 120


def main(bootstrap: str, directory: str, jars: str) -> None:
    from penstock.pipeline.session.spark import open_session

    spark = open_session("kafka", master="local[2]", conf={"spark.jars": jars, "spark.driver.memory": "1g"})
    kafka = {"kafka.bootstrap.servers": bootstrap}

    def read(topic: str) -> Any:
        frame = spark.read.format("kafka").options(**kafka, subscribe=topic, includeHeaders="true").load()
        return sorted(row.v for row in frame.selectExpr("cast(value as string) v").collect())

    rows = spark.range(ROWS).selectExpr("concat('k', id) as key", "concat('value-', id) as value")
    rows.write.format("kafka").options(**kafka, topic="connector-batch").save()
    told: dict[str, Any] = {"batch": read("connector-batch")}

    source = spark.readStream.format("kafka").options(
        **kafka, subscribe="connector-batch", startingOffsets="earliest", maxOffsetsPerTrigger="300"
    )
    stream = source.load().selectExpr("key", "value").writeStream.format("kafka").options(**kafka)
    query = (
        stream.option("topic", "connector-stream")
        .option("checkpointLocation", f"{directory}/stream")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS_MAX)
    told["stream"] = read("connector-stream")
    told["real_time"] = real_time(spark, kafka, directory, read)
    print(json.dumps(told))
    spark.stop()


def real_time(spark: Any, kafka: dict[str, str], directory: str, read: Any) -> list[str]:
    source = spark.readStream.format("kafka").options(**kafka, subscribe="connector-batch", startingOffsets="earliest")
    stream = source.load().selectExpr("key", "value").writeStream.format("kafka").options(**kafka)
    query = (
        stream.option("topic", "connector-real-time")
        .option("checkpointLocation", f"{directory}/real-time")
        .outputMode("update")
        .trigger(realTime="5 seconds")
        .start()
    )
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while len(found := read("connector-real-time")) < ROWS:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, f"{len(found)} rows"
            time.sleep(0.2)
        # Rows are there long before the query's batch ends: that is what the mode is for.
        return list(found)
    finally:
        query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
