"""A load that knows afterwards what must be there: numbered messages from an idempotent producer.

    load = NumberedLoad(node.kafka, "topic", partitions=3)
    load.run(acknowledgements=500)      # produces until that many more are acknowledged
    load.finish()                       # waits for the rest
    load.check(node.kafka)              # reads everything back and compares

Checked: every acknowledged message stands at the offset that was told; no number is there twice; none is
missing; each partition's numbers rise, and its offsets are 0, 1, 2… without a hole.
"""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

# Fewer would leave the node idle between polls; more would make each crash a long repetition.
IN_FLIGHT_MAX: Final = 2_000
WAIT_SECONDS_MAX: Final = 60.0
RECONNECT_MS_MAX: Final = 100


class NumberedLoad:
    def __init__(self, bootstrap: str, topic: str, *, partitions: int, **settings: Any) -> None:
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self._next_number = 0
        self._problems: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                # A node is back within a second: a client that waits longer only makes the test longer.
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": RECONNECT_MS_MAX,
                "socket.connection.setup.timeout.ms": 2_000,
                # Lost connections are the point of these tests, not news.
                "log_level": 0,
                **settings,
            }
        )

    def run(self, *, acknowledgements: int) -> None:
        """Produces until so many more messages are acknowledged."""
        goal = len(self.acknowledged) + acknowledgements
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(self.acknowledged) < goal:
            self.push()
            assert time.monotonic() < deadline, (
                f"{len(self.acknowledged)} of {goal} acknowledged after {WAIT_SECONDS_MAX} s, "
                f"{len(self._producer)} wait; {self._problems[:3]}"
            )

    def push(self) -> None:
        """Tops up what is in flight and takes the answers that have come."""
        while len(self._producer) < IN_FLIGHT_MAX:
            number = self._next_number
            self._next_number += 1
            self._producer.produce(
                self.topic,
                value=b"%d" % number,
                partition=number % self.partitions,
                on_delivery=self._on_delivery,
            )
        self._producer.poll(0.005)

    def finish(self) -> None:
        left = self._producer.flush(WAIT_SECONDS_MAX)
        assert left == 0, f"{left} messages have no answer after {WAIT_SECONDS_MAX} s; {self._problems[:3]}"
        assert not self._problems, self._problems[:10]
        assert len(self.acknowledged) == self._next_number

    def check(self, bootstrap: str) -> None:
        places: dict[int, tuple[int, int]] = {}
        for partition in range(self.partitions):
            numbers = read_numbers(bootstrap, self.topic, partition)
            assert numbers == sorted(numbers), f"partition {partition}: numbers out of order"
            for offset, number in enumerate(numbers):
                assert number not in places, f"number {number} stands at {places[number]} and at {(partition, offset)}"
                places[number] = (partition, offset)
        lost = [number for number in self.acknowledged if number not in places]
        assert not lost, f"{len(lost)} acknowledged messages are lost, the first is number {lost[0]}"
        moved = [number for number, place in self.acknowledged.items() if places[number] != place]
        assert not moved, f"{len(moved)} messages do not stand where it was said, such as number {moved[0]}"
        assert len(places) == self._next_number

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        number = int(message.value())
        if error is not None:
            self._problems.append(f"number {number}: {error}")
        else:
            self.acknowledged[number] = (message.partition(), message.offset())


def read_numbers(bootstrap: str, topic: str, partition: int) -> list[int]:
    """The values of a partition in offset order; asserts that its offsets are dense from 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    numbers: list[int] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    try:
        while True:
            assert time.monotonic() < deadline, f"partition {partition}: no end after {len(numbers)} messages"
            # `consume` waits for the whole number of messages, or for as long as it is told: not long, then.
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    assert message.offset() == len(numbers), (
                        f"partition {partition}: offset {message.offset()} follows {len(numbers) - 1}"
                    )
                    numbers.append(int(message.value() or b"-1"))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return numbers
                else:
                    raise AssertionError(f"partition {partition}: {error}")
    finally:
        consumer.close()
