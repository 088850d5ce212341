from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.broker.machine.portions import (
    SLICE_BYTES,
    Batches,
    Slice,
    UnreadableRecordsError,
    read_slices,
    readable_rows_of,
    rows_of,
)
from penstock.broker.partition.outcome import Appended
from penstock.codec.batch.header import HEADER_BYTES, walk_headers
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.columns.frame import VECTORED_ROWS_MIN
from support.group.shell_world import ShellWorld

# Four of them are a slice.
VALUE_BYTES = SLICE_BYTES // 4


def offsets_in(_loaded: memoryview, batches: Batches) -> list[int]:
    return [header.base_offset for _, header in batches]


def world_with(count: int) -> ShellWorld:
    """Batches of two records each, all of them readable at once."""
    world = ShellWorld(topic_settings={"durability": "interval"})
    for number in range(count):
        records = [Record(value=bytes(VALUE_BYTES // 2), key=b"%d" % number) for _ in range(2)]
        outcome = world.partition.append(memoryview(build_batch(records)))
        assert isinstance(outcome, Appended), outcome
    return world


async def slices(
    world: ShellWorld, offset: int, *, bytes_max: int = 1 << 40, end: int | None = None
) -> list[Slice[list[int]]]:
    with ThreadPoolExecutor(1) as readers:
        found = read_slices(world.partition, offset, offsets_in, readers=readers, bytes_max=bytes_max, end=end)
        return [each async for each in found]


async def test_a_look_goes_on_to_the_end_slice_by_slice() -> None:
    world = world_with(10)
    found = await slices(world, 0)
    assert len(found) > 2
    assert [offset for each in found for offset in each.seen] == list(range(0, 20, 2))
    assert found[-1].next_offset == 20
    assert sum(each.size_bytes for each in found) == world.partition.size_bytes


async def test_a_look_begins_with_the_batch_that_holds_the_offset() -> None:
    world = world_with(3)
    assert [each.seen for each in await slices(world, 3)] == [[2, 4]]


async def test_an_end_inside_a_batch_is_reached() -> None:
    """The batch before the end is looked at although it reaches over it: what is wanted may lie in its first half."""
    world = world_with(10)
    found = await slices(world, 0, end=19)
    assert found[-1].next_offset == 20
    assert await slices(world, 4, end=4) == []


async def test_a_look_is_bounded_by_bytes() -> None:
    world = world_with(10)
    (one,) = await slices(world, 0, bytes_max=1)
    assert 0 < one.size_bytes <= SLICE_BYTES


async def test_a_look_ends_quietly_where_nothing_can_be_read() -> None:
    world = world_with(1)
    assert await slices(world, 2) == []
    assert await slices(world, 99) == []


async def test_a_look_works_in_the_threads_it_was_given() -> None:
    world = world_with(1)
    names: list[str] = []

    def look(_loaded: memoryview, _batches: Batches) -> None:
        names.append(threading.current_thread().name)

    with ThreadPoolExecutor(1, thread_name_prefix="own") as readers:
        async for _ in read_slices(world.partition, 0, look, readers=readers, bytes_max=1):
            pass
    assert names == ["own_0"]


def data_of(batch_count: int) -> memoryview:
    """Batches of ten rows, every third of which is a tombstone."""
    batches = [
        build_batch(
            [Record(value=None if place % 3 == 0 else b"%d" % place, key=b"k%d" % place) for place in range(10)],
            base_offset=first,
        )
        for first in range(0, 10 * batch_count, 10)
    ]
    return memoryview(b"".join(batches))


@pytest.mark.parametrize("batch_count", [1, VECTORED_ROWS_MIN // 10 + 1])
def test_rows_are_the_same_however_many_they_are(batch_count: int) -> None:
    data = data_of(batch_count)
    assert rows_of(data, list(walk_headers(data))) == [
        (offset, b"k%d" % (offset % 10), None if offset % 10 % 3 == 0 else b"%d" % (offset % 10))
        for offset in range(10 * batch_count)
    ]


@pytest.mark.parametrize("batch_count", [2, VECTORED_ROWS_MIN // 10 + 2])
def test_what_cannot_be_read_is_an_error_or_left_out(batch_count: int) -> None:
    whole = data_of(batch_count)
    batches = list(walk_headers(whole))
    position, _ = batches[1]
    broken = bytearray(whole)
    # The length of its first record says more than there is.
    broken[position + HEADER_BYTES] = 0xFE
    broken[position + HEADER_BYTES + 1] = 0x7F
    data = memoryview(broken)
    with pytest.raises(UnreadableRecordsError):
        rows_of(data, batches)
    kept = [offset for offset, _, _ in readable_rows_of(data, batches)]
    assert kept == [offset for offset in range(10 * batch_count) if not 10 <= offset < 20]
