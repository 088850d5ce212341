"""A command that waits says so: one line on standard error, two seconds after it fell silent."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import msgspec

from penstock.base import slow_waits


@contextmanager
def waits_told(*, as_json: bool) -> Iterator[None]:
    with _own_standard_error() as stream:

        def tell(sentence: str) -> None:
            text = msgspec.json.encode({"waiting": sentence}).decode() if as_json else f"penstock: {sentence}"
            # Whoever read our standard error may have gone; the command itself may still be wanted.
            with suppress(OSError):
                stream.write(text + "\n")
                stream.flush()

        slow_waits.listen(tell)
        try:
            yield
        finally:
            slow_waits.listen(None)


@contextmanager
def _own_standard_error() -> Iterator[TextIO]:
    """By a descriptor of its own: while Spark starts, the usual one leads elsewhere."""
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (OSError, io.UnsupportedOperation):
        # It has none: a test's.
        yield sys.stderr
        return
    with os.fdopen(descriptor, "w") as stream:
        yield stream
