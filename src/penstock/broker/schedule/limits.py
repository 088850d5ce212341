"""How much a schedule takes at once, and how long it waits before it looks again."""

from __future__ import annotations

import msgspec


class ScheduleLimits(msgspec.Struct, frozen=True, kw_only=True):
    # New entries in memory before they are written.
    spill_bytes: int = 1024 * 1024
    # Taken from the machine at once: some milliseconds.
    spill_bytes_at_once: int = 256 * 1024
    # Of a read that does not work just now, ten seconds in all; the machine is built anew then.
    read_attempts_max: int = 20
    read_again_ms: int = 500
    # Messages of one intent that are in memory together.
    portion_bytes: int = 8 * 1024 * 1024
    # If they are larger than rows are on average, which is all that is known before.
    portion_bytes_max: int = 32 * 1024 * 1024
