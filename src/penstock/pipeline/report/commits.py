"""Commits of groups as Spark rows, read from the node's own `__consumer_offsets`: who passed which offset, and when.

Kafka writes that topic in a form of its own; what cannot be read is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.domain.group.records import NO_PRODUCER, OffsetStored, RecordKey
from penstock.domain.group.values import NO_TOPIC_ID
from penstock.domain.topic_rules import CONSUMER_OFFSETS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = "reader string, partition int, offset long, at_ms long"
_OFFSET_KIND: Final = "offset"
# As it stands in every key of a commit, so that the others need not be decoded.
_KIND_BYTES: Final = msgspec.msgpack.encode(_OFFSET_KIND)

_decode_key = msgspec.msgpack.Decoder(tuple[str, RecordKey]).decode
_decode_value = msgspec.msgpack.Decoder(OffsetStored).decode


def read_commits(spark: SparkSession, bootstrap: str, topic: str, topic_id: bytes) -> DataFrame:
    """One row a commit that is still in the log: compaction keeps all of the last day, and then the last of each."""
    stored = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("failOnDataLoss", "false")
        .option("subscribe", CONSUMER_OFFSETS)
        .load()
        .select("key", "value")
    )

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield decoded(batch, topic, topic_id)

    return stored.mapInArrow(decode, SCHEMA)


def decoded(batch: pa.RecordBatch, topic: str, topic_id: bytes = NO_TOPIC_ID) -> pa.RecordBatch:
    """With an id only what was committed for that topic, and not for an older one of its name."""
    import pyarrow as pa

    wanted = msgspec.msgpack.encode(topic)
    ids = (NO_TOPIC_ID, topic_id)
    readers: list[str] = []
    partitions: list[int] = []
    offsets: list[int] = []
    times: list[int] = []
    for key, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
        if key is None or value is None or _KIND_BYTES not in key or wanted not in key:
            continue
        try:
            group, (kind, of_topic, partition) = _decode_key(key)
            stored = _decode_value(value)
        except msgspec.DecodeError:
            continue
        is_same = topic_id == NO_TOPIC_ID or stored.topic_id in ids
        if kind == _OFFSET_KIND and of_topic == topic and is_same and stored.producer_id == NO_PRODUCER:
            readers.append(group)
            partitions.append(partition)
            offsets.append(stored.offset)
            times.append(stored.committed_ms)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(readers, pa.string()),
            pa.array(partitions, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array(times, pa.int64()),
        ],
        names=["reader", "partition", "offset", "at_ms"],
    )
