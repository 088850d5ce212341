"""Fetch: what is read from where, sessions, limits, epochs."""

from __future__ import annotations

import time

from conformance.differential.talk import Talk, dialogue
from penstock.codec.kafka import NO_UUID
from penstock.codec.kafka.messages import fetch as f
from penstock.codec.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from support.door.kafka_phrases import batch, fetch, fetch_many, produce, wanted


def filled(talk: Talk, word: str = "log", partitions: int = 1, count: int = 3) -> tuple[str, bytes]:
    """A topic with `count` batches of two records in each partition."""
    topic = talk.topic(word, partitions)
    for partition in range(partitions):
        for number in range(count):
            records = batch(b"%d" % number, b"%d again" % number)
            talk.quietly(produce(topic, records, partition, topic_id=talk.ids[topic]))
    return topic, talk.ids[topic]


@dialogue(f.FetchRequest)
def fetch_reads(talk: Talk) -> None:
    topic, topic_id = filled(talk)
    for offset in (0, 1, 2, 5, 6, 7, -1, -2):
        talk.ask(f"from {offset}", fetch(topic, offset, topic_id=topic_id))
    talk.ask("no such partition", fetch(topic, 0, 9, topic_id=topic_id))
    talk.ask("negative partition", fetch(topic, 0, -1, topic_id=topic_id))
    talk.ask("no such topic", fetch(talk.name("absent"), topic_id=bytes(15) + b"\x05"))
    if talk.version(f.FetchRequest) >= 13:
        talk.ask("no id", fetch(topic, topic_id=NO_UUID))
    talk.ask("nothing", fetch_many([]))
    both = fetch_many([wanted(topic, {0: 0, 9: 0}, topic_id=topic_id)])
    talk.ask("one there, one not", both)


@dialogue(f.FetchRequest)
def fetch_limits(talk: Talk) -> None:
    topic, topic_id = filled(talk, partitions=2)
    size = len(batch(b"0", b"0 again"))
    talk.ask("one byte of a partition", fetch(topic, topic_id=topic_id, partition_bytes_max=1))
    talk.ask("two batches of a partition", fetch(topic, topic_id=topic_id, partition_bytes_max=2 * size + 5))
    talk.ask("one byte in all", fetch(topic, topic_id=topic_id, bytes_max=1))
    both = [wanted(topic, {0: 0, 1: 0}, topic_id=topic_id)]
    talk.ask("two partitions, one byte in all", fetch_many(both, bytes_max=1))
    talk.ask("two partitions, two batches in all", fetch_many(both, bytes_max=2 * size))
    talk.ask("no bytes at all", fetch(topic, topic_id=topic_id, bytes_max=0, partition_bytes_max=0))


@dialogue(f.FetchRequest)
def fetch_waits(talk: Talk) -> None:
    topic, topic_id = filled(talk)
    began = time.monotonic()
    talk.ask("at the end", fetch(topic, 6, topic_id=topic_id, wait_ms=200))
    talk.note("it waited", time.monotonic() - began >= 0.18)
    began = time.monotonic()
    talk.ask("an error does not wait", fetch(topic, 99, topic_id=topic_id, wait_ms=5000))
    talk.ask("enough does not wait", fetch(topic, 0, topic_id=topic_id, wait_ms=5000))
    talk.note("they did not wait", time.monotonic() - began < 3)
    pending = talk.send("woken", fetch(topic, 6, topic_id=topic_id, wait_ms=10_000), on="reader")
    talk.quietly(produce(topic, batch(b"new"), topic_id=topic_id))
    talk.hear(pending)


@dialogue(f.FetchRequest)
def fetch_epochs(talk: Talk) -> None:
    topic, topic_id = filled(talk)
    for epoch in (-1, 0, 1, 99):
        talk.ask(f"leader epoch {epoch}", fetch(topic, topic_id=topic_id, leader_epoch=epoch))
    if talk.version(f.FetchRequest) >= 12:
        for last in (0, 1, 5):
            place = f.FetchPartition(
                partition=0, fetch_offset=4, partition_max_bytes=10_000, current_leader_epoch=0, last_fetched_epoch=last
            )
            talk.ask(f"last fetched epoch {last}", fetch_many([f.FetchTopic(topic, topic_id, (place,))]))


@dialogue(f.FetchRequest)
def fetch_isolated(talk: Talk) -> None:
    topic, topic_id = filled(talk)
    for level in (0, 1, 2):
        request = f.FetchRequest(min_bytes=1, isolation_level=level, topics=(wanted(topic, {0: 2}, topic_id=topic_id),))
        talk.ask(f"isolation {level}", request)


@dialogue(f.FetchRequest)
def fetch_sessions(talk: Talk) -> None:
    topic, topic_id = filled(talk, partitions=2)
    if talk.version(f.FetchRequest) < 7:
        return
    all_of_it = [wanted(topic, {0: 0, 1: 6}, topic_id=topic_id)]
    opened = talk.ask("opened", fetch_many(all_of_it, session=(0, 0)))
    session = opened.session_id
    talk.ask("nothing new asked", fetch_many([], session=(session, 1)))
    talk.ask("moved on", fetch_many([wanted(topic, {0: 6}, topic_id=topic_id)], session=(session, 2)))
    talk.quietly(produce(topic, batch(b"new"), 1, topic_id=topic_id))
    talk.ask("something came", fetch_many([], session=(session, 3)))
    talk.ask("epoch again", fetch_many([], session=(session, 3)))
    talk.ask("epoch too far", fetch_many([], session=(session, 9)))
    forgotten = f.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=(1,))
    talk.ask("forgotten", fetch_many([], session=(session, 4), forgotten=[forgotten]))
    talk.ask("what is left", fetch_many([wanted(topic, {0: 0}, topic_id=topic_id)], session=(session, 5)))
    talk.ask("no such partition added", fetch_many([wanted(topic, {9: 0}, topic_id=topic_id)], session=(session, 6)))
    talk.ask("still in it", fetch_many([], session=(session, 7)))
    talk.ask("no such session", fetch_many([], session=(session ^ 1, 1)))
    talk.ask("closed", fetch_many([], session=(session, -1)))
    talk.ask("after the end", fetch_many([], session=(session, 8)))
    talk.ask("opened empty", fetch_many([], session=(0, 0)))


@dialogue(f.FetchRequest)
def fetch_sessions_and_topics(talk: Talk) -> None:
    """A session outlives topics that are not there."""
    if talk.version(f.FetchRequest) < 7:
        return
    topic, topic_id = filled(talk)
    absent = wanted(talk.name("absent"), {0: 0}, topic_id=bytes(15) + b"\x05")
    opened = talk.ask(
        "one there, one not", fetch_many([wanted(topic, {0: 6}, topic_id=topic_id), absent], session=(0, 0))
    )
    talk.ask("again", fetch_many([], session=(opened.session_id, 1)))


@dialogue(DeleteRecordsRequest, f.FetchRequest)
def delete_records(talk: Talk) -> None:
    topic, topic_id = filled(talk)

    def delete(name: str, offset: int, partition: int = 0) -> DeleteRecordsRequest:
        place = DeleteRecordsPartition(partition, offset)
        return DeleteRecordsRequest(topics=(DeleteRecordsTopic(name, (place,)),), timeout_ms=5_000)

    talk.ask("up to 3", delete(topic, 3))
    talk.ask("before the start", fetch(topic, 2, topic_id=topic_id))
    talk.ask("at the start", fetch(topic, 3, topic_id=topic_id))
    talk.ask("backwards", delete(topic, 1))
    talk.ask("beyond the end", delete(topic, 99))
    talk.ask("minus two", delete(topic, -2))
    talk.ask("no such partition", delete(topic, 1, 9))
    talk.ask("no such topic", delete(talk.name("absent"), 1))
    talk.ask("everything", delete(topic, -1))
    talk.ask("empty now", fetch(topic, 6, topic_id=topic_id))
    talk.ask("next offset", produce(topic, batch(b"next"), topic_id=topic_id))
    compacted = talk.topic("compacted", cleanup_policy="compact")
    talk.ask("compacted", delete(compacted, 0))
