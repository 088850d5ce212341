"""A look into topics: their last messages, to find a schema in; which there are, to find a misspelling."""

from __future__ import annotations

from typing import Final

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions
from penstock.client.kafka.offsets import offset_ranges
from penstock.client.kafka.rows import rows_of

SAMPLE_COUNT: Final = 500
# A sample is held in memory, and one value may be as large as a batch.
SAMPLE_BYTES_MAX: Final = 16 * 1024 * 1024


async def sample_values(client: ClusterClient, topic: str, *, count: int = SAMPLE_COUNT) -> list[bytes]:
    """Of the newest messages with a value, the same number out of every partition."""
    info = await client.topic(topic)
    indexes = [partition.partition for partition in info.partitions]
    ranges = await offset_ranges(client, topic, indexes, is_read_committed=True)
    share = max(1, count // max(1, len(indexes)))
    starts = {index: max(ranges[index].start, ranges[index].end - share) for index in indexes}
    ends = {index: ranges[index].end for index in indexes if ranges[index].end > starts[index]}
    if not ends:
        return []
    options = ConsumerOptions(is_read_committed=True)
    consumer = Consumer(client, topic, {index: starts[index] for index in ends}, ends=ends, options=options)
    values: list[bytes] = []
    size_bytes = 0
    try:
        while not consumer.is_done and size_bytes < SAMPLE_BYTES_MAX:
            for fetched in await consumer.poll():
                for record in rows_of(fetched, end=ends[fetched.partition]):
                    if record.value is not None:
                        values.append(bytes(record.value))
                        size_bytes += len(record.value)
    finally:
        consumer.close()
    return values
