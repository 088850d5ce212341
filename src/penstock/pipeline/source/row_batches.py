"""A task's work: spans of partitions, read from the broker and handed on as Arrow batches (`row_arrow`).

The consumer has the next fetch under way while a reply is decoded: it fills the socket's buffer meanwhile, which Linux
lets grow to several megabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions
from penstock.client.kafka.offsets import EARLIEST, list_offsets
from penstock.net.address import parse_addresses
from penstock.pipeline.source.filters import Narrowing
from penstock.pipeline.source.ranges import OffsetSpan
from penstock.pipeline.source.row_arrow import ArrowRows

if TYPE_CHECKING:
    import pyarrow as pa

# What is fetched and decoded at once. Twice as much is no faster.
DECODE_BYTES: Final = 8 * 1024 * 1024
# The most that glibc takes for an ordinary block: see `_keep_memory`.
_ORDINARY_BYTES: Final = 31 * 1024 * 1024
# Of many partitions, so many have their turn in one reply. Each one's share is a megabyte then: were it less than a
# batch, all but the first would be read in vain.
_PARTITIONS_PER_REPLY: Final = 8
# A guess at a row's size: rows are more often smaller.
_ROW_BYTES: Final = 1024
_FETCH_BYTES_MIN: Final = 64 * 1024


class DataLossError(Exception):
    """Messages that the query should read are gone from the log."""


class SpanReader:
    def __init__(
        self,
        bootstrap: str,
        spans: OffsetSpan | Sequence[OffsetSpan],
        *,
        includes_headers: bool,
        is_read_committed: bool,
        fails_on_loss: bool,
        narrowing: Narrowing,
        at_first: Callable[[ClusterClient], Awaitable[None]] | None = None,
    ) -> None:
        """At most one span of each partition. `at_first` has the connection before anything is read."""
        self._bootstrap = bootstrap
        self._spans = [spans] if isinstance(spans, OffsetSpan) else list(spans)
        self._includes_headers = includes_headers
        self._is_read_committed = is_read_committed
        self._fails_on_loss = fails_on_loss
        self._narrowing = narrowing
        self._at_first = at_first

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Blocking, with a loop of its own: a Python worker of Spark has none."""
        _keep_memory()
        loop = asyncio.new_event_loop()
        try:
            client = ClusterClient(parse_addresses(self._bootstrap))
            loop.run_until_complete(client.connect())
            try:
                if self._at_first is not None:
                    loop.run_until_complete(self._at_first(client))
                for topic in dict.fromkeys(span.topic for span in self._spans):
                    spans = {span.partition: span for span in self._spans if span.topic == topic}
                    yield from self._read(loop, client, topic, spans)
            finally:
                client.close()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _read(
        self, loop: asyncio.AbstractEventLoop, client: ClusterClient, topic: str, spans: dict[int, OffsetSpan]
    ) -> Iterator[pa.RecordBatch]:
        loop.run_until_complete(self._check_starts(client, topic, spans))
        consumer = Consumer(
            client,
            topic,
            {partition: span.start for partition, span in spans.items()},
            ends={partition: span.end for partition, span in spans.items()},
            options=self._consumer_options(spans),
        )
        rows = ArrowRows(topic, includes_headers=self._includes_headers, narrowing=self._narrowing)
        try:
            while not consumer.is_done:
                yield from rows.batches(loop.run_until_complete(consumer.poll()), spans)
        finally:
            consumer.close()

    def _consumer_options(self, spans: dict[int, OffsetSpan]) -> ConsumerOptions:
        # A short span is a part of a partition that others read: what is asked for beyond its end is fetched in vain.
        longest = max(span.size for span in spans.values())
        share = DECODE_BYTES // min(len(spans), _PARTITIONS_PER_REPLY)
        return ConsumerOptions(
            is_read_committed=self._is_read_committed,
            partition_bytes_max=min(max(longest * _ROW_BYTES, _FETCH_BYTES_MIN), share),
            fetch_bytes_max=DECODE_BYTES,
        )

    async def _check_starts(self, client: ClusterClient, topic: str, spans: dict[int, OffsetSpan]) -> None:
        if not self._fails_on_loss:
            return
        firsts = await list_offsets(client, topic, dict.fromkeys(spans, EARLIEST))
        for partition, span in spans.items():
            if firsts[partition] > span.start:
                gone = min(firsts[partition], span.end) - span.start
                raise DataLossError(
                    f"partition {partition} of {topic!r} begins at offset {firsts[partition]}, and {span.start} was "
                    f"wanted: retention or a deletion has removed {gone} messages. "
                    "With failOnDataLoss=false the query goes on."
                )


def _keep_memory() -> None:
    """Lets the buffers of one reply serve the next.

    glibc gives blocks of some megabytes back to the system, and gets them again page by page: with compressed batches
    that is a third of a row's time. When a block that was of its own is freed, it takes blocks up to that size for
    ordinary, and keeps twice as much. Elsewhere this does nothing.
    """
    import numpy as np

    np.empty(_ORDINARY_BYTES, dtype=np.uint8)
