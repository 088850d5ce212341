"""The driver's work in the sink: staged batches into their topics, in one short transaction, exactly once.

    start the transactional producer of this query       an older driver of it is fenced, and what it left has ended
    read the query's fence                               this batch is there: nothing to do; a later one: an error
    copy the batches                                     as they are, only in the producer's name
    set the fence to this batch, in the transaction
    commit

The fence is an offset of the group `penstock-sink-<query>`, so it becomes true with the rows or not at all. Between two
drivers of one query the producer's epoch decides: whoever started last reads a fence that nobody else can move.

Readers of committed records wait for the copy alone, never while Spark computes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

from penstock.client.kafka import groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions, Fetched, OffsetOutOfRangeError
from penstock.client.kafka.producer import PartitionBatch
from penstock.client.kafka.transactional_producer import ProducerFencedError, TransactionalProducer
from penstock.client.patience import UNREACHED, ask_patiently
from penstock.codec.batch.header import BatchProblem, check_batch, walk_headers
from penstock.domain.topic_rules import SPARK_STAGE
from penstock.net.address import parse_addresses
from penstock.net.errors import ClientError
from penstock.pipeline.sink.stage_window import SendWindow
from penstock.pipeline.sink.stage_write import FENCE_PARTITION, PATIENCE_MS, StagedBatch, ensure_stage

GROUP_PREFIX: Final = "penstock-sink-"
# What a transaction may take: half a minute for waits, and 5 MB/s at the least. A driver that is gone holds readers up
# no longer than that.
TIMEOUT_MS_MIN: Final = 30_000
TIMEOUT_MS_MAX: Final = 15 * 60_000
_BYTES_PER_MS_MIN: Final = 5_000
# How often a transaction is begun that its timeout has ended: a node that is away each time is no node.
ATTEMPTS_MAX: Final = 3
# Something has failed already, perhaps because nobody answers.
ABORT_PATIENCE_MS: Final = 5_000

_FETCH_BYTES_MAX: Final = 16 * 1024 * 1024
_PARTITION_BYTES_MAX: Final = 4 * 1024 * 1024

_RETRY_SECONDS: Final = 0.2

_ADVICE: Final = (
    "nothing was written, start the query again (rows stay for retention.ms of the stage, which must be longer than a "
    "micro-batch, unless a power failure takes them)"
)

_FENCE: Final = (SPARK_STAGE, FENCE_PARTITION)


class StagedRowsLostError(ClientError):
    """Retention, or somebody, has removed rows that were not committed yet. Nothing was written."""


class OlderBatchError(ClientError):
    """A query goes on from batch to batch, and repeats the last one at most: what is in an older one now is not known
    to be what was written then."""


def fence_group(query_id: str) -> str:
    return GROUP_PREFIX + query_id


async def commit_staged(
    bootstrap: str,
    staged: Sequence[StagedBatch],
    *,
    writer_id: str,
    batch_id: int | None,
    patience_ms: int = PATIENCE_MS,
    timeout_ms_min: int = TIMEOUT_MS_MIN,
    copy: type[StageCopy] | None = None,
) -> bool:
    """Writes them, if this batch of this writer was not written before: False, if it was. Without a `batch_id` there is
    no fence: a batch query commits once."""
    if not staged:
        # What has no rows cannot be written twice.
        return False
    client = ClusterClient(parse_addresses(bootstrap))
    try:
        await ask_patiently(client.connect, patience_ms=patience_ms)
        timeout_ms = transaction_timeout_ms(staged, timeout_ms_min)
        begin = partial(_Attempt, client, staged, writer_id, batch_id, patience_ms, timeout_ms, copy or StageCopy)
        for _ in range(ATTEMPTS_MAX - 1):
            attempt = begin()
            try:
                return await attempt.run()
            except ProducerFencedError:
                # A node that was away for longer than a transaction may take has ended ours. The fence knows whether
                # our commit came before; without one nobody does.
                if batch_id is None or not attempt.is_overdue:
                    raise
        return await begin().run()
    finally:
        client.close()


class _Attempt:
    def __init__(
        self,
        client: ClusterClient,
        staged: Sequence[StagedBatch],
        writer_id: str,
        batch_id: int | None,
        patience_ms: int,
        timeout_ms: int,
        copy: type[StageCopy],
    ) -> None:
        self._client = client
        self._staged = staged
        self._writer_id = writer_id
        self._batch_id = batch_id
        self._patience_ms = patience_ms
        self._timeout_ms = timeout_ms
        self._copy = copy
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    @property
    def is_overdue(self) -> bool:
        """Whether the transaction may have been ended for the time that it took. One that has not is a rival's."""
        return self._loop.time() - self._began >= self._timeout_ms / 1000

    async def run(self) -> bool:
        producer = self._copy.producer_type(
            self._client,
            fence_group(self._writer_id),
            transaction_timeout_ms=self._timeout_ms,
            patience_ms=self._patience_ms,
        )
        await producer.start()
        self._began = self._loop.time()
        if self._batch_id is not None and await self._is_committed(self._batch_id):
            return False
        await self._write(producer)
        return True

    async def _write(self, producer: TransactionalProducer) -> None:
        try:
            await self._copy(self._client, producer, self._staged, patience_ms=self._patience_ms).run()
            if self._batch_id is not None:
                await producer.commit_offsets(fence_group(self._writer_id), {_FENCE: self._batch_id})
        except BaseException:
            # Nothing was committed yet: readers need not wait for the timeout. Whoever is fenced has nothing to end.
            await _try_abort(producer)
            raise
        # From here on no abort: a commit without an answer may have taken effect.
        await producer.commit()

    async def _is_committed(self, batch_id: int) -> bool:
        await ensure_stage(self._client)

        async def ask() -> dict[groups.Place, int]:
            return await groups.committed_offsets(self._client, fence_group(self._writer_id))

        last = (await ask_patiently(ask, patience_ms=self._patience_ms)).get(_FENCE, -1)
        if last > batch_id:
            raise OlderBatchError(
                f"batch {batch_id} of query {self._writer_id!r} comes after batch {last}: nothing was written of it, "
                "another run of the query is ahead, or its checkpoint was put back to an earlier one"
            )
        return last == batch_id


async def _try_abort(producer: TransactionalProducer) -> None:
    # If it cannot be done, the timeout ends it, or the next `start` of this query.
    with contextlib.suppress(ClientError):
        await producer.abort(patience_ms=ABORT_PATIENCE_MS)


def transaction_timeout_ms(staged: Sequence[StagedBatch], least_ms: int = TIMEOUT_MS_MIN) -> int:
    size_bytes = sum(batch.size_bytes for batch in staged)
    return min(least_ms + size_bytes // _BYTES_PER_MS_MIN, TIMEOUT_MS_MAX)


class StageCopy:
    """Reads the stage from the first of these batches to the last, and sends on those that are among them."""

    # Who sends them on, and commits.
    producer_type: ClassVar[type[TransactionalProducer]] = TransactionalProducer

    def __init__(
        self,
        client: ClusterClient,
        producer: TransactionalProducer,
        staged: Sequence[StagedBatch],
        *,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        self._client = client
        self._producer = producer
        self._patience_ms = patience_ms
        self._missing = {(batch.stage_partition, batch.base_offset): batch for batch in staged}
        # Two batches cannot be in one place, unless the first of them was lost and the second has taken it.
        self._lost_count = len(staged) - len(self._missing)
        self._window = SendWindow[list[int]]()
        self._unreached: ClientError | None = None

    async def run(self) -> None:
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for (place, offset), batch in self._missing.items():
            starts[place] = min(starts.get(place, offset), offset)
            ends[place] = max(ends.get(place, 0), offset + batch.record_count)
        options = ConsumerOptions(fetch_bytes_max=_FETCH_BYTES_MAX, partition_bytes_max=_PARTITION_BYTES_MAX)
        consumer = Consumer(self._client, SPARK_STAGE, starts, ends=ends, options=options)
        loop = asyncio.get_running_loop()
        last = loop.time()
        try:
            # A log that ends before what was staged will never give it: a power failure took its end.
            while not consumer.is_done and loop.time() - last < self._patience_ms / 1000:
                pieces = await self._poll(consumer)
                last = loop.time() if pieces else last
                await self._send_on(pieces)
            await self._window.finish()
        except OffsetOutOfRangeError as error:
            raise StagedRowsLostError(f"{error}, and staged rows are gone: {_ADVICE}") from error
        finally:
            consumer.close()
            self._window.close()
        if self._unreached is not None:
            raise self._unreached
        if self._missing or self._lost_count:
            count = len(self._missing) + self._lost_count
            first = min(self._missing, default=None)
            where = "" if first is None else f", the first was at offset {first[1]} of partition {first[0]}"
            raise StagedRowsLostError(f"{count} batches of staged rows are gone from {SPARK_STAGE!r}{where}: {_ADVICE}")

    async def _poll(self, consumer: Consumer) -> list[Fetched]:
        """A consumer gives up on a node that is away sooner than we do."""
        try:
            pieces = await self._fetch(consumer)
            self._unreached = None
            return pieces
        except UNREACHED as error:
            self._unreached = error
            consumer.close()
            self._client.forget(SPARK_STAGE)
            await asyncio.sleep(_RETRY_SECONDS)
            return []

    async def _fetch(self, consumer: Consumer) -> list[Fetched]:
        return await consumer.poll()

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
    found = (header.producer_id, header.base_sequence, header.record_count)
    if found != (staged.producer_id, staged.base_sequence, staged.record_count):
        raise StagedRowsLostError(
            f"{where} holds other rows at offset {header.base_offset} than were staged there: {_ADVICE}"
        )
    return bytearray(piece.data[position : position + header.size_bytes])
