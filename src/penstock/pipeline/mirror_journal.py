"""The mirror's own book in the target cluster: a compacted topic with the runs of every partition.

A run is written in the transaction of the records that it speaks of. Whoever reads committed records reads exactly
what happened.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import Final

import msgspec

from penstock.client.admin import create_topic
from penstock.client.cluster_client import ClusterClient
from penstock.client.consumer import Consumer, ConsumerOptions
from penstock.client.errors import BrokerError, TopicMissingError
from penstock.client.offsets import offset_ranges
from penstock.client.rows import rows_of
from penstock.codec.records import Record
from penstock.codec.wire import ErrorCode
from penstock.pipeline.mirror_runs import Run, RunBook, slot_of

_PREFIX: Final = "penstock-mirror."
_CONFIGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
PARTITION: Final = 0

Place = tuple[str, int]
Books = defaultdict[Place, RunBook]


class RunKey(msgspec.Struct, frozen=True, array_like=True):
    # The source's name of it.
    topic: str
    partition: int
    slot: str


def journal_topic(mirror: str) -> str:
    return _PREFIX + mirror


def is_journal(topic: str) -> bool:
    return topic.startswith(_PREFIX)


def run_record(topic: str, partition: int, run: Run, *, now_ms: int) -> Record:
    key = RunKey(topic, partition, slot_of(run.number))
    return Record(msgspec.json.encode(run), msgspec.json.encode(key), now_ms)


async def ensure_journal(client: ClusterClient, mirror: str) -> None:
    with contextlib.suppress(TopicMissingError):
        await client.topic(journal_topic(mirror), is_fresh=True)
        return
    try:
        await create_topic(client, journal_topic(mirror), partitions=1, configs=_CONFIGS)
    except BrokerError as error:
        # Somebody else was faster.
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


async def read_journal(client: ClusterClient, mirror: str) -> Books:
    books: Books = defaultdict(RunBook)
    topic = journal_topic(mirror)
    ranges = await offset_ranges(client, topic, [PARTITION], is_read_committed=True)
    starts = {partition: held.start for partition, held in ranges.items()}
    ends = {partition: held.end for partition, held in ranges.items()}
    options = ConsumerOptions(is_read_committed=True)
    consumer = Consumer(client, topic, starts, ends=ends, options=options)
    try:
        while not consumer.is_done:
            for piece in await consumer.poll():
                for row in rows_of(piece, end=ends[piece.partition]):
                    if row.key is not None and row.value is not None:
                        key = msgspec.json.decode(row.key, type=RunKey)
                        books[key.topic, key.partition].add(msgspec.json.decode(row.value, type=Run))
    finally:
        consumer.close()
    return books
