"""The driver's work in the sink: staged batches into their topics, in one short transaction, exactly once.

    start the transactional producer of this query       an older driver of it is fenced, and what it left has ended
    read the query's fence                               this batch is there already: nothing to do
    copy the batches                                     as they are, only in the producer's name
    set the fence to this batch, in the transaction
    commit

The fence is an offset of the group `penstock-sink-<query>`, so it becomes true with the rows or not at all. Between two
drivers of one query the producer's epoch decides: whoever started last reads a fence that nobody else can move.

Readers of committed records wait for the copy alone, never while Spark computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from penstock.client import groups
from penstock.client.address import parse_addresses
from penstock.client.cluster_client import ClusterClient
from penstock.client.consumer import Consumer, ConsumerOptions, Fetched
from penstock.client.errors import ClientError
from penstock.client.patience import ask_patiently
from penstock.client.producer import PartitionBatch
from penstock.client.transactional_producer import TransactionalProducer
from penstock.codec.record_batch import BatchProblem, check_batch, walk_headers
from penstock.domain.topic_rules import SPARK_STAGE
from penstock.pipeline.stage_window import SendWindow
from penstock.pipeline.stage_write import FENCE_PARTITION, PATIENCE_MS, StagedBatch, ensure_stage

GROUP_PREFIX: Final = "penstock-sink-"
# What a transaction may take: half a minute for waits, and 5 MB/s at the least. A driver that is gone holds readers up
# no longer than that.
TIMEOUT_MS_MIN: Final = 30_000
TIMEOUT_MS_MAX: Final = 15 * 60_000
_BYTES_PER_MS_MIN: Final = 5_000
# Something has failed already, perhaps because nobody answers.
ABORT_PATIENCE_MS: Final = 5_000

_FETCH_BYTES_MAX: Final = 16 * 1024 * 1024
_PARTITION_BYTES_MAX: Final = 4 * 1024 * 1024

_FENCE: Final = (SPARK_STAGE, FENCE_PARTITION)


class StagedRowsLostError(ClientError):
    """Retention, or somebody, has removed rows that were not committed yet. Nothing was written."""


def fence_group(query_id: str) -> str:
    return GROUP_PREFIX + query_id


async def commit_staged(
    bootstrap: str,
    staged: Sequence[StagedBatch],
    *,
    writer_id: str,
    batch_id: int | None,
    patience_ms: int = PATIENCE_MS,
) -> bool:
    """Writes them, if this batch of this writer was not written before: False, if it was. Without a `batch_id` there is
    no fence: a batch query commits once."""
    if not staged:
        # What has no rows cannot be written twice.
        return False
    client = ClusterClient(parse_addresses(bootstrap))
    await ask_patiently(client.connect, patience_ms=patience_ms)
    try:
        producer = TransactionalProducer(
            client,
            fence_group(writer_id),
            transaction_timeout_ms=transaction_timeout_ms(staged),
            patience_ms=patience_ms,
        )
        await producer.start()
        if batch_id is not None and await _is_committed(client, writer_id, batch_id, patience_ms):
            return False
        await _write(client, producer, staged, writer_id, batch_id)
        return True
    finally:
        client.close()


async def _write(
    client: ClusterClient,
    producer: TransactionalProducer,
    staged: Sequence[StagedBatch],
    writer_id: str,
    batch_id: int | None,
) -> None:
    try:
        await StageCopy(client, producer, staged).run()
        if batch_id is not None:
            await producer.commit_offsets(fence_group(writer_id), {_FENCE: batch_id})
    except BaseException:
        # Nothing was committed yet: readers need not wait for the timeout. Whoever is fenced has nothing to end.
        await _try_abort(producer)
        raise
    # From here on no abort: a commit without an answer may have taken effect.
    await producer.commit()


async def _try_abort(producer: TransactionalProducer) -> None:
    # If it cannot be done, the timeout ends it, or the next `start` of this query.
    with contextlib.suppress(ClientError):
        await producer.abort(patience_ms=ABORT_PATIENCE_MS)


async def _is_committed(client: ClusterClient, writer_id: str, batch_id: int, patience_ms: int) -> bool:
    await ensure_stage(client)

    async def ask() -> dict[groups.Place, int]:
        return await groups.committed_offsets(client, fence_group(writer_id))

    offsets = await ask_patiently(ask, patience_ms=patience_ms)
    return offsets.get(_FENCE, -1) >= batch_id


def transaction_timeout_ms(staged: Sequence[StagedBatch]) -> int:
    size_bytes = sum(batch.size_bytes for batch in staged)
    return min(TIMEOUT_MS_MIN + size_bytes // _BYTES_PER_MS_MIN, TIMEOUT_MS_MAX)


class StageCopy:
    """Reads the stage from the first of these batches to the last, and sends on those that are among them."""

    def __init__(self, client: ClusterClient, producer: TransactionalProducer, staged: Sequence[StagedBatch]) -> None:
        self._client = client
        self._producer = producer
        self._missing = {(batch.stage_partition, batch.base_offset): batch for batch in staged}
        assert len(self._missing) == len(staged)
        self._window = SendWindow[list[int]]()

    async def run(self) -> None:
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for (place, offset), batch in self._missing.items():
            starts[place] = min(starts.get(place, offset), offset)
            ends[place] = max(ends.get(place, 0), offset + batch.record_count)
        options = ConsumerOptions(fetch_bytes_max=_FETCH_BYTES_MAX, partition_bytes_max=_PARTITION_BYTES_MAX)
        consumer = Consumer(self._client, SPARK_STAGE, starts, ends=ends, options=options)
        try:
            while not consumer.is_done:
                await self._send_on(await consumer.poll())
            await self._window.finish()
        finally:
            consumer.close()
            self._window.close()
        if self._missing:
            (place, offset), _ = min(self._missing.items())
            raise StagedRowsLostError(
                f"{len(self._missing)} batches of staged rows are gone, the first was at offset {offset} of partition "
                f"{place} of {SPARK_STAGE!r}: nothing was written, start the query again (retention.ms of the stage "
                "must be longer than a micro-batch)"
            )

    async def _send_on(self, pieces: Sequence[Fetched]) -> None:
        one_request: dict[tuple[str, int], PartitionBatch] = {}
        for piece in pieces:
            for position, header in walk_headers(piece.data):
                batch = self._missing.pop((piece.partition, header.base_offset), None)
                if batch is None:
                    continue
                data = _whole_batch(piece, position, batch)
                target = (batch.topic, batch.partition)
                if target in one_request:
                    await self._send(one_request)
                    one_request = {}
                one_request[target] = PartitionBatch(batch.topic, batch.partition, data, batch.record_count)
        if one_request:
            await self._send(one_request)

    async def _send(self, one_request: dict[tuple[str, int], PartitionBatch]) -> None:
        await self._window.add(self._producer.send(list(one_request.values())))


def _whole_batch(piece: Fetched, position: int, staged: StagedBatch) -> bytearray:
    header = check_batch(piece.data, position)
    where = f"partition {piece.partition} of {SPARK_STAGE!r}"
    if isinstance(header, BatchProblem):
        raise ClientError(f"{where}: {header.reason}")
    if header.record_count != staged.record_count:
        raise ClientError(
            f"{where}: the batch at {header.base_offset} has {header.record_count} records, "
            f"{staged.record_count} were staged: was the topic made anew?"
        )
    return bytearray(piece.data[position : position + header.size_bytes])
