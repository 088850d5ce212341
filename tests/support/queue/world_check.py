"""What everybody around a queue may rely on, kept as a book of its own: of what consumers asked and were told alone.

A decision that was lost in a crash never happened: what it would have ended is struck out again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from penstock.domain.queue.values import NO_KEY


class InvariantBrokenError(Exception):
    def __init__(self, invariant: str, detail: object) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


ONE_HOLDER = "no two hold one message"
NEVER_BACK = "an accepted message never comes back"
KEY_ORDER = "messages of a key come one after the other"
DELIVERIES = "nothing is delivered more often than allowed"
ONCE = "every message ends once"
RECEIPTS = "a receipt settles its own delivery alone"
IN_TIME = "leases and waits end when they should"
TIME_TO_LIVE = "nothing is delivered after its time"
MESSAGES_ALONE = "messages alone are delivered, each from its lane"
SAME_STATE = "a restart changes nothing"
BOUNDED = "memory is that of what is in flight"
PAUSED = "a paused queue delivers nothing"
FINISHED = "below the finished offset everything is finished"
MOVED_ONCE = "dead letters are written once, in sequence"
HISTORY = "a dead letter tells its history"
WOKEN = "who waits for messages is woken"
LIMITS = "no consumer holds more than it may"
HELD = "who holds a message can settle it"


class Message(msgspec.Struct, frozen=True):
    offset: int
    lane: int
    key: int
    expires_ms: int | None
    # Otherwise a hole, a control batch, an aborted record.
    is_message: bool = True


@dataclass(slots=True)
class Fate:
    """One message, as seen from outside."""

    consumer: str = ""
    number: int = 0
    until_ms: int = 0
    # Decision, consumer and number of every delivery, also of those that nobody was told of.
    decided: list[tuple[int, str, int]] = field(default_factory=list)
    # Decisions that may have ended the last delivery, and those that may have ended the message.
    endings: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    # Decisions that may have set another deadline, without anybody having been told.
    renewals: dict[int, int] = field(default_factory=dict)
    times: int = 0
    failed_first_ms: int | None = None
    not_before_ms: int = 0
    is_accepted: bool = False
    is_rejected: bool = False
    # Purged, deleted from the log, or said to be a gap.
    is_gone: bool = False
    # It was dying when the start was set back: when it is dead it may come again, and die again.
    may_come_again: bool = False

    def is_held(self, at_ms: int) -> bool:
        until_ms = min(self.until_ms, *self.renewals.values()) if self.renewals else self.until_ms
        return bool(self.consumer) and until_ms > at_ms and not self.endings


class Book:
    def __init__(self, is_dying: Callable[[int], bool]) -> None:
        self.is_dying = is_dying
        self.log: list[Message] = []
        self.fates: list[Fate] = []
        self.by_key: dict[int, list[int]] = {}
        self.dead: list[int] = []
        self.deliveries_max = 0
        self.log_start = 0
        self.has_dead_letters = True
        self.delivered = 0
        self.redelivered = 0

    def append(self, message: Message) -> None:
        self.log.append(message)
        self.fates.append(Fate())
        if message.is_message and message.key != NO_KEY:
            self.by_key.setdefault(message.key, []).append(message.offset)

    def check(self, invariant: str, holds: bool, detail: object) -> None:
        if not holds:
            raise InvariantBrokenError(invariant, detail)

    # ------------------------------------------------------------------ deliveries

    def deliver(
        self, offset: int, consumer: str, *, number: int, count: int, lane: int, until_ms: int, at_ms: int, keyed: bool
    ) -> None:
        message, fate = self.log[offset], self.fates[offset]
        if fate.may_come_again and offset in self.dead:
            self.dead.remove(offset)
            fate = self.fates[offset] = Fate(decided=fate.decided, may_come_again=True)
        self.check(MESSAGES_ALONE, message.is_message and (keyed or message.lane == lane), message)
        self.check(NEVER_BACK, not fate.is_accepted, f"{offset} to {consumer}")
        self.check(ONCE, not fate.is_rejected, f"{offset} was rejected and was delivered to {consumer}")
        self.check(NEVER_BACK, not fate.is_gone, f"{offset} is gone, to {consumer}")
        self.check(ONCE, offset not in self.dead, f"{offset} is a dead letter and was delivered to {consumer}")
        self.check(ONE_HOLDER, not fate.is_held(at_ms), f"{offset}: {fate} and {consumer}")
        self.check(TIME_TO_LIVE, message.expires_ms is None or at_ms < message.expires_ms, message)
        self.check(IN_TIME, at_ms >= fate.not_before_ms, f"{offset} at {at_ms}, not before {fate.not_before_ms}")
        self.check(RECEIPTS, number > fate.number, f"{offset}: delivery {number} after {fate.number}")
        self.check(DELIVERIES, count <= self.deliveries_max, f"{offset} for the {count}th time")
        self.check(DELIVERIES, count > fate.times, f"{offset}: {count}, but it was delivered {fate.times} times before")
        if keyed and message.key != NO_KEY:
            self._check_order(message, at_ms)
        self.delivered += 1
        self.redelivered += fate.number > 0
        fate.consumer, fate.number, fate.until_ms = consumer, number, until_ms
        fate.endings = set()
        fate.renewals = {}
        fate.times = count
        fate.not_before_ms = 0

    def _check_order(self, message: Message, at_ms: int) -> None:
        for earlier in self.by_key[message.key]:
            if earlier >= message.offset:
                return
            self.check(KEY_ORDER, self.is_over(earlier, at_ms), f"{message.offset} before {earlier}")

    def is_over(self, offset: int, at_ms: int) -> bool:
        """May be finished or dying, as far as anybody outside can know."""
        message, fate = self.log[offset], self.fates[offset]
        if offset < self.log_start and not fate.is_held(at_ms):
            return True
        if not message.is_message or fate.is_gone or fate.is_accepted or fate.ends or offset in self.dead:
            return True
        if message.expires_ms is not None and message.expires_ms <= at_ms:
            return True
        # Deliveries that nobody was told of count, too.
        return self.is_dying(offset)

    # ------------------------------------------------------------------ settlements

    def decide_delivery(self, offset: int, *, decision: int, consumer: str, number: int) -> None:
        self.fates[offset].decided.append((decision, consumer, number))

    def is_holder(self, offset: int, *, consumer: str | None, number: int, before: int) -> bool:
        """Whether the last delivery before that decision is the one that is meant."""
        for decision, holder, its_number in reversed(self.fates[offset].decided):
            if decision < before:
                return consumer in (None, holder) and number in (0, its_number)
        return False

    def try_to_end(self, offset: int, decision: int, *, is_final: bool) -> None:
        fate = self.fates[offset]
        fate.endings.add(decision)
        if is_final:
            fate.ends.add(decision)

    def refuse(self, offset: int, decision: int) -> None:
        """The message is as it was before."""
        fate = self.fates[offset]
        fate.endings.discard(decision)
        fate.ends.discard(decision)
        fate.renewals.pop(decision, None)

    def must_be_held(self, offset: int, *, is_accept: bool, at_ms: int) -> bool:
        """By who has the last receipt: while its lease lasts, and for an acceptance as long as nothing else happens."""
        message, fate = self.log[offset], self.fates[offset]
        if fate.is_accepted or fate.is_gone or fate.endings or offset in self.dead or offset < self.log_start:
            return False
        if fate.decided and fate.decided[-1][2] != fate.number:
            return False
        is_safe = message.expires_ms is None and not self.is_dying(offset) and self.has_dead_letters
        return fate.is_held(at_ms) or (is_accept and is_safe)

    def begin_again(self, start: int) -> None:
        """All of it is new, but for what is on its way to the dead letters."""
        for offset in range(len(self.log)):
            if self.is_dying(offset):
                self.fates[offset].may_come_again = True
                continue
            if offset < start:
                self.fates[offset].is_gone = True
            else:
                self.fates[offset] = Fate()
                if offset in self.dead:
                    self.dead.remove(offset)

    def lose(self, decision: int, *, is_half: bool) -> None:
        """Of half a decision nobody knows what it ended; a delivery is its last record, and lost."""
        for offset, fate in enumerate(self.fates):
            if not is_half:
                self.refuse(offset, decision)
            if fate.decided and fate.decided[-1][0] >= decision:
                fate.decided = [delivery for delivery in fate.decided if delivery[0] != decision]

    def accept(self, offset: int) -> None:
        self.check(ONCE, offset not in self.dead, f"{offset} was accepted and is a dead letter")
        self.fates[offset].is_accepted = True

    def die(self, offset: int) -> None:
        if offset in self.dead and self.fates[offset].may_come_again:
            return
        self.check(ONCE, offset not in self.dead, f"{offset} is a dead letter twice")
        self.check(ONCE, not self.fates[offset].is_accepted, f"{offset} was accepted and becomes a dead letter")
        self.dead.append(offset)

    # ------------------------------------------------------------------ the end

    def check_all_ended(self, now_ms: int) -> None:
        for message, fate in zip(self.log, self.fates, strict=True):
            if not message.is_message or fate.is_gone or message.offset < self.log_start:
                continue
            is_expired = message.expires_ms is not None and message.expires_ms <= now_ms
            may_be_dropped = not self.has_dead_letters and fate.times > 0
            has_ended = fate.is_accepted or message.offset in self.dead or bool(fate.ends)
            self.check(ONCE, has_ended or is_expired or may_be_dropped, f"{message} was lost: {fate}")
