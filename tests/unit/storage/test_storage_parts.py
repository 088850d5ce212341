"""The small parts that a log is made of."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from penstock.codec.batch.records import Record, build_batch
from penstock.storage.files import DirectoryFiles, Files, MemoryFiles
from penstock.storage.files.handles import HandleCache
from penstock.storage.files.small import read_small_file, write_small_file
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.segment.facts import Segment, base_offset_of
from penstock.storage.segment.index import SegmentIndex
from penstock.storage.segment.index_file import load_index, note_saved, take_delta
from penstock.storage.segment.search import find_batch_after
from penstock.storage.segment.verified_ranges import VerifiedRanges
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash

MAGIC = b"testtest"


# --- the engines ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["directory", "memory", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    """An engine and a directory in it; the same tests for all of them."""
    files: Files = {"directory": DirectoryFiles, "memory": MemoryFiles, "faulty": FaultyFiles}[request.param]()
    root = str(tmp_path / "root") if request.param == "directory" else "/root"
    files.make_root(root)
    return files, root


def test_engine_reads_what_was_written(place: tuple[Files, str]) -> None:
    files, root = place
    file = files.open(f"{root}/a", create=True)
    assert file.write_at(b"hello", 0) == 5
    assert file.write_at(memoryview(b"world"), 10) == 5
    assert file.read_at(0, 100) == b"hello\0\0\0\0\0world"
    assert bytes(file.read_cached_at(10, 5) or b"") == b"world"
    assert file.read_cached_at(10, 6) is None
    file.truncate(3)
    assert files.open(f"{root}/a").read_at(0, 100) == b"hel"
    file.sync()
    file.drop_cache()
    assert file.size() == 3


def test_engine_lists_renames_and_removes(place: tuple[Files, str]) -> None:
    files, root = place
    files.make_directory(f"{root}/d/e")
    files.open(f"{root}/d/b", create=True).write_at(b"12", 0)
    files.open(f"{root}/d/a", create=True)
    assert files.list_directory(f"{root}/d") == ["a", "b", "e"]
    assert files.file_sizes(f"{root}/d") == {"a": 0, "b": 2}
    files.rename(f"{root}/d/b", f"{root}/d/a")
    assert files.file_sizes(f"{root}/d") == {"a": 2}
    files.rename(f"{root}/d", f"{root}/f")
    assert files.exists(f"{root}/f/e")
    assert not files.exists(f"{root}/d")
    files.sync_directory(f"{root}/f")
    files.remove(f"{root}/f/nothing")
    files.remove_tree(f"{root}/f")
    assert files.list_directory(root) == []
    assert files.list_directory(f"{root}/nowhere") == []
    assert files.file_sizes(f"{root}/nowhere") == {}


def test_engine_does_not_make_what_it_is_asked_to_open(place: tuple[Files, str]) -> None:
    files, root = place
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/missing")


def test_engine_locks_once(place: tuple[Files, str]) -> None:
    files, root = place
    lock = files.lock(f"{root}/lock")
    assert lock is not None
    assert files.lock(f"{root}/lock") is None
    lock.release()
    again = files.lock(f"{root}/lock")
    assert again is not None
    again.release()


def test_open_file_outlives_its_name(place: tuple[Files, str]) -> None:
    files, root = place
    file = files.open(f"{root}/a", create=True)
    file.write_at(b"data", 0)
    files.remove(f"{root}/a")
    assert file.read_at(0, 4) == b"data"


def test_memory_engine_says_when_it_is_full() -> None:
    files = MemoryFiles(bytes_max=100)
    files.make_directory("/r")
    file = files.open("/r/a", create=True)
    file.write_at(bytes(90), 0)
    with pytest.raises(OSError, match="No space") as caught:
        file.write_at(bytes(20), 90)
    assert caught.value.errno == errno.ENOSPC
    files.remove("/r/a")
    assert files.free_bytes("/r") == 100


# --- the faulty disk itself ----------------------------------------------------------------------------------------


def test_unsynced_bytes_and_names_are_lost() -> None:
    files = FaultyFiles()
    files.make_root("/r")
    for name in ("both", "bytes", "name", "none"):
        file = files.open(f"/r/{name}", create=True)
        file.write_at(b"x", 0)
        if name in ("both", "name"):
            files.sync_directory("/r")
        if name in ("both", "bytes"):
            file.sync()
    files.crash(CrashMode.LOST)
    # The directory was synced once more after "bytes" was made, so its name is there too.
    assert files.file_sizes("/r") == {"both": 1, "bytes": 1, "name": 0}


def test_failed_sync_is_told_once_and_loses_the_bytes() -> None:
    files = FaultyFiles()
    files.make_root("/r")
    file = files.open("/r/a", create=True)
    files.sync_directory("/r")
    file.write_at(b"x", 0)
    files.fail_next("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert file.read_at(0, 1) == b"x"
    files.crash(CrashMode.LOST)
    assert files.file_sizes("/r") == {"a": 0}


# --- small files ---------------------------------------------------------------------------------------------------


def test_small_file_is_whole_or_not_there() -> None:
    for seed in range(60):
        files = FaultyFiles(Random(seed))
        files.make_root("/r")
        write_small_file(files, "/r", "f", MAGIC, b"old")
        files.crash_after(seed % 8)
        with suppress(SimulatedCrash):
            write_small_file(files, "/r", "f", MAGIC, b"new and longer")
        files.crash((CrashMode.LOST, CrashMode.ORDERED, CrashMode.SCATTERED)[seed % 3])
        assert read_small_file(files, "/r", "f", MAGIC) in (b"old", b"new and longer")


def test_flipped_bit_in_a_small_file_is_seen() -> None:
    files = FaultyFiles()
    files.make_root("/r")
    write_small_file(files, "/r", "f", MAGIC, b"payload")
    for bit in range(8 * 23):
        files.flip_bit("/r/f", bit)
        assert read_small_file(files, "/r", "f", MAGIC) is None
        files.flip_bit("/r/f", bit)
    assert read_small_file(files, "/r", "f", MAGIC) == b"payload"
    assert read_small_file(files, "/r", "f", b"othermag") is None


# --- indexes -------------------------------------------------------------------------------------------------------


def filled_index(start: int, end: int, index: SegmentIndex | None = None) -> SegmentIndex:
    index = index or SegmentIndex()
    for number in range(start, end):
        index.add(number * 10, position=number * 4096, records_before=number * 9, max_timestamp=number * 7)
    return index


def test_index_finds_floors() -> None:
    index = filled_index(1, 5)
    assert index.floor(9) == (0, 0, 0)
    assert index.floor(10) == (10, 4096, 9)
    assert index.floor(39) == (30, 3 * 4096, 27)
    assert index.floor(10_000) == (40, 4 * 4096, 36)
    assert index.position_at_or_below(4095) == 0
    assert index.position_at_or_below(4096) == 4096
    assert index.offset_before_time(0) == 0
    assert index.offset_before_time(15) == 20


def save(files: Files, index: SegmentIndex, covered: int) -> None:
    delta = take_delta(index, "/r/s", covered_bytes=covered, covered_records=covered, max_timestamp=covered)
    delta.write(files)
    note_saved(index, delta)


def test_index_files_grow_by_blocks_and_come_back() -> None:
    files = MemoryFiles()
    files.make_directory("/r")
    index = filled_index(1, 5)
    save(files, index, 20_000)
    filled_index(5, 9, index)
    save(files, index, 40_000)
    again = load_index(files, "/r/s")
    assert (again.offsets, again.positions, again.counts) == (index.offsets, index.positions, index.counts)
    assert (again.times, again.time_offsets) == (index.times, index.time_offsets)
    assert (again.covered_bytes, again.covered_records, again.last_position) == (40_000, 40_000, 8 * 4096)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_damaged_index_file_proves_what_lies_before_the_damage(suffix: str) -> None:
    files = FaultyFiles()
    files.make_root("/r")
    index = filled_index(1, 5)
    save(files, index, 20_000)
    size = len(files.content(f"/r/s{suffix}"))
    filled_index(5, 9, index)
    save(files, index, 40_000)
    files.flip_bit(f"/r/s{suffix}", (size + 30) * 8)
    again = load_index(files, "/r/s")
    assert again.covered_bytes == 20_000
    assert len(again.offsets) == 4
    save(files, filled_index(5, 9, again), 40_000)
    assert load_index(files, "/r/s").covered_bytes == 40_000


def test_truncated_index_is_saved_anew() -> None:
    files = MemoryFiles()
    files.make_directory("/r")
    index = filled_index(1, 9)
    save(files, index, 40_000)
    index.truncate(4 * 4096)
    assert len(index.offsets) == 3
    save(files, index, 4 * 4096)
    again = load_index(files, "/r/s")
    assert (len(again.offsets), again.covered_bytes) == (3, 4 * 4096)


# --- and the rest --------------------------------------------------------------------------------------------------


def test_verified_ranges_merge() -> None:
    ranges = VerifiedRanges()
    ranges.forget_below(1_000)
    ranges.add(100, 200)
    ranges.add(300, 400)
    assert ranges.covers(120, 180)
    assert not ranges.covers(150, 350)
    ranges.add(200, 300)
    assert ranges.covers(100, 400)
    assert not ranges.covers(100, 401)
    ranges.add(390, 1_000)
    assert ranges.covers(100, 5_000)
    assert ranges.covers(1_000, 5_000)
    assert not ranges.covers(50, 150)


def test_verified_ranges_agree_with_a_set_of_bytes() -> None:
    random = Random(1)
    for _ in range(300):
        ranges, known = VerifiedRanges(), set[int]()
        ranges.forget_below(60)
        for _ in range(random.randint(0, 8)):
            start = random.randint(0, 59)
            end = random.randint(start, 60)
            ranges.add(start, end)
            known.update(range(start, end))
        for _ in range(20):
            start = random.randint(0, 70)
            end = random.randint(start + 1, 90)
            assert ranges.covers(start, end) == all(byte in known or byte >= 60 for byte in range(start, end))


def test_epoch_ends_where_the_next_begins() -> None:
    epochs = LeaderEpochs()
    for epoch, start in ((2, 0), (4, 10), (7, 25)):
        epochs.assign(epoch, start)
    assert epochs.end_offset_for(7, 40) == (7, 40)
    assert epochs.end_offset_for(4, 40) == (4, 25)
    assert epochs.end_offset_for(5, 40) == (4, 25)
    assert epochs.end_offset_for(1, 40) == (1, 0)
    assert epochs.end_offset_for(8, 40) == (-1, -1)
    assert epochs.end_offset_for(-1, 40) == (-1, -1)
    assert [epochs.epoch_at(offset) for offset in (0, 9, 10, 30)] == [2, 2, 4, 7]
    assert LeaderEpochs.from_bytes(epochs.to_bytes()) == epochs


def test_epochs_are_cut_with_their_log() -> None:
    epochs = LeaderEpochs()
    for epoch, start in ((2, 0), (4, 10), (7, 25)):
        epochs.assign(epoch, start)
    epochs.truncate_end(25)
    assert (epochs.entries(), epochs.latest) == ([(2, 0), (4, 10)], 4)
    epochs.truncate_start(12)
    assert epochs.entries() == [(4, 12)]
    epochs.assign(3, 50)
    assert epochs.latest == 4


def test_epoch_that_wrote_nothing_leaves_no_entry() -> None:
    epochs = LeaderEpochs()
    epochs.assign(1, 0)
    epochs.assign(2, 10)
    epochs.assign(3, 10)
    assert epochs.entries() == [(1, 0), (3, 10)]


def test_search_finds_a_batch_behind_any_garbage() -> None:
    random = Random(3)
    files = MemoryFiles(bytes_max=1 << 30)
    files.make_directory("/r")
    for number in range(40):
        file = files.open(f"/r/{number}", create=True)
        garbage = random.choice((random.randbytes(700), bytes(700), b"\x02" * 700, b"\0\0\0\0\x02" * 140))
        batch = build_batch([Record(value=b"v")], base_offset=2**32 - 5 + number)
        file.write_at(garbage + bytes(batch), 0)
        found = find_batch_after(file, start=0, end=file.size(), offset_min=2**32 - 20)
        assert found is not None
        assert (found.position, found.base_offset) == (700, 2**32 - 5 + number)
        assert find_batch_after(file, start=701, end=file.size(), offset_min=0) is None
        assert find_batch_after(file, start=0, end=file.size() - 1, offset_min=0) is None
        assert find_batch_after(file, start=0, end=file.size(), offset_min=2**40) is None


def test_handle_cache_keeps_to_its_bound_and_spares_the_unsynced() -> None:
    files = FaultyFiles()
    files.make_root("/r")
    cache = HandleCache(files, 3)
    segments = [Segment("/r", number, begun_ms=0) for number in range(6)]
    for segment in segments[:3]:
        cache.open(segment, create=True)
    segments[0].is_dirty = True
    cache.open(segments[3], create=True)
    assert len(cache) == 3
    assert segments[0].file is not None
    assert segments[1].file is None
    for segment in segments[2:4]:
        segment.is_dirty = True
    cache.open(segments[4], create=True)
    assert len(cache) == 3, "all were unsynced: one had to go nevertheless"
    cache.forget(segments[4])
    assert len(cache) == 2


def test_segment_names() -> None:
    assert base_offset_of("00000000000000000042.log") == 42
    assert base_offset_of("00000000000000000042.index") is None
    assert base_offset_of("42.log") is None
    assert base_offset_of("0000000000000000004x.log") is None


def test_the_data_directory_is_closed_to_others(tmp_path: Path) -> None:
    def mode(path: Path) -> int:
        return path.stat().st_mode & 0o777

    root = tmp_path / "new" / "data"
    DirectoryFiles().make_root(str(root / "logs"))
    assert (mode(root), mode(root / "logs")) == (0o750, 0o750)
    # As an earlier version left it; what the group may do is its owner's choice.
    root.chmod(0o775)
    DirectoryFiles().make_root(str(root / "logs"))
    assert mode(root) == 0o770
    # Where somebody made it for us, it stays as it was made.
    (tmp_path / "given").mkdir(0o755)
    DirectoryFiles().make_root(str(tmp_path / "given" / "logs"))
    assert (mode(tmp_path / "given"), mode(tmp_path / "given" / "logs")) == (0o755, 0o750)
