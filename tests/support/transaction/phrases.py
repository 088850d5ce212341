"""What transactional producers say at the Kafka door, in few words, and what readers of committed records see.

A `TransactionalProducer` speaks as clients do that know version 1 or version 2 of the protocol (KIP-890), and tries
again where they would: while the transaction before is being ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from penstock.codec.batch.control import EndMarker, read_marker
from penstock.codec.batch.header import BatchProblem, read_header
from penstock.codec.batch.records import read_records
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import add_partitions_to_txn as ap
from penstock.codec.kafka.messages import fetch as f
from penstock.codec.kafka.messages import txn_offset_commit as oc
from penstock.codec.kafka.messages import write_txn_markers as wm
from penstock.codec.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.codec.kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from penstock.codec.kafka.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from penstock.codec.kafka.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import PATIENCE_SECONDS, Conversation
from support.door.kafka_phrases import batch, fetch, only_partition, outcome, produce

PAYMENTS: Final = "payments"
NONE: Final = ErrorCode.NONE
CONCURRENT: Final = ErrorCode.CONCURRENT_TRANSACTIONS
READ_COMMITTED: Final = 1


class Versions(msgspec.Struct, frozen=True):
    """Of the requests that a client of one protocol version sends."""

    init: int
    add_partitions: int
    add_offsets: int
    produce: int
    commit_offsets: int
    end: int


# Those before KIP-890, such as librdkafka 2; and the newest, which send no AddPartitionsToTxn any more.
VERSIONS: Final = {1: Versions(4, 3, 3, 11, 4, 4), 2: Versions(5, 5, 4, 12, 5, 5)}


class TransactionalProducer:
    """One instance of a client. Two with the same id are a producer and the zombie that it was."""

    def __init__(
        self,
        talk: Conversation,
        protocol: Literal[1, 2] = 2,
        *,
        transactional_id: str = PAYMENTS,
        timeout_ms: int = 60_000,
    ) -> None:
        self.talk = talk
        self.protocol = protocol
        self.versions = VERSIONS[protocol]
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.producer_epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int]] = set()

    async def init(self, *, keeps_id: bool = False) -> ErrorCode:
        """As a new producer, or going on after an error with the id that it had (KIP-360)."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id if keeps_id else -1,
            producer_epoch=self.producer_epoch if keeps_id else -1,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                reply = await self.talk.ask(request, InitProducerIdResponse, self.versions.init)
                if reply.error_code != CONCURRENT:
                    break
        if reply.error_code == NONE:
            self._go_on(reply.producer_id, reply.producer_epoch)
        return ErrorCode(reply.error_code)

    async def ready(self) -> TransactionalProducer:
        assert await self.init() is NONE
        return self

    async def add(self, topic: str, *partitions: int) -> list[ErrorCode]:
        """AddPartitionsToTxn, as a client of version 1 says it, once for each error of the transaction before."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while CONCURRENT in (codes := await self.add_once(topic, *partitions)):
                pass
        return codes

    async def add_once(self, topic: str, *partitions: int) -> list[ErrorCode]:
        request = add_partitions(self, {topic: partitions or (0,)})
        reply = await self.talk.ask(request, ap.AddPartitionsToTxnResponse, VERSIONS[1].add_partitions)
        return codes_of(reply.results_by_topic_v3_and_below)

    async def send(self, topic: str, *values: bytes, partition: int = 0) -> ErrorCode:
        """One batch. A client of version 1 adds the partition before its first."""
        if self.protocol == 1 and (topic, partition) not in self._added:
            (code,) = await self.add(topic, partition)
            if code is not NONE:
                return code
            self._added.add((topic, partition))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (code := await self.send_once(topic, *values, partition=partition)) is CONCURRENT:
                pass
        return code

    async def send_once(self, topic: str, *values: bytes, partition: int = 0) -> ErrorCode:
        sequence = self._sequences.get((topic, partition), 0)
        sent = batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            sequence=sequence,
            is_transactional=True,
        )
        request = produce(topic, sent, partition, transactional_id=self.transactional_id)
        code, _ = outcome(await self.talk.ask(request, ProduceResponse, self.versions.produce))
        if code is NONE:
            self._sequences[topic, partition] = sequence + len(values)
        return code

    async def add_offsets(self, group: str) -> ErrorCode:
        request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.producer_epoch, group)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                reply = await self.talk.ask(request, AddOffsetsToTxnResponse, self.versions.add_offsets)
                if reply.error_code != CONCURRENT:
                    return ErrorCode(reply.error_code)

    async def commit_offsets(self, group: str, offsets: Mapping[int, int], **who: object) -> list[ErrorCode]:
        """send_offsets_to_transaction: one code for each partition of `orders`."""
        if self.protocol == 1:
            code = await self.add_offsets(group)
            if code is not NONE:
                return [code] * len(offsets)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while CONCURRENT in (codes := await self.commit_offsets_once(group, offsets, **who)):
                pass
        return codes

    async def commit_offsets_once(self, group: str, offsets: Mapping[int, int], **who: object) -> list[ErrorCode]:
        request = offsets_in_transaction(self, group, offsets, **who)  # type: ignore[arg-type]
        reply = await self.talk.ask(request, oc.TxnOffsetCommitResponse, self.versions.commit_offsets)
        return [ErrorCode(place.error_code) for topic in reply.topics for place in topic.partitions]

    async def commit(self) -> ErrorCode:
        return await self.end(is_commit=True)

    async def abort(self) -> ErrorCode:
        return await self.end(is_commit=False)

    async def end(self, *, is_commit: bool) -> ErrorCode:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (reply := await self.end_once(is_commit=is_commit)).error_code == CONCURRENT:
                pass
        if reply.error_code == NONE and self.protocol == 2:
            self._go_on(reply.producer_id, reply.producer_epoch)
        self._added.clear()
        return ErrorCode(reply.error_code)

    async def end_once(self, *, is_commit: bool) -> EndTxnResponse:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.producer_epoch, is_commit)
        return await self.talk.ask(request, EndTxnResponse, self.versions.end)

    def _go_on(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        # Every epoch counts anew.
        self._sequences.clear()
        self._added.clear()


def add_partitions(
    producer: TransactionalProducer, places: Mapping[str, tuple[int, ...]], *, verify_only: bool = False
) -> ap.AddPartitionsToTxnRequest:
    """Can be said in any version."""
    topics = tuple(ap.AddPartitionsToTxnTopic(topic, partitions) for topic, partitions in places.items())
    whose = (producer.transactional_id, producer.producer_id, producer.producer_epoch)
    transaction = ap.AddPartitionsToTxnTransaction(*whose, verify_only, topics)
    return ap.AddPartitionsToTxnRequest((transaction,), *whose, topics)


def codes_of(topics: object) -> list[ErrorCode]:
    """Of each partition in a reply to AddPartitionsToTxn."""
    assert isinstance(topics, list | tuple)
    return [ErrorCode(place.partition_error_code) for topic in topics for place in topic.results_by_partition]


def offsets_in_transaction(
    producer: TransactionalProducer,
    group: str,
    offsets: Mapping[int, int],
    *,
    topic: str = "orders",
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
) -> oc.TxnOffsetCommitRequest:
    places = tuple(oc.TxnOffsetCommitRequestPartition(number, offset, 0, "") for number, offset in offsets.items())
    return oc.TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=(oc.TxnOffsetCommitRequestTopic(topic, places),),
    )


def marker(
    producer: TransactionalProducer, topic: str, *partitions: int, is_commit: bool, coordinator_epoch: int = 0
) -> wm.WriteTxnMarkersRequest:
    return wm.WriteTxnMarkersRequest(
        markers=(
            wm.WritableTxnMarker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=is_commit,
                topics=(wm.WritableTxnMarkerTopic(topic, partitions),),
                coordinator_epoch=coordinator_epoch,
            ),
        )
    )


# Looking


async def described(talk: Conversation, transactional_id: str = PAYMENTS) -> TransactionState:
    request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    reply = await talk.ask(request, DescribeTransactionsResponse)
    (found,) = reply.transaction_states
    return found


async def until_state(talk: Conversation, state: str, transactional_id: str = PAYMENTS) -> TransactionState:
    """Every question gives the node a turn, in which it goes on with what it is about."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (found := await described(talk, transactional_id)).transaction_state != state:
            pass
    return found


async def producers_of(talk: Conversation, topic: str, partition: int = 0) -> list[ProducerState]:
    request = DescribeProducersRequest(topics=(TopicRequest(topic, (partition,)),))
    reply = await talk.ask(request, DescribeProducersResponse)
    (place,) = reply.topics[0].partitions
    assert place.error_code == NONE, place
    return list(place.active_producers)


async def fetched(talk: Conversation, topic: str, partition: int = 0, *, committed: bool = True) -> f.PartitionData:
    request = msgspec.structs.replace(
        fetch(topic, partition=partition), isolation_level=READ_COMMITTED if committed else 0
    )
    return only_partition(await talk.ask(request, f.FetchResponse, 12))


async def committed_values(talk: Conversation, topic: str, partition: int = 0) -> list[bytes | None]:
    """What a reader of committed records hands to its application."""
    data = await fetched(talk, topic, partition)
    begun = sorted((aborted.first_offset, aborted.producer_id) for aborted in data.aborted_transactions or ())
    values: list[bytes | None] = []
    left_out: set[int] = set()
    position = 0
    assert isinstance(data.records, bytes | memoryview)
    while position < len(data.records):
        header = read_header(data.records, position)
        assert not isinstance(header, BatchProblem), header.reason
        while begun and begun[0][0] <= header.base_offset + header.last_offset_delta:
            left_out.add(begun.pop(0)[1])
        if header.is_control:
            found = read_marker(data.records, position)
            if isinstance(found, EndMarker) and not found.is_commit:
                left_out.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in left_out):
            records = read_records(data.records, position)
            assert not isinstance(records, BatchProblem), records.reason
            values += [record.value for record in records]
        position += header.size_bytes
    return values


async def until_committed(talk: Conversation, topic: str, *values: bytes, partition: int = 0) -> None:
    """Markers are written after the end was confirmed: soon."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (found := await committed_values(talk, topic, partition)) != list(values):
            assert found == list(values)[: len(found)], found
