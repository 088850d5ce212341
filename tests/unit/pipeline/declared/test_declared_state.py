"""What a pipeline keeps on its machine, what Spark tells of a batch, and how a pipeline is told about."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from penstock.pipeline.declared.progress import BatchDone, read_progress
from penstock.pipeline.declared.state import Kept, PipelineState, StateError, default_directory
from penstock.pipeline.declared.status import LOST, RUNNING, SILENCE_MS_MAX, STOPPED, Status

PROGRESS = {
    "id": "q1",
    "runId": "r1",
    "name": "revenue",
    "batchId": 7,
    "numInputRows": 30,
    "processedRowsPerSecond": 12.5,
    "durationMs": {"triggerExecution": 240, "addBatch": 200},
    "eventTime": {"watermark": "2026-11-15T10:00:00.000Z"},
    "stateOperators": [{"numRowsTotal": 4}, {"numRowsTotal": 5}],
    "observedMetrics": {"penstock": {"rows": 28}},
    "sources": [
        {"endOffset": '{"orders": {"0": 10, "1": 12}}'},
        {"endOffset": {"orders": {"0": 8, "1": 14}, "people": {"0": 3}}},
        {"endOffset": "7"},
        {"endOffset": None},
    ],
}


def test_a_second_process_cannot_run_the_same_pipeline(tmp_path: Path) -> None:
    first, second = (PipelineState(tmp_path, "p", None) for _ in range(2))
    first.lock()
    with pytest.raises(StateError, match=r"pipeline 'p' runs already as process \d+"):
        second.lock()
    first.release()
    second.lock()
    second.release()


def test_two_pipelines_cannot_run_with_one_checkpoint(tmp_path: Path) -> None:
    """Of two files, say: within one it is told by `validate`."""
    checkpoint = str(tmp_path / "checkpoint")
    first, second = (PipelineState(tmp_path / name, name, checkpoint) for name in "ab")
    first.lock()
    with pytest.raises(StateError, match="checkpoint is in use by another pipeline than 'b'"):
        second.lock()
    first.release()
    second.lock()
    second.release()


def test_a_checkpoint_of_another_cluster_is_refused(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "p", None)
    state.lock()
    state.keep(Kept("here", {"orders": "id INT"}))
    state.check_cluster("here")
    state.check_cluster(None)
    with pytest.raises(StateError, match=r"belongs to another cluster \(here, this one is there\)"):
        state.check_cluster("there")
    assert PipelineState(tmp_path, "p", None).read() == Kept("here", {"orders": "id INT"})
    state.release()


def test_a_topic_that_was_made_anew_is_not_read_where_the_former_one_was_left(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "p", None)
    state.lock()
    state.keep(Kept("here", {}, {"orders": "aa"}))
    state.check_topics({"orders": "aa", "people": "bb"})
    with pytest.raises(StateError, match="topic 'orders' was deleted and made anew since pipeline 'p' read it"):
        state.check_topics({"orders": "cc"})
    state.release()


def test_a_reset_forgets_checkpoints_and_columns_and_nothing_else(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "p", None)
    state.lock()
    state.keep(Kept("here"))
    for path in (state.checkpoint, state.dead_letter_checkpoint):
        Path(path).mkdir(exist_ok=True)
        Path(path, "metadata").touch()
    assert state.has_checkpoint
    state.write_failure("oh")
    assert len(state.reset()) == 3
    assert not state.has_checkpoint
    assert state.read() == Kept()
    assert state.log_file.read_text() == "oh"
    assert state.reset() == []
    state.release()


def test_a_reset_leaves_a_directory_that_is_more_than_a_checkpoint(tmp_path: Path) -> None:
    """As with `checkpoint: .` of an older version: the pipeline file lies in it."""
    (tmp_path / "metadata").touch()
    (tmp_path / "offsets").mkdir()
    (tmp_path / "pipelines.yaml").touch()
    state = PipelineState(tmp_path / "state", "p", str(tmp_path))
    with pytest.raises(StateError, match=r"holds more than a checkpoint \(pipelines\.yaml\)"):
        state.reset()
    assert (tmp_path / "offsets").exists()


def test_a_checkpoint_that_is_given_has_its_dead_letters_beside_it(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "p", "s3a://bucket/p/")
    assert (state.checkpoint, state.dead_letter_checkpoint) == ("s3a://bucket/p/", "s3a://bucket/p-dead-letters")
    assert state.has_checkpoint


def test_a_file_that_was_damaged_is_told(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "p", None)
    state.directory.mkdir()
    (state.directory / "pipeline.json").write_text("{")
    with pytest.raises(StateError, match=r"pipeline\.json: not what was written there"):
        state.read()


def test_the_state_directory_is_the_users_own() -> None:
    assert default_directory({"PENSTOCK_PIPELINES": "/x"}) == Path("/x")
    assert default_directory({"XDG_STATE_HOME": "/s"}) == Path("/s/penstock/pipelines")
    assert default_directory({}).parts[-4:] == (".local", "state", "penstock", "pipelines")


def test_progress_is_read_with_the_lower_of_two_positions() -> None:
    assert read_progress(json.dumps(PROGRESS)) == BatchDone(
        query="revenue",
        query_id="q1",
        batch_id=7,
        rows_in=30,
        rows_out=28,
        rows_per_second=12.5,
        batch_ms=240,
        watermark="2026-11-15T10:00:00.000Z",
        state_rows=9,
        position={"orders": {0: 8, 1: 12}, "people": {0: 3}},
    )
    assert read_progress("{}").rows_in == 0


def test_a_pipeline_that_should_run_and_says_nothing_is_lost() -> None:
    status = Status(name="p", state=RUNNING, updated_ms=1_000)
    assert status.seen_at(1_000 + SILENCE_MS_MAX).state == RUNNING
    assert status.seen_at(1_001 + SILENCE_MS_MAX).state == LOST
    stopped = msgspec.structs.replace(status, state=STOPPED)
    assert stopped.seen_at(10**9).state == STOPPED


def test_a_status_of_a_newer_version_can_be_read() -> None:
    newer = b'{"name": "p", "state": "running", "updated_ms": 5, "something_new": [1]}'
    assert msgspec.json.decode(newer, type=Status) == Status(name="p", state=RUNNING, updated_ms=5)
