"""Consumers of four libraries that read one topic from its beginning, each in a thread or process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as Place

POLL_SECONDS: Final = 0.5
# Of one fetch: as long as clients wait by default.
FETCH_WAIT_MS: Final = 500
KAFKAJS_PROGRAM: Final = Path(__file__).parents[2] / "conformance" / "kafkajs_reader.js"


class Reader:
    """`read` runs in a thread until `stop`, and hands what it gets to `take`."""

    library = ""

    def __init__(self, kafka: str, topic: str, isolation: str) -> None:
        self.name = f"{self.library} {isolation}"
        self.values: list[str] = []
        # When each came, by the wall clock.
        self.came_ms: list[float] = []
        self._kafka = kafka
        self._topic = topic
        self._isolation = isolation
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self.read, name=self.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join(20)

    def read(self) -> None:
        raise NotImplementedError

    def take(self, value: bytes | str | None) -> None:
        assert value is not None
        self.came_ms.append(time.time() * 1000)
        self.values.append(value if isinstance(value, str) else value.decode())


class ConfluentReader(Reader):
    library = "confluent-kafka"

    def read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._kafka,
                "group.id": f"{self._topic}-{self._isolation}",
                "isolation.level": self._isolation,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
            }
        )
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self._is_stopped.is_set():
            message = consumer.poll(POLL_SECONDS)
            if message is not None:
                assert message.error() is None, message.error()
                self.take(message.value())
        consumer.close()


class KafkaPythonReader(Reader):
    library = "kafka-python"

    def read(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self._kafka, isolation_level=self._isolation, fetch_max_wait_ms=FETCH_WAIT_MS
        )
        place = Place(self._topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        while not self._is_stopped.is_set():
            for records in consumer.poll(int(POLL_SECONDS * 1000)).values():
                for record in records:
                    self.take(record.value)
        consumer.close()


class AiokafkaReader(Reader):
    library = "aiokafka"

    def read(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=self._kafka,
            isolation_level=self._isolation,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        await consumer.start()
        try:
            while not self._is_stopped.is_set():
                for records in (await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))).values():
                    for record in records:
                        self.take(record.value)
        finally:
            await consumer.stop()


class KafkajsReader(Reader):
    library = "kafkajs"
    modules = Path()

    def read(self) -> None:
        group = f"kafkajs-{self._topic}-{self._isolation}"
        process = subprocess.Popen(
            ["node", str(KAFKAJS_PROGRAM), self._kafka, self._topic, group, self._isolation],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_PATH": str(self.modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        )
        assert process.stdout is not None
        threading.Thread(target=self._end, args=(process,), daemon=True).start()
        for line in process.stdout:
            told = json.loads(line)
            assert "error" not in told, told
            self.take(told["value"])

    def _end(self, process: subprocess.Popen[str]) -> None:
        self._is_stopped.wait()
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool], seconds_max: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
