"""Headers that say when a message is to be delivered, and what becomes of them when it is.

    penstock-delay-ms       so long after it has come        ──► penstock-origin-delay-ms
    penstock-deliver-at     at that time, in epoch ms        ──► penstock-origin-deliver-at
                                                             ──► penstock-scheduled-at: when it came

They are renamed at the release, so that a mirror that copies the message does not delay it once more. A released
message is dated with its due time; when it was written is in a header.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

DELAY_HEADER: Final = "penstock-delay-ms"
DELIVER_AT_HEADER: Final = "penstock-deliver-at"
KEPT_DELAY_HEADER: Final = "penstock-origin-delay-ms"
KEPT_DELIVER_AT_HEADER: Final = "penstock-origin-deliver-at"
SCHEDULED_AT_HEADER: Final = "penstock-scheduled-at"
WRITTEN_AT_HEADER: Final = "penstock-origin-timestamp"
MESSAGE_ID_HEADER: Final = "penstock-message-id"
# What a batch is searched for before its records are looked at. Whole names: what they have in common stands in every
# dead letter, too.
SEARCHED_FOR: Final = (DELAY_HEADER.encode(), DELIVER_AT_HEADER.encode())

# A signed 64-bit number of milliseconds has 19 digits; times are added to it.
_MILLISECONDS_MAX: Final = 2**62
_DIGITS_MAX: Final = 19
_RENAMED: Final = {DELAY_HEADER: KEPT_DELAY_HEADER, DELIVER_AT_HEADER: KEPT_DELIVER_AT_HEADER}
# Of an earlier delay, if it was copied and delayed again.
_OURS: Final = frozenset({SCHEDULED_AT_HEADER, WRITTEN_AT_HEADER, KEPT_DELAY_HEADER, KEPT_DELIVER_AT_HEADER})

Header = tuple[str, bytes | None]


class BadDelivery(msgspec.Struct, frozen=True):
    """A header that says nothing: the message must be refused, for nobody knows when it is wanted."""

    header: str
    detail: str


def due_of(headers: Iterable[Header], arrived_ms: int) -> int | BadDelivery | None:
    """When the message is due. None: it is not delayed, or was due already when it came.

    With both headers the later time counts, and so it does if one is there twice: never too early.
    """
    due_ms = arrived_ms
    for name, value in headers:
        if name not in _RENAMED:
            continue
        number = _number(value)
        if number is None:
            return BadDelivery(name, f"{value!r:.60} is no number of milliseconds")
        due_ms = max(due_ms, arrived_ms + number if name == DELAY_HEADER else number)
    return due_ms if due_ms > arrived_ms else None


def _number(value: bytes | None) -> int | None:
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        return None
    number = int(value)
    return number if number <= _MILLISECONDS_MAX else None


def released_headers(
    headers: Iterable[Header], *, message_id: str, arrived_ms: int, written_ms: int
) -> tuple[Header, ...]:
    """A message's headers as they are when it is released. A copy that was delayed keeps the id of its original."""
    own = [(_RENAMED.get(name, name), value) for name, value in headers if name not in _OURS]
    times = ((SCHEDULED_AT_HEADER, b"%d" % arrived_ms), (WRITTEN_AT_HEADER, b"%d" % written_ms))
    if any(name == MESSAGE_ID_HEADER for name, _value in own):
        return (*own, *times)
    return (*own, *times, (MESSAGE_ID_HEADER, message_id.encode()))
