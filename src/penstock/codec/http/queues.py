"""What the HTTP door tells of a queue: bodies that a node writes and a client reads."""

from __future__ import annotations

from typing import Literal

import msgspec

SettledText = Literal["done", "not-held", "finished", "failed"]


class PartitionStats(msgspec.Struct, frozen=True):
    partition: int
    is_paused: bool
    # Every message below it is finished.
    finished_below: int
    # Lane and offset: what is below has been looked at.
    cursors: list[tuple[int, int]]
    leased_count: int
    waiting_count: int
    blocked_count: int
    dying_count: int
    span_count: int
    # Name, and how many messages it holds.
    consumers: list[tuple[str, int]]


class QueueStats(msgspec.Struct, frozen=True):
    partitions: list[PartitionStats]
    backlog_count: int
    leased_count: int
    waiting_count: int
    blocked_count: int
    dying_count: int
    is_paused: bool
    # Of the topic: not in the queue before they are due.
    delayed_count: int = 0


class SettledReceipt(msgspec.Struct, frozen=True, omit_defaults=True):
    receipt: str
    # not-held: the lease ran out and somebody else has it. finished: it was settled before.
    outcome: SettledText
    error: str | None = None


class SettleReply(msgspec.Struct, frozen=True):
    results: list[SettledReceipt]
