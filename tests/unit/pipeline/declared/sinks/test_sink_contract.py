"""Nothing but the contract is asked of a sink: one that nobody has heard of goes the whole way."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from penstock.pipeline.declared.build import Built, Site
from penstock.pipeline.declared.checks import check_document
from penstock.pipeline.declared.document import Document, Pipeline, TopicSource
from penstock.pipeline.declared.explain import mermaid
from penstock.pipeline.declared.problems import Path as Where
from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.declared.result import types_of
from penstock.pipeline.declared.runner import RunPlan, first_status
from penstock.pipeline.declared.sinks.console import ConsoleSink
from penstock.pipeline.declared.sinks.contract import Claims, Description, Mode, Place, SinkContract, Target
from penstock.pipeline.declared.sinks.kinds import Sink


class PostcardSink(msgspec.Struct, frozen=True, kw_only=True):
    KEYS: ClassVar[tuple[str, ...]] = ("postcard",)

    postcard: str
    mode: Mode = Mode.APPEND

    @property
    def claims(self) -> Claims:
        return Claims(topic="sent", directory=self.postcard)

    def describe(self) -> Description:
        return Description(f"postcard to {self.postcard}", self.postcard)

    def check(self, read: Mapping[str, str], path: Where, problems: Problems) -> None:
        problems.add((*path, "postcard"), f"no stamp; {', '.join(read)} is read")

    def check_columns(self, types: Mapping[str, str], path: Where, problems: Problems) -> None:
        """Anything fits."""

    def check_place(self, spark: Any, place: Place, path: Where, problems: Problems) -> None:
        """It arrives anywhere."""

    def columns(self, types: Mapping[str, str]) -> list[str]:
        return list(types)

    def write(self, writer: Any, target: Target) -> Any:
        return writer


def pipeline(**options: Any) -> Pipeline:
    sink: Any = PostcardSink(postcard="aunt/")
    return Pipeline(sources={"a": TopicSource(topic="t")}, sink=sink, **options)


def told(document: Document) -> list[str]:
    problems = Problems()
    check_document(document, problems)
    return [f"{problem.path}: {problem.text}" for problem in problems.found]


def test_the_file_is_checked_by_the_sink_itself() -> None:
    assert told(Document(pipelines={"p": pipeline()})) == ["pipelines.p.sink.postcard: no stamp; t is read"]


def test_a_directory_that_is_claimed_has_one_pipeline() -> None:
    document = Document(pipelines={"p": pipeline(), "q": pipeline()})
    assert "pipelines.q.sink.postcard: 'p' writes there" in "\n".join(told(document))


def test_dead_letters_do_not_go_where_the_sink_writes() -> None:
    document = Document(pipelines={"p": pipeline(dead_letter_topic="sent")})
    assert "pipelines.p.dead_letter_topic: the pipeline writes its result to 'sent'" in told(document)


def test_status_and_graph_show_what_the_sink_says_of_itself(tmp_path: Path) -> None:
    built = Built("p", pipeline(), SimpleNamespace(), {}, {}, None)
    plan = RunPlan(tmp_path / "f.yaml", Site(tmp_path, "here:9092", tmp_path), "local", is_once=True)
    assert first_status(built, plan, now_ms=0).sink == "aunt/"
    # A topic is drawn as one, so that the graph joins who writes and who reads it.
    assert '[("topic sent")]' in mermaid([built])
    console = msgspec.structs.replace(
        built, pipeline=msgspec.structs.replace(built.pipeline, sink=ConsoleSink(console=1))
    )
    assert '["console"]' in mermaid([console])


@pytest.mark.parametrize("kind", [*typing.get_args(Sink), PostcardSink])
def test_a_sink_answers_everything_and_has_a_key_that_tells_it(kind: type[SinkContract]) -> None:
    asked = {name for name in vars(SinkContract) if not name.startswith("_")}
    assert {"check", "check_columns", "check_place", "columns", "write", "describe", "claims"} <= asked
    assert not [name for name in asked if not hasattr(kind, name)]
    fields = {field.name for field in msgspec.structs.fields(kind)}
    assert set(kind.KEYS) <= fields


def test_types_are_by_column() -> None:
    field = SimpleNamespace(name="id", dataType=SimpleNamespace(simpleString=lambda: "bigint"))
    assert types_of(SimpleNamespace(schema=SimpleNamespace(fields=[field]))) == {"id": "bigint"}
