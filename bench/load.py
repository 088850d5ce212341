"""The client of every measurement, in a process of its own: librdkafka, the same for every target.

    python -m bench.load '{"kind": "produce", "bootstrap": "127.0.0.1:9092", "topics": ["t"], …}'

prints one line of JSON: what it achieved, what its own CPU was.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any, Final, Literal

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

# Per call into librdkafka: a Python loop over single messages would be measured instead of the broker.
MESSAGES_PER_CALL: Final = 1_000
# Enough to keep the client's sender busy; with more, memory bandwidth is measured.
QUEUED_MESSAGES_MAX: Final = 200_000
QUEUED_KILOBYTES_MAX: Final = 256 << 10
# Lz4 makes a third of text from so many words.
WORDS: Final = 300
FIRST_ANSWER_SECONDS_MAX: Final = 20.0
WAIT_SECONDS_MAX: Final = 60.0


class Load(msgspec.Struct, frozen=True):
    kind: Literal["produce", "consume"]
    bootstrap: str
    topics: list[str]
    partitions: int
    value_bytes: int
    messages: int
    # One message in each request, without waiting for more.
    single: bool = False
    # Values that differ and shrink as text does are sent then: zeros would measure nothing.
    codec: str = "none"


class Achieved(msgspec.Struct, frozen=True):
    messages: int
    seconds: float
    client_cpu_seconds: float

    @property
    def messages_per_second(self) -> float:
        return self.messages / self.seconds


def produce(load: Load) -> Achieved:
    settings: dict[str, Any] = {
        "bootstrap.servers": load.bootstrap,
        "acks": "all",
        "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
        "queue.buffering.max.kbytes": QUEUED_KILOBYTES_MAX,
    }
    if load.single:
        settings |= {"batch.num.messages": 1, "linger.ms": 0}
    if load.codec != "none":
        settings["compression.type"] = load.codec
    producer = Producer(settings)
    values = _values(load)
    value = values[0]["value"]
    places = [(topic, partition) for topic in load.topics for partition in range(load.partitions)]
    # Metadata, connection and first answer are not what is measured.
    producer.produce(places[0][0], value, partition=places[0][1])
    assert producer.flush(FIRST_ANSWER_SECONDS_MAX) == 0, "the first message has no answer"
    began, cpu_began = time.perf_counter(), time.process_time()
    sent, turn = 0, 0
    while sent < load.messages:
        topic, partition = places[turn % len(places)]
        turn += 1
        count = min(MESSAGES_PER_CALL, load.messages - sent)
        sent += producer.produce_batch(topic, values[:count], partition)
        while len(producer) > QUEUED_MESSAGES_MAX - MESSAGES_PER_CALL:
            producer.poll(0.005)
    left = producer.flush(WAIT_SECONDS_MAX)
    assert left == 0, f"{left} messages have no answer"
    return Achieved(sent, time.perf_counter() - began, time.process_time() - cpu_began)


def _values(load: Load) -> list[dict[str, bytes]]:
    if load.codec == "none":
        return [{"value": bytes(load.value_bytes)}] * MESSAGES_PER_CALL
    chance = random.Random(1)
    words = [chance.randbytes(6).hex() for _ in range(WORDS)]
    count = load.value_bytes // len(words[0])
    texts = (" ".join(chance.choices(words, k=count + 1)) for _ in range(MESSAGES_PER_CALL))
    return [{"value": text.encode()[: load.value_bytes].ljust(load.value_bytes)} for text in texts]


def consume(load: Load) -> Achieved:
    consumer = Consumer(
        {
            "bootstrap.servers": load.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            # By default the client stops asking for a second when 100,000 messages wait in it, and that second
            # would be measured instead of the broker.
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": QUEUED_KILOBYTES_MAX,
            "fetch.queue.backoff.ms": 2,
        }
    )
    consumer.assign(
        [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in load.topics
            for partition in range(load.partitions)
        ]
    )
    received = len(_take(consumer))
    began, cpu_began, already = time.perf_counter(), time.process_time(), received
    while received < load.messages:
        received += len(_take(consumer))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    # Closing takes as long as a broker's long poll, and is not what is measured.
    return Achieved(received - already, seconds, cpu)


def _take(consumer: Consumer) -> list[Any]:
    messages: list[Any] = consumer.consume(10_000, WAIT_SECONDS_MAX)
    assert messages, f"no message within {WAIT_SECONDS_MAX} s"
    assert messages[0].error() is None, messages[0].error()
    return messages


def main() -> None:
    load = msgspec.json.decode(sys.argv[1], type=Load)
    achieved = produce(load) if load.kind == "produce" else consume(load)
    print(msgspec.json.encode(achieved).decode(), flush=True)


if __name__ == "__main__":
    main()
