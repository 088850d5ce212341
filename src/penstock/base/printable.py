"""Text of strangers for a terminal: what would steer it is shown as `\\x1b`, everything else as it is.

Terminals obey control characters (C0, DEL, and C1 both alone and as UTF-8) and let some of Unicode turn text around. A
key, a value, a header, a name or an error of a broker may hold any of them.
"""

from __future__ import annotations

from typing import Final

_KEPT: Final = frozenset("\n\t")
# Marks that change the direction of what is read, and the two ends of lines that are not \n.
_TURNING: Final = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_STEERING: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *_TURNING, *range(0xD800, 0xE000))
    if chr(code) not in _KEPT
}
_STEERING_AND_LINES: Final = {**_STEERING, 0x09: "\\t", 0x0A: "\\n"}


def printable(text: str) -> str:
    """Lines stay lines."""
    return text if text.isprintable() else text.translate(_STEERING)


def printable_line(text: str) -> str:
    """One line, whatever it holds: nobody writes a second line of a log."""
    return text if text.isprintable() else text.translate(_STEERING_AND_LINES)


def printable_bytes(data: bytes) -> bytes:
    return printable(data.decode(errors="backslashreplace")).encode()
