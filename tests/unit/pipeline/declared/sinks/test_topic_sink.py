"""The sink of a topic, without Spark: what it says of the result's columns, and what it makes of its query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.declared.sinks.contract import Claims, Mode, Target
from penstock.pipeline.declared.sinks.topic import TopicSink
from penstock.pipeline.source.options import OptionError

HEADERS = "array<struct<key:string,value:binary>>"
TYPES = {"id": "bigint", "name": "string", "_offset": "bigint", "h": HEADERS}


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
    target = Target(None, "here:9092", Path("/pipelines"), lambda *_: None)
    TopicSink(topic="t", mode=Mode.UPDATE).write(writer, target)
    writer.write(batch, 7)
    return batch


def test_an_updating_query_writes_under_its_own_id() -> None:
    saved = write_batch("q1").saved
    assert saved is not None
    assert (saved["queryId"], saved["batchId"]) == ("q1", "7")


def test_a_query_without_an_id_writes_nothing_rather_than_as_everybody() -> None:
    with pytest.raises(OptionError, match="does not tell the query's id"):
        write_batch(None)


def test_it_claims_its_topic_with_its_partitions() -> None:
    assert TopicSink(topic="t", partitions=3).claims == Claims(topic="t", partitions=3)


@pytest.mark.parametrize(
    ("sink", "columns"),
    [
        (TopicSink(topic="t", value="name"), ["`name` AS value"]),
        (TopicSink(topic="t", value="id", key="id"), ["string(`id`) AS value", "string(`id`) AS key"]),
        (
            TopicSink(topic="t", value=["id", "name"], headers="h"),
            ["to_json(struct(`id`, `name`), map('ignoreNullFields', 'false')) AS value", "`h` AS headers"],
        ),
        # Of the message itself (`_offset`) nothing goes into the document.
        (
            TopicSink(topic="t"),
            ["to_json(struct(`id`, `name`, `h`), map('ignoreNullFields', 'false')) AS value"],
        ),
    ],
)
def test_its_columns_are_value_key_and_headers(sink: TopicSink, columns: list[str]) -> None:
    assert sink.columns(TYPES) == columns


def test_bytes_as_they_came_need_no_document_around_them() -> None:
    assert TopicSink(topic="t", key="k").columns({"value": "binary", "k": "string"}) == [
        "`value` AS value",
        "`k` AS key",
    ]


def test_columns_that_it_names_must_be_there_and_headers_of_their_type() -> None:
    problems = Problems()
    sink = TopicSink(topic="t", key="nam", value=["id", "gone"], headers="id")
    sink.check_columns(TYPES, ("sink",), problems)
    assert [problem.sentence("f") for problem in problems.found] == [
        "f: sink.key: the result has no column 'nam'; did you mean 'name'? (it has id, name, _offset, h)",
        "f: sink.value: the result has no column 'gone' (it has id, name, _offset, h)",
        f"f: sink.headers: column 'id' is bigint, {HEADERS} is meant",
    ]
