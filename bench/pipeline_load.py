"""What `bench.pipeline` measures: topics filled, queries run, processor time of Spark and of the node counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.targets import Target
from penstock.client.kafka import admin
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import Acknowledged, PartitionBatch, Producer
from penstock.codec.batch.header import read_header
from penstock.codec.columns.frame import build_batches_from_columns
from penstock.net.address import parse_addresses

VALUE_BYTES: Final = 100
ROWS_PER_BATCH: Final = 5_000
SECONDS_MAX: Final = 600


async def fill(node: Target, topic: str, *, partitions: int, rows: int) -> None:
    async with ClusterClient(parse_addresses(node.bootstrap)) as client:
        # Its messages are dated long ago, so that each run has the same.
        await admin.create_topic(client, topic, partitions=partitions, configs={"retention.ms": "-1"})
        producer = Producer(client)
        share = rows // partitions
        for start in range(0, share, ROWS_PER_BATCH):
            count = min(ROWS_PER_BATCH, share - start)
            keys = [f"k{number % 1000:07d}".encode() for number in range(start, start + count)]
            built = build_batches_from_columns(keys, [b"v" * VALUE_BYTES] * count, 1_700_000_000_000)
            for data in built:
                header = read_header(data, 0)
                record_count = getattr(header, "record_count", 0)
                for partition in range(partitions):
                    batch = PartitionBatch(topic, partition, bytearray(data), record_count)
                    (outcome,) = await producer.send([batch])
                    assert isinstance(outcome, Acknowledged), outcome


async def create(node: Target, topic: str, partitions: int) -> None:
    async with ClusterClient(parse_addresses(node.bootstrap)) as client:
        await admin.create_topic(client, topic, partitions=partitions)


def topic_frame(spark: Any, node: Target, topic: str, **options: str) -> Any:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", node.bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def synthetic_frame(spark: Any, *, rows: int, partitions: int) -> Any:
    options = {"rows": str(rows), "partitions": str(partitions), "valueBytes": str(VALUE_BYTES)}
    return spark.read.format("synthetic").options(**options).load()


def to_nothing(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def to_topic(frame: Any, node: Target, topic: str) -> None:
    writer = frame.select("key", "value").write.format("penstock").option("kafka.bootstrap.servers", node.bootstrap)
    writer.option("topic", topic).mode("append").save()


def timed(work: Callable[[], None], node: Target) -> dict[str, float]:
    """Seconds, and those of all processors that the work of Spark and the node took."""
    before = _cpu_seconds(os.getpid(), node.pid)
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    after = _cpu_seconds(os.getpid(), node.pid)
    # What a process that has ended in between took is not known; workers live longer than that.
    cpu_seconds = sum(total - before.get(pid, 0.0) for pid, total in after.items())
    return {"seconds": seconds, "cpu_seconds": cpu_seconds}


def micro_batches(stream: Any, directory: Path, *, skipped: int) -> list[float]:
    """The milliseconds of each trigger, without the first ones, which start workers and compile."""
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(directory))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS_MAX)
    durations = [
        float(progress.durationMs["triggerExecution"]) for progress in query.recentProgress if progress.numInputRows > 0
    ]
    return durations[skipped:]


def _cpu_seconds(*roots: int) -> dict[int, float]:
    """By process, of these and of all that descend from them."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.name)] = int(fields[1])
        seconds[int(path.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    wanted = set(roots)
    while grown := {pid for pid, parent in parents.items() if parent in wanted} - wanted:
        wanted |= grown
    return {pid: seconds[pid] for pid in wanted if pid in seconds}
