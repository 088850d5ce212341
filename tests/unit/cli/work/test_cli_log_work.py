from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.base.clock import ManualClock
from penstock.cli.app import app, run
from penstock.codec.batch.header import BatchHeader, read_header
from penstock.codec.batch.records import Record, build_batch
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.files import DirectoryFiles
from penstock.storage.store import LogStore
from support.storage.log_desk import LogDesk

BATCHES = 5


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A stopped node's directory with five batches of three records in partition 2 of `logged`."""
    root = tmp_path / "data"
    root.mkdir()
    store = LogStore.open(DirectoryFiles(), str(root), StorageConfig(), ManualClock())
    log = store.open_log("logged", bytes(range(16)), 2, LogConfig())
    for number in range(BATCHES):
        records = [Record(b"v%d" % place, key=b"k", timestamp_ms=1_763_200_000_000) for place in range(3)]
        data = build_batch(records, base_offset=3 * number, leader_epoch=0)
        header = read_header(data)
        assert isinstance(header, BatchHeader)
        log.append(memoryview(data), [header])
    store.close(clean=True)
    return root


def damage(directory: Path, position: int) -> None:
    (segment,) = directory.rglob("*.log")
    content = bytearray(segment.read_bytes())
    content[position] ^= 0xFF
    segment.write_bytes(content)


def test_a_whole_log_is_told_to_be_whole(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["log", "verify", "--data-dir", str(directory)]) == 0
    shown = capsys.readouterr().out
    assert "logged" in shown
    assert "whole" in shown
    assert run(app, ["log", "verify", "--data-dir", str(directory), "logged", "2", "--json"]) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert (log["topic"], log["partition"], log["records"], log["end"], log["problems"]) == (
        "logged",
        2,
        15,
        15,
        [],
    )


def test_damage_is_an_exit_code_and_repair_mends_it(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(directory, 150)
    assert run(app, ["log", "verify", "--data-dir", str(directory)]) == 1
    shown = capsys.readouterr().out
    assert "DAMAGED" in shown
    assert "logged partition 2: segment 00000000000000000000.log: damage" in shown

    assert run(app, ["log", "repair", "--data-dir", str(directory), "--yes", "--json"]) == 0
    (repaired,) = json.loads(capsys.readouterr().out)["repaired"]
    assert repaired["repairs"][0]["kind"] == "damage"
    assert run(app, ["log", "verify", "--data-dir", str(directory)]) == 0
    capsys.readouterr()
    assert run(app, ["log", "repair", "--data-dir", str(directory), "--yes"]) == 0
    assert capsys.readouterr().err == "nothing to repair\n"


def test_batch_that_nobody_can_read_is_dropped_by_the_operators_word(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--data-dir", str(directory), "--yes"]
    assert run(app, ["log", "repair", "--drop", "4", *place]) == 1
    assert "--drop needs the topic and the partition" in capsys.readouterr().err
    assert run(app, ["log", "repair", "logged", "2", "--drop", "999", *place]) == 1
    assert "logged-2 has no batch with offset 999" in capsys.readouterr().err
    assert run(app, ["log", "repair", "logged", "2", "--drop", "4", *place]) == 0
    assert "3 offsets from 3: the operator wants it dropped: repaired, bytes kept in" in capsys.readouterr().out
    assert run(app, ["log", "verify", "--data-dir", str(directory)]) == 0


def test_repair_of_a_journal_says_what_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = LogDesk(DirectoryFiles(), str(tmp_path / "data"))
    log = desk.store.open_log("orders.queues", bytes(16), 0, desk.config)
    for _ in range(3):
        desk.append(b"a", log=log)
    desk.store.close()
    damage(tmp_path / "data", 100)
    assert run(app, ["log", "repair", "--data-dir", str(tmp_path / "data"), "--yes"]) == 0
    told = "orders.queues partition 0: messages acknowledged in what was lost are delivered again"
    assert told in capsys.readouterr().out


def test_a_torn_end_is_no_damage(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (segment,) = directory.rglob("*.log")
    content = segment.read_bytes()
    segment.write_bytes(content + content[:50])
    assert run(app, ["log", "verify", "--data-dir", str(directory)]) == 0
    assert "torn end" in capsys.readouterr().out


def test_dump_shows_batches_and_records(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["log", "dump", "--data-dir", str(directory), "logged", "2"]
    assert run(app, words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == BATCHES
    assert lines[1].startswith("offsets 3-5  segment 00000000000000000000 byte ")

    assert run(app, [*words, "--from", "7", "-n", "1", "--records"]) == 0
    assert capsys.readouterr().out.splitlines()[2] == "  7  2025-11-15T09:46:40.000Z  k  v1"

    assert run(app, [*words, "--from", "7", "-n", "1", "--records", "--json"]) == 0
    batch = json.loads(capsys.readouterr().out)
    assert (batch["base_offset"], batch["last_offset"], batch["record_count"]) == (6, 8, 3)
    assert batch["records"][1]["value"] == "v1"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["verify", "--data-dir", "/nowhere"], "/nowhere is not a data directory"),
        (["verify"], "missing option '--data-dir'"),
    ],
)
def test_what_cannot_be_looked_at_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["log", *words]) != 0
    assert sentence in capsys.readouterr().err


def test_a_running_nodes_directory_is_left_alone(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = LogStore.open(DirectoryFiles(), str(directory), StorageConfig(), ManualClock())
    for command in (["verify"], ["dump", "logged", "2"], ["repair", "--yes"]):
        assert run(app, ["log", *command, "--data-dir", str(directory)]) == 1
        assert "is used by another process" in capsys.readouterr().err
    store.close(clean=True)


def test_transactions_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = LogDesk(DirectoryFiles(), str(tmp_path / "data"))
    desk.append_in_transaction(1)
    desk.append_marker(1, is_commit=False, coordinator_epoch=3)
    desk.append_in_transaction(2)
    desk.store.close()
    place = ["--data-dir", str(tmp_path / "data")]
    assert run(app, ["log", "verify", *place]) == 0
    assert "transaction of producer 2 is under way since offset 2" in capsys.readouterr().out
    assert run(app, ["log", "verify", *place, "--json"]) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert log["open_transactions"] == [{"producer_id": 2, "first_offset": 2}]
    assert (log["transactional_batches"], log["markers"], log["aborted_transactions"]) == (2, 1, 1)
    assert run(app, ["log", "dump", *place, "topic", "0"]) == 0
    assert "transactional, control, abort by coordinator epoch 3" in capsys.readouterr().out
    assert run(app, ["log", "dump", *place, "topic", "0", "--json"]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert documents[1]["marker"] == {"type": "abort", "coordinator_epoch": 3}
