"""Side files of the lanes: what they find, for which segment they speak, and what becomes of them with it."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, read_header
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.storage.config import LogConfig
from penstock.storage.files import MemoryFiles
from penstock.storage.repair.check import verify
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.lanes import (
    LANES_SUFFIX,
    LaneEntries,
    LanesSeen,
    SegmentFacts,
    facts_of,
    find_lanes,
    read_lane_file,
    write_lane_file,
)
from support.storage.faulty_files import CrashMode, FaultyFiles
from support.storage.log_desk import ROOT, LogDesk

SMALL = LogConfig(segment_bytes=2_000)
search = partial(find_lanes, breathe=lambda: None)


def message(lane: int | bytes | None, value: bytes = b"text") -> Record:
    text = b"%d" % lane if isinstance(lane, int) else lane
    headers = () if text is None else (("trace", b"1"), ("penstock-priority", text))
    return Record(value=value, timestamp_ms=1, headers=headers)


def batch(*lanes: int | bytes | None, codec: Codec = Codec.NONE, base_offset: int = 0) -> bytearray:
    return build_batch([message(lane) for lane in lanes], codec=codec, base_offset=base_offset)


def bits(*lanes: int) -> int:
    return sum(1 << lane for lane in lanes)


def append(desk: LogDesk, *lanes: int | None, codec: Codec = Codec.NONE) -> None:
    data = batch(*lanes, codec=codec, base_offset=desk.log.log_end)
    header = read_header(data)
    assert isinstance(header, BatchHeader)
    desk.log.append(memoryview(data), (header,))
    desk.sync()


def fill(desk: LogDesk, count: int = 60) -> None:
    for number in range(count):
        append(desk, 9 if number % 7 == 3 else None, None)


def make_file(desk: LogDesk, segment: Segment) -> tuple[SegmentFacts, LaneEntries]:
    seen = search(memoryview(desk.read(segment.base_offset)))
    assert seen.next_offset == segment.next_offset
    entries = entries_of(segment, seen)
    write_lane_file(desk.files, facts_of(segment), entries, last_batch_bytes=seen.last_batch_bytes)
    return facts_of(segment), entries


def entries_of(segment: Segment, seen: LanesSeen) -> LaneEntries:
    entries = LaneEntries(segment.base_offset)
    for offset, lanes in seen.batches:
        entries.add(offset, lanes)
    return entries


def side_files(desk: LogDesk) -> list[str]:
    return [name for name in desk.files.list_directory(desk.log.home.directory) if LANES_SUFFIX in name]


# --- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_lanes_are_found_in_every_encoding(codec: Codec) -> None:
    data = bytes(batch(None, None, codec=codec)) + bytes(batch(None, 9, 0, 9, codec=codec, base_offset=2))
    seen = search(memoryview(data))
    last_bytes = len(data) - len(batch(None, None, codec=codec))
    assert seen == LanesSeen(((2, bits(0, 9)),), 0, 6, last_bytes, len(data))


def test_the_default_lane_is_not_worth_an_entry() -> None:
    assert search(memoryview(batch(DEFAULT_LANE, None))).batches == ()


@pytest.mark.parametrize("priority", [b"10", b"", b"x", b"high"])
def test_what_cannot_be_read_is_the_default_lane(priority: bytes) -> None:
    assert search(memoryview(batch(priority))).batches == ()
    assert search(memoryview(batch(priority, 7))).batches == ((0, bits(7)),)


def test_the_name_in_a_message_is_no_header() -> None:
    data = build_batch([message(None, b'{"about": "penstock-priority"}'), message(2)])
    assert search(memoryview(data)).batches == ((0, bits(2)),)
    alone = build_batch([message(None, b"penstock-priority")])
    assert search(memoryview(alone)).batches == ()


def test_a_header_without_a_value_is_the_default_lane() -> None:
    data = build_batch([Record(value=b"a", timestamp_ms=1, headers=(("penstock-priority", None),))])
    assert search(memoryview(data)).batches == ()


def test_long_reads_let_others_have_the_interpreter() -> None:
    breaths: list[int] = []
    data = b"".join(bytes(batch(9, base_offset=offset)) for offset in range(1_000))
    seen = find_lanes(memoryview(data), breathe=lambda: breaths.append(1))
    assert len(seen.batches) == 1_000
    assert len(breaths) == 5


def test_entries_begin_with_the_batch_that_holds_the_offset() -> None:
    entries = LaneEntries(100)
    for offset in (100, 110, 130):
        entries.add(offset, bits(9))
    entries.add(140, bits(0, 9))
    assert list(entries.batches(9, 100)) == [100, 110, 130, 140]
    assert list(entries.batches(9, 115)) == [110, 130, 140]
    assert list(entries.batches(9, 1_000)) == [140]
    assert list(entries.batches(0, 100)) == [140]
    assert list(entries.batches(5, 100)) == []
    assert entries.lanes == bits(0, 9)
    assert entries.size_bytes == 20


# --- the file --------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read() -> None:
    desk = LogDesk(config=SMALL)
    fill(desk)
    for segment in desk.log.segments[:-1]:
        facts, entries = make_file(desk, segment)
        found = read_lane_file(desk.files, facts)
        assert found is not None
        assert found.to_bytes() == entries.to_bytes()
        assert list(found.batches(9, 0)) == list(entries.batches(9, 0))
    desk.restart(clean=True)
    assert all(read_lane_file(desk.files, facts_of(segment)) for segment in desk.log.segments[:-1])


def test_a_segment_without_other_lanes_has_a_small_file() -> None:
    desk = LogDesk(config=SMALL)
    for _ in range(60):
        append(desk, None, None)
    facts, _ = make_file(desk, desk.log.segments[0])
    found = read_lane_file(desk.files, facts)
    assert found is not None
    assert found.lanes == 0
    assert desk.files.file_sizes(facts.directory)[facts.name] < 150


def test_a_file_does_not_speak_for_another_segment() -> None:
    desk = LogDesk(config=SMALL)
    fill(desk)
    facts, entries = make_file(desk, desk.log.segments[0])
    for other in (
        SegmentFacts(facts.directory, facts.base_offset, facts.next_offset + 1, facts.size_bytes, facts.record_count),
        SegmentFacts(facts.directory, facts.base_offset, facts.next_offset, facts.size_bytes - 1, facts.record_count),
        SegmentFacts(facts.directory, facts.base_offset, facts.next_offset, facts.size_bytes, facts.record_count - 1),
    ):
        assert read_lane_file(desk.files, other) is None
    assert read_lane_file(desk.files, facts) is not None
    # Other bytes of the same size, as after a cut.
    file = desk.files.open(desk.log.segments[0].path)
    first = file.read_at(0, 61)
    file.write_at(bytes(61), 0)
    assert read_lane_file(desk.files, facts) is None
    file.write_at(first, 0)
    assert read_lane_file(desk.files, facts) is not None
    assert entries.lanes == bits(9)


def test_every_damage_to_a_file_is_seen() -> None:
    desk = LogDesk(MemoryFiles(), config=SMALL)
    fill(desk)
    facts, _ = make_file(desk, desk.log.segments[0])
    file = desk.files.open(f"{facts.directory}/{facts.name}")
    whole = file.read_at(0, file.size())
    for position in range(len(whole)):
        file.write_at(bytes([whole[position] ^ 1]), position)
        assert read_lane_file(desk.files, facts) is None
        file.write_at(whole[position : position + 1], position)
    for size in range(len(whole)):
        file.truncate(size)
        assert read_lane_file(desk.files, facts) is None
        file.write_at(whole, 0)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_a_crash_leaves_the_file_or_costs_another_look(mode: CrashMode) -> None:
    for seed in range(20):
        files = FaultyFiles(Random(seed))
        desk = LogDesk(files, config=SMALL)
        fill(desk)
        facts, entries = make_file(desk, desk.log.segments[0])
        files.crash(mode)
        desk.restart(clean=False)
        assert desk.log.log_end == 120
        found = read_lane_file(desk.files, facts)
        assert found is None or found.to_bytes() == entries.to_bytes()


# --- with its segment ------------------------------------------------------------------------------------------------


def test_retention_takes_the_files_along() -> None:
    desk = LogDesk(config=SMALL)
    fill(desk)
    for segment in desk.log.segments[:-1]:
        make_file(desk, segment)
    desk.store.checkpoint_now(every_log=True)
    desk.log.delete_before(desk.log.segments[2].base_offset).run()
    assert side_files(desk) == [facts_of(segment).name for segment in desk.log.segments[:-1]]


def test_a_cut_takes_the_files_along() -> None:
    desk = LogDesk(config=SMALL)
    fill(desk)
    for segment in desk.log.segments[:-1]:
        make_file(desk, segment)
    desk.store.truncate_log(desk.log, desk.log.segments[1].base_offset + 2)
    assert side_files(desk) == [facts_of(desk.log.segments[0]).name]


def test_recovery_sweeps_up_what_has_no_segment() -> None:
    desk = LogDesk(config=SMALL)
    fill(desk)
    facts, _ = make_file(desk, desk.log.segments[0])
    files, directory = desk.files, facts.directory
    files.rename(f"{directory}/{facts.name}", f"{directory}/{777:020}{LANES_SUFFIX}")
    desk.restart(clean=True)
    assert side_files(desk) == []


def test_verification_does_not_mind_them() -> None:
    desk = LogDesk(config=SMALL)
    fill(desk)
    make_file(desk, desk.log.segments[0])
    desk.store.close()
    (report,) = verify(ROOT, files=desk.files)
    assert (report.problems, report.record_count) == ((), 120)
