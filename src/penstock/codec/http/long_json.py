"""A long JSON text taken apart in steps, without reading it: the C decoder would hold the interpreter for all of it.

Only brackets, commas and strings are looked at. What is wrong otherwise with a piece is found by whoever decodes it: a
text that is not JSON falls into pieces of which one at least is none either.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final

# Marks between two yields: some ten microseconds.
_STEP_MARKS: Final = 64
# Looked through at once for the next mark: a text of blanks or digits has none.
_WINDOW_BYTES: Final = 64 * 1024
# Counted at once: as long as a hundred microseconds.
_COUNT_BYTES: Final = 256 * 1024
_MARK: Final = re.compile(rb'[\[\]{},"]')
# The decoder goes no deeper either.
DEPTH_MAX: Final = 1_000
_QUOTE, _COMMA, _BACKSLASH = b'",\\'
_OPENING, _CLOSING = b"[{", b"]}"


class TooManyError(Exception):
    """The text has more elements than may be."""


class NotJsonError(Exception):
    """The text ends in the middle, goes on behind its end, or into depths where nobody follows."""


def rough_count(data: bytes) -> Generator[None, None, int]:
    """At least as many values as the text has: commas and brackets inside strings count too."""
    count = 1
    for start in range(0, len(data), _COUNT_BYTES):
        end = start + _COUNT_BYTES
        count += data.count(b",", start, end) + data.count(b"[", start, end) + data.count(b"{", start, end)
        yield
    return count


def check_count(data: bytes, count_max: int) -> Generator[None, None, None]:
    """Raises TooManyError if there are more values than that."""
    if (yield from rough_count(data)) <= count_max:
        return
    count, depth = 1, 0
    for _position, mark in _marks(data, 0):
        if mark is None:
            yield
            continue
        depth += (mark in _OPENING) - (mark in _CLOSING)
        if depth > DEPTH_MAX:
            raise NotJsonError(f"nested in more than {DEPTH_MAX} levels")
        count += mark not in _CLOSING
        if count > count_max:
            raise TooManyError(f"more than {count_max} values")


def split_array(data: bytes, start: int, *, count_max: int) -> Generator[None, None, tuple[list[bytes], int]]:
    """The elements of the array whose bracket is just before `start`, as they are written, and where it ends."""
    elements: list[bytes] = []
    begin, depth = start, 0
    for position, mark in _marks(data, start):
        if mark is None:
            yield
        elif mark in _OPENING:
            depth += 1
        elif mark in _CLOSING and depth:
            depth -= 1
        elif depth == 0:
            elements.append(data[begin : position - 1])
            begin = position
            if mark != _COMMA:
                is_empty = len(elements) == 1 and not elements[0].strip()
                return [] if is_empty else elements, position
            if len(elements) >= count_max:
                raise TooManyError(f"more than {count_max} elements")
    raise NotJsonError("the text ends inside an array")


def _marks(data: bytes, position: int) -> Generator[tuple[int, int | None], None, None]:
    """Each mark outside of strings with the position behind it, and None where one may rest."""
    left = _STEP_MARKS
    while position < len(data):
        found = _MARK.search(data, position, position + _WINDOW_BYTES)
        left -= 1
        if found is None or left <= 0:
            left = _STEP_MARKS
            yield position, None
        if found is None:
            position += _WINDOW_BYTES
            continue
        position = found.end()
        mark = data[position - 1]
        if mark == _QUOTE:
            while True:
                end = data.find(b'"', position)
                if end < 0:
                    raise NotJsonError("the text ends inside a string")
                piece_is_open = data[end - 1] == _BACKSLASH and _is_escaped(data[position:end])
                position = end + 1
                if not piece_is_open:
                    break
                left -= 1
                if left <= 0:
                    left = _STEP_MARKS
                    yield position, None
        else:
            yield position, mark


def _is_escaped(piece: bytes) -> bool:
    """What follows the piece, if the piece begins outside of an escape."""
    return (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
