"""Produce: where batches go, and the error for each thing that can be wrong with one."""

from __future__ import annotations

import time

from conformance.differential.talk import Talk, dialogue
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka import NO_UUID
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest
from penstock.codec.kafka.messages.produce import ProduceRequest
from support.door.kafka_phrases import DAY_MS, altered, batch, corrupt, fetch, list_offsets, produce, produce_many

HOUR_MS = 3_600_000


class Desk:
    """Produces to one topic of its talk, step by step."""

    def __init__(self, talk: Talk, word: str = "log", partitions: int = 1, **configs: str) -> None:
        self.talk = talk
        self.topic = talk.topic(word, partitions, **configs)
        self.topic_id = talk.ids[self.topic]

    def say(self, step: str, records: bytes | None, *, partition: int = 0, acks: int = -1) -> None:
        request = produce(self.topic, records, partition, topic_id=self.topic_id, acks=acks)
        self.talk.ask(step, request)

    def look(self, step: str, offset: int = 0) -> None:
        self.talk.ask(step, fetch(self.topic, offset, topic_id=self.topic_id))


@dialogue(ProduceRequest)
def produce_appends(talk: Talk) -> None:
    desk = Desk(talk, "log", 2)
    desk.say("first", batch(b"a", b"b"))
    desk.say("second, acks=1", batch(b"c"), acks=1)
    desk.say("other partition", batch(b"d"), partition=1)
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
        desk.say(codec.name.lower(), batch(b"x" * 100, b"y" * 100, codec=codec))
    if talk.version(ProduceRequest) >= 7:
        desk.say("zstd", batch(b"x" * 100, b"y" * 100, codec=Codec.ZSTD))
    talk.tell(produce(desk.topic, batch(b"unanswered"), topic_id=desk.topic_id, acks=0))
    desk.say("after acks=0", batch(b"e"))
    desk.look("what is there")


@dialogue(ProduceRequest)
def produce_refused(talk: Talk) -> None:
    desk = Desk(talk, "log", 1, max_message_bytes="1000")
    version = talk.version(ProduceRequest)
    good = batch(b"a")
    desk.say("no such partition", good, partition=9)
    talk.ask("no such topic", produce(talk.name("absent"), good, topic_id=bytes(15) + b"\x05"))
    if version >= 13:
        talk.ask("no id", produce(talk.name("absent"), good, topic_id=NO_UUID))
    desk.say("acks=2", good, acks=2)
    desk.say("acks=-2", good, acks=-2)
    desk.say("corrupt", corrupt(good))
    desk.say("too large", batch(b"x" * 2000))
    desk.say("half a batch", good[:40])
    desk.say("nothing", b"")
    desk.say("two batches", good + good)
    desk.say("nothing was written", good)


@dialogue(ProduceRequest)
def produce_strange_batches(talk: Talk) -> None:
    desk = Desk(talk)
    good = batch(b"a", b"b")
    desk.say("control batch", batch(b"a", is_control=True))
    desk.say("count too high", altered(good, record_count=3))
    desk.say("count too low", altered(good, record_count=1))
    desk.say("last delta too high", altered(good, last_offset_delta=5))
    desk.say("last delta too low", altered(good, last_offset_delta=0))
    desk.say("no records", bytes(build_batch([])))
    desk.say("magic 1", good[:16] + b"\x01" + good[17:])
    desk.say("magic 3", good[:16] + b"\x03" + good[17:])
    desk.say("no such codec", altered(good, attributes=6))
    desk.say("a leader epoch of its own", altered(good, leader_epoch=5))
    desk.look("what is there")


@dialogue(ProduceRequest)
def produce_unopened_batches(talk: Talk) -> None:
    """Each in a topic of its own: what one broker takes, the other may refuse."""
    good = batch(b"a", b"b")
    steps = {
        "not what the codec says": altered(good, attributes=1),
        "says append time": altered(good, attributes=8),
        "a base offset of its own": altered(good, base_offset=77),
        "a batch and a half": good + good[:30],
    }
    for number, (step, records) in enumerate(steps.items()):
        desk = Desk(talk, f"log-{number}")
        desk.say(step, records)
        desk.look(f"{step}, afterwards")


@dialogue(ProduceRequest)
def produce_timestamps(talk: Talk) -> None:
    now_ms = int(time.time() * 1000)
    ahead = Desk(talk, "ahead")
    ahead.say("two hours ahead", batch(b"a", timestamp_ms=now_ms + 2 * HOUR_MS))
    ahead.say("no timestamp", batch(b"a", timestamp_ms=-1))
    behind = Desk(talk, "behind", message_timestamp_before_max_ms="1000")
    behind.say("too old", batch(b"a", timestamp_ms=DAY_MS))
    behind.say("one old, one not", mixed(now_ms))
    appended = Desk(talk, "appended", message_timestamp_type="LogAppendTime")
    appended.say("broker's clock", batch(b"a", b"b"))
    appended.say("broker's clock, compressed", batch(b"a", b"b", codec=Codec.GZIP))
    appended.look("what is there")


def mixed(now_ms: int) -> bytes:
    return bytes(build_batch([Record(b"new", timestamp_ms=now_ms), Record(b"old", timestamp_ms=DAY_MS)]))


@dialogue(ProduceRequest)
def produce_to_several(talk: Talk) -> None:
    one, two = talk.topic("one", 2), talk.topic("two")
    ids = {**talk.ids, talk.name("absent"): bytes(15) + b"\x05"}
    entries = [(one, 0, batch(b"a")), (one, 7, batch(b"b")), (two, 0, corrupt(batch(b"c"))), (two, 3, batch(b"c"))]
    entries += [(talk.name("absent"), 0, batch(b"d")), (one, 1, batch(b"e"))]
    talk.ask("good and bad", produce_many(entries, ids=ids))
    talk.ask("no topics", produce_many([]))
    talk.ask("end", list_offsets(one, -1))


@dialogue(ProduceRequest)
def produce_to_one_partition_twice(talk: Talk) -> None:
    one = talk.topic("one")
    talk.ask("twice", produce_many([(one, 0, batch(b"f")), (one, 0, batch(b"g"))], ids=talk.ids))
    talk.ask("end", list_offsets(one, -1))


@dialogue(ProduceRequest, InitProducerIdRequest)
def produce_idempotent(talk: Talk) -> None:
    desk = Desk(talk)
    given = talk.ask("a producer id", InitProducerIdRequest(transaction_timeout_ms=60_000))
    producer_id = given.producer_id

    def say(step: str, sequence: int, *values: bytes, epoch: int = 0, who: int = producer_id) -> None:
        values = values or (b"v",)
        desk.say(step, batch(*values, producer_id=who, producer_epoch=epoch, sequence=sequence))

    say("first", 0, b"a", b"b")
    say("next", 2)
    say("next again", 2)
    say("first again", 0, b"a", b"b")
    say("a gap", 5)
    say("overlaps", 1, b"x", b"y")
    say("same start, other length", 0, b"a")
    for number in range(3, 9):
        say(f"number {number}", number)
    say("too old to know", 0, b"a", b"b")
    say("newer epoch, not from zero", 4, epoch=1)
    say("newer epoch", 0, epoch=1)
    say("older epoch", 1, epoch=0)
    say("nobody gave this id", 5, who=producer_id + 999_999)
    say("nobody gave this id, from zero", 0, who=producer_id + 999_998)
    say("no sequence", -1)
    desk.say("two batches of one producer", 2 * batch(b"v", producer_id=producer_id, producer_epoch=1, sequence=1))
    desk.look("what is there")


@dialogue(ProduceRequest, InitProducerIdRequest)
def produce_idempotent_wraps(talk: Talk) -> None:
    desk = Desk(talk)
    producer_id = talk.quietly(InitProducerIdRequest(transaction_timeout_ms=60_000)).producer_id
    last = 2**31 - 1

    def say(step: str, sequence: int, count: int = 1) -> None:
        desk.say(step, batch(*[b"v"] * count, producer_id=producer_id, producer_epoch=0, sequence=sequence))

    say("first, far on", last - 2, 2)
    say("over the edge", last, 3)
    say("after the edge", 2)
    say("again", last, 3)


@dialogue(InitProducerIdRequest)
def init_producer_id(talk: Talk) -> None:
    talk.ask("idempotent", InitProducerIdRequest(transaction_timeout_ms=60_000))
    talk.ask("another", InitProducerIdRequest(transaction_timeout_ms=60_000))
    talk.ask("timeout zero", InitProducerIdRequest(transaction_timeout_ms=0))
    talk.ask("timeout negative", InitProducerIdRequest(transaction_timeout_ms=-1))
    if talk.version(InitProducerIdRequest) >= 3:
        talk.ask("id without epoch", InitProducerIdRequest(transaction_timeout_ms=60_000, producer_id=5))
        known = InitProducerIdRequest(transaction_timeout_ms=60_000, producer_id=5, producer_epoch=3)
        talk.ask("id and epoch", known)
