"""The cleaner on a real loop, with a thread: what is cleaned, what is not, and how it is stopped and held back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.base.clock import ManualClock, SystemClock
from penstock.codec.batch.header import BatchHeader, read_header, walk_headers
from penstock.codec.batch.records import Record, StoredRecord, build_batch, read_records
from penstock.domain.log.compaction import CompactionRules
from penstock.storage.cleaner.chunks import CHUNK_BYTES
from penstock.storage.cleaner.key_offsets import KEY_BYTES_MAX, KeyOffsets
from penstock.storage.cleaner.log_cleaner import LogCleaner
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.files import DirectoryFiles
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.segment.throttle import CleaningStopped, Throttle
from penstock.storage.store import LogStore

ALWAYS = CompactionRules(min_cleanable_dirty_ratio=0.0)
TOPIC_ID = bytes(16)


class Desk:
    """One log in a directory, and a cleaner for it."""

    def __init__(self, root: Path, rules: CompactionRules | None = ALWAYS, **settings: int) -> None:
        self.root = root
        self.settings = StorageConfig(
            **{"free_bytes_min": 0, "cleaner_bytes_per_second": 1 << 40, **settings}  # type: ignore[arg-type]
        )
        self.config = LogConfig(segment_bytes=4_000, retention_ms=-1, compaction=rules)
        self.store: LogStore
        self.log: PartitionLog
        self.open()

    def open(self) -> None:
        self.store = LogStore.open(DirectoryFiles(), str(self.root), self.settings, SystemClock())
        self.log = self.store.open_log("topic", TOPIC_ID, 0, self.config)
        self.cleaner = LogCleaner(self.store, SystemClock(), seeds=(1, 2))

    def append(self, *records: tuple[bytes | None, bytes | None]) -> None:
        batch = build_batch([Record(value, key=key, timestamp_ms=1) for key, value in records])
        self.append_batch(batch)

    def append_batch(self, batch: bytearray) -> None:
        header = read_header(batch)
        assert isinstance(header, BatchHeader)
        batch[:8] = self.log.log_end.to_bytes(8, "big")
        header = read_header(batch)
        assert isinstance(header, BatchHeader)
        self.log.append(memoryview(batch), [header])

    def fill(self, count: int, keys: int) -> None:
        for number in range(count):
            self.append((b"key-%d" % (number % keys), b"value-%d" % number))

    def save(self) -> None:
        """Everything is readable, sealed and saved."""
        self.log.roll()
        self.store.checkpoint_now(every_log=True)
        self.log.advance_readable(self.log.log_end)

    def records(self) -> list[StoredRecord]:
        found: list[StoredRecord] = []
        offset = self.log.log_start
        while offset < self.log.readable_end:
            plan = self.log.plan_read(offset, bytes_max=1 << 20)
            assert isinstance(plan, ReadPlan)
            data = plan.load()
            assert isinstance(data, memoryview)
            for position, header in walk_headers(data):
                records = read_records(data, position)
                assert isinstance(records, list)
                found += records
                offset = header.next_offset
        return found

    def names(self) -> list[str]:
        return sorted(path.name for path in Path(self.log.home.directory).iterdir())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    with contextlib.suppress(Exception):
        desk.store.close()


async def test_last_value_of_each_key_is_left_and_offsets_stay(desk: Desk) -> None:
    desk.fill(500, keys=7)
    desk.save()
    size_bytes = desk.log.size_bytes
    report = await desk.cleaner.run()
    assert report is not None
    assert report.end_offset == 500
    expected = [(number, b"key-%d" % (number % 7), b"value-%d" % number) for number in range(493, 500)]
    assert [(record.offset, record.key, record.value) for record in desk.records()] == expected
    assert desk.log.record_count == 7
    assert desk.log.size_bytes == size_bytes - report.saved_bytes
    assert len(desk.log.segments) < 4


async def test_cleaned_log_is_the_same_after_a_clean_start_and_after_a_crash(desk: Desk) -> None:
    desk.fill(500, keys=7)
    desk.save()
    await desk.cleaner.run()
    before = desk.records()
    desk.store.close(clean=False)
    desk.open()
    assert desk.log.damage is None
    assert (desk.records(), desk.log.clean_end) == (before, 500)
    desk.store.checkpoint_now(every_log=True)
    desk.store.close()
    desk.open()
    assert desk.store.statistics.scanned_bytes == 0
    assert desk.records() == before
    assert not any(name.endswith(".cleaned") for name in desk.names())


async def test_clean_log_is_not_cleaned_again_until_it_is_dirty_and_saved(desk: Desk) -> None:
    desk.fill(300, keys=3)
    desk.save()
    assert await desk.cleaner.run() is not None
    assert await desk.cleaner.run() is None
    desk.fill(300, keys=3)
    desk.log.roll()
    assert await desk.cleaner.run() is None, "not durable, not readable, not saved"
    desk.save()
    report = await desk.cleaner.run()
    assert report is not None
    assert [record.offset for record in desk.records()] == [597, 598, 599]


async def test_log_below_its_dirty_share_waits(tmp_path: Path) -> None:
    desk = Desk(tmp_path, CompactionRules(min_cleanable_dirty_ratio=0.9))
    desk.fill(200, keys=200)
    desk.save()
    assert await desk.cleaner.run() is not None
    desk.fill(100, keys=100)
    desk.save()
    assert await desk.cleaner.run() is None
    desk.store.close()


async def test_log_of_another_policy_is_left_alone(tmp_path: Path) -> None:
    desk = Desk(tmp_path, None)
    desk.fill(300, keys=3)
    desk.save()
    assert await desk.cleaner.run() is None
    desk.store.close()


async def test_keys_that_do_not_fit_the_memory_are_cleaned_in_several_passes(tmp_path: Path) -> None:
    desk = Desk(tmp_path, cleaner_map_bytes=40 * KEY_BYTES_MAX)
    for _ in range(8):
        desk.append(*[(b"key-%d" % number, bytes(CHUNK_BYTES // 400)) for number in range(300)])
    desk.save()
    ends = []
    while (report := await desk.cleaner.run()) is not None:
        ends.append(report.end_offset)
        desk.store.checkpoint_now(every_log=True)
    assert len(ends) > 1
    assert ends == sorted(set(ends))
    assert [record.offset for record in desk.records()] == list(range(2_100, 2_400))
    desk.store.close()


async def test_damage_is_told_and_nothing_is_changed(desk: Desk) -> None:
    desk.fill(300, keys=3)
    desk.save()
    names = desk.names()
    file = DirectoryFiles().open(desk.log.segments[1].path)
    file.write_at(bytes([file.read_at(100, 1)[0] ^ 1]), 100)
    assert await desk.cleaner.run() is None
    assert desk.log.damage is not None
    assert desk.log.damage.segment_base_offset == desk.log.segments[1].base_offset
    assert [name for name in desk.names() if name != "damage"] == names


async def test_log_is_cleaned_below_its_damage(desk: Desk) -> None:
    desk.fill(300, keys=3)
    desk.save()
    place = len(desk.log.segments) // 2
    damaged = desk.log.segments[place]
    file = DirectoryFiles().open(damaged.path)
    file.write_at(bytes([file.read_at(100, 1)[0] ^ 1]), 100)
    content = file.read_at(0, file.size())
    assert await desk.cleaner.run() is None
    report = await desk.cleaner.run()
    assert report is not None
    assert report.end_offset == damaged.base_offset
    assert damaged in desk.log.segments
    assert file.read_at(0, file.size()) == content


async def test_what_cannot_be_read_is_left_as_it_is(desk: Desk) -> None:
    strange = build_batch([Record(b"v" * 50, key=b"key-0")])
    strange[70] = 0xFF  # the record's sizes make no sense any more; the checksum is made to fit
    header = read_header(strange)
    assert isinstance(header, BatchHeader)
    strange = _sealed(strange)
    desk.append_batch(strange)
    desk.fill(300, keys=3)
    desk.save()
    assert await desk.cleaner.run() is not None
    plan = desk.log.plan_read(0, bytes_max=1)
    assert isinstance(plan, ReadPlan)
    assert bytes(plan.load())[8:] == bytes(strange)[8:]  # type: ignore[arg-type]


async def test_read_that_was_planned_before_the_swap_finds_what_was_there(desk: Desk) -> None:
    desk.fill(300, keys=3)
    desk.save()
    plans = [desk.log.plan_read(offset, bytes_max=1) for offset in range(0, 300, 10)]
    assert await desk.cleaner.run() is not None
    for offset, plan in zip(range(0, 300, 10), plans, strict=True):
        assert isinstance(plan, ReadPlan)
        data = plan.load()
        assert isinstance(data, memoryview)
        (record,) = read_records(data)
        assert (record.offset, record.value) == (offset, b"value-%d" % offset)


async def test_cancelled_cleaning_stops_its_thread_and_leaves_nothing_behind(desk: Desk) -> None:
    desk.fill(2_000, keys=3)
    desk.save()
    names, before = desk.names(), desk.records()
    entered, go_on = threading.Event(), threading.Event()

    def sleep(_seconds: float) -> None:
        entered.set()
        go_on.wait(10)

    cleaner = LogCleaner(desk.store, SystemClock(), seeds=(1, 2), sleep=sleep)
    task = asyncio.get_running_loop().create_task(cleaner.run())
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done(), "it waits for its thread, which may be writing"
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (desk.names(), desk.records()) == (names, before)


async def test_full_disk_is_not_made_fuller(desk: Desk) -> None:
    desk.fill(300, keys=3)
    desk.save()
    desk.store.context.is_full = True
    assert await desk.cleaner.run() is None
    desk.store.context.is_full = False
    assert await desk.cleaner.run() is not None


# The parts


def test_throttle_keeps_to_its_speed() -> None:
    clock = ManualClock()
    slept: list[float] = []
    throttle = Throttle(clock, _moves(clock, slept), bytes_per_second=1_000)
    for _ in range(20):
        throttle.take(100)
    # 2,000 bytes take two seconds, of which half a one was saved up.
    assert 1.49 <= sum(slept) <= 1.6
    assert max(slept) <= 0.1


def test_throttle_saves_up_no_more_than_half_a_second() -> None:
    clock = ManualClock()
    slept: list[float] = []
    throttle = Throttle(clock, _moves(clock, slept), bytes_per_second=1_000)
    throttle.take(1)
    clock.advance_ms(3_600_000)
    throttle.take(1_500)
    assert 0.99 <= sum(slept) <= 1.1


def test_stopped_throttle_stops_its_thread() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, _moves(clock, []), bytes_per_second=1_000)
    throttle.stop()
    with pytest.raises(CleaningStopped):
        throttle.take(1)
    throttle.resume()
    throttle.take(1)


def test_map_knows_the_last_offset_of_each_key() -> None:
    import polars as pl

    latest = KeyOffsets(bytes_max=1 << 30, seeds=(3, 4))
    expected: dict[bytes, int] = {}
    for start in range(0, 60_000, 20_000):
        keys = [b"%d" % (number * number % 7_919) for number in range(start, start + 20_000)]
        expected.update(zip(keys, range(start, start + 20_000), strict=True))
        latest.add(pl.Series(keys, dtype=pl.Binary), pl.int_range(start, start + 20_000, eager=True))
        assert not latest.is_full
    latest.seal()
    asked = [*expected, b"nobody", b""]
    found = latest.latest(pl.Series(asked, dtype=pl.Binary)).to_list()
    assert found == [*expected.values(), None, None]


def test_map_is_full_by_its_keys_not_by_what_passes_through() -> None:
    import polars as pl

    latest = KeyOffsets(bytes_max=100 * KEY_BYTES_MAX, seeds=(3, 4))
    few = pl.Series([b"%d" % (number % 99) for number in range(10_000)], dtype=pl.Binary)
    latest.add(few, pl.int_range(10_000, eager=True))
    assert not latest.is_full
    latest.add(pl.Series([b"one more"], dtype=pl.Binary), pl.Series([10_000]))
    assert latest.is_full


def test_map_without_keys_knows_nothing() -> None:
    import polars as pl

    latest = KeyOffsets(bytes_max=100, seeds=(3, 4))
    latest.seal()
    assert latest.latest(pl.Series([b"a", b"b"], dtype=pl.Binary)).to_list() == [None, None]


def _moves(clock: ManualClock, slept: list[float]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance_ms(round(seconds * 1000))

    return sleep


def _sealed(batch: bytearray) -> bytearray:
    from penstock.base.checksum import crc32c

    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return batch
