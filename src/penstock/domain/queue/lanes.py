"""Priorities: ten lanes, the highest first, and a share that lower ones are sure of.

Every tenth message comes from the lanes below the highest one that has any, in turn: whatever the load, a lane gets
at least one message in ninety, and nothing starves. Which message is the tenth follows from how many have been
delivered, so nothing else has to be remembered, and a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PRIORITY_HEADER: Final = "penstock-priority"
LANE_MIN: Final = 0
LANE_MAX: Final = 9
# Of messages that say nothing. In the middle, as with JMS: a message can be less urgent than usual, too.
DEFAULT_LANE: Final = 4
# One message in so many is for the lower lanes.
LOWER_TURN: Final = 10


def lane_of(priority: bytes | None) -> int:
    """From the header `penstock-priority`. What cannot be read is as if it were not there: the message must flow."""
    if priority is None or len(priority) != 1 or not b"0" <= priority <= b"9":
        return DEFAULT_LANE
    return priority[0] - ord("0")


def share_out(waiting: Mapping[int, int], *, count: int, delivered_count: int) -> dict[int, int]:
    """How many messages each lane may give, of those that wait there: together `count`, or all there are."""
    left = {lane: waiting[lane] for lane in sorted(waiting, reverse=True) if waiting[lane] > 0}
    shares = dict.fromkeys(left, 0)
    if len(left) < 2:
        return {lane: min(count, size) for lane, size in left.items()}
    for position in range(delivered_count, delivered_count + count):
        if not left:
            break
        lane = _next_lane(list(left), position)
        shares[lane] += 1
        left[lane] -= 1
        if not left[lane]:
            del left[lane]
    return shares


def _next_lane(lanes: list[int], position: int) -> int:
    """`lanes` are those that have messages, the highest first."""
    turn, place = divmod(position, LOWER_TURN)
    if place != LOWER_TURN - 1 or len(lanes) == 1:
        return lanes[0]
    return lanes[1 + turn % (len(lanes) - 1)]
