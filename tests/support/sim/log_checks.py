"""Whether a topic holds what its producers were told and its readers were given; and positions of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.storage.segment.facts import LOG_SUFFIX
from support.sim.invariants import (
    ACKED_PRESENT,
    COMMITTED_OFFSET_KEPT,
    NO_PHANTOM,
    ONCE_IF_IDEMPOTENT,
    ORDER_PER_PRODUCER,
    READ_STAYS,
    REPLY_AFTER_COMMIT,
    check,
)
from support.sim.ledger import Ledger, Message, Place, Register
from support.sim.world import World

if TYPE_CHECKING:
    from support.sim.reading import Everything

# At the moment of a reply


def check_durable(world: World, value: bytes) -> None:
    """A reply is out: what it speaks of is on the disk, not in its cache."""
    is_durable = world.holds_durably(value, LOG_SUFFIX)
    check(REPLY_AFTER_COMMIT, holds=is_durable, what=f"{value!r} was confirmed and is not on the disk")


# At the moment of a read


def check_read(ledger: Ledger, place: Place, value: bytes) -> None:
    check(NO_PHANTOM, holds=value in ledger.messages, what=f"{value!r} at {place}: nobody sent it")
    before = ledger.seen.setdefault(place, value)
    check(READ_STAYS, holds=before == value, what=f"{place} held {before!r} for one reader and {value!r} for another")


# At the end, with everything that the log holds


def check_log(ledger: Ledger, everything: Everything) -> None:
    found = everything.values
    for place, value in found.items():
        check_read(ledger, place, value)
    for place, value in ledger.seen.items():
        is_there = found.get(place) == value or place in everything.rotten
        check(READ_STAYS, holds=is_there, what=f"{value!r} was read at {place} and is gone")
    _check_acked(ledger, everything)
    _check_once(ledger, found)
    _check_order(ledger, found)


def _check_acked(ledger: Ledger, everything: Everything) -> None:
    found, present = everything.values, set(everything.values.values())
    for value, message in ledger.acknowledged.items():
        assert message.offset is not None
        place = message.partition, message.offset
        if message.offset == UNTOLD_OFFSET:
            # It may be any of those that have rotted.
            is_there = value in present or bool(everything.rotten)
        else:
            is_there = found.get(place) == value or place in everything.rotten
        check(ACKED_PRESENT, holds=is_there, what=f"{value!r} was confirmed at {place} and is not there")


def _check_once(ledger: Ledger, found: Mapping[Place, bytes]) -> None:
    for value, count in Counter(found.values()).items():
        is_well = count == 1 or not ledger.messages[value].is_idempotent
        check(ONCE_IF_IDEMPOTENT, holds=is_well, what=f"{value!r} is there {count} times")


def _check_order(ledger: Ledger, found: Mapping[Place, bytes]) -> None:
    """Of one that waits for each reply. What became of a plain batch without one is not known: it may come late."""
    last: dict[tuple[str, int], Message] = {}
    for (partition, offset), value in sorted(found.items()):
        message = ledger.messages[value]
        if not message.is_idempotent and message.offset != offset:
            continue
        before = last.get((message.producer, partition))
        is_ordered = before is None or before.number < message.number
        check(ORDER_PER_PRODUCER, holds=is_ordered, what=f"{value!r} at {(partition, offset)} comes after {before}")
        last[message.producer, partition] = message


def check_position(register: Register, offset: int, *, asked_after: float, what: str) -> None:
    possible = register.possible(asked_after=asked_after)
    check(COMMITTED_OFFSET_KEPT, holds=offset in possible, what=f"{what} is at {offset}, possible are {possible[:5]}")


# A duplicate whose place the broker no longer remembers is confirmed without it.
UNTOLD_OFFSET: Final = -1
