"""`penstock pipeline` as far as it needs neither Spark nor a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from penstock.cli.app import app, run
from penstock.cli.work.pipeline_run import _keep
from penstock.cli.work.pipeline_status import reset
from penstock.cli.work.pipeline_view import LogView, print_rows, status_table
from penstock.net.errors import ClientError
from penstock.pipeline.declared.build import Built
from penstock.pipeline.declared.document import Pipeline, TopicSource
from penstock.pipeline.declared.sinks.console import ConsoleSink
from penstock.pipeline.declared.sources import TopicPlan
from penstock.pipeline.declared.state import Kept, PipelineState
from penstock.pipeline.declared.status import FAILED, RUNNING, Status
from support.spark.declared_scene import RecordingView

GOOD = "pipelines:\n  p:\n    sources: {a: {topic: t}}\n    sink: {console: 5}\n"
BAD = "pipelines:\n  p:\n    sources: {a: {topic: t, fromat: json}}\n    sink: {consol: 5}\n    trigger: often\n"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the user's directory nor the log of later tests is touched."""
    monkeypatch.setenv("PENSTOCK_PIPELINES", str(tmp_path / "state"))
    yield
    structlog.reset_defaults()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pipelines.yaml"


def test_a_file_in_order_is_said_to_be(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD)
    assert run(app, ["pipeline", "validate", str(file), "--syntax"]) == 0
    assert capsys.readouterr().err == f"{file}: p: keys and values are in order\n"


def test_all_problems_are_told_and_the_exit_code_says_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(BAD)
    assert run(app, ["pipeline", "validate", str(file), "--syntax"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{file}:3: pipelines.p.sources.a.fromat: not known here; did you mean 'format'?",
        f"{file}:4: pipelines.p.sink: one of topic, delta, parquet, console must be given; did you mean 'console'?",
        f"penstock: {file}: 2 problems",
    ]


def test_a_file_that_is_no_text_is_told_and_one_with_a_mark_before_it_is_read(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(b"pipelines:\xff")
    assert run(app, ["pipeline", "validate", "--syntax", str(file)]) == 1
    assert "no YAML: the file is not UTF-8 (byte 10)" in capsys.readouterr().err
    file.write_text(GOOD, encoding="utf-8-sig")
    assert run(app, ["pipeline", "validate", "--syntax", str(file)]) == 0


def test_problems_as_a_document_have_their_lines(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(BAD)
    assert run(app, ["pipeline", "validate", str(file), "--syntax", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["problems"]
    assert [(problem["line"], problem["path"]) for problem in found] == [
        (3, "pipelines.p.sources.a.fromat"),
        (4, "pipelines.p.sink"),
    ]


def test_a_pipeline_that_is_not_in_the_file_is_a_mistake_of_usage(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(GOOD)
    assert run(app, ["pipeline", "validate", str(file), "--syntax", "--name", "q"]) == 2
    assert capsys.readouterr().err == "penstock: there is no pipeline 'q' in the file (it has p)\n"


def test_a_broken_file_is_not_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(BAD)
    for command in ("run", "explain", "preview", "reset"):
        assert run(app, ["pipeline", command, str(file)]) == 1
        assert capsys.readouterr().err.endswith(f"penstock: {file}: 2 problems\n")


def test_a_node_that_is_away_is_told_in_one_sentence(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD)
    for arguments in (["run", str(file)], ["list"], ["status"]):
        assert run(app, ["pipeline", *arguments, "--bootstrap", "127.0.0.1:1"]) == 1
        (sentence,) = capsys.readouterr().err.splitlines()
        assert sentence.startswith("penstock: ")
        assert "127.0.0.1:1" in sentence


def test_the_table_shows_what_matters() -> None:
    from rich.console import Console

    console = Console(width=200, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(
        status_table(
            [
                Status(name="a", state=RUNNING, updated_ms=0, rows_per_second=1234.5, batch_ms=250, batch_id=7, lag=12),
                Status(name="b", state=FAILED, updated_ms=0, last_error="[brackets] are no markup"),
            ]
        )
    )
    text = console.export_text()
    assert all(word in text for word in ("1,234", "250", "12", "[brackets] are no markup", "failed"))


def test_events_are_lines_with_fields_and_rows_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    LogView("json").event("batch", pipeline="p", rows_in=5)
    told = json.loads(capsys.readouterr().err)
    assert (told["event"], told["pipeline"], told["rows_in"], told["level"]) == ("batch", "p", 5, "info")
    print_rows("p", 3, ["key", "value"], [{"key": b"k", "value": None}])
    assert "k" in capsys.readouterr().out


def test_columns_are_kept_for_a_checkpoint_that_lies_elsewhere_too(tmp_path: Path) -> None:
    state, view = PipelineState(tmp_path, "p", "s3a://bucket/p"), RecordingView()
    state.directory.mkdir()
    source = TopicSource(topic="t")
    pipeline = Pipeline(sources={"a": source}, sink=ConsoleSink(console=1))
    for columns in ("id INT", "id INT"):
        built = Built("p", pipeline, None, {"a": TopicPlan("a", source, columns)}, {}, None)
        _keep(built, state, "here", {"t": "aa"}, view)
        assert state.read() == Kept("here", {"a": "id INT"}, {"t": "aa"})
    assert [told["columns"] for told in view.named("schema found")] == ["id INT"]


def test_a_checkpoint_that_lies_elsewhere_is_named_by_a_reset_that_forgets_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    body = "sources: {a: {topic: t}}, sink: {console: 1}, checkpoint: s3a://bucket/p"
    file.write_text(f"state_directory: state\npipelines: {{p: {{{body}}}}}\n")
    state = PipelineState(tmp_path / "state", "p", "s3a://bucket/p")
    state.directory.mkdir(parents=True)
    state.keep(Kept("here", {"a": "id INT"}))
    with pytest.raises(ClientError):
        reset(file, [], "127.0.0.1:1", is_confirmed=True, as_json=False)
    assert state.read() == Kept()
    assert "to be removed there: s3a://bucket/p, s3a://bucket/p-dead-letters" in "".join(capsys.readouterr())
