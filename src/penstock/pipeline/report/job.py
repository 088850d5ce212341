"""A topic looked at by Spark: how much came when, how large, of which keys, how long readers took, what died of what.

The log is read once: what the questions need of each record is a few numbers and the beginning of its key, which Spark
keeps on disk while they are answered.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.domain.group.values import NO_TOPIC_ID
from penstock.domain.queue.dead_letter import GROUP_HEADER, REASON_HEADER, TOPIC_HEADER
from penstock.pipeline.report.commits import read_commits
from penstock.pipeline.report.values import (
    Bucket,
    DeadLetterFacts,
    DelayFacts,
    KeyFacts,
    KeySpread,
    PartitionFacts,
    SizeFacts,
    TopicReport,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS_MAX: Final = 120
HEAVIEST_COUNT: Final = 20
# Of the delays: percentiles of a hundred thousand are as good as those of a hundred million.
SAMPLE_MAX: Final = 100_000
# What is shown of a key; they are told apart by a hash of all of it.
KEY_BYTES_MAX: Final = 64
_YEAR_MS: Final = 365 * 86_400_000
_BUCKET_MS: Final = tuple(
    unit * count
    for unit, counts in (
        (1_000, (1, 2, 5, 10, 30)),
        (60_000, (1, 2, 5, 10, 30)),
        (3_600_000, (1, 2, 6, 12)),
        (86_400_000, (1, 7, 30, 365)),
    )
    for count in counts
)
_PERCENTILES: Final = (0.5, 0.95, 0.99)


class ReportRequest(msgspec.Struct, frozen=True):
    topic: str
    bootstrap: str
    made_ms: int
    since_ms: int | None = None
    until_ms: int | None = None
    dead_letter_topics: tuple[str, ...] = ()
    # All that the topic has, also those without records; None: not known.
    partition_count: int | None = None
    # Commits for an older topic of this name say nothing of this one.
    topic_id: bytes = NO_TOPIC_ID
    # Whether anybody has ever committed anything: before that, the topic of commits is not there.
    has_commits: bool = True


# Of a queue: its name, and by partition who was finished when, as (first, last, at_ms).
Settlements = tuple[str, Mapping[int, Sequence[tuple[int, int, int]]]]


class ReportJob:
    def __init__(self, spark: SparkSession, request: ReportRequest, *, on_step: Callable[[str], None]) -> None:
        self._spark = spark
        self._request = request
        self._on_step = on_step

    def run(self, settlements: Sequence[Settlements] = (), gaps: Sequence[str] = ()) -> TopicReport:
        request = self._request
        self._on_step("reading the topic")
        records = self._records().persist()
        try:
            partitions, deletion_count = self._partitions(records)
            self._on_step("throughput and sizes")
            bucket_ms = bucket_for(partitions)
            buckets = self._buckets(records, bucket_ms)
            sizes = self._sizes(records)
            self._on_step("keys")
            keys = self._keys(records)
            self._on_step("delays of readers")
            count = sum(partition.record_count for partition in partitions)
            sample = self._sample(records, count)
            of_groups = self._group_delays(sample) if request.has_commits else []
            delays = (*of_groups, *self._queue_delays(sample, settlements))
            self._on_step("dead letters")
            dead_letters = self._dead_letters()
        finally:
            records.unpersist()
        return TopicReport(
            topic=request.topic,
            made_ms=request.made_ms,
            since_ms=request.since_ms,
            until_ms=request.until_ms,
            record_count=count,
            size_bytes=sum(partition.size_bytes for partition in partitions),
            deletion_count=deletion_count,
            bucket_ms=bucket_ms,
            partitions=tuple(partitions),
            buckets=tuple(buckets),
            sizes=sizes,
            keys=keys,
            delays=tuple(sorted(delays, key=lambda delay: -delay.p99)),
            delay_sample_count=SAMPLE_MAX if count > SAMPLE_MAX else None,
            dead_letters=tuple(dead_letters),
            gaps=tuple(gaps),
            partition_count=request.partition_count or len(partitions),
        )

    def _records(self) -> DataFrame:
        from pyspark.sql import functions as f

        stored = self._source(self._request.topic, headers=False)
        return stored.select(
            "partition",
            "offset",
            f.unix_millis("timestamp").alias("at_ms"),
            f.coalesce(f.length("value"), f.lit(0)).alias("value_bytes"),
            (f.coalesce(f.length("value"), f.lit(0)) + f.coalesce(f.length("key"), f.lit(0))).alias("bytes"),
            f.col("value").isNull().alias("is_deletion"),
            f.substring("key", 1, KEY_BYTES_MAX).alias("key"),
            f.when(f.col("key").isNotNull(), f.xxhash64("key")).alias("key_hash"),
            f.length("key").alias("key_bytes"),
        )

    def _source(self, topic: str, *, headers: bool) -> DataFrame:
        request = self._request
        reader = (
            self._spark.read.format("penstock")
            .option("kafka.bootstrap.servers", request.bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("failOnDataLoss", "false")
            .option("includeHeaders", str(headers).lower())
            .option("subscribe", topic)
        )
        if request.since_ms is not None:
            reader = reader.option("startingTimestamp", str(request.since_ms))
        if request.until_ms is not None:
            reader = reader.option("endingTimestamp", str(request.until_ms))
        return reader.option("startingOffsetsByTimestampStrategy", "latest").load()

    def _partitions(self, records: DataFrame) -> tuple[list[PartitionFacts], int]:
        from pyspark.sql import functions as f

        rows = (
            records.groupBy("partition")
            .agg(
                f.count("*").alias("records"),
                f.sum("bytes").alias("bytes"),
                f.min("offset").alias("first"),
                f.max("offset").alias("last"),
                f.min("at_ms").alias("first_ms"),
                f.max("at_ms").alias("last_ms"),
                f.sum(f.col("is_deletion").cast("long")).alias("deletions"),
            )
            .orderBy("partition")
            .collect()
        )
        facts = [PartitionFacts(r.partition, r.records, r.bytes, r.first, r.last, r.first_ms, r.last_ms) for r in rows]
        return facts, sum(row.deletions for row in rows)

    def _buckets(self, records: DataFrame, bucket_ms: int) -> list[Bucket]:
        from pyspark.sql import functions as f

        start = (f.floor(f.col("at_ms") / bucket_ms) * bucket_ms).cast("long")
        rows = (
            records.groupBy(start.alias("start_ms"), "partition")
            .agg(f.count("*").alias("records"), f.sum("bytes").alias("bytes"))
            .orderBy("start_ms", "partition")
            .collect()
        )
        return [Bucket(row.start_ms, row.partition, row.records, row.bytes) for row in rows]

    def _sizes(self, records: DataFrame) -> SizeFacts | None:
        from pyspark.sql import functions as f

        values = records.where(~f.col("is_deletion"))
        whole = values.agg(
            f.avg("value_bytes").alias("mean"),
            f.percentile_approx("value_bytes", list(_PERCENTILES)).alias("percentiles"),
            f.max("value_bytes").alias("largest"),
        ).collect()[0]
        if whole.largest is None:
            return None
        power = f.when(f.col("value_bytes") == 0, 0).otherwise(f.floor(f.log2("value_bytes")) + 1).cast("int")
        rows = values.groupBy(power.alias("power")).count().orderBy("power").collect()
        p50, p95, p99 = (float(value) for value in whole.percentiles)
        by_power = {row["power"]: row["count"] for row in rows}
        return SizeFacts(float(whole["mean"]), p50, p95, p99, whole.largest, by_power)

    def _keys(self, records: DataFrame) -> KeySpread:
        from pyspark.sql import functions as f

        spread = records.agg(
            f.sum(f.col("key").isNull().cast("long")).alias("without"),
            f.approx_count_distinct("key_hash", 0.02).alias("keys"),
        ).collect()[0]
        rows = (
            records.where(f.col("key").isNotNull())
            .groupBy("key_hash")
            .agg(
                f.min("key").alias("key"),
                f.max("key_bytes").alias("key_bytes"),
                f.count("*").alias("records"),
                f.sum("bytes").alias("bytes"),
                f.count_distinct("partition").alias("partitions"),
            )
            # By the key too: the same topic gives the same report.
            .orderBy(f.desc("records"), "key", "key_hash")
            .limit(HEAVIEST_COUNT)
            .collect()
        )
        heaviest = tuple(
            KeyFacts(key_text(bytes(r.key), is_cut=r.key_bytes > len(r.key)), r.records, r.bytes, r.partitions)
            for r in rows
        )
        return KeySpread(spread.without or 0, spread["keys"], heaviest)

    def _sample(self, records: DataFrame, count: int) -> DataFrame:
        from pyspark.sql import functions as f

        every = max(-(-count // SAMPLE_MAX), 1)
        # By place, not by chance: the same topic gives the same report.
        chosen = records.where(f.pmod(f.xxhash64("partition", "offset"), f.lit(every)) == 0)
        return chosen.select("partition", "offset", "at_ms")

    def _group_delays(self, sample: DataFrame) -> list[DelayFacts]:
        """A record was passed by a group when an offset above it was first committed."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        request = self._request
        commits = read_commits(self._spark, request.bootstrap, request.topic, request.topic_id).persist()
        try:
            readers = commits.select("reader").distinct()
            # Both kinds of rows in the order of their places: then the earliest of the commits that follow is wanted.
            records = sample.crossJoin(f.broadcast(readers)).select(
                "reader",
                "partition",
                "offset",
                f.col("at_ms").alias("record_ms"),
                f.lit(None).cast("long").alias("at_ms"),
            )
            passings = commits.select(
                "reader",
                "partition",
                (f.col("offset") - 1).alias("offset"),
                f.lit(None).cast("long").alias("record_ms"),
                "at_ms",
            )
            # From the end backwards: a window that reaches to the end is looked through anew for every row.
            order = Window.partitionBy("reader", "partition").orderBy(
                f.desc("offset"), f.col("at_ms").desc_nulls_last()
            )
            after = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
            passed = (
                records.unionByName(passings)
                .withColumn("passed_ms", f.min("at_ms").over(after))
                .where("record_ms is not null and passed_ms is not null")
                .withColumn("delay", f.greatest(f.col("passed_ms") - f.col("record_ms"), f.lit(0)))
            )
            rows = (
                passed.groupBy("reader")
                .agg(
                    f.count("*").alias("records"),
                    f.percentile_approx("delay", list(_PERCENTILES)).alias("percentiles"),
                    f.max("delay").alias("largest"),
                )
                .collect()
            )
        finally:
            commits.unpersist()
        found: list[DelayFacts] = []
        for row in rows:
            p50, p95, p99 = (float(value) for value in row.percentiles)
            found.append(DelayFacts("group", row.reader, row.records, p50, p95, p99, float(row.largest)))
        return found

    def _queue_delays(self, sample: DataFrame, settlements: Sequence[Settlements]) -> list[DelayFacts]:
        if not settlements:
            return []
        import numpy as np

        frame: Any = sample.toPandas()
        found: list[DelayFacts] = []
        for name, by_partition in settlements:
            delays = [
                _queue_delay(frame[frame["partition"] == partition], ranges)
                for partition, ranges in by_partition.items()
                if ranges
            ]
            all_delays = np.concatenate(delays) if delays else np.empty(0)
            if len(all_delays):
                p50, p95, p99 = (float(value) for value in np.quantile(all_delays, _PERCENTILES))
                found.append(DelayFacts("queue", name, len(all_delays), p50, p95, p99, float(all_delays.max())))
        return found

    def _dead_letters(self) -> list[DeadLetterFacts]:
        from pyspark.sql import functions as f

        facts: list[DeadLetterFacts] = []
        for topic in self._request.dead_letter_topics:
            letters = self._source(topic, headers=True).select(f.map_from_entries("headers").alias("headers"))
            # A client's own header may stand there twice; the last one counts.
            self._spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
            # Queues of several topics may bury their dead in one.
            origin = f.col("headers")[TOPIC_HEADER].cast("string")
            headers = letters.where(f.coalesce(origin, f.lit(self._request.topic)) == self._request.topic)
            reason = f.coalesce(f.col("headers")[REASON_HEADER].cast("string"), f.lit("unknown"))
            group = f.coalesce(f.col("headers")[GROUP_HEADER].cast("string"), f.lit("unknown"))
            rows = (
                headers.groupBy(reason.alias("reason"), group.alias("group")).count().orderBy(f.desc("count")).collect()
            )
            facts += [DeadLetterFacts(topic, row.reason, row.group, row["count"]) for row in rows]
        return facts


def _queue_delay(records: Any, ranges: Sequence[tuple[int, int, int]]) -> Any:
    """Of the sampled records of one partition that were finished: how long it took, the first time."""
    import numpy as np

    ordered = records.sort_values("offset")
    offsets, times = ordered["offset"].to_numpy(), ordered["at_ms"].to_numpy()
    held = np.array(ranges, dtype=np.int64)
    begins = np.searchsorted(offsets, held[:, 0], side="left")
    ends = np.searchsorted(offsets, held[:, 1], side="right")
    never = np.iinfo(np.int64).max
    finished = np.full(len(offsets), never)
    # A queue that was set back finishes its messages again: ranges may lie over one another.
    for place in np.flatnonzero(begins < ends):
        covered = finished[begins[place] : ends[place]]
        np.minimum(covered, held[place, 2], out=covered)
    is_finished = finished != never
    return np.maximum(finished[is_finished] - times[is_finished], 0)


def bucket_for(partitions: Sequence[PartitionFacts]) -> int:
    """The shortest of the usual lengths that gives no more columns than a picture has room for."""
    if not partitions:
        return _BUCKET_MS[0]
    span_ms = max(each.last_ms for each in partitions) - min(each.first_ms for each in partitions)
    # Beyond a century somebody's clock counts microseconds: in whole years, as many as it takes.
    years = -(-span_ms // (BUCKETS_MAX * _YEAR_MS))
    return next((length for length in _BUCKET_MS if span_ms / length <= BUCKETS_MAX), years * _YEAR_MS)


def key_text(key: bytes, *, is_cut: bool = False) -> str:
    """As text, where it is some; the cut may have gone through a character."""
    end = "…" if is_cut else ""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(key, final=not is_cut)
    except UnicodeDecodeError:
        return f"0x{key.hex()}{end}"
    return text + end if text.isprintable() else f"0x{key.hex()}{end}"
