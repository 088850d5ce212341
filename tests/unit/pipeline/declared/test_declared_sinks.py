"""What a sink makes of its query, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from penstock.pipeline.declared.document import Mode, TopicSink
from penstock.pipeline.declared.sinks import _to_topic
from penstock.pipeline.source.options import OptionError


class FakeWriter:
    """Of a stream: keeps the function that is called with each batch."""

    write: Callable[[Any, int], None]

    def foreachBatch(self, write: Callable[[Any, int], None]) -> FakeWriter:  # noqa: N802  Spark's name
        self.write = write
        return self


class FakeBatch:
    """Session, context and writer of a batch in one."""

    def __init__(self, query_id: str | None) -> None:
        self._query_id = query_id
        self.sparkSession = self.sparkContext = self.write = self
        self.saved: dict[str, str] | None = None

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802  Spark's name
        return self._query_id if name == "sql.streaming.queryId" else None

    def format(self, _: str) -> FakeBatch:
        return self

    def options(self, **options: str) -> FakeBatch:
        self._options = options
        return self

    def mode(self, _: str) -> FakeBatch:
        return self

    def save(self) -> None:
        self.saved = self._options


def write_batch(query_id: str | None) -> FakeBatch:
    writer, batch = FakeWriter(), FakeBatch(query_id)
    _to_topic(writer, TopicSink(topic="t", mode=Mode.UPDATE), "here:9092")
    writer.write(batch, 7)
    return batch


def test_an_updating_query_writes_under_its_own_id() -> None:
    saved = write_batch("q1").saved
    assert saved is not None
    assert (saved["queryId"], saved["batchId"]) == ("q1", "7")


def test_a_query_without_an_id_writes_nothing_rather_than_as_everybody() -> None:
    with pytest.raises(OptionError, match="does not tell the query's id"):
        write_batch(None)
