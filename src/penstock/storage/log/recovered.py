"""What a recovery has read from a log's files; see `recovery`."""

from __future__ import annotations

import msgspec

from penstock.storage.errors import Damage
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.producers import LogProducers
from penstock.storage.log.readable_marks import Mark
from penstock.storage.log.swap import SegmentSwap
from penstock.storage.segment.facts import Segment


class RecoveredLog(msgspec.Struct):
    segments: list[Segment]
    log_start: int
    log_end: int
    producers: LogProducers
    epochs: LeaderEpochs
    damages: tuple[Damage, ...]
    # Where the log ended is not known: it takes nothing.
    lost_end: Damage | None
    # Where the checkpoint ends, and what was read past it: the next one has to save that.
    saved_end: int
    scanned_bytes: int
    scanned_batches: int
    torn_bytes: int
    # Of compaction: see `swap`.
    clean_end: int = 0
    swaps: tuple[SegmentSwap, ...] = ()
    tombstone_horizon: int = 0
    # Where it may be read up to, and what comes after; none: all of it is readable.
    marks: tuple[Mark, ...] = ()
