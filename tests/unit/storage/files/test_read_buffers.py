"""Buffers are used again when nobody can see them any more, and never before."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.storage.files.buffers import KEPT_BYTES_MAX, SIZE_BYTES_MAX, SIZE_BYTES_MIN, ReadBuffers

SIZE = 100_000


def test_a_buffer_that_nobody_looks_at_is_used_again() -> None:
    buffers = ReadBuffers()
    first = buffers.take(SIZE)
    memory = id(first.obj)
    del first
    assert id(buffers.take(SIZE).obj) == memory


def test_a_slice_of_a_slice_keeps_its_buffer() -> None:
    buffers = ReadBuffers()
    view = buffers.take(SIZE)
    view[:4] = b"kept"
    part = memoryview(view)[:10][:4]
    del view
    for _ in range(3):
        buffers.take(SIZE)[:4] = b"lost"
    assert bytes(part) == b"kept"


def test_small_and_huge_reads_are_not_kept() -> None:
    buffers = ReadBuffers()
    for size in (0, 1, SIZE_BYTES_MIN - 1, SIZE_BYTES_MAX + 1):
        view = buffers.take(size)
        assert len(view) == size
        assert view.nbytes == len(view.obj)


def test_so_much_is_kept_and_no_more() -> None:
    buffers = ReadBuffers()
    views = [buffers.take(SIZE_BYTES_MAX) for _ in range(KEPT_BYTES_MAX // SIZE_BYTES_MAX + 3)]
    memories = [id(view.obj) for view in views]
    assert len(set(memories)) == len(memories)
    del views
    again = [buffers.take(SIZE_BYTES_MAX) for _ in range(KEPT_BYTES_MAX // SIZE_BYTES_MAX)]
    assert [id(view.obj) for view in again] == memories[: len(again)]


def test_threads_share_no_buffer() -> None:
    buffers = ReadBuffers()
    memory = id(buffers.take(SIZE).obj)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: id(buffers.take(SIZE).obj)).result(10) != memory
    assert id(buffers.take(SIZE).obj) == memory


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(SIZE_BYTES_MIN, 4 * SIZE_BYTES_MIN), st.integers(0, 5)), max_size=60))
def test_nothing_that_is_held_is_ever_overwritten(steps: list[tuple[int, int]]) -> None:
    buffers = ReadBuffers()
    held: dict[int, tuple[memoryview, bytes]] = {}
    for number, (size, slot) in enumerate(steps):
        view = buffers.take(size)
        mark = number.to_bytes(4, "big")
        view[:4] = view[-4:] = mark
        held[slot] = (view[:], mark)
        del view
        gc.collect(0)
        for part, expected in held.values():
            assert bytes(part[:4]) == bytes(part[-4:]) == expected
