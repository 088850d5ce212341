"""How an append ended: where the batch lies, or why it was refused.

Expected outcomes are values. A door maps each `Refusal` to its own protocol's error, in one table.
"""

from __future__ import annotations

import enum

import msgspec

from penstock.storage.group_commit import Turn


class Refusal(enum.Enum):
    CORRUPT = "corrupt"
    INVALID = "invalid"
    UNSUPPORTED_CODEC = "unsupported codec"
    NOT_TRANSACTIONAL = "not transactional"
    TOO_LARGE = "too large"
    BAD_TIMESTAMP = "bad timestamp"
    OUT_OF_ORDER_SEQUENCE = "out of order sequence"
    DUPLICATE_SEQUENCE = "duplicate sequence"
    PRODUCER_FENCED = "producer fenced"
    DISK_FULL = "disk full"
    OFFLINE = "offline"


class Appended(msgspec.Struct, frozen=True, gc=False):
    base_offset: int
    # -1 unless the topic dates records itself.
    log_append_time_ms: int
    log_start: int
    # The turn of the disk that the acknowledgement waits for; none where the topic promises less.
    turn: Turn | None


class AppendRefused(msgspec.Struct, frozen=True):
    refusal: Refusal
    # What, which and how much: shown to the client where its protocol has a field for it.
    reason: str
