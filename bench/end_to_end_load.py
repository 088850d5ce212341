"""The two clients of `bench.end_to_end`, each a process of its own: librdkafka produces, librdkafka consumes.

    python -m bench.end_to_end_load consume '{"bootstrap": "127.0.0.1:9092", "topic": "t", …}'

Every message carries the moment at which it was handed to the producer, by the clock that all processes of a machine
share. The consumer prints one line of JSON: how many of the messages took how long.
"""

from __future__ import annotations

import struct
import sys
import time
from typing import Final

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

_MOMENT: Final = struct.Struct(">q")
LINGER_MS: Final = 1
TICK_SECONDS: Final = 0.001
# Connections and caches settle in the first part of the run, which does not count.
WARM_UP_SHARE: Final = 0.2
QUEUED_MESSAGES_MAX: Final = 1_000_000
LAST_SECONDS_MAX: Final = 20.0
# What is measured ends when nothing has come for so long.
SILENCE_SECONDS: Final = 2.0
MESSAGES_PER_CALL: Final = 1_000


class EndToEndLoad(msgspec.Struct, frozen=True):
    seconds: float
    rate: int
    value_bytes: int
    bootstrap: str = ""
    topic: str = "end-to-end"


class Arrived(msgspec.Struct, frozen=True):
    """Latencies in microseconds, by how many messages had them."""

    counts: dict[int, int]

    @property
    def messages(self) -> int:
        return sum(self.counts.values())

    def at(self, percent: float) -> int:
        """The latency that `percent` of the messages do not exceed."""
        wanted, seen = self.messages * percent / 100, 0
        for latency in sorted(self.counts):
            seen += self.counts[latency]
            if seen >= wanted:
                return latency
        return 0


def produce(load: EndToEndLoad) -> None:
    producer = Producer(
        {
            "bootstrap.servers": load.bootstrap,
            "acks": "all",
            "linger.ms": LINGER_MS,
            "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
        }
    )
    filling = bytes(load.value_bytes - _MOMENT.size)
    began, sent = time.monotonic(), 0
    while (now := time.monotonic()) - began < load.seconds:
        due = int((now - began) * load.rate) - sent
        if due > 0:
            value = _MOMENT.pack(time.monotonic_ns()) + filling
            sent += producer.produce_batch(load.topic, [{"value": value}] * due)
        producer.poll(0)
        time.sleep(TICK_SECONDS)
    left = producer.flush(LAST_SECONDS_MAX)
    assert left == 0, f"{left} messages have no answer"
    print(sent, flush=True)


def consume(load: EndToEndLoad) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": load.bootstrap,
            "group.id": "end-to-end",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(load.topic, 0, 0)])
    counts: dict[int, int] = {}
    first = last = 0.0
    while not last or time.monotonic() - last < SILENCE_SECONDS:
        messages = consumer.consume(MESSAGES_PER_CALL, TICK_SECONDS)
        if not messages:
            continue
        now_ns, last = time.monotonic_ns(), time.monotonic()
        first = first or last
        if last - first < load.seconds * WARM_UP_SHARE:
            continue
        for message in messages:
            latency = (now_ns - _MOMENT.unpack_from(message.value() or b"")[0]) // 1_000
            counts[latency] = counts.get(latency, 0) + 1
    print(msgspec.json.encode(Arrived(counts)).decode(), flush=True)


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.argv[2], type=EndToEndLoad)
    (produce if sys.argv[1] == "produce" else consume)(wanted)
