"""Leases under a new leader: each begins anew, with the length that it had.

A deadline was dated by the clock of whoever led before. By a clock that is ahead of it the lease would end while its
consumer still works, and the message would have two holders. Counted from now on it ends too late at the worst.
"""

from __future__ import annotations

from penstock.domain.queue.commands import Decision, Done
from penstock.domain.queue.live import Hold
from penstock.domain.queue.records import Renewed
from penstock.domain.queue.state import QueueState
from penstock.domain.queue.values import QueueConfig, Range, merge_ranges


def decide_takeover(state: QueueState, config: QueueConfig, now_ms: int) -> Decision:
    ranges: dict[int, list[Range]] = {}
    for hold in state.live.leases:
        spans = (state.live.at(first) for first in hold.firsts)
        ranges.setdefault(_lease_ms(hold, config, now_ms), []).extend((span.first, span.last) for span in spans)
    records = tuple(
        Renewed(merge_ranges(several), now_ms + lease_ms, now_ms) for lease_ms, several in sorted(ranges.items())
    )
    return Decision(records, Done())


def _lease_ms(hold: Hold, config: QueueConfig, now_ms: int) -> int:
    # Snapshots of older versions do not tell the length.
    return hold.lease_ms or max(config.lease_ms, hold.until_ms - now_ms)
