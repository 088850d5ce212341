"""How many messages a group has not read yet, where offsets say something else.

Kafka's protocol tells offsets. Some hold nothing: those of delayed and of compacted records, and of markers. A group
that has read everything would look as if it were behind for as long as such offsets are the last ones. So what lies
behind its position is looked at, as far as one fetch reaches; beyond that offsets are counted.
"""

from __future__ import annotations

from typing import Final

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions
from penstock.codec.batch.header import BatchHeader, walk_headers
from penstock.net.errors import ClientError

# Of one partition: enough for some thousand small messages.
LOOKED_AT: Final = ConsumerOptions(wait_ms=0, partition_bytes_max=256 * 1024)


async def records_behind(client: ClusterClient, topic: str, partition: int, *, committed: int, end: int) -> int:
    consumer = Consumer(client, topic, {partition: committed}, ends={partition: end}, options=LOOKED_AT)
    try:
        fetched = await consumer.poll()
    except ClientError:
        return end - committed
    finally:
        consumer.close()
    if not fetched:
        # Nothing came, although the end is known to be further on: there is nothing.
        return 0 if consumer.is_done else end - committed
    (part,) = fetched
    behind = sum(_count_from(header, committed) for _, header in walk_headers(part.data) if not header.is_control)
    return behind + max(0, end - part.next_position)


def _count_from(header: BatchHeader, offset: int) -> int:
    """Of the batch that `offset` lies in, at the most: which of its offsets are empty is not looked for."""
    return min(header.record_count, header.next_offset - max(offset, header.base_offset))
