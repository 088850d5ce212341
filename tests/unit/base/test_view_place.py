from __future__ import annotations

import pytest

from penstock.base.view_place import place_in_buffer


def test_a_view_is_found_where_it_begins() -> None:
    buffer = bytearray(range(200))
    view = memoryview(buffer)
    for start, end in ((0, 200), (0, 1), (7, 50), (199, 200)):
        placed = place_in_buffer(view[start:end])
        assert placed is not None
        assert placed[0] is buffer
        assert placed[1] == start
    placed = place_in_buffer(view[10:100][5:20])
    assert placed is not None
    assert placed[1] == 15


def test_what_is_no_bytearray_has_no_place() -> None:
    assert place_in_buffer(memoryview(b"bytes")) is None
    assert place_in_buffer(memoryview(bytearray(5)).toreadonly()) is None
    assert place_in_buffer(memoryview(bytearray(5))[3:3]) is None


def test_a_view_that_leaves_bytes_out_is_refused() -> None:
    with pytest.raises(TypeError):
        place_in_buffer(memoryview(bytearray(10))[::2])


def test_the_buffer_can_grow_afterwards() -> None:
    buffer = bytearray(10)
    with memoryview(buffer) as view:
        place_in_buffer(view)
    buffer.extend(b"more")
