"""Where a view begins in the buffer that it looks into.

Python tells whose bytes a view shows (`obj`), not from where on. Who knows it can search and slice the buffer itself:
a `memoryview` has no such methods, and its strided slices take ten times as long as those of a `bytearray`.
"""

from __future__ import annotations

import ctypes

_address = ctypes.addressof
_first_byte = ctypes.c_char.from_buffer


def place_in_buffer(view: memoryview) -> tuple[bytearray, int] | None:
    """The buffer, and where in it the first byte of the view stands. None: it is of another kind, or nothing is seen.
    The view's bytes follow one another: TypeError else."""
    buffer = view.obj
    if type(buffer) is not bytearray or not len(view) or view.readonly:
        return None
    return buffer, _address(_first_byte(view)) - _address(_first_byte(buffer))
