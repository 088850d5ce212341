"""Smaller questions about what other dialogues have asked in the large: duplicates, limits, leftovers."""

from __future__ import annotations

import time

import msgspec

from conformance.differential.dialogue_consumer_groups import Consumers
from conformance.differential.dialogue_fetch import filled
from conformance.differential.dialogue_produce import Desk
from conformance.differential.talk import Talk, dialogue
from penstock.codec.batch.compression import Codec
from penstock.codec.kafka.messages import fetch as f
from penstock.codec.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.codec.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest
from penstock.codec.kafka.messages.list_offsets import ListOffsetsRequest
from penstock.codec.kafka.messages.offset_commit import OffsetCommitRequest
from penstock.codec.kafka.messages.offset_fetch import OffsetFetchRequest
from penstock.codec.kafka.messages.produce import ProduceRequest
from support.door.kafka_phrases import DAY_MS, batch, fetch, fetch_many, list_offsets, produce, wanted
from support.group.phrases import commit, positions

NEVER_GIVEN = bytes(15) + b"\x05"


def delete_up_to(topic: str, offset: int) -> DeleteRecordsRequest:
    place = DeleteRecordsPartition(0, offset)
    return DeleteRecordsRequest(topics=(DeleteRecordsTopic(topic, (place,)),), timeout_ms=5_000)


@dialogue(ListOffsetsRequest)
def list_offsets_in_compressed_batches(talk: Talk) -> None:
    topic = talk.topic("timed")
    topic_id = talk.ids[topic]
    for codec, start_ms in ((Codec.GZIP, 0), (Codec.LZ4, 100), (Codec.ZSTD, 100)):
        records = batch(b"a", b"b", b"c", timestamp_ms=DAY_MS + start_ms, codec=codec)
        talk.quietly(produce(topic, records, topic_id=topic_id))
    for after_ms in (0, 1, 2, 3, 100, 101, 102, 103):
        talk.ask(f"{after_ms} ms on", list_offsets(topic, DAY_MS + after_ms))
    if talk.version(ListOffsetsRequest) >= 7:
        talk.ask("the youngest", list_offsets(topic, -3))
    talk.quietly(delete_up_to(topic, 7))
    talk.ask("after deletion, from the start", list_offsets(topic, DAY_MS))
    talk.ask("after deletion, inside the batch", list_offsets(topic, DAY_MS + 101))
    talk.ask("after deletion, earliest", list_offsets(topic, -2))


@dialogue(ListOffsetsRequest)
def list_offsets_of_dated_records(talk: Talk) -> None:
    topic = talk.topic("dated", message_timestamp_type="LogAppendTime")
    for _ in range(2):
        talk.quietly(produce(topic, batch(b"a", b"b"), topic_id=talk.ids[topic]))
        # Or both may be dated in the same millisecond at one broker, and not at the other.
        time.sleep(0.005)
    talk.ask("long ago", list_offsets(topic, DAY_MS))
    if talk.version(ListOffsetsRequest) >= 7:
        talk.ask("the youngest", list_offsets(topic, -3))


@dialogue(f.FetchRequest)
def fetch_details(talk: Talk) -> None:
    topic, topic_id = filled(talk, partitions=2)
    place = f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
    later = msgspec.structs.replace(place, fetch_offset=4)
    twice = [f.FetchTopic(topic, topic_id, (place, later))]
    talk.ask("a partition twice", fetch_many(twice))
    talk.ask(
        "a topic twice",
        fetch_many([wanted(topic, {0: 0}, topic_id=topic_id), wanted(topic, {1: 2}, topic_id=topic_id)]),
    )
    talk.ask("no bytes wanted", fetch(topic, 6, topic_id=topic_id, bytes_min=0, wait_ms=2_000))
    talk.ask("negative bytes", fetch(topic, topic_id=topic_id, bytes_max=-1, partition_bytes_max=-1))
    rack = msgspec.structs.replace(fetch(topic, topic_id=topic_id), rack_id="somewhere")
    talk.ask("from a rack", rack)
    debugging = msgspec.structs.replace(fetch(topic, topic_id=topic_id), replica_id=-2)
    if talk.version(f.FetchRequest) <= 14:
        talk.ask("as a debugger", debugging)
    talk.ask("in the middle of a batch", fetch(topic, 3, topic_id=topic_id, partition_bytes_max=1))


@dialogue(DeleteRecordsRequest, ProduceRequest)
def producers_after_deletion(talk: Talk) -> None:
    """What a producer has written is remembered, though the records are gone."""
    desk = Desk(talk)
    producer_id = talk.quietly(InitProducerIdRequest(transaction_timeout_ms=60_000)).producer_id

    def say(step: str, sequence: int) -> None:
        desk.say(step, batch(b"v", producer_id=producer_id, producer_epoch=0, sequence=sequence))

    say("first", 0)
    say("second", 1)
    talk.ask("deleted", delete_up_to(desk.topic, -1))
    say("second again", 1)
    say("third", 2)
    say("a gap", 9)
    talk.ask("deleted again", delete_up_to(desk.topic, 2))
    talk.ask("below the start", delete_up_to(desk.topic, 0))
    desk.look("what is left", 2)


@dialogue(OffsetCommitRequest, OffsetFetchRequest)
def offset_details(talk: Talk) -> None:
    topic, other = talk.topic("orders", 2), talk.topic("other")
    group = talk.name("g" * 100)
    request = commit({0: 1}, group=group, topic=topic, topic_id=talk.ids[topic])
    (once,) = request.topics
    more = commit({0: 7}, group=group, topic=other, topic_id=talk.ids[other]).topics
    talk.ask("a topic twice", msgspec.structs.replace(request, topics=(once, *more, once)))
    talk.ask("no topics", msgspec.structs.replace(request, topics=()))
    talk.ask("then", positions([0, 1], group=group, topic=topic, topic_id=talk.ids[topic]))
    talk.ask("the largest offset", commit({0: 2**63 - 1}, group=group, topic=topic, topic_id=talk.ids[topic]))
    talk.ask("for a while", commit({1: 3}, group=group, topic=topic, topic_id=talk.ids[topic], retention_ms=60_000))
    long = commit({0: 1}, group=group, topic=topic, topic_id=talk.ids[topic], metadata="x" * 4096)
    talk.ask("the longest text", long)
    # Kafka's limit has bytes in its name and counts characters.
    talk.ask("a text in many bytes", msgspec.structs.replace(long, topics=commit(
        {0: 1}, group=group, topic=topic, topic_id=talk.ids[topic], metadata="ü" * 4096
    ).topics))  # fmt: skip
    talk.ask("in the end", positions([0, 1], group=group, topic=topic, topic_id=talk.ids[topic]))
    internal = commit({0: 1}, group=group, topic="__consumer_offsets", topic_id=NEVER_GIVEN)
    if talk.version(OffsetCommitRequest) < 10:
        talk.ask("an internal topic", internal)


@dialogue(ConsumerGroupHeartbeatRequest)
def consumer_group_details(talk: Talk) -> None:
    topic, other = talk.topic("orders", 2), talk.topic("invoices")
    group = Consumers(talk)
    group.await_topic(other)
    me = group.settle("has all", "a", group.enter("join", "a", topic))
    group.report("owns what is nobody's", "a", me.member_epoch, owned={NEVER_GIVEN: [0]})
    group.report("owns another topic", "a", me.member_epoch, owned={talk.ids[other]: [0]})
    group.report("owns a partition too many", "a", me.member_epoch, owned={talk.ids[topic]: [0, 1, 2]})
    group.report("owns less", "a", me.member_epoch, owned={talk.ids[topic]: [0]})
    group.report("owns it again", "a", me.member_epoch, owned={talk.ids[topic]: [0, 1]})
    group.report("a topic twice", "a", me.member_epoch, topics=(topic, topic))
    group.report("an illegal name", "a", me.member_epoch, topics=(topic, "a/b"))
    now = group.report("from elsewhere", "a", me.member_epoch, rack_id="rack")
    group.report("another assignor", "a", max(now.member_epoch, me.member_epoch), assignor="range")
    if talk.version(ConsumerGroupHeartbeatRequest) >= 1:
        mixed = Consumers(talk, "mixed")
        first = mixed.enter("names and an expression", "a", topic, regex=talk.name("nothing.*"))
        mixed.report("an empty expression", "a", first.member_epoch, regex="")
