"""Bytes and plain values read as a type, by any thread.

msgspec learns a class when it is first read by, and leaves the half-learned facts where the next reader finds them.
Two threads that read by one class for the first time at once therefore end the process with SIGSEGV: logs are opened
by several threads, and a start in a hundred died so. Here each type is learned once, by one thread at a time.

A `Decoder` that a module makes when it is loaded is as good: that is over before there are threads. What must not be is
`decode(…, type=…)`, `convert` or a new `Decoder` inside a function; tests/test_tidy.py finds them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

# Asked for each type of the program once: a few dozen.
_learning: Final = threading.Lock()
_json_decoders: Final[dict[object, msgspec.json.Decoder[Any]]] = {}


def read_json(data: bytes | str, kind: type[T], *, dec_hook: Callable[[type, Any], Any] | None = None) -> T:
    decoded: T = _decoder(kind, dec_hook).decode(data)
    return decoded


def convert(
    value: object, kind: type[T], *, strict: bool = True, dec_hook: Callable[[type, Any], Any] | None = None
) -> T:
    _decoder(kind, dec_hook)
    return msgspec.convert(value, kind, strict=strict, dec_hook=dec_hook)


def _decoder(kind: type[T], dec_hook: Callable[[type, Any], Any] | None) -> msgspec.json.Decoder[T]:
    key = (kind, dec_hook)
    found = _json_decoders.get(key)
    if found is None:
        with _learning:
            # Another thread may have made one meanwhile; a second one does no harm, its class is learned by now.
            found = _json_decoders[key] = msgspec.json.Decoder(kind, dec_hook=dec_hook)
    return found
