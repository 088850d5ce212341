"""A transactional producer of a talk: it says what a client would say, and keeps its id, epoch and sequences."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from conformance.differential.talk import Talk
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import add_partitions_to_txn as ap
from penstock.codec.kafka.messages import txn_offset_commit as tc
from penstock.codec.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.codec.kafka.messages.describe_transactions import DescribeTransactionsRequest
from penstock.codec.kafka.messages.end_txn import EndTxnRequest
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest
from penstock.codec.kafka.messages.produce import ProduceRequest
from support.door.kafka_phrases import batch, fetch_many, produce, wanted

TIMEOUT_MS = 60_000
READ_COMMITTED = 1
# The first version that a client speaks only when it knows that every end of a transaction raises the epoch.
EPOCH_TOLD_FROM = 5
IMPLICIT_FROM = 12


class TransactionalProducer:
    def __init__(self, talk: Talk, word: str = "transaction") -> None:
        self.talk = talk
        self.transactional_id = talk.name(word)
        self.producer_id = self.epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}
        # A client speaks these together: an end that raises the epoch, and batches that need no AddPartitionsToTxn.
        self._speaks_second_version = talk.version(ProduceRequest) >= IMPLICIT_FROM

    def init(self, step: str, **how: Any) -> Any:
        """Waits for as long as a transaction before is being ended; how long that takes is not compared."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, **{"transaction_timeout_ms": TIMEOUT_MS, **how}
        )
        reply = self.talk.ask(step, request, until=is_not_concurrent)
        if reply.error_code == ErrorCode.NONE:
            self._take(reply.producer_id, reply.producer_epoch)
        return reply

    def add(self, step: str, topic: str, *partitions: int, verify_only: bool = False) -> Any:
        topics = (ap.AddPartitionsToTxnTopic(topic, partitions),)
        transaction = ap.AddPartitionsToTxnTransaction(
            self.transactional_id, self.producer_id, self.epoch, verify_only, topics
        )
        request = ap.AddPartitionsToTxnRequest(
            transactions=(transaction,),
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        return self.talk.ask(step, request, until=lambda reply: CONCURRENT not in partition_codes(reply))

    def send(self, step: str, topic: str, *values: bytes, partition: int = 0, **how: Any) -> Any:
        sequence = how.pop("sequence", self._sequences.get((topic, partition), 0))
        records = batch(
            *values,
            # Not the fixed day of other batches: markers are dated now, and Kafka begins a new segment between the two.
            timestamp_ms=int(time.time() * 1000),
            producer_id=how.pop("producer_id", self.producer_id),
            producer_epoch=how.pop("epoch", self.epoch),
            sequence=sequence,
            is_transactional=how.pop("is_transactional", True),
        )
        request = produce(
            topic, records, partition, topic_id=self.talk.ids[topic], transactional_id=self.transactional_id, **how
        )
        reply = self.talk.ask(step, request)
        if reply.responses[0].partition_responses[0].error_code == ErrorCode.NONE:
            self._sequences[topic, partition] = sequence + len(values)
        return reply

    def end(self, step: str, *, commit: bool) -> Any:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)
        version = self.talk.version(EndTxnRequest)
        if not self._speaks_second_version:
            version = min(version, EPOCH_TOLD_FROM - 1)
        elif self.talk.version(ProduceRequest) < self.talk.newest(ProduceRequest()):
            version = EPOCH_TOLD_FROM
        reply = self.talk.ask(step, request, version=version, until=is_not_concurrent)
        if reply.error_code == ErrorCode.NONE and version >= EPOCH_TOLD_FROM:
            self._take(reply.producer_id, reply.producer_epoch)
        return reply

    def add_offsets(self, step: str, group: str) -> Any:
        request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)
        return self.talk.ask(step, request, until=is_not_concurrent)

    def commit_offsets(self, step: str, group: str, topic: str, offsets: dict[int, int], **how: Any) -> Any:
        places = tuple(tc.TxnOffsetCommitRequestPartition(number, offset, 0, "") for number, offset in offsets.items())
        request = tc.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=how.pop("producer_id", self.producer_id),
            producer_epoch=how.pop("epoch", self.epoch),
            topics=(tc.TxnOffsetCommitRequestTopic(topic, places),),
            **how,
        )
        return self.talk.ask(step, request)

    def settle(self) -> None:
        """Until its markers are written: Kafka answers EndTxn before."""
        request = DescribeTransactionsRequest(transactional_ids=(self.transactional_id,))
        self.talk.quietly_until(
            request, lambda reply: reply.transaction_states[0].transaction_state.startswith(("Complete", "Empty"))
        )

    def describe(self, step: str) -> None:
        self.talk.ask(step, DescribeTransactionsRequest(transactional_ids=(self.transactional_id,)))

    def _take(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch


CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


def is_not_concurrent(reply: Any) -> bool:
    return bool(reply.error_code != CONCURRENT)


def partition_codes(reply: Any) -> list[int]:
    topics = [each for result in reply.results_by_transaction for each in result.topic_results]
    return [
        place.partition_error_code
        for topic in (*topics, *reply.results_by_topic_v3_and_below)
        for place in topic.results_by_partition
    ]


def committed(
    topic: str, topic_id: bytes, offset: int = 0, *, isolation: int = READ_COMMITTED, partition: int = 0
) -> Any:
    request = fetch_many([wanted(topic, {partition: offset}, topic_id=topic_id)])
    return msgspec.structs.replace(request, isolation_level=isolation)
