"""Messages that every client must carry there and back unchanged, the awkward ones first."""

from __future__ import annotations

from typing import Final

import msgspec

COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
# A fixed day: conformance is about what is stored, not about when the test ran.
FIRST_TIMESTAMP_MS: Final = 1_700_000_000_000

Header = tuple[str, bytes | None]


class Message(msgspec.Struct, frozen=True):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[Header, ...] = ()


def samples(count: int = 300) -> list[Message]:
    """Awkward messages, then plain ones that compress well. Timestamps one second apart."""
    awkward: list[tuple[bytes | None, bytes | None, tuple[Header, ...]]] = [
        (None, b"no key", ()),
        (b"no value", None, ()),
        (b"", b"", ()),
        (b"binary", bytes(range(256)), ()),
        (b"header", b"one", (("name", b"value"),)),
        (
            b"headers",
            b"many",
            (("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None), ("bytes", b"\x00\xff")),
        ),
        ("schlüssel".encode(), "naïve 数据".encode(), (("ключ", "värde".encode()),)),
        (b"long", b"x" * 20_000, ()),
    ]
    plain = [
        (f"key-{number % 7}".encode(), f'{{"number": {number}, "text": "{"water " * 8}"}}'.encode(), ())
        for number in range(count - len(awkward))
    ]
    return [
        Message(key, value, FIRST_TIMESTAMP_MS + 1_000 * position, headers)
        for position, (key, value, headers) in enumerate([*awkward, *plain][:count])
    ]
