"""Members of a group in a process of their own: real consumers (librdkafka), and when each record reached each of them.

    python -m bench.rebalance_members '{"bootstrap": "127.0.0.1:9092", "names": ["member-0", …], …}'

Commands come as lines: `leave` (every consumer closes, and it is said when that began), `save` (arrivals are written to
the file), `stop` (the same, and the process ends without a word to the group). One thread asks all consumers in turn,
so that a hundred of them need no hundred threads of Python.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Final

import msgspec
from confluent_kafka import Consumer

# Between two rounds over all consumers: what an arrival may be late by.
ROUND_SECONDS: Final = 0.005
MESSAGES_PER_CALL: Final = 100


class Members(msgspec.Struct, frozen=True):
    bootstrap: str
    topic: str
    group: str
    # A client id each; their number in all of the group's members is their place here plus `first`.
    names: list[str]
    first: int
    arrivals_path: str
    settings: dict[str, str | int | bool]


class Arrivals:
    """(seconds on the machine's monotonic clock, member, partition) of every record, in three columns."""

    def __init__(self) -> None:
        self.seconds = array("d")
        self.members = array("l")
        self.partitions = array("l")

    def add(self, seconds: float, member: int, partition: int) -> None:
        self.seconds.append(seconds)
        self.members.append(member)
        self.partitions.append(partition)

    def save(self, path: Path) -> None:
        columns = [self.seconds.tobytes(), self.members.tobytes(), self.partitions.tobytes()]
        path.write_bytes(msgspec.msgpack.encode(columns))

    def load(self, path: Path) -> None:
        """Adds what was saved."""
        seconds, members, partitions = msgspec.msgpack.decode(path.read_bytes())
        self.seconds.frombytes(seconds)
        self.members.frombytes(members)
        self.partitions.frombytes(partitions)


def run(work: Members) -> None:
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    arrivals = Arrivals()
    consumers = [_consumer(work, name) for name in work.names]
    while True:
        for place, consumer in enumerate(consumers):
            for message in consumer.consume(MESSAGES_PER_CALL, 0):
                partition = message.partition()
                if message.error() is None and partition is not None:
                    arrivals.add(time.monotonic(), work.first + place, partition)
        match _next(commands):
            case "leave":
                print(f"leaving {time.monotonic()}", flush=True)
                for consumer in consumers:
                    consumer.close()
                consumers = []
            case "save":
                arrivals.save(Path(work.arrivals_path))
                print("saved", flush=True)
            case "stop":
                arrivals.save(Path(work.arrivals_path))
                print("stopped", flush=True)
                # No farewell: what is measured is over.
                os._exit(0)


def _consumer(work: Members, name: str) -> Consumer:
    consumer = Consumer({
        "bootstrap.servers": work.bootstrap,
        "group.id": work.group,
        "client.id": name,
        "auto.offset.reset": "latest",
        "auto.commit.interval.ms": 1_000,
        "log_level": 0,
        **work.settings,
    })  # fmt: skip
    consumer.subscribe([work.topic])
    return consumer


def _read_commands(commands: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        commands.put(line.strip())
    # Whoever started this is gone.
    os._exit(1)


def _next(commands: queue.SimpleQueue[str]) -> str | None:
    try:
        return commands.get(timeout=ROUND_SECONDS)
    except queue.Empty:
        return None


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=Members))
