"""One topic, mirrored: read committed records, write them and what became of their offsets in one transaction, again.

Records keep their partition, key, headers and time. A topic that fails says so and is tried again; the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions, Fetched
from penstock.client.kafka.producer import UNKNOWN_OFFSET, PartitionBatch
from penstock.codec.batch.records import build_batch
from penstock.pipeline.mirror.batches import Outgoing, outgoing
from penstock.pipeline.mirror.journal import PARTITION, Books, journal_topic, run_record
from penstock.pipeline.mirror.runs import Stretch
from penstock.pipeline.mirror.target import MirrorTarget
from penstock.pipeline.sink.stage_window import SendWindow

log_events = get_logger("mirror")

# Of one transaction, about: readers of the copy wait for it.
_FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
_PARTITION_BYTES_MAX: Final = 1024 * 1024


class TopicProgress(msgspec.Struct):
    """Of one topic, since the mirror was started."""

    record_count: int = 0
    size_bytes: int = 0
    # By partition: how far the source is ahead.
    lags: dict[int, int] = {}
    error: str | None = None

    @property
    def lag(self) -> int:
        return sum(self.lags.values())


class Route(msgspec.Struct, frozen=True):
    """What is mirrored, by whom and into what."""

    # The name of the mirror: its journal goes by it.
    mirror: str
    source_topic: str
    target_topic: str


class TopicMirror:
    def __init__(
        self,
        route: Route,
        *,
        source: ClusterClient,
        target: MirrorTarget,
        books: Books,
        clock: Clock,
        progress: TopicProgress,
    ) -> None:
        self._route = route
        self._source = source
        self._target = target
        self._books = books
        self._clock = clock
        self._progress = progress
        # Where the next piece of each partition begins, if nothing is lost.
        self._expected: dict[int, int] = {}

    async def run(self, starts: Mapping[int, int], *, ends: Mapping[int, int] | None, stop: asyncio.Event) -> None:
        """From the starts on; with ends until they are reached, else until `stop`."""
        options = ConsumerOptions(
            fetch_bytes_max=_FETCH_BYTES_MAX, partition_bytes_max=_PARTITION_BYTES_MAX, is_read_committed=True
        )
        consumer = Consumer(self._source, self._route.source_topic, starts, ends=ends, options=options)
        self._expected = dict(starts)
        try:
            while not consumer.is_done and not stop.is_set():
                pieces = await consumer.poll()
                if pieces:
                    self._look_at(pieces)
                    await self._copy(pieces)
                else:
                    await self._write_passed()
            await self._write_passed()
        finally:
            consumer.close()

    async def _copy(self, pieces: Sequence[Fetched]) -> None:
        keeps = self._target.is_exactly_once
        batches = [batch for piece in pieces for batch in outgoing(piece, keeps_transactional=keeps)]
        if batches:
            try:
                stretches = await self._send(batches)
                # A record without its place would be mirrored again: both, or neither.
                nexts = {piece.partition: piece.next_position for piece in pieces if piece.partition in stretches}
                await self._send_journal(nexts, stretches)
            except BaseException:
                await self._target.abort()
                raise
            await self._target.commit()
        for piece in pieces:
            self._expected[piece.partition] = piece.next_position
        self._count(pieces, batches)

    def _look_at(self, pieces: Iterable[Fetched]) -> None:
        """The consumer goes on at the log's start where retention was faster than the mirror: that is told."""
        for piece in pieces:
            expected = self._expected[piece.partition]
            # Before it is copied, too: a target that is away makes it no shorter.
            self._progress.lags[piece.partition] = piece.high_watermark - piece.position
            if piece.position > expected:
                log_events.warning(
                    "records were gone from the source before they were mirrored",
                    topic=self._route.source_topic,
                    partition=piece.partition,
                    first_offset=expected,
                    offsets=piece.position - expected,
                )

    async def _write_passed(self) -> None:
        """How far it is where nothing was to be copied: markers and aborted records, not to be read again. Told when
        there is nothing else to do, so that it costs no transaction for each marker."""
        passed = {
            partition: position
            for partition, position in self._expected.items()
            if (written := self._books[self._route.source_topic, partition].source_next) is not None
            and written < position
        }
        if not passed:
            return
        try:
            await self._send_journal(passed, {})
        except BaseException:
            await self._target.abort()
            raise
        await self._target.commit()

    async def _send(self, batches: Sequence[Outgoing]) -> dict[int, list[Stretch]]:
        found: dict[int, list[Stretch]] = {batch.partition: [] for batch in batches}
        window = SendWindow[list[int]]()
        sent: list[Outgoing] = []
        offsets: list[int] = []
        try:
            for request in _requests(batches):
                wire = [
                    PartitionBatch(self._route.target_topic, each.partition, each.data, each.record_count)
                    for each in request
                ]
                sent += request
                for acknowledged in await window.add(self._target.send(wire)):
                    offsets += acknowledged
            for acknowledged in await window.finish():
                offsets += acknowledged
        finally:
            window.close()
        for batch, base_offset in zip(sent, offsets, strict=True):
            if base_offset != UNKNOWN_OFFSET:
                found[batch.partition] += batch.stretches(base_offset)
        return found

    async def _send_journal(self, nexts: Mapping[int, int], stretches: Mapping[int, list[Stretch]]) -> None:
        now_ms = self._clock.now_ms()
        runs = {
            partition: self._books[self._route.source_topic, partition].make(stretches.get(partition, ()), source_next)
            for partition, source_next in nexts.items()
        }
        records = [
            run_record(self._route.source_topic, partition, run, now_ms=now_ms) for partition, run in runs.items()
        ]
        batch = PartitionBatch(journal_topic(self._route.mirror), PARTITION, build_batch(records), len(records))
        await self._target.send([batch])
        # Should the transaction fail, everything is read anew.
        for partition, run in runs.items():
            self._books[self._route.source_topic, partition].add(run)

    def _count(self, pieces: Iterable[Fetched], batches: Iterable[Outgoing]) -> None:
        for piece in pieces:
            self._progress.lags[piece.partition] = max(piece.high_watermark - piece.next_position, 0)
        for batch in batches:
            self._progress.record_count += batch.record_count
            self._progress.size_bytes += len(batch.data)


def _requests(batches: Sequence[Outgoing]) -> list[list[Outgoing]]:
    """As few as there can be with one batch of a partition in each, and the partition's order kept."""
    requests: list[list[Outgoing]] = []
    used: dict[int, int] = {}
    for batch in batches:
        turn = used.get(batch.partition, 0)
        used[batch.partition] = turn + 1
        if turn == len(requests):
            requests.append([])
        requests[turn].append(batch)
    return requests
