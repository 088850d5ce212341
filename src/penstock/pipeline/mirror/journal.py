"""The mirror's own book in the target cluster: a compacted topic with the runs of every partition.

A run is written in the transaction of the records that it speaks of. Whoever reads committed records reads exactly
what happened.

All topics of a mirror share the book, and a transaction of one that is still open ends what readers of committed
records are given: runs of the others that were committed behind it are not seen. They are looked for, since a run that
is not seen is a transaction that is mirrored again.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Final

import msgspec

from penstock.base.typed_values import read_json
from penstock.client.errors import TopicMissingError
from penstock.client.kafka.admin import create_topic
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions, Fetched
from penstock.client.kafka.offsets import OffsetRange, offset_ranges
from penstock.client.kafka.rows import UnreadableBatchError, rows_of
from penstock.codec.batch.control import EndMarker, read_marker
from penstock.codec.batch.header import BatchProblem, walk_headers
from penstock.codec.batch.records import Record, StoredRecord, read_records
from penstock.codec.kafka import ErrorCode
from penstock.net.errors import BrokerError
from penstock.pipeline.mirror.runs import Run, RunBook, slot_of

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
    key = RunKey(topic, partition, slot_of(run.number, run.first))
    return Record(msgspec.json.encode(run), msgspec.json.encode(key), now_ms)


async def ensure_journal(client: ClusterClient, mirror: str) -> None:
    await ensure_compacted(client, journal_topic(mirror))


async def ensure_compacted(client: ClusterClient, topic: str) -> None:
    """One of our own topics, of one partition."""
    with contextlib.suppress(TopicMissingError):
        await client.topic(topic, is_fresh=True)
        return
    try:
        await create_topic(client, topic, partitions=1, configs=_CONFIGS)
    except BrokerError as error:
        # Somebody else was faster.
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


async def read_journal(client: ClusterClient, mirror: str) -> Books:
    books: Books = defaultdict(RunBook)
    async for row in read_committed(client, journal_topic(mirror)):
        if row.key is not None and row.value is not None:
            key = read_json(row.key, RunKey)
            books[key.topic, key.partition].add(read_json(row.value, Run))
    return books


async def read_committed(client: ClusterClient, topic: str) -> AsyncIterator[StoredRecord]:
    """Every committed record of a topic of one partition, those too that lie behind an open transaction."""
    stable = (await offset_ranges(client, topic, [PARTITION], is_read_committed=True))[PARTITION]
    async for piece in _pieces(client, topic, stable, is_read_committed=True):
        for row in rows_of(piece, end=stable.end):
            yield row
    # Asked for last: what was committed before this was called lies below it.
    end = (await offset_ranges(client, topic, [PARTITION]))[PARTITION].end
    settling = _Settling()
    async for piece in _pieces(client, topic, OffsetRange(stable.end, end), is_read_committed=False):
        for row in settling.committed(piece):
            yield row


async def _pieces(
    client: ClusterClient, topic: str, held: OffsetRange, *, is_read_committed: bool
) -> AsyncIterator[Fetched]:
    options = ConsumerOptions(is_read_committed=is_read_committed)
    consumer = Consumer(client, topic, {PARTITION: held.start}, ends={PARTITION: held.end}, options=options)
    try:
        while not consumer.is_done:
            for piece in await consumer.poll():
                yield piece
    finally:
        consumer.close()


class _Settling:
    """Records of transactions, held until their marker comes; those whose marker does not come are not committed."""

    def __init__(self) -> None:
        self._open: dict[int, list[StoredRecord]] = defaultdict(list)

    def committed(self, piece: Fetched) -> Iterator[StoredRecord]:
        for position, header in walk_headers(piece.data):
            if header.is_control:
                held = self._open.pop(header.producer_id, [])
                marker = read_marker(piece.data, position)
                if isinstance(marker, EndMarker) and marker.is_commit:
                    yield from held
                continue
            records = read_records(piece.data, position)
            if isinstance(records, BatchProblem):
                raise UnreadableBatchError(f"topic {piece.topic!r} at offset {header.base_offset}: {records.reason}")
            wanted = [record for record in records if record.offset >= piece.position]
            if header.is_transactional:
                self._open[header.producer_id] += wanted
            else:
                yield from wanted
