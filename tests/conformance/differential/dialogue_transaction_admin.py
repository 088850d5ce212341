"""Offsets in transactions, and what an administrator asks about transactions and producers."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from conformance.differential.dialogue_classic_groups import Group
from conformance.differential.talk import Talk, dialogue
from conformance.differential.transactional_producer import TransactionalProducer
from penstock.codec.kafka.messages import describe_producers as dp
from penstock.codec.kafka.messages import write_txn_markers as wm
from penstock.codec.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.codec.kafka.messages.describe_transactions import DescribeTransactionsRequest
from penstock.codec.kafka.messages.end_txn import EndTxnRequest
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest
from penstock.codec.kafka.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.codec.kafka.messages.offset_fetch import OffsetFetchRequest
from penstock.codec.kafka.messages.txn_offset_commit import TxnOffsetCommitRequest
from support.door.kafka_phrases import batch, produce
from support.group.phrases import commit, positions

ABOUT = (AddOffsetsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest, OffsetFetchRequest)


class Reader:
    """Looks at the offsets of one group."""

    def __init__(self, talk: Talk, group: str, topic: str) -> None:
        self._talk, self._group, self._topic = talk, group, topic

    def look(self, step: str) -> None:
        """As they are, and for who wants them stable, where the version can say so."""
        for is_stable in (False, True) if self._talk.version(OffsetFetchRequest) >= 7 else (False,):
            word = "stable" if is_stable else "any"
            request = positions(
                [0, 1], group=self._group, topic=self._topic, topic_id=self._talk.ids[self._topic], stable=is_stable
            )
            self._talk.ask(f"{step}, {word}", request)


@dialogue(*ABOUT)
def transaction_offsets(talk: Talk) -> None:
    topic, group = talk.topic("orders", 2), talk.name("group")
    reader = Reader(talk, group, topic)
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.add_offsets("add", group)
    producer.describe("ongoing")
    producer.commit_offsets("commit offsets", group, topic, {0: 5})
    reader.look("pending")
    producer.commit_offsets("commit more", group, topic, {0: 6, 1: 7})
    producer.end("commit", commit=True)
    producer.settle()
    reader.look("committed")
    producer.add_offsets("add again", group)
    producer.commit_offsets("commit others", group, topic, {0: 9})
    talk.ask("a plain commit meanwhile", commit({1: 1}, group=group, topic=topic, topic_id=talk.ids[topic]))
    reader.look("pending again")
    producer.end("abort", commit=False)
    producer.settle()
    reader.look("aborted")


@dialogue(*ABOUT)
def transaction_offsets_refused(talk: Talk) -> None:
    topic, group = talk.topic("orders", 2), talk.name("group")
    producer = TransactionalProducer(talk)
    stranger = TransactionalProducer(talk, "stranger")
    stranger.producer_id, stranger.epoch = 999_999, 0
    stranger.add_offsets("add of an unknown id", group)
    stranger.commit_offsets("commit of an unknown id", group, topic, {0: 1})
    producer.init("init")
    producer.commit_offsets("not added", group, topic, {0: 1})
    producer.init("init again")
    producer.add_offsets("no group", "")
    producer.add_offsets("add", group)
    producer.commit_offsets("no such partition", group, topic, {9: 1})
    producer.commit_offsets("no such topic", group, talk.name("absent"), {0: 1})
    producer.commit_offsets("another epoch", group, topic, {0: 1}, epoch=producer.epoch + 1)
    producer.commit_offsets("another producer", group, topic, {0: 1}, producer_id=producer.producer_id + 500_000)
    producer.commit_offsets("commit", group, topic, {0: 1})
    if talk.version(TxnOffsetCommitRequest) >= 3:
        producer.commit_offsets("unknown member", group, topic, {0: 2}, member_id="somebody", generation_id=1)
        producer.commit_offsets("a generation without a member", group, topic, {0: 2}, generation_id=3)
    producer.end("abort", commit=False)


@dialogue(TxnOffsetCommitRequest)
def transaction_offsets_of_members(talk: Talk) -> None:
    if talk.version(TxnOffsetCommitRequest) < 3:
        return
    topic = talk.topic("orders")
    group = Group(talk)
    me = group.join("join", topics=(topic,))
    group.sync("sync", me.member_id, me.generation_id)
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.add_offsets("add", group.name)

    def put(step: str, **how: Any) -> None:
        producer.commit_offsets(step, group.name, topic, {0: 1}, **how)

    put("as a member", member_id=me.member_id, generation_id=me.generation_id)
    put("as nobody")
    put("old generation", member_id=me.member_id, generation_id=me.generation_id - 1)
    put("unknown member", member_id="somebody", generation_id=me.generation_id)
    put("unknown instance", member_id=me.member_id, generation_id=me.generation_id, group_instance_id="who")
    producer.end("commit", commit=True)


@dialogue(ListTransactionsRequest)
def list_transactions(talk: Talk) -> None:
    topic = talk.topic("orders")
    empty, ongoing, done = (TransactionalProducer(talk, word) for word in ("empty", "ongoing", "done"))
    for producer in (empty, ongoing, done):
        producer.init("init")
    for producer in (ongoing, done):
        producer.add("add", topic, 0)
        producer.send("send", topic, b"a")
    done.end("commit", commit=True)
    done.settle()
    own = {producer.transactional_id for producer in (empty, ongoing, done)}

    def mine(reply: ListTransactionsResponse) -> ListTransactionsResponse:
        found = [each for each in reply.transaction_states if each.transactional_id in own]
        return msgspec.structs.replace(reply, transaction_states=found)

    def ask(step: str, **how: Any) -> None:
        talk.ask(step, ListTransactionsRequest(**how), show=mine)

    ask("all")
    ask("ongoing", state_filters=("Ongoing",))
    ask("two states", state_filters=("Empty", "CompleteCommit"))
    ask("no such state", state_filters=("Happy", "Ongoing"))
    ask("lower case", state_filters=("ongoing",))
    ask("by producer", producer_id_filters=(ongoing.producer_id, 999_999))
    if talk.version(ListTransactionsRequest) >= 1:
        ask("for an hour", duration_filter=3_600_000)
        time.sleep(0.01)
        ask("for a moment", duration_filter=1)
    if talk.version(ListTransactionsRequest) >= 2:
        ask("by pattern", transactional_id_pattern=".*done")
        ask("by the whole pattern", transactional_id_pattern="done")
        ask("by a bad pattern", transactional_id_pattern="(")
        ask("by an empty pattern", transactional_id_pattern="")
    ongoing.end("abort", commit=False)


@dialogue(DescribeTransactionsRequest)
def describe_transactions(talk: Talk) -> None:
    one, two = talk.topic("one", 2), talk.topic("two")
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.add("add", one, 0, 1)
    producer.add("add more", two, 0)
    names = (producer.transactional_id, talk.name("absent"), "")
    talk.ask("three", DescribeTransactionsRequest(transactional_ids=names))
    talk.ask("none", DescribeTransactionsRequest(transactional_ids=()))
    producer.end("abort", commit=False)


@dialogue(dp.DescribeProducersRequest)
def describe_producers(talk: Talk) -> None:
    topic = talk.topic("orders", 2)

    def ask(step: str, name: str, *partitions: int) -> None:
        talk.ask(step, dp.DescribeProducersRequest(topics=(dp.TopicRequest(name, partitions),)))

    ask("nobody", topic, 0)
    producer_id = talk.quietly(InitProducerIdRequest(transaction_timeout_ms=60_000)).producer_id
    plain = batch(b"a", b"b", producer_id=producer_id, producer_epoch=0, sequence=0)
    talk.quietly(produce(topic, plain, topic_id=talk.ids[topic]))
    ask("an idempotent one", topic, 0, 1)
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.add("add", topic, 0)
    producer.send("send", topic, b"a")
    ask("a transactional one", topic, 0)
    producer.end("commit", commit=True)
    producer.settle()
    ask("after its end", topic, 0)
    ask("no such partition", topic, 9)
    ask("no such topic", talk.name("absent"), 0)


@dialogue(wm.WriteTxnMarkersRequest)
def write_markers(talk: Talk) -> None:
    topic = talk.topic("orders")
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.init("init again")
    producer.add("add", topic, 0)
    producer.send("send", topic, b"a")

    def write(step: str, name: str, partition: int = 0, *, epoch: int, coordinator_epoch: int = 0) -> None:
        marker = wm.WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=epoch,
            transaction_result=False,
            topics=(wm.WritableTxnMarkerTopic(name, (partition,)),),
            coordinator_epoch=coordinator_epoch,
        )
        talk.ask(step, wm.WriteTxnMarkersRequest(markers=(marker,)))

    write("no such topic", talk.name("absent"), epoch=producer.epoch)
    write("no such partition", topic, 9, epoch=producer.epoch)
    write("an epoch before", topic, epoch=producer.epoch - 1)
    write("abort by hand", topic, epoch=producer.epoch)
    talk.ask("no markers", wm.WriteTxnMarkersRequest(markers=()))
    producer.end("abort", commit=False)


@dialogue(TxnOffsetCommitRequest, EndTxnRequest)
def transaction_offsets_without_adding(talk: Talk) -> None:
    """From TxnOffsetCommit 5 on the group adds itself to the transaction."""
    if talk.version(TxnOffsetCommitRequest) < 5:
        return
    topic, group = talk.topic("orders", 2), talk.name("group")
    reader = Reader(talk, group, topic)
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.commit_offsets("commit offsets", group, topic, {0: 5})
    reader.look("pending")
    producer.end("commit", commit=True)
    producer.settle()
    reader.look("committed")
    producer.commit_offsets("commit others", group, topic, {0: 6})
    producer.end("abort", commit=False)
    producer.settle()
    reader.look("aborted")
