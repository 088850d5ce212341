"""Messages that are held, settled and buried: of a queue or of a share group.

    two-holders       two had it at one time, each within its lease and before either gave it back
    acked-back        it was delivered after its ack had been confirmed
    queue-lost        it was sent, and is neither settled nor among the dead letters
    dead-twice        a dead letter is there more than once
    dead-and-acked    it was confirmed as acked, and buried
    dead-lost         it was confirmed as rejected, and is not among the dead letters
    dead-phantom      a dead letter that nobody sent

A lease is counted from when a message was *asked* for to be safe, and holding begins when the answer was there: what is
between is doubt, and doubt accuses nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

import msgspec

from support.chaos.checks import Violation


class Delivered(msgspec.Struct, frozen=True):
    message: str
    holder: str
    asked_at: float
    at: float


class Settled(msgspec.Struct, frozen=True):
    message: str
    holder: str
    # ack, reject or release
    fate: str
    asked_at: float
    # None: nobody knows whether it was done.
    confirmed_at: float | None


def check_holders(
    delivered: Sequence[Delivered], settled: Sequence[Settled], *, lease_seconds: float
) -> list[Violation]:
    """Every delivery is a span in which its holder surely had the message; spans of one message may not overlap."""
    given_back: dict[tuple[str, str], list[float]] = {}
    for each in settled:
        given_back.setdefault((each.message, each.holder), []).append(each.asked_at)
    held: dict[str, list[tuple[float, float, str]]] = {}
    for delivery in delivered:
        until = delivery.asked_at + lease_seconds
        for asked_at in given_back.get((delivery.message, delivery.holder), ()):
            if asked_at >= delivery.at:
                until = min(until, asked_at)
        held.setdefault(delivery.message, []).append((delivery.at, until, delivery.holder))
    found: list[Violation] = []
    for message, spans in held.items():
        spans.sort()
        for (_, until, first), (since, _, second) in pairwise(spans):
            if since < until:
                found.append(
                    Violation("two-holders", f"{message!r}: {second} {until - since:.2f} s before {first} ended")
                )
    return found


def check_acks(delivered: Sequence[Delivered], settled: Sequence[Settled]) -> list[Violation]:
    acked_at: dict[str, float] = {}
    for each in settled:
        if each.fate == "ack" and each.confirmed_at is not None:
            acked_at[each.message] = min(each.confirmed_at, acked_at.get(each.message, each.confirmed_at))
    return [
        Violation("acked-back", f"{each.message!r}: to {each.holder}, {each.at - acked_at[each.message]:.2f} s later")
        for each in delivered
        # Who asked before the ack was confirmed may have been given it before that.
        if each.message in acked_at and each.asked_at > acked_at[each.message]
    ]


def check_fates(
    sent: Collection[str],
    settled: Sequence[Settled],
    dead_letters: Iterable[str],
    *,
    maybe: Collection[str] = (),
    has_dead_letters: bool = True,
) -> list[Violation]:
    """When the queue is empty. `sent` was confirmed to whoever published it, of `maybe` nobody knows."""
    dead = Counter(dead_letters)
    acked = {each.message for each in settled if each.fate == "ack" and each.confirmed_at is not None}
    perhaps = {each.message for each in settled if each.fate in ("ack", "reject")}
    rejected = {each.message for each in settled if each.fate == "reject" and each.confirmed_at is not None}
    found = [Violation("dead-twice", f"{message!r}: {count}") for message, count in dead.items() if count > 1]
    found += [
        Violation("dead-phantom", repr(message)) for message in dead if message not in sent and message not in maybe
    ]
    found += [Violation("dead-and-acked", repr(message)) for message in dead if message in acked]
    if has_dead_letters:
        found += [Violation("dead-lost", repr(message)) for message in sorted(rejected - dead.keys())]
    found += [Violation("queue-lost", repr(message)) for message in sent if message not in perhaps | dead.keys()]
    return found
