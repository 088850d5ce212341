"""A pipeline file, and what comes of it in a Spark and a node that are there already."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from penstock.cli.work.pipeline_run import run_pipelines
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.address import parse_addresses
from penstock.pipeline.declared.prepare import Loaded, check_topics, choose, load, prepare, state_of
from penstock.pipeline.declared.status import Status


class RecordingView:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []
        self.shown: list[tuple[str, list[dict[str, Any]]]] = []

    def event(self, name: str, **fields: object) -> None:
        self.events.append((name, fields))

    def show(self, statuses: list[Status]) -> None:
        """Nobody looks."""

    def rows(self, pipeline: str, batch_id: int, columns: list[str], rows: list[dict[str, Any]]) -> None:
        self.shown.append((pipeline, rows))

    def named(self, name: str) -> list[dict[str, object]]:
        return [fields for found, fields in self.events if found == name]


class PipelineScene:
    def __init__(self, spark: Any, kafka: str, directory: Path) -> None:
        self.spark = spark
        self.kafka = kafka
        self.directory = directory
        self.view = RecordingView()

    def load(self, text: str) -> Loaded:
        file = self.directory / "pipelines.yaml"
        head = f"bootstrap: {self.kafka}\nstate_directory: state\n"
        file.write_text(head + textwrap.dedent(text))
        return load(file, {})

    def run(self, text: str, *names: str) -> dict[str, Status]:
        """Everything that is there, once."""
        loaded = self.load(text)
        assert loaded.document is not None, self.sentences(loaded)
        pipelines = choose(loaded.document, names)
        assert not isinstance(pipelines, str)
        states = {name: state_of(loaded.site, name, pipeline) for name, pipeline in pipelines.items()}
        for state in states.values():
            state.lock()
        try:
            statuses = run_pipelines(self.spark, loaded, pipelines, states, self.view, is_once=True)
        finally:
            for state in states.values():
                state.release()
        return {status.name: status for status in statuses}

    def validate(self, text: str, *, is_offline: bool = False) -> list[str]:
        loaded = self.load(text)
        if loaded.document is not None and not loaded.problems.errors:
            asyncio.run(self._prepare(loaded, is_offline=is_offline))
        return self.sentences(loaded)

    async def _prepare(self, loaded: Loaded, *, is_offline: bool) -> None:
        assert loaded.document is not None
        pipelines = loaded.document.pipelines
        if is_offline:
            await prepare(self.spark, loaded, pipelines, client=None)
            return
        async with ClusterClient(parse_addresses(self.kafka)) as client:
            await check_topics(client, pipelines, loaded.problems)
            await prepare(self.spark, loaded, pipelines, client=client)

    @staticmethod
    def sentences(loaded: Loaded) -> list[str]:
        return [problem.sentence("") for problem in loaded.problems.in_order()]


def send(kafka: str, topic: str, values: Sequence[Any], *, key: str | None = None) -> None:
    """Bytes and texts as they are, anything else as JSON; `key` names the field that is the key."""
    producer = Producer({"bootstrap.servers": kafka})
    for value in values:
        content = value if isinstance(value, bytes | str | None) else json.dumps(value)
        name = None if key is None else str(value[key])
        producer.produce(topic, content, name)
    assert producer.flush(30) == 0
