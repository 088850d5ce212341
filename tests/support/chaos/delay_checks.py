"""Delayed messages: each once, none early, none that was cancelled.

early               it could be read before it was due
delay-twice         it was delivered more than once
delay-lost          it was confirmed, nobody tried to cancel it, and it never came
cancelled-delivered whoever cancelled it was told so, and it came
delay-phantom       nobody sent it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from support.chaos.checks import Violation


class Delayed(msgspec.Struct, frozen=True):
    """Times are of the wall clock, of one machine."""

    due_ms: int
    # Not: nobody knows whether it was taken.
    is_confirmed: bool
    is_cancelled: bool = False
    # Somebody asked for it, and nobody knows whether it was done.
    is_perhaps_cancelled: bool = False


class Arrived(msgspec.Struct, frozen=True):
    message: str
    at_ms: float


def check_delays(delayed: Mapping[str, Delayed], arrived: Sequence[Arrived]) -> list[Violation]:
    found: list[Violation] = []
    times = Counter(each.message for each in arrived)
    for each in arrived:
        promise = delayed.get(each.message)
        if promise is None:
            found.append(Violation("delay-phantom", repr(each.message)))
        elif each.at_ms < promise.due_ms:
            found.append(Violation("early", f"{each.message!r}: {promise.due_ms - each.at_ms:.0f} ms"))
    found += [Violation("delay-twice", f"{message!r}: {count}") for message, count in times.items() if count > 1]
    for message, promise in delayed.items():
        if promise.is_cancelled and message in times:
            found.append(Violation("cancelled-delivered", repr(message)))
        is_free = promise.is_cancelled or promise.is_perhaps_cancelled or not promise.is_confirmed
        if not is_free and message not in times:
            found.append(Violation("delay-lost", repr(message)))
    return found
