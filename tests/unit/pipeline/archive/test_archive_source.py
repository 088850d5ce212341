"""Which offsets come from the archive and which from the log. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.pipeline.archive.snapshot import ArchiveFile, ArchiveSnapshot, archive_options
from penstock.pipeline.archive.source import ArchivedSpan, check_not_ahead, divide, first_since
from penstock.pipeline.source.filters import Narrowing
from penstock.pipeline.source.options import OptionError, parse_options
from penstock.pipeline.source.ranges import OffsetSpan
from penstock.pipeline.table.files import write_files
from penstock.pipeline.table.task_files import with_date

OPTIONS = parse_options({"subscribe": "orders", "archive": "there"}, is_streaming=False)


def file(first: int, last: int, *, partition: int = 0, size_bytes: int = 10) -> ArchiveFile:
    """A message a second, from the first offset on."""
    return ArchiveFile(
        "orders", partition, first, last, "2026-01-01", f"{partition}/{first}", last - first + 1, size_bytes,
        first * 1000, last * 1000,
    )  # fmt: skip


def archive(*files: ArchiveFile, end: int) -> ArchiveSnapshot:
    return ArchiveSnapshot("there", 7, "{}", None, tuple(sorted(files)), {("orders", 0): end})


def span(start: int, end: int) -> OffsetSpan:
    return OffsetSpan("orders", 0, start, end)


def archived(start: int, end: int, *paths: str) -> ArchivedSpan:
    return ArchivedSpan("there", "orders", 0, start, end, paths)


HELD = archive(file(100, 149), file(150, 199), end=200)


@pytest.mark.parametrize(
    ("wanted", "pieces"),
    [
        (span(0, 300), [span(0, 100), archived(100, 200, "0/100", "0/150"), span(200, 300)]),
        (span(120, 160), [archived(120, 160, "0/100", "0/150")]),
        (span(150, 200), [archived(150, 200, "0/150")]),
        (span(100, 150), [archived(100, 150, "0/100")]),
        (span(199, 201), [archived(199, 200, "0/150"), span(200, 201)]),
        (span(0, 100), [span(0, 100)]),
        (span(200, 300), [span(200, 300)]),
    ],
)
def test_each_offset_is_asked_of_one_side(wanted: OffsetSpan, pieces: list[OffsetSpan | ArchivedSpan]) -> None:
    assert divide(HELD, [wanted]) == pieces


def test_without_an_archive_all_is_the_logs() -> None:
    assert divide(None, [span(0, 5)]) == [span(0, 5)]
    other = OffsetSpan("payments", 0, 0, 5)
    assert divide(HELD, [other]) == [other]


def test_what_was_removed_by_age_is_asked_of_the_log() -> None:
    """Its place is known, its messages are gone: the log has them, or says that they are lost."""
    assert divide(archive(end=200), [span(0, 300)]) == [span(0, 300)]


def test_the_logs_half_alone_leaves_the_archives_out() -> None:
    assert divide(HELD, [span(0, 300)], is_log_half=True) == [span(0, 100), span(200, 300)]


def test_files_of_other_times_are_passed_over() -> None:
    late = Narrowing(time_ms_min=150_000)
    early = Narrowing(time_ms_end=150_000)
    assert divide(HELD, [span(100, 200)], late) == [archived(100, 200, "0/150")]
    assert divide(HELD, [span(100, 200)], early) == [archived(100, 200, "0/100")]
    assert divide(HELD, [span(100, 200)], Narrowing(time_ms_min=200_000)) == []


def test_first_message_since_a_time_is_the_first_of_all_days_around_it(tmp_path: Path) -> None:
    """Producers' clocks differ, so around midnight the files of two days lie among one another."""
    pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    midnight = 1_800_000_000_000 // 86_400_000 * 86_400_000
    moments = {0: midnight - 50, 1: midnight + 10, 2: midnight - 20, 3: midnight + 30}
    batch = pa.RecordBatch.from_pydict({
        "topic": ["orders"] * 4, "partition": pa.array([0] * 4, pa.int32()), "offset": list(moments),
        "timestamp": pa.array([at_ms * 1000 for at_ms in moments.values()], pa.timestamp("us", tz="UTC")),
        "value": [b"v"] * 4,
    })  # fmt: skip
    options = archive_options(str(tmp_path))
    files = write_files(options, [with_date(batch)])
    assert len(files) == 2
    held = [
        ArchiveFile(
            "orders", 0, each.offset_first, each.offset_last, each.partition_values["date"] or "", each.path,
            each.row_count, each.size_bytes, 0, midnight + 1000,
        )
        for each in files
    ]  # fmt: skip
    snapshot = ArchiveSnapshot(str(tmp_path), 0, "{}", None, tuple(sorted(held)), {("orders", 0): 4})
    assert first_since(snapshot, "orders", 0, midnight - 30) == 1
    assert first_since(snapshot, "orders", 0, midnight - 60) == 0
    assert first_since(snapshot, "orders", 0, midnight + 31) is None


def test_large_archives_are_read_by_several_tasks() -> None:
    large = archive(*(file(n * 10, n * 10 + 9, size_bytes=50 * 1024 * 1024) for n in range(5)), end=50)
    pieces = divide(large, [span(0, 50)])
    assert [piece.paths for piece in pieces if isinstance(piece, ArchivedSpan)] == [
        ("0/0", "0/10"), ("0/20", "0/30"), ("0/40",)
    ]  # fmt: skip


def test_an_archive_of_another_topic_of_that_name_is_told() -> None:
    with pytest.raises(OptionError, match="up to offset 200, the log ends at 150"):
        check_not_ahead(HELD, {"orders": {0: 150}}, OPTIONS)
    check_not_ahead(HELD, {"orders": {0: 200}}, OPTIONS)
    check_not_ahead(None, {"orders": {0: 150}}, OPTIONS)


def test_bounds_that_the_caller_knows_are_an_option() -> None:
    given = {"subscribe": "orders", "narrow": '{"offset_min": 7, "partitions": [1]}', "archiveVersion": "3"}
    options = parse_options(given | {"archive": "there", "archiveHalf": "log"}, is_streaming=False)
    assert options.narrowing == Narrowing(offset_min=7, partitions=frozenset({1}))
    assert (options.archive, options.archive_version, options.is_log_half) == ("there", 3, True)
    with pytest.raises(OptionError, match="narrow"):
        parse_options(given | {"narrow": "all"}, is_streaming=False)
