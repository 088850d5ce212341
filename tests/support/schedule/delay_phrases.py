"""Batches with records that are to be delivered later, as Kafka producers send them."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, walk_headers
from penstock.codec.batch.records import Record, StoredRecord, build_batch
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.domain.schedule.headers import DELAY_HEADER, DELIVER_AT_HEADER
from support.door.conversation import PATIENCE_SECONDS, Conversation, TalkingNode
from support.door.kafka_phrases import DAY_MS, fetch, only_partition, outcome, produce, records_in
from support.transaction.phrases import CONCURRENT, TransactionalProducer

# Longer than any test lasts.
HOUR_MS: Final = 3_600_000


class Later(msgspec.Struct, frozen=True):
    """A value with its delivery headers."""

    value: bytes
    delay_ms: int | bytes | None = HOUR_MS
    deliver_at: int | bytes | None = None

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        given = ((DELAY_HEADER, self.delay_ms), (DELIVER_AT_HEADER, self.deliver_at))
        return tuple(
            (name, value if isinstance(value, bytes) else str(value).encode())
            for name, value in given
            if value is not None
        )


def at(value: bytes, deliver_at: int | bytes) -> Later:
    return Later(value, delay_ms=None, deliver_at=deliver_at)


def mixed_batch(
    *values: bytes | Later,
    codec: Codec = Codec.NONE,
    key: bytes | None = None,
    timestamp_ms: int = DAY_MS,
    producer_id: int = -1,
    producer_epoch: int = 0,
    sequence: int = -1,
    is_transactional: bool = False,
) -> bytes:
    """One batch; its records are a millisecond apart."""
    records = [
        Record(
            each.value if isinstance(each, Later) else each,
            key=key,
            timestamp_ms=timestamp_ms + number,
            headers=each.headers if isinstance(each, Later) else (),
        )
        for number, each in enumerate(values)
    ]
    return bytes(
        build_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch if producer_id >= 0 else -1,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
    )


class DelayingProducer(TransactionalProducer):
    """A transactional one, some of whose records are to be delivered later."""

    async def delay(self, *values: bytes | Later, topic: str = "orders", partition: int = 0) -> ErrorCode:
        """One batch. A client of version 1 adds the partition before its first."""
        if self.protocol == 1 and (topic, partition) not in self._added:
            assert await self.add(topic, partition) == [ErrorCode.NONE]
            self._added.add((topic, partition))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (code := await self.delay_once(*values, topic=topic, partition=partition)) is CONCURRENT:
                pass
        return code

    async def delay_once(self, *values: bytes | Later, topic: str = "orders", partition: int = 0) -> ErrorCode:
        sequence = self._sequences.get((topic, partition), 0)
        sent = mixed_batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            sequence=sequence,
            is_transactional=True,
        )
        request = produce(topic, sent, partition, transactional_id=self.transactional_id)
        code, _ = outcome(await self.talk.ask(request, ProduceResponse, self.versions.produce))
        if code is ErrorCode.NONE:
            self._sequences[topic, partition] = sequence + len(values)
        return code


def headers_in(records: object) -> list[BatchHeader]:
    assert isinstance(records, bytes | memoryview)
    return [header for _, header in walk_headers(records)]


def pending(node: TalkingNode, topic: str = "orders") -> int:
    served = node.broker.topic(topic)
    assert served is not None
    return node.parts.schedules.pending_count(served)


async def all_records(talk: Conversation, topic: str = "orders", offset: int = 0) -> list[StoredRecord]:
    return records_in(only_partition(await talk.ask(fetch(topic, offset), FetchResponse, 12)).records)


async def eventually(talk: Conversation, count: int, topic: str = "orders", offset: int = 0) -> list[StoredRecord]:
    """So many records, as soon as they are there: a reader that goes on from the last record that it got."""
    found: list[StoredRecord] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            reply = await talk.ask(fetch(topic, offset, wait_ms=500), FetchResponse, 12)
            fresh = [each for each in records_in(only_partition(reply).records) if each.offset >= offset]
            found += fresh
            offset = fresh[-1].offset + 1 if fresh else offset
    return found
