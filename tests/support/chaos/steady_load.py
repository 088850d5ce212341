"""A producer that sends to every partition all the time, each by itself, and notes when each was acknowledged.

A partition that does not answer holds up no other one: each has its own share of what may be in flight. So the time
between two acknowledgements of a partition is how long that partition, and nobody else, had no leader or no quorum.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from support.chaos.checks import Acked, Sent, Violation, check_log

# Of one partition. A kill takes a second: what it holds up is sent again in a few requests.
IN_FLIGHT_MAX: Final = 100
# Between two messages of one partition: how exact a gap can be known.
PACE_SECONDS: Final = 0.02
WAIT_SECONDS_MAX: Final = 60.0
# A client that waits longer between two tries only adds its own patience to what is measured.
QUICK: Final[dict[str, Any]] = {
    "linger.ms": 1,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "socket.connection.setup.timeout.ms": 2_000,
    # Lost connections are the point of these tests, not news.
    "log_level": 0,
}


class SteadyLoad(threading.Thread):
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        name: str = "steady",
        pace_seconds: float = PACE_SECONDS,
        **settings: Any,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.topic = topic
        self.partitions = partitions
        self._pace_seconds = pace_seconds
        self.sent: dict[str, Sent] = {}
        self.acked: dict[str, Acked] = {}
        self._acked_at = [array("d") for _ in range(partitions)]
        self._in_flight = [0] * partitions
        self._problems: list[str] = []
        self._is_over = threading.Event()
        options = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, **QUICK, **settings}
        self._producer = Producer(options)

    # its thread

    def run(self) -> None:
        number, next_at = 0, time.monotonic()
        while not self._is_over.is_set():
            if time.monotonic() >= next_at:
                next_at += self._pace_seconds
                self._send_round(number)
                number += 1
            self._producer.poll(max(0.0, min(PACE_SECONDS, next_at - time.monotonic())))

    def _send_round(self, number: int) -> None:
        for partition in range(self.partitions):
            if self._in_flight[partition] >= IN_FLIGHT_MAX:
                continue
            value = f"{self.name}-{partition}-{number}"
            self.sent[value] = Sent(self.name, number, time.monotonic())
            self._in_flight[partition] += 1
            self._producer.produce(self.topic, value, partition=partition, on_delivery=self._on_delivery)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        partition, value = message.partition(), message.value().decode()
        self._in_flight[partition] -= 1
        if error is not None:
            self._problems.append(f"{value}: {error}")
            return
        now = time.monotonic()
        self.acked[value] = Acked(partition, message.offset(), now)
        self._acked_at[partition].append(now)

    # the test's thread

    def finish(self) -> None:
        """Every message has its answer, and none of them is an error."""
        self._is_over.set()
        self.join(WAIT_SECONDS_MAX)
        left = self._producer.flush(WAIT_SECONDS_MAX)
        assert left == 0, f"{left} messages have no answer after {WAIT_SECONDS_MAX} s"
        assert not self._problems, f"{len(self._problems)} failed: {self._problems[:5]}"
        assert len(self.acked) == len(self.sent)

    def is_acked_everywhere_since(self, moment: float) -> bool:
        return self.is_acked_since(moment, range(self.partitions))

    def is_acked_since(self, moment: float, partitions: Iterable[int]) -> bool:
        last = [self._acked_at[number] for number in partitions]
        return all(acks and acks[-1] > moment for acks in last)

    def gap(self, partition: int, *, since: float, until: float) -> float:
        """The longest time without an acknowledgement that reached into this span."""
        acks = self._acked_at[partition]
        first = max(0, bisect_left(acks, since) - 1)
        longest = 0.0
        for place in range(first, len(acks) - 1):
            if acks[place] >= until:
                break
            longest = max(longest, acks[place + 1] - acks[place])
        return longest

    def check(self, bootstrap: str) -> list[Violation]:
        logs = {number: read_partition(bootstrap, self.topic, number) for number in range(self.partitions)}
        return check_log(self.sent, self.acked, logs)


def read_partition(bootstrap: str, topic: str, partition: int, **settings: Any) -> list[tuple[int, str]]:
    """Offset and value of everything up to its end."""
    options = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**options, "enable.partition.eof": True, **settings})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    entries: list[tuple[int, str]] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    try:
        while True:
            assert time.monotonic() < deadline, f"{topic}-{partition}: no end after {len(entries)} messages"
            # `consume` waits for the whole number of messages, or for as long as it is told: not long, then.
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    entries.append((message.offset() or 0, (message.value() or b"").decode()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return entries
                else:
                    raise AssertionError(f"{topic}-{partition}: {error}")
    finally:
        consumer.close()


def distribution(gaps: Sequence[float]) -> str:
    """Median, nine of ten, longest: in one line."""
    if not gaps:
        return "none"
    ordered = sorted(gaps)
    marks = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    parts = [
        f"{name} {ordered[min(len(ordered) - 1, int(len(ordered) * share))]:.2f} s" for name, share in marks.items()
    ]
    return f"{len(ordered)} gaps: {', '.join(parts)}, longest {ordered[-1]:.2f} s"
