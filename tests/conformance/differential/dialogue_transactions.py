"""Transactions from InitProducerId to EndTxn: what each reader sees, who is fenced, which states refuse what."""

from __future__ import annotations

import time

import msgspec

from conformance.differential.talk import Talk, dialogue
from conformance.differential.transactional_producer import TIMEOUT_MS, TransactionalProducer, committed
from penstock.codec.kafka.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.codec.kafka.messages.end_txn import EndTxnRequest
from penstock.codec.kafka.messages.fetch import FetchRequest
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest
from penstock.codec.kafka.messages.list_offsets import ListOffsetsRequest
from penstock.codec.kafka.messages.produce import ProduceRequest
from support.door.kafka_phrases import batch, list_offsets, produce

ABOUT = (AddPartitionsToTxnRequest, EndTxnRequest, ProduceRequest, InitProducerIdRequest)


def read_both_ways(talk: Talk, step: str, topic: str, offset: int = 0) -> None:
    for isolation, word in ((0, "uncommitted"), (1, "committed")):
        request = committed(topic, talk.ids[topic], offset, isolation=isolation)
        talk.ask(f"{step}, {word}", request)
        latest = msgspec.structs.replace(list_offsets(topic, -1), isolation_level=isolation)
        talk.ask(f"{step}, end of {word}", latest)


@dialogue(*ABOUT)
def transaction_commits(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    producer = TransactionalProducer(talk)
    producer.describe("before")
    producer.init("init")
    producer.describe("empty")
    producer.add("add", topic, 0, 1)
    producer.describe("ongoing")
    producer.send("send", topic, b"a", b"b")
    producer.send("send on", topic, b"c")
    producer.send("send to the other", topic, b"d", partition=1)
    read_both_ways(talk, "during", topic)
    producer.end("commit", commit=True)
    producer.settle()
    read_both_ways(talk, "after", topic)
    producer.describe("complete")
    producer.add("add again", topic, 0)
    producer.send("send again", topic, b"e")
    producer.end("commit again", commit=True)
    producer.settle()
    read_both_ways(talk, "after two", topic, 4)


@dialogue(*ABOUT)
def transaction_aborts(talk: Talk) -> None:
    topic = talk.topic("orders")
    topic_id = talk.ids[topic]
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.add("add", topic, 0)
    producer.send("send", topic, b"a", b"b")
    talk.quietly(produce(topic, batch(b"plain", timestamp_ms=int(time.time() * 1000)), topic_id=topic_id))
    read_both_ways(talk, "during", topic)
    producer.end("abort", commit=False)
    producer.settle()
    read_both_ways(talk, "after", topic)
    producer.describe("complete")
    producer.add("add again", topic, 0)
    producer.send("send again", topic, b"c")
    read_both_ways(talk, "second during", topic)
    producer.end("commit", commit=True)
    producer.settle()
    for offset in (0, 2, 3, 4):
        read_both_ways(talk, f"from {offset}", topic, offset)


@dialogue(FetchRequest, ListOffsetsRequest)
def transactions_are_read(talk: Talk) -> None:
    """Two producers whose transactions overlap, the first aborted and the second open."""
    topic = talk.topic("orders")
    first, second = TransactionalProducer(talk, "first"), TransactionalProducer(talk, "second")
    for producer in (first, second):
        producer.init("init")
        producer.add("add", topic, 0)
    first.send("first sends", topic, b"a")
    second.send("second sends", topic, b"b")
    first.send("first sends on", topic, b"c")
    read_both_ways(talk, "both open", topic)
    first.end("first aborts", commit=False)
    first.settle()
    read_both_ways(talk, "one open", topic)
    read_both_ways(talk, "one open, from the open one on", topic, 1)
    second.send("second sends on", topic, b"d")
    second.end("second commits", commit=True)
    second.settle()
    for offset in (0, 1, 3, 5):
        read_both_ways(talk, f"all closed, from {offset}", topic, offset)


@dialogue(*ABOUT)
def transaction_states(talk: Talk) -> None:
    topic = talk.topic("orders")
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.end("commit nothing", commit=True)
    producer.settle()
    producer.end("abort nothing", commit=False)
    producer.settle()
    producer.add("add", topic, 0)
    producer.add("add what is there", topic, 0)
    producer.send("send", topic, b"a")
    id_before, epoch_before = producer.producer_id, producer.epoch
    producer.end("commit", commit=True)
    producer.settle()
    id_after, epoch_after = producer.producer_id, producer.epoch
    producer.producer_id, producer.epoch = id_before, epoch_before
    producer.end("commit again", commit=True)
    producer.settle()
    producer.producer_id, producer.epoch = id_before, epoch_before
    producer.end("abort what was committed", commit=False)
    producer.producer_id, producer.epoch = id_after, epoch_after
    producer.describe("afterwards")
    producer.init("init again")
    producer.send("send what was not added", topic, b"b")


@dialogue(*ABOUT)
def transaction_refusals(talk: Talk) -> None:
    topic = talk.topic("orders")
    producer = TransactionalProducer(talk)
    stranger = TransactionalProducer(talk, "stranger")
    stranger.producer_id, stranger.epoch = 999_999, 0
    stranger.add("add of an unknown id", topic, 0)
    stranger.end("end of an unknown id", commit=True)
    stranger.describe("unknown")
    producer.init("init")
    own = producer.producer_id
    producer.add("no such topic", talk.name("absent"), 0)
    producer.add("no such partition", topic, 0, 9)
    producer.describe("nothing was added")
    producer.producer_id = own + 500_000
    producer.add("add of another producer", topic, 0)
    producer.end("end of another producer", commit=True)
    producer.producer_id = own
    producer.epoch += 1
    producer.add("add with a later epoch", topic, 0)
    producer.end("end with a later epoch", commit=True)
    producer.epoch -= 1
    producer.add("add", topic, 0)
    producer.send("send", topic, b"a")
    producer.send("not transactional meanwhile", topic, b"a", is_transactional=False)
    producer.send("a gap", topic, b"a", sequence=7)
    producer.send("the first again", topic, b"a", sequence=0)
    producer.send("on", topic, b"b")
    producer.end("abort", commit=False)


@dialogue(ProduceRequest)
def transactional_batches_that_nobody_began(talk: Talk) -> None:
    first, second, third = (talk.topic(word) for word in ("first", "second", "third"))
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.send("not added", first, b"a")
    producer.init("init again")
    producer.add("add", second, 0)
    producer.send("a later epoch", second, b"a", epoch=producer.epoch + 1)
    producer.send("another producer", second, b"a", producer_id=producer.producer_id + 500_000)
    producer.add("add the third", third, 0)
    producer.send("only the leader's word", third, b"a", acks=1)
    producer.send("a later epoch meanwhile", third, b"a", epoch=producer.epoch + 1, sequence=0)
    producer.end("abort", commit=False)


@dialogue(*ABOUT)
def transaction_fencing(talk: Talk) -> None:
    topic = talk.topic("orders")
    old, new = TransactionalProducer(talk), TransactionalProducer(talk)
    old.init("old init")
    old.add("old adds", topic, 0)
    old.send("old sends", topic, b"a")
    new.init("new init")
    read_both_ways(talk, "what the old one began is aborted", topic)
    old.send("old sends on", topic, b"b")
    old.add("old adds on", topic, 0)
    old.end("old ends", commit=True)
    new.describe("described")
    new.add("new adds", topic, 0)
    new.send("new sends", topic, b"c")
    old.send("old sends again", topic, b"d")
    new.end("new ends", commit=True)
    new.settle()
    read_both_ways(talk, "in the end", topic)


@dialogue(InitProducerIdRequest)
def transaction_inits(talk: Talk) -> None:
    producer = TransactionalProducer(talk)

    def ask(step: str, transactional_id: str | None, timeout_ms: int = TIMEOUT_MS) -> None:
        talk.ask(step, InitProducerIdRequest(transactional_id, timeout_ms))

    ask("empty id", "")
    ask("no time", talk.name("t"), 0)
    ask("negative time", talk.name("t"), -1)
    ask("too much time", talk.name("t"), 900_001)
    ask("most time", talk.name("t"), 900_000)
    first = producer.init("first")
    second = producer.init("second")
    if talk.version(InitProducerIdRequest) >= 3:
        producer.init("with what it has", producer_id=second.producer_id, producer_epoch=second.producer_epoch)
        producer.init("the same again", producer_id=second.producer_id, producer_epoch=second.producer_epoch)
        producer.init("with what it had", producer_id=first.producer_id, producer_epoch=first.producer_epoch)
        producer.init("an epoch to come", producer_id=second.producer_id, producer_epoch=second.producer_epoch + 9)
        producer.init("another producer", producer_id=second.producer_id + 500_000, producer_epoch=0)
        producer.init("an id without an epoch", producer_id=second.producer_id)
    producer.describe("described")


@dialogue(ProduceRequest)
def transaction_without_adding(talk: Talk) -> None:
    """From Produce 12 on a batch adds its partition by itself."""
    if talk.version(ProduceRequest) < 12:
        return
    topic = talk.topic("orders", 2)
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.send("send", topic, b"a", b"b")
    producer.describe("began")
    producer.send("send to the other", topic, b"c", partition=1)
    producer.describe("both")
    epoch_before = producer.epoch
    producer.end("commit", commit=True)
    producer.settle()
    talk.note("the epoch rose by", producer.epoch - epoch_before)
    read_both_ways(talk, "committed", topic)
    producer.send("the next", topic, b"d")
    producer.send("an old epoch", topic, b"x", epoch=epoch_before, sequence=2)
    producer.end("abort", commit=False)
    producer.settle()
    read_both_ways(talk, "aborted", topic)
    producer.end("abort nothing", commit=False)
    producer.settle()
    producer.end("commit nothing", commit=True)
    producer.describe("afterwards")


@dialogue(AddPartitionsToTxnRequest)
def partitions_are_verified(talk: Talk) -> None:
    """As brokers ask each other, from version 4 on."""
    if talk.version(AddPartitionsToTxnRequest) < 4:
        return
    topic = talk.topic("orders", 2)
    producer = TransactionalProducer(talk)
    producer.init("init")
    producer.add("verified before", topic, 0, verify_only=True)
    producer.add("added", topic, 0)
    producer.add("verified", topic, 0, verify_only=True)
    producer.add("one of two", topic, 0, 1, verify_only=True)
    producer.epoch += 1
    producer.add("a later epoch", topic, 0, verify_only=True)
    producer.epoch -= 1
    producer.end("abort", commit=False)
    producer.settle()
    producer.add("verified after", topic, 0, verify_only=True)
