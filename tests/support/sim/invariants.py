"""What must hold whatever happens, each by a name that a story which breaks it prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from penstock.storage.segment.facts import LOG_SUFFIX
from support.sim.ledger import Ledger, Message, Place
from support.storage.faulty_files import FaultyFiles

ACKED_PRESENT: Final = "acked-present"
NO_PHANTOM: Final = "no-phantom"
ORDER_PER_PRODUCER: Final = "order-per-producer"
ONCE_IF_IDEMPOTENT: Final = "once-if-idempotent"
COMMITTED_OFFSET_KEPT: Final = "committed-offset-kept"
REPLY_AFTER_COMMIT: Final = "reply-after-commit"
# What a reader was given once is given to every reader after it.
READ_STAYS: Final = "read-stays"
# Damage is told of what the disk has lost, and of nothing else.
NO_DAMAGE: Final = "no-damage"
# Without faults for a while, a node is up and answers.
WELL_AFTER_QUIET: Final = "well-after-quiet"
# A node has found something that it holds for impossible.
OWN_ASSERTION: Final = "own-assertion"


class InvariantError(AssertionError):
    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def check(invariant: str, *, holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(invariant, what)


# At the moment of a reply


def check_durable(files: FaultyFiles, value: bytes) -> None:
    """A reply is out: what it speaks of is on the disk, not in its cache."""
    is_durable = files.holds_durably(value, LOG_SUFFIX)
    check(REPLY_AFTER_COMMIT, holds=is_durable, what=f"{value!r} was confirmed and is not on the disk")


# At the moment of a read


def check_read(ledger: Ledger, place: Place, value: bytes) -> None:
    check(NO_PHANTOM, holds=value in ledger.messages, what=f"{value!r} at {place}: nobody sent it")
    before = ledger.seen.setdefault(place, value)
    check(READ_STAYS, holds=before == value, what=f"{place} held {before!r} for one reader and {value!r} for another")


# At the end, with everything that the log holds


def check_log(ledger: Ledger, found: Mapping[Place, bytes]) -> None:
    for place, value in found.items():
        check_read(ledger, place, value)
    for place, value in ledger.seen.items():
        check(READ_STAYS, holds=found.get(place) == value, what=f"{value!r} was read at {place} and is gone")
    _check_acked(ledger, found)
    _check_once(ledger, found)
    _check_order(ledger, found)


def _check_acked(ledger: Ledger, found: Mapping[Place, bytes]) -> None:
    present = set(found.values())
    for value, message in ledger.acknowledged.items():
        if message.offset == UNTOLD_OFFSET:
            is_there = value in present
        else:
            assert message.offset is not None
            is_there = found.get((message.partition, message.offset)) == value
        check(ACKED_PRESENT, holds=is_there, what=f"{value!r} was confirmed at {message.offset} and is not there")


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


def check_commits(ledger: Ledger, committed: Mapping[int, int]) -> None:
    for partition, commits in sorted(ledger.commits.items()):
        offset, possible = committed.get(partition, -1), commits.possible()
        if commits.confirmed_count == 0:
            possible = [-1, *possible]
        what = f"partition {partition} is at {offset}, and {possible[0]} was confirmed"
        check(COMMITTED_OFFSET_KEPT, holds=offset in possible, what=what)


# A duplicate whose place the broker no longer remembers is confirmed without it.
UNTOLD_OFFSET: Final = -1
