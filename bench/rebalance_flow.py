"""Records that flow: one for each partition in every burst, all of a burst in one request, until the process is ended.

python -m bench.rebalance_flow BOOTSTRAP TOPIC PARTITIONS INTERVAL_MS
"""

from __future__ import annotations

import asyncio
import sys
import time

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import PartitionBatch, Producer, ProducerOptions
from penstock.codec.batch.records import Record, build_batch
from penstock.net.address import parse_addresses


async def flow(bootstrap: str, topic: str, *, partitions: int, interval_ms: int) -> None:
    data = bytes(build_batch([Record(b"x" * 100, timestamp_ms=int(time.time() * 1000))]))
    batches = [PartitionBatch(topic, partition, data, 1) for partition in range(partitions)]
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        producer = Producer(client, ProducerOptions(acks=1))
        due = time.monotonic()
        while True:
            await producer.send(batches)
            # Never two at once to make up for a late one: that would look like a gap that was not there.
            due = max(due + interval_ms / 1000, time.monotonic())
            await asyncio.sleep(due - time.monotonic())


if __name__ == "__main__":
    asyncio.run(flow(sys.argv[1], sys.argv[2], partitions=int(sys.argv[3]), interval_ms=int(sys.argv[4])))
