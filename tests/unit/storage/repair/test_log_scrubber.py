from __future__ import annotations

from pathlib import Path

import pytest

from penstock.storage.config import DAY_MS, LogConfig, StorageConfig
from penstock.storage.errors import Damaged
from penstock.storage.files.directory import DirectoryFiles
from penstock.storage.repair.scrubber import LogScrubber
from support.storage.faulty_files import FaultyFiles, SimulatedCrash
from support.storage.log_desk import LogDesk

SETTINGS = StorageConfig(free_bytes_min=0, sync_threads=1, scrub_bytes_per_second=1_000_000)


class ScrubbedDesk(LogDesk):
    def __init__(self, files: FaultyFiles | DirectoryFiles | None = None, root: str = "/data") -> None:
        super().__init__(files, root, settings=SETTINGS, config=LogConfig(segment_bytes=400))
        self.slept_seconds = 0.0
        self.nap_ms = 1
        # Until the machine dies; negative: it does not.
        self.naps_left = -1
        self.batches = [self.append(bytes([65 + place]) * 100) for place in range(6)]
        self.sync()
        self.scrubber = LogScrubber(self.store, self.clock, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        if self.naps_left == 0:
            raise SimulatedCrash
        self.naps_left -= 1
        self.slept_seconds += seconds
        self.clock.advance_ms(int(seconds * 1000) + self.nap_ms)

    async def scrub(self) -> int | None:
        """The pass that is due a day after the first start."""
        assert await self.scrubber.run() is None
        self.clock.advance_ms(DAY_MS)
        return await self.scrubber.run()

    @property
    def disk(self) -> FaultyFiles:
        assert isinstance(self.files, FaultyFiles)
        return self.files


async def test_rot_under_what_memory_serves_is_found() -> None:
    desk = ScrubbedDesk()
    segment = desk.log.segments[0]
    assert desk.read(0).startswith(desk.batches[0])
    desk.disk.flip_bit(segment.path, (len(desk.batches[0]) + 70) * 8)
    assert await desk.scrub() == sum(map(len, desk.batches))
    assert [(place.offset, place.offset_end) for place in desk.log.damages.places] == [(1, 2)]
    assert isinstance(desk.log.plan_read(1, bytes_max=1), Damaged)
    assert desk.read(0) == desk.batches[0]
    assert desk.metric("penstock_scrub_bytes_total") >= sum(map(len, desk.batches))


async def test_rot_that_memory_has_not_seen_is_written_anew() -> None:
    desk = ScrubbedDesk()
    segment = desk.log.segments[0]
    desk.disk.rot(segment.path, 70 * 8)
    await desk.scrub()
    assert desk.log.damage is None
    assert desk.metric("penstock_scrub_mended_total") == 1
    assert desk.disk.open_uncached(segment.path).read_at(0, len(desk.batches[0])) == desk.batches[0]


async def test_what_is_readable_of_the_last_segment_is_read_too() -> None:
    desk = ScrubbedDesk()
    desk.disk.flip_bit(desk.log.segments[-1].path, 70 * 8)
    await desk.scrub()
    assert desk.log.damage is not None
    assert desk.log.damage.segment_base_offset == desk.log.segments[-1].base_offset


async def test_scrubber_is_slow_and_begins_once_an_interval() -> None:
    desk = ScrubbedDesk()
    read_bytes = await desk.scrub()
    assert read_bytes is not None
    # Half a second of a burst is allowed.
    assert desk.slept_seconds >= read_bytes / SETTINGS.scrub_bytes_per_second - 0.5
    assert await desk.scrubber.run() is None
    desk.clock.advance_ms(DAY_MS)
    assert await desk.scrubber.run() == read_bytes


async def test_pass_goes_on_after_a_crash_where_it_was() -> None:
    desk = ScrubbedDesk()
    # So long that the progress is saved after every segment.
    desk.nap_ms = 61_000
    desk.naps_left = 2
    with pytest.raises(SimulatedCrash):
        await desk.scrub()
    first_bytes = desk.metric("penstock_scrub_bytes_total")
    assert 0 < first_bytes < sum(map(len, desk.batches))
    desk.restart(clean=False)
    desk.naps_left = -1
    again = LogScrubber(desk.store, desk.clock, sleep=desk.sleep)
    assert await again.run() == sum(map(len, desk.batches))
    assert desk.metric("penstock_scrub_bytes_total") < sum(map(len, desk.batches))
    assert await again.run() is None


async def test_no_setting_no_scrubbing() -> None:
    desk = LogDesk(settings=StorageConfig(free_bytes_min=0, scrub_bytes_per_second=0))
    scrubber = LogScrubber(desk.store, desk.clock)
    desk.clock.advance_ms(2 * DAY_MS)
    assert await scrubber.run() is None


def test_read_past_the_cache_gives_the_same_bytes_wherever_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = bytes(place % 251 for place in range(3_000_000))
    path.write_bytes(data)
    file = DirectoryFiles().open_uncached(str(path))
    for position, size in ((0, 1), (0, 4096), (1, 4096), (4095, 2), (8192, 1 << 20), (77, 2_000_000), (2_999_990, 500)):
        assert file.read_at(position, size) == data[position : position + size]
    assert file.read_at(3_000_000, 10) == b""
