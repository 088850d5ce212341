from __future__ import annotations

import pytest

from penstock.codec.batch.control import EndMarker
from penstock.codec.batch.header import walk_headers
from penstock.storage.config import LogConfig
from penstock.storage.errors import DataDirectoryError, DirectoryLockedError
from penstock.storage.repair.check import dump, repair, verify
from penstock.storage.repair.survey import OFFSETS_SKIPPED, ProblemKind
from support.storage.faulty_files import FaultyFiles
from support.storage.log_desk import ROOT, LogDesk


def stopped(files: FaultyFiles, *values: bytes, segment_bytes: int = 1 << 20) -> tuple[LogDesk, list[bytes]]:
    desk = LogDesk(files, config=LogConfig(segment_bytes=segment_bytes))
    batches = [desk.append(value) for value in values]
    desk.sync()
    desk.store.close()
    return desk, batches


def test_whole_log_has_no_problems() -> None:
    files = FaultyFiles()
    stopped(files, b"a", b"b", b"c", segment_bytes=100)
    (report,) = verify(ROOT, files=files)
    assert report.problems == ()
    assert (report.place.topic, report.place.partition) == ("topic", 0)
    assert (report.batch_count, report.record_count, report.log_start, report.log_end) == (3, 3, 0, 3)


def test_damage_is_named_with_its_place_and_its_offsets() -> None:
    files = FaultyFiles()
    desk, batches = stopped(files, b"a", b"b", b"c")
    files.flip_bit(desk.log.segments[0].path, (len(batches[0]) + 62) * 8)
    (report,) = verify(ROOT, files=files)
    (problem,) = report.problems
    assert problem.kind is ProblemKind.DAMAGE
    assert (problem.start, problem.end) == (len(batches[0]), len(batches[0]) + len(batches[1]))
    assert (problem.offset_start, problem.offset_end) == (1, 2)
    assert "checksum" in problem.describe()


def test_repair_loses_only_what_was_damaged_and_keeps_its_bytes() -> None:
    files = FaultyFiles()
    desk, batches = stopped(files, b"a", b"b", b"c")
    files.flip_bit(desk.log.segments[0].path, (len(batches[0]) + 62) * 8)
    damaged = files.content(desk.log.segments[0].path)[len(batches[0]) : len(batches[0]) + len(batches[1])]
    (report,) = repair(ROOT, files=files)
    (done,) = report.repairs
    assert done.saved_path is not None
    assert files.content(done.saved_path) == damaged
    assert verify(ROOT, files=files)[0].problems == ()
    desk.restart(clean=False)
    data = desk.read(0)
    assert [(header.base_offset, header.record_count) for _, header in walk_headers(data)] == [(0, 1), (1, 0), (2, 1)]
    assert data.startswith(batches[0])
    assert data.endswith(batches[2])
    desk.append(b"d")


def test_repair_does_not_touch_a_log_without_problems() -> None:
    files = FaultyFiles()
    stopped(files, b"a")
    files.journal.clear()
    assert repair(ROOT, files=files) == []
    assert not [entry for entry in files.journal if entry[0] in ("write", "rename", "truncate", "remove")]


def test_torn_tail_is_no_damage() -> None:
    files = FaultyFiles()
    desk, batches = stopped(files, b"a")
    files.open(desk.log.segments[0].path).write_at(b"torn", len(batches[0]))
    (report,) = verify(ROOT, files=files)
    assert [problem.kind for problem in report.problems] == [ProblemKind.TORN_TAIL]


def test_missing_segment_is_a_gap_that_repair_fills() -> None:
    files = FaultyFiles()
    desk, _ = stopped(files, *(b"x" * 40 for _ in range(4)), segment_bytes=100)
    files.remove(desk.log.segments[1].path)
    (report,) = verify(ROOT, files=files)
    assert [(p.kind, p.offset_start, p.offset_end) for p in report.problems] == [(ProblemKind.GAP, 1, 2)]
    repair(ROOT, files=files)
    desk.restart(clean=False)
    assert desk.log.damage is None
    assert (desk.log.log_end, desk.log.record_count) == (4, 3)


def test_lost_end_is_seen_by_the_checkpoint_and_its_offsets_are_not_used_again() -> None:
    files = FaultyFiles()
    desk, batches = stopped(files, b"a", b"b", b"c")
    files.open(desk.log.segments[0].path).truncate(len(batches[0]))
    (report,) = verify(ROOT, files=files)
    assert [(p.kind, p.offset_start, p.offset_end) for p in report.problems] == [
        (ProblemKind.GAP, 1, 3 + OFFSETS_SKIPPED)
    ]
    repair(ROOT, files=files)
    desk.restart(clean=False)
    assert desk.log.log_end == 3 + OFFSETS_SKIPPED


def test_dump_shows_batches_and_records_from_an_offset_on() -> None:
    files = FaultyFiles()
    stopped(files, b"a", b"b", b"c")
    shown = list(dump(ROOT, topic="topic", partition=0, from_offset=1, with_records=True, files=files))
    assert [batch.header.base_offset for batch in shown] == [1, 2]
    assert [record.value for batch in shown for record in batch.records] == [b"b", b"c"]  # type: ignore[union-attr]


def test_running_node_is_left_alone() -> None:
    desk = LogDesk()
    with pytest.raises(DirectoryLockedError):
        verify(ROOT, files=desk.files)


def test_other_directory_is_not_taken_for_ours() -> None:
    with pytest.raises(DataDirectoryError, match="not a data directory"):
        verify("/elsewhere", files=FaultyFiles())


def test_unknown_topic_is_said_so() -> None:
    files = FaultyFiles()
    stopped(files, b"a")
    with pytest.raises(DataDirectoryError, match="holds nothing of other"):
        verify(ROOT, topic="other", files=files)


def test_open_and_aborted_transactions_are_counted() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append_in_transaction(1)
    desk.append_marker(1, is_commit=False, coordinator_epoch=3)
    desk.append_in_transaction(2)
    desk.sync()
    desk.store.close()
    (report,) = verify(ROOT, files=files)
    assert (report.transactional_count, report.marker_count, report.aborted_count) == (2, 1, 1)
    assert report.open_transactions == ((2, 2),)


def test_dump_tells_how_a_transaction_ended() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append_in_transaction(1)
    desk.append_marker(1, is_commit=False, coordinator_epoch=3)
    desk.sync()
    desk.store.close()
    markers = [batch.marker for batch in dump(ROOT, topic="topic", partition=0, files=files)]
    assert markers == [None, EndMarker(False, 3)]
