"""Reads partitions from given offsets: whole batches out, as they came.

Each broker has one Fetch under way. The next one leaves before the data of the last is handed out, so that
the network works while the caller does; two replies of `fetch_bytes_max` are the most that is held.

Rules:
- A batch may begin before the asked offset and end after the wanted one: rows are trimmed by `rows_of`, not
  here.
- A partition with an end is dropped when the end is reached, or when everything that is left was read and
  nothing came (trailing offsets may be holes).
- A partition that is held is not asked for; what is under way already still comes, so that two replies of it may wait.
- With `is_read_committed` a piece says which of its batches belong to aborted transactions: `rows_of` leaves them out.
- A start that retention has overtaken moves to the log's start; one past the end is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from penstock.base.slow_waits import told_if_slow
from penstock.client.kafka.aborted_batches import NOTHING, aborted_batches
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.offsets import EARLIEST, LATEST, list_offsets
from penstock.codec.batch.header import walk_headers
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.net.errors import (
    BrokerError,
    BrokerUnreachableError,
    ClientError,
    ConnectionLostError,
    RequestTimeoutError,
)

RETRY_MS: Final = 100
# 30 s without a leader or a connection, then we say so.
RETRIES_MAX: Final = 300

_STALE = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.OFFSET_NOT_AVAILABLE,
})  # fmt: skip


class ConsumerOptions(msgspec.Struct, frozen=True):
    # As Kafka's own consumer: 50 MiB a reply, 1 MiB a partition, and half a second's wait for the first byte.
    fetch_bytes_max: int = 50 * 1024 * 1024
    partition_bytes_max: int = 1024 * 1024
    bytes_min: int = 1
    wait_ms: int = 500
    is_read_committed: bool = False


class OffsetOutOfRangeError(ClientError):
    """The asked offset is past the partition's end."""


class Fetched(msgspec.Struct, frozen=True):
    """Whole batches of one partition; the first contains `position`, the next fetch begins at
    `next_position`.
    """

    topic: str
    partition: int
    data: memoryview
    position: int
    next_position: int
    high_watermark: int
    # Base offsets of batches that belong to aborted transactions; nobody's messages for a reader of committed ones.
    aborted: frozenset[int] = NOTHING


class Consumer:
    """Caller's duties: `poll` until `is_done`, then `close`."""

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        positions: Mapping[int, int],
        *,
        ends: Mapping[int, int] | None = None,
        options: ConsumerOptions | None = None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._options = options or ConsumerOptions()
        self._ends = dict(ends) if ends is not None else None
        self._positions = dict(positions)
        self._held: frozenset[int] = frozenset()
        self._under_way: dict[int, asyncio.Future[FetchResponse]] = {}
        self._retries = 0
        # Rotated, so that with a full reply the last partition gets its turn as well.
        self._order = sorted(self._positions)
        for partition in list(self._order):
            self._drop_if_finished(partition)

    @property
    def positions(self) -> dict[int, int]:
        """Where each partition that is still read stands."""
        return dict(self._positions)

    @property
    def is_done(self) -> bool:
        return not self._positions

    def hold(self, partitions: Collection[int]) -> None:
        """These are not asked for, until the next call names others: their reader has enough of them."""
        self._held = frozenset(partitions)

    def close(self) -> None:
        for future in self._under_way.values():
            future.cancel()
        self._under_way.clear()

    async def poll(self) -> list[Fetched]:
        """What has come since; empty when nothing came within `wait_ms`, or a broker was away for a moment."""
        try:
            return await self._poll()
        except (BrokerUnreachableError, ConnectionLostError, RequestTimeoutError):
            # A broker that restarts, or a leader that moves: reading again does no harm.
            self._retries += 1
            if self._retries > RETRIES_MAX:
                raise
            self.close()
            self._client.forget(self._topic)
            await asyncio.sleep(RETRY_MS / 1000)
            return []

    async def _poll(self) -> list[Fetched]:
        if not self._under_way:
            await self._send_all()
        if not self._under_way:
            return []
        with told_if_slow("no answer to Fetch yet", meant_seconds=self._options.wait_ms / 1000):
            done, _ = await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)
        fetched: list[Fetched] = []
        for leader in [leader for leader, future in self._under_way.items() if future in done]:
            reply = self._under_way.pop(leader).result()
            fetched += await self._accept(reply)
        await self._send_all()
        return fetched

    async def _send_all(self) -> None:
        by_leader: dict[int, list[int]] = {}
        for partition in self._order:
            if partition in self._held:
                continue
            leader = self._client.known_leader_id(self._topic, partition)
            if leader is None:
                leader = await self._client.leader_id(self._topic, partition)
            if leader not in self._under_way:
                by_leader.setdefault(leader, []).append(partition)
        for leader, partitions in by_leader.items():
            connection = await self._client.connection_to(leader)
            timeout_ms = self._options.wait_ms + 30_000
            request = self._request(partitions)
            self._under_way[leader] = await connection.send(request, FetchResponse, timeout_ms=timeout_ms)
        self._order = self._order[1:] + self._order[:1]

    def _request(self, partitions: list[int]) -> FetchRequest:
        options = self._options
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=options.wait_ms,
            min_bytes=options.bytes_min,
            max_bytes=options.fetch_bytes_max,
            isolation_level=1 if options.is_read_committed else 0,
            # No incremental fetch: id 0 with epoch -1 asks for a full reply and leaves nothing behind.
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic=self._topic,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            fetch_offset=self._positions[partition],
                            partition_max_bytes=options.partition_bytes_max,
                        )
                        for partition in partitions
                    ],
                )
            ],
        )

    async def _accept(self, reply: FetchResponse) -> list[Fetched]:
        if reply.error_code != 0:
            raise BrokerError(reply.error_code, f"fetch from topic {self._topic!r}")
        answers = [answer for topic in reply.responses for answer in topic.partitions]
        fetched: list[Fetched] = []
        for answer in answers:
            if answer.partition_index not in self._positions:
                continue
            if answer.error_code != 0:
                await self._accept_error(answer)
                continue
            self._retries = 0
            part = self._take(answer)
            if part is not None:
                fetched.append(part)
        if not fetched:
            self._drop_exhausted(answers)
        return fetched

    def _take(self, answer: PartitionData) -> Fetched | None:
        records = answer.records
        if not records:
            return None
        assert isinstance(records, memoryview)
        partition, position = answer.partition_index, self._positions[answer.partition_index]
        size, next_position = 0, position
        for start, header in walk_headers(records):
            size, next_position = start + header.size_bytes, header.next_offset
        if size == 0 or next_position <= position:
            return None
        self._positions[partition] = next_position
        self._drop_if_finished(partition)
        data = records[:size]
        aborted = aborted_batches(data, answer.aborted_transactions) if self._options.is_read_committed else NOTHING
        return Fetched(self._topic, partition, data, position, next_position, answer.high_watermark, aborted)

    async def _accept_error(self, answer: PartitionData) -> None:
        partition, code = answer.partition_index, answer.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._move_to_start(partition)
            return
        self._retries += 1
        if code not in _STALE or self._retries > RETRIES_MAX:
            where = f"offset {self._positions[partition]} of partition {partition} of topic {self._topic!r}"
            raise BrokerError(code, f"fetch from {where}")
        self._client.forget(self._topic)
        await asyncio.sleep(RETRY_MS / 1000)

    async def _move_to_start(self, partition: int) -> None:
        start = (await list_offsets(self._client, self._topic, {partition: EARLIEST}))[partition]
        position = self._positions[partition]
        if position < start:
            self._positions[partition] = start
            self._drop_if_finished(partition)
            return
        end = (await list_offsets(self._client, self._topic, {partition: LATEST}))[partition]
        where = f"partition {partition} of topic {self._topic!r}"
        raise OffsetOutOfRangeError(f"{where} has no offset {position}: it holds {start} to {end}")

    def _drop_if_finished(self, partition: int) -> None:
        if self._ends is not None and self._positions[partition] >= self._ends[partition]:
            self._drop(partition)

    def _drop_exhausted(self, answers: list[PartitionData]) -> None:
        """Nothing came for any partition: those that are up to date have nothing more below their end."""
        if self._ends is None:
            return
        for answer in answers:
            partition = answer.partition_index
            is_read = partition in self._positions and answer.error_code == 0
            if is_read and answer.high_watermark >= self._ends[partition]:
                self._drop(partition)

    def _drop(self, partition: int) -> None:
        del self._positions[partition]
        self._order.remove(partition)
