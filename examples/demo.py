"""`make demo`: a node in a temporary directory, and stock clients that know nothing about it.

As a log: creates a topic, produces a million messages, consumes them back and compares, then sends single messages one
after the other to see how long an acknowledged, synced write takes. Every way: see `demo_every_way`. As a table, in
Spark: see `demo_pipeline`; with `--core` it is left out. Ends by itself; nothing but the report is left behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from demo_every_way import show_every_way
from rich.console import Console
from rich.table import Table

TOPIC: Final = "demo"
PARTITIONS: Final = 4
MESSAGES: Final = 1_000_000
VALUE: Final = b"one durable log, consumed every way: as a log, as a queue, as pub/sub, and as a table of rows! ......"
LATENCY_MESSAGES: Final = 1_000
WAIT_SECONDS_MAX: Final = 60.0

console = Console()


class Doors(NamedTuple):
    kafka: str
    http: str


@contextlib.contextmanager
def running_node(directory: str) -> Iterator[Doors]:
    """A node in a process of its own; gives its addresses, and ends it gracefully."""
    command = [sys.executable, "-m", "penstock.main", "serve", "--data-dir", directory]
    command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    with (Path(directory) / "node.log").open("w") as log:
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603  our own program
    try:
        assert node.stdout is not None
        line = node.stdout.readline()
        doors = dict(re.findall(r"\b(\w+)=(\S+)", line))
        if not line.startswith("ready"):
            raise SystemExit(f"the node did not start:\n{(Path(directory) / 'node.log').read_text()}")
        console.print(f"[bold]node[/bold]     {line.strip()}")
        yield Doors(doors["kafka"], doors["http"])
    finally:
        node.terminate()
        node.wait(WAIT_SECONDS_MAX)


def timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(WAIT_SECONDS_MAX)
    console.print(f"[bold]topic[/bold]    {TOPIC}, {PARTITIONS} partitions, every acknowledged message synced to disk")


def produce_all(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": MESSAGES})
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    for number in range(MESSAGES // 1_000):
        producer.produce_batch(TOPIC, [{"value": VALUE}] * 1_000, number % PARTITIONS, on_delivery=on_delivery)
        producer.poll(0)
    left = producer.flush(WAIT_SECONDS_MAX)
    if left or refused:
        raise SystemExit(f"{left} messages without an answer, {len(refused)} refused: {refused[:1]}")


def consume_all(bootstrap: str) -> None:
    # By default this client pauses for a second whenever 100,000 messages wait in it: ask it to hold more.
    settings = {"group.id": "demo", "enable.auto.commit": False, "queued.min.messages": MESSAGES}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    received = 0
    while received < MESSAGES:
        messages = consumer.consume(10_000, WAIT_SECONDS_MAX)
        if not messages or messages[0].value() != VALUE:
            raise SystemExit(f"after {received} messages: {messages[:1]}")
        received += len(messages)
    consumer.close()


def latencies_ms(bootstrap: str) -> list[float]:
    """One message at a time, each sent when the one before it was acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})

    def one() -> None:
        producer.produce(TOPIC, VALUE, partition=0)
        producer.flush(WAIT_SECONDS_MAX)

    one()
    return [1_000 * timed(one) for _ in range(LATENCY_MESSAGES)]


def show(produce_seconds: float, consume_seconds: float, waits_ms: list[float]) -> None:
    megabytes = MESSAGES * len(VALUE) / 1e6
    quantiles = statistics.quantiles(waits_ms, n=100)
    table = Table(title="one node, one stock Kafka client, this machine")
    table.add_column("what")
    table.add_column("result", justify="right")
    for what, seconds in (("produced", produce_seconds), ("consumed", consume_seconds)):
        rate = f"{MESSAGES / seconds:,.0f} messages/s, {megabytes / seconds:,.0f} MB/s"
        table.add_row(f"{what} {MESSAGES:,} messages of {len(VALUE)} bytes", rate)
    table.add_row("one acknowledged, synced message, median", f"{quantiles[49]:.2f} ms")
    table.add_row("the same, 99th percentile", f"{quantiles[98]:.2f} ms")
    console.print(table)


def main(*, has_pipeline: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory, running_node(directory) as doors:
        bootstrap = doors.kafka
        create_topic(bootstrap)
        console.print(f"[bold]produce[/bold]  {MESSAGES:,} messages with confluent-kafka, acks=all")
        produce_seconds = timed(lambda: produce_all(bootstrap))
        console.print("[bold]consume[/bold]  all of them back, and compare")
        consume_seconds = timed(lambda: consume_all(bootstrap))
        console.print(f"[bold]latency[/bold]  {LATENCY_MESSAGES:,} messages, one at a time")
        show(produce_seconds, consume_seconds, latencies_ms(bootstrap))
        show_every_way(doors.kafka, doors.http, console)
        if has_pipeline:
            # Spark is not loaded where it is not wanted.
            from demo_pipeline import show_pipeline

            show_pipeline(doors.kafka, doors.http, directory, console)
    program = os.path.relpath(Path(sys.executable).parent / "penstock")
    console.print("the node has ended and its directory is gone; `make serve` runs one that stays")
    console.print(f"to go on: {program} --help, and 'First quarter of an hour' in README.md", highlight=False)


if __name__ == "__main__":
    main(has_pipeline="--core" not in sys.argv)
