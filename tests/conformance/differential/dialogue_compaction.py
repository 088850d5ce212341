"""Compacted topics: what is refused, and what a reader finds after the cleaner has been there."""

from __future__ import annotations

import time
from collections.abc import Sequence

from conformance.differential.talk import Talk, dialogue
from conformance.differential.transactional_producer import TransactionalProducer, committed
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka.messages.fetch import FetchRequest
from penstock.codec.kafka.messages.produce import ProduceRequest
from support.door.kafka_phrases import DAY_MS, batch, fetch, list_offsets, only_partition, produce, records_in

# The cleaner of either broker looks every half second.
PATIENCE_SECONDS = 30.0


def keyed(*pairs: tuple[bytes | None, bytes | None], codec: Codec = Codec.NONE, timestamp_ms: int = DAY_MS) -> bytes:
    return bytes(build_batch([Record(value, key=key, timestamp_ms=timestamp_ms) for key, value in pairs], codec=codec))


@dialogue(ProduceRequest)
def compacted_topics_need_keys(talk: Talk) -> None:
    topic = talk.topic("compacted", cleanup_policy="compact")

    def say(step: str, records: bytes) -> None:
        talk.ask(step, produce(topic, records, topic_id=talk.ids[topic]))

    say("no key", batch(b"a"))
    say("second has no key", keyed((b"k", b"a"), (None, b"b")))
    say("no key, compressed", batch(b"a", codec=Codec.GZIP))
    say("empty key", keyed((b"", b"a")))
    say("keys", keyed((b"k", b"a"), (b"k", b"b")))
    say("tombstone", keyed((b"k", None)))


@dialogue(FetchRequest)
def compacted_topics_are_read(talk: Talk) -> None:
    if talk.version(FetchRequest) not in (4, 12, 18):
        return
    topic = talk.topic("compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0", segment_bytes="1048576")
    topic_id = talk.ids[topic]

    def say(records: bytes) -> None:
        talk.quietly(produce(topic, records, topic_id=topic_id))

    say(keyed((b"a", b"1"), (b"b", b"1"), (b"c", b"1")))
    say(keyed((b"a", b"2"), (b"c", None), codec=Codec.GZIP))
    say(keyed((b"b", b"2"), (b"d", b"1")))
    say(keyed((b"a", b"3")))
    # A mebibyte is the smallest segment that Kafka takes; the second of these begins a new one, and what is in the
    # active segment is left alone by both.
    say(keyed((b"large", b"1" * 700_000)))
    say(keyed((b"large", b"2" * 700_000)))
    wait_compacted(talk, topic, topic_id, [(5, b"b"), (6, b"d"), (7, b"a"), (8, b"large")])
    for offset in (0, 3, 5, 7):
        talk.ask(f"from {offset}", fetch(topic, offset, topic_id=topic_id), show=survivors)
    for timestamp in (-1, -2, DAY_MS):
        talk.ask(f"offset at {timestamp}", list_offsets(topic, timestamp))


@dialogue(FetchRequest)
def compacted_topics_with_transactions(talk: Talk) -> None:
    """What was aborted is gone, what was committed counts, what is open stays."""
    if talk.version(FetchRequest) not in (4, 18):
        return
    topic = talk.topic("compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0", segment_bytes="1048576")
    topic_id = talk.ids[topic]
    producers = {word: TransactionalProducer(talk, word) for word in ("aborts", "commits", "stays")}
    for producer in producers.values():
        producer.init("init")
        producer.add("add", topic, 0)
    now_ms = int(time.time() * 1000)

    def say(producer: TransactionalProducer | None, *pairs: tuple[bytes, bytes], sequence: int = 0) -> None:
        records = [Record(value, key=key, timestamp_ms=now_ms) for key, value in pairs]
        who = (producer.producer_id, producer.epoch, sequence) if producer else (-1, -1, -1)
        data = build_batch(
            records,
            producer_id=who[0],
            producer_epoch=who[1],
            base_sequence=who[2],
            is_transactional=producer is not None,
        )
        transaction = producer.transactional_id if producer else None
        reply = talk.quietly(produce(topic, bytes(data), topic_id=topic_id, transactional_id=transaction))
        assert reply.responses[0].partition_responses[0].error_code == 0, reply

    say(None, (b"a", b"0"), (b"b", b"0"), (b"c", b"0"))
    say(producers["aborts"], (b"a", b"aborted"), (b"d", b"aborted"))
    say(producers["commits"], (b"b", b"committed"), (b"e", b"first"))
    say(producers["commits"], (b"e", b"second"), sequence=2)
    producers["aborts"].end("abort", commit=False)
    producers["commits"].end("commit", commit=True)
    for word in ("aborts", "commits"):
        producers[word].settle()
    say(None, (b"large", b"1" * 700_000))
    say(None, (b"large", b"2" * 700_000))
    wait_for_keys(talk, topic, topic_id, [b"a", b"c", b"b", b"e", b"large"])
    for isolation, word in ((0, "uncommitted"), (1, "committed")):
        request = committed(topic, topic_id, isolation=isolation)
        talk.ask(word, request, show=survivors)
    producers["stays"].end("the open one ends", commit=False)


def wait_for_keys(talk: Talk, topic: str, topic_id: bytes, expected: list[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        seen = [key for _, key, _ in survivors(talk.quietly(fetch(topic, 0, topic_id=topic_id)))]
        # A fetch need not go on into the next segment.
        if seen[: len(expected)] == expected:
            return
        assert time.monotonic() < deadline, f"not compacted within {PATIENCE_SECONDS} s, there is {seen}"
        time.sleep(0.1)


def survivors(reply: object) -> list[tuple[int, bytes | None, bytes | None]]:
    """Which records are there. How they are parted into batches is the cleaner's own affair."""
    data = bytes(only_partition(reply).records or b"")  # type: ignore[arg-type]
    found = [
        record
        for position, header in walk_headers(data)
        if not header.is_control
        for record in records_in(data[position : position + header.size_bytes])
    ]
    return [(record.offset, record.key, record.value and record.value[:5]) for record in found]


def wait_compacted(talk: Talk, topic: str, topic_id: bytes, expected: Sequence[tuple[int, bytes]]) -> None:
    """Until nothing but the last of each key is left below the active segment."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        reply = talk.quietly(fetch(topic, 0, topic_id=topic_id))
        seen = [(offset, key) for offset, key, value in survivors(reply) if value is not None and offset < 9]
        if seen == list(expected):
            return
        assert time.monotonic() < deadline, f"not compacted within {PATIENCE_SECONDS} s, there is {seen}"
        time.sleep(0.1)
