"""Zones of an internal log: found again after a restart, without reading what was read before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from penstock.broker.partition.deletion import delete_before
from penstock.broker.partition.outcome import Appended
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.trace import scan as trace_scan
from penstock.broker.trace.index import TraceIndex, TraceScans, Zone
from penstock.broker.trace.scan import ScanSizes
from penstock.codec.batch.records import Record, StoredRecord, build_batch
from penstock.domain.schedule.records import entry_key
from penstock.domain.trace.zones import BUCKET_BITS, NARROW, ScheduleZones
from penstock.storage.segment.zones import ZoneEntries
from support.door.conversation import PATIENCE_SECONDS
from support.queue.broker import QueueBroker

SEGMENT_BYTES = 64 * 1024
PADDING = b"x" * 200


class HeldReaders(ThreadPoolExecutor):
    """Threads in which something may happen before the work is done."""

    before: Callable[[Any], None] = staticmethod(lambda _: None)

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        def held() -> Any:
            self.before(work)
            return work(*arguments, **named)

        return super().submit(held)


class IndexDesk:
    """A log whose records are rows of a schedule: each speaks of one number."""

    def __init__(self, broker: QueueBroker) -> None:
        self.broker = broker

    @property
    def shell(self) -> PartitionShell:
        topic = self.broker.broker.topic("internal")
        assert topic is not None
        return topic.shells[0]

    async def write(self, *numbers: int) -> None:
        records = [Record(value=PADDING, key=entry_key(number)) for number in numbers]
        outcome = self.shell.append(memoryview(build_batch(records)))
        assert isinstance(outcome, Appended), outcome
        if outcome.commitment is not None:
            await outcome.commitment.kept()

    def index(self, scans: TraceScans | None = None) -> TraceIndex:
        return TraceIndex(self.shell, ScheduleZones, scans or self.scans())

    def scans(self, readers: Executor | None = None, **bounds: Any) -> TraceScans:
        """With small zones and slices: many of them in a small log."""
        sizes = ScanSizes(slice_bytes=10_000, zone_bytes=2_000, saved_bytes=20_000)
        return TraceScans(readers or self.broker.readers, sizes=sizes, **bounds)

    def side_files(self) -> list[str]:
        names = self.broker.files.list_directory(self.shell.log.home.directory)
        return [name for name in names if name.endswith(".zones")]


@pytest.fixture
async def desk() -> AsyncIterator[IndexDesk]:
    broker = QueueBroker()
    await broker.start()
    await broker.topic("internal", segment_bytes=str(SEGMENT_BYTES), durability="interval")
    yield IndexDesk(broker)
    await broker.stop()


def speaking_of(number: int) -> object:
    bucket = number >> BUCKET_BITS

    def look(entries: ZoneEntries) -> list[int]:
        return [zone for _, low, high, zone in entries.find(NARROW, NARROW, low_max=bucket) if high >= bucket]

    return look


async def offsets_of(index: TraceIndex, number: int) -> list[int]:
    """Of the records about a number, found by the index."""

    def keep(record: StoredRecord) -> int | None:
        return record.offset if record.key == entry_key(number) else None

    return await index.rows(await index.find(speaking_of(number)), keep)  # type: ignore[arg-type]


async def fill(desk: IndexDesk, count: int) -> dict[int, list[int]]:
    """Batches of some rows; every number is spoken of twice, once long after."""
    told: dict[int, list[int]] = {}
    for first in range(0, count, 10):
        numbers = [number * 64 for number in range(first, first + 9)]
        numbers.append(max(first - 300, 0) * 64)
        base = desk.shell.log.log_end
        await desk.write(*numbers)
        for place, number in enumerate(numbers):
            told.setdefault(number, []).append(base + place)
    return told


async def test_records_are_found_in_sealed_segments_and_in_the_active_one(desk: IndexDesk) -> None:
    told = await fill(desk, 1_000)
    assert len(desk.shell.log.segments) > 3
    index = desk.index()
    for number in (0, 64 * 11, 64 * 500, 64 * 998):
        assert await offsets_of(index, number) == told[number]
    assert len(desk.side_files()) >= len(desk.shell.log.segments) - 1
    # What comes later is found as well, and nothing is read twice for it.
    read_before = index._scans.read_bytes
    await desk.write(64 * 500)
    assert await offsets_of(index, 64 * 500) == [*told[64 * 500], desk.shell.log.log_end - 1]
    assert index._scans.read_bytes - read_before < 1_000


async def test_only_a_few_zones_are_read(desk: IndexDesk) -> None:
    await fill(desk, 2_000)
    index = desk.index()
    zones: list[Zone] = await index.find(speaking_of(64 * 701))  # type: ignore[arg-type]
    assert 1 <= len(zones) <= 4
    whole: list[Zone] = await index.find(lambda entries: range(len(entries.starts)))
    assert len(whole) > 100


async def test_a_restart_reads_side_files_and_the_rest_of_the_active_segment(desk: IndexDesk) -> None:
    told = await fill(desk, 1_000)
    await desk.index().find(lambda _: ())
    await desk.broker.restart()
    scans = desk.scans()
    index = desk.index(scans)
    assert await offsets_of(index, 64 * 500) == told[64 * 500]
    assert await offsets_of(index, 64 * 998) == told[64 * 998]
    assert scans.read_bytes <= 20_000 + 10_000


async def test_a_damaged_side_file_is_made_again(desk: IndexDesk) -> None:
    told = await fill(desk, 1_000)
    await desk.index().find(lambda _: ())
    for name in desk.side_files():
        file = desk.broker.files.open(f"{desk.shell.log.home.directory}/{name}")
        file.write_at(b"\x00" * 40, 60)
    scans = desk.scans()
    assert await offsets_of(desk.index(scans), 64 * 500) == told[64 * 500]
    assert scans.read_bytes > SEGMENT_BYTES


async def test_side_files_go_with_their_segments(desk: IndexDesk) -> None:
    told = await fill(desk, 1_000)
    index = desk.index()
    await index.find(lambda _: ())
    # Nothing goes that the last checkpoint does not know: a restart makes one.
    await desk.broker.restart()
    index = desk.index()
    below = desk.shell.log.segments[2].base_offset
    await delete_before(desk.shell, below)
    assert min(desk.side_files()) >= f"{below:020}"
    number = 64 * 2
    assert [offset for offset in told[number] if offset >= below] == await offsets_of(index, number)


async def test_memory_is_bounded_and_what_is_pushed_out_is_read_from_its_file(desk: IndexDesk) -> None:
    told = await fill(desk, 1_000)
    scans = desk.scans(memory_bytes_max=1)
    index = desk.index(scans)
    for number in (64 * 11, 64 * 500):
        assert await offsets_of(index, number) == told[number]
    assert len(scans._memory) == 1


async def test_in_the_background_a_sealed_segment_gets_its_file_and_a_small_log_is_left_alone(desk: IndexDesk) -> None:
    await desk.write(1)
    index = desk.index()
    await index.tend()
    assert desk.side_files() == []
    assert index._scans.read_bytes == 0
    await fill(desk, 1_000)
    await index.tend()
    assert len(desk.side_files()) == len(desk.shell.log.segments) - 1


async def test_records_without_the_wanted_bytes_are_not_looked_at(desk: IndexDesk) -> None:
    await desk.write(1, 2, 3, 4, 5, 6)
    index = desk.index()
    zones = await index.find(lambda entries: range(len(entries.starts)))
    seen: list[int] = []

    def keep(record: StoredRecord) -> None:
        seen.append(record.offset)

    await index.rows(zones, keep, holding=entry_key(2))
    assert seen == [1]


async def test_nothing_is_missed_while_a_segment_gets_its_file(
    desk: IndexDesk,
) -> None:
    await desk.write(0)
    readers = HeldReaders(max_workers=4)
    index = desk.index(desk.scans(readers))
    await index.find(lambda _: ())
    await fill(desk, 1_000)
    told = await offsets_of(index, 64 * 998)
    assert len(told) == 1
    asking, go_on, saving, answered = (threading.Event() for _ in range(4))

    def look(entries: ZoneEntries) -> list[int]:
        asking.set()
        go_on.wait(PATIENCE_SECONDS)
        return list(speaking_of(64 * 998)(entries))  # type: ignore[operator]

    def hold_save(work: Any) -> None:
        if getattr(work, "func", None) is trace_scan.save:
            saving.set()
            answered.wait(PATIENCE_SECONDS)

    readers.before = hold_save
    question = asyncio.create_task(index.find(look))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.to_thread(asking.wait, PATIENCE_SECONDS)
        # The segment that was active is full, and gets its file now.
        await fill(desk, 500)
        tending = asyncio.create_task(index.tend())
        while not saving.is_set() and not index._lock._waiters:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        go_on.set()
        zones = await question
        answered.set()
        await tending
    readers.shutdown()
    assert any(zone.start <= told[0] < zone.end for zone in zones)


async def test_an_answer_without_a_segment_whose_file_is_gone_says_so(desk: IndexDesk) -> None:
    told = await fill(desk, 1_000)
    index = desk.index(desk.scans(memory_bytes_max=1))
    await index.find(lambda _: ())
    for name in desk.side_files():
        desk.broker.files.remove(f"{desk.shell.log.home.directory}/{name}")
    assert await offsets_of(index, 64 * 500) != told[64 * 500]
    assert index.is_behind
    for _ in desk.shell.log.segments:
        found = await offsets_of(index, 64 * 500)
        if not index.is_behind:
            break
    assert found == told[64 * 500]


async def test_a_full_segment_whose_end_is_not_readable_yet_is_known_up_to_there(desk: IndexDesk) -> None:
    told = await fill(desk, 1_000)
    log = desk.shell.log
    segment = log.segments[1]
    readable_end = segment.next_offset - 10
    log.readable_end = readable_end
    index = desk.index()
    number = next(number for number, (first, *_) in told.items() if segment.base_offset <= first < readable_end - 10)
    assert await offsets_of(index, number) == [offset for offset in told[number] if offset < readable_end]


async def test_whoever_asks_too_early_is_told_what_is_known_by_then(desk: IndexDesk) -> None:
    told = await fill(desk, 1_000)
    scans = desk.scans(wait_seconds_max=-1.0)
    index = desk.index(scans)
    assert await offsets_of(index, 64 * 500) == []
    assert index.is_behind
    scans.wait_seconds_max = 15.0
    assert await offsets_of(index, 64 * 500) == told[64 * 500]
    assert not index.is_behind


async def test_memory_of_an_index_that_nobody_asks_any_more_is_free_for_others(desk: IndexDesk) -> None:
    """Or nothing would be looked through in advance any more, after enough topics were made and deleted."""
    scans = desk.scans()
    for number in range(100):
        await desk.write(number)
    index = desk.index(scans)
    assert await offsets_of(index, 7) == [7]
    assert scans.growing_bytes > 0
    index.forget()
    assert scans.growing_bytes == 0
    # Who still has it is answered, at nobody's expense.
    await desk.write(7)
    assert await offsets_of(index, 7) == [7, 100]
    index.forget()
    assert scans.growing_bytes == 0
