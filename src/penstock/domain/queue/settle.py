"""What becomes of deliveries: accepted, released, rejected, renewed, expired, left by a consumer that is gone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from penstock.domain.queue.commands import (
    Act,
    ConsumerGone,
    DeadLettersWait,
    Decision,
    Done,
    Outcome,
    QueueEffect,
    Settle,
    Settled,
    Settlement,
    WakeReceivers,
)
from penstock.domain.queue.live import Hold, Span
from penstock.domain.queue.records import Died, Finished, QueueRecord, Renewed, Returned
from penstock.domain.queue.state import QueueState
from penstock.domain.queue.values import (
    ANY_DELIVERY,
    TEXT_CHARACTERS_MAX,
    Cause,
    HoldKind,
    QueueConfig,
    Range,
    merge_ranges,
)

# Deliveries whose leases end in one decision; what is left is due at once. A thousand batches of a hundred messages
# are 100,000 messages, some tens of milliseconds.
EXPIRED_MAX: Final = 1_000

_WAKE: Final = WakeReceivers()
_DEAD_LETTERS: Final = DeadLettersWait()


class Fates:
    """Collects what becomes of messages, the same fates as one record."""

    __slots__ = ("_chance", "_config", "_died", "_finished", "_holds", "_now_ms", "_renewed", "_returned", "_state")

    def __init__(
        self, state: QueueState, config: QueueConfig, now_ms: int, chance: Callable[[], float] | None = None
    ) -> None:
        self._state = state
        self._config = config
        self._now_ms = now_ms
        self._chance = chance or _no_chance
        self._finished: dict[Cause, list[Range]] = {}
        self._returned: dict[tuple[int, Cause, str, bool], list[Range]] = {}
        self._renewed: dict[int, list[Range]] = {}
        self._died: dict[tuple[Cause, str], list[Range]] = {}
        # Of what is finished or dying: their consumers have room again.
        self._holds: set[Hold] = set()

    def finish(self, piece: Span, cause: Cause) -> None:
        self._holds.add(piece.hold)
        self._finished.setdefault(cause, []).append((piece.first, piece.last))

    def renew(self, piece: Span, lease_ms: int) -> None:
        until_ms = self._now_ms + min(lease_ms, self._config.lease_ms_max)
        self._renewed.setdefault(until_ms, []).append((piece.first, piece.last))

    def kill(self, piece: Span, cause: Cause, text: str = "") -> None:
        """To the dead letters; or, without any, it is finished."""
        if self._config.has_dead_letters:
            self._holds.add(piece.hold)
            self._died.setdefault((cause, text), []).append((piece.first, piece.last))
        else:
            self.finish(piece, cause)

    def move(self, piece: Span, text: str) -> None:
        self._holds.add(piece.hold)
        self._died.setdefault((Cause.MOVED, text), []).append((piece.first, piece.last))

    def come_back(
        self, piece: Span, cause: Cause, *, delay_ms: int | None, text: str = "", is_counted: bool = True
    ) -> None:
        """To be delivered again, if anything is left to deliver and it has not been tried too often."""
        for part in self.drop_expired(piece):
            below = self._state.log_start
            if part.first < below:
                gone = Span(part.first, min(part.last, below - 1), part.count, part.hold, part.failure, part.lane)
                self.finish(gone, Cause.DELETED)
                if part.last < below:
                    continue
                part = Span(below, part.last, part.count, part.hold, part.failure, part.lane)
            if is_counted and 0 < self._config.deliveries_max <= part.count:
                self.kill(part, Cause.DELIVERIES_EXHAUSTED, text)
                continue
            wait_ms = self._config.back_off.delay_ms(part.count, self._chance) if delay_ms is None else delay_ms
            available_ms = self._now_ms + wait_ms if wait_ms > 0 else 0
            key = (available_ms, cause, text, is_counted)
            self._returned.setdefault(key, []).append((part.first, part.last))

    def drop_expired(self, piece: Span) -> list[Span]:
        """What is left of it when those too old to be delivered are gone."""
        expiries, now_ms = self._state.expiries, self._now_ms
        if not expiries:
            return [piece]
        left: list[Span] = []
        first = piece.first
        for offset in range(piece.first, piece.last + 1):
            if expiries.get(offset, now_ms + 1) > now_ms:
                continue
            if offset > first:
                left.append(Span(first, offset - 1, piece.count, piece.hold, piece.failure, piece.lane))
            expired = Span(offset, offset, piece.count, piece.hold, piece.failure, piece.lane)
            if self._config.keeps_expired:
                self.kill(expired, Cause.TIME_TO_LIVE_EXPIRED)
            else:
                self.finish(expired, Cause.TIME_TO_LIVE_EXPIRED)
            first = offset + 1
        if first <= piece.last:
            left.append(Span(first, piece.last, piece.count, piece.hold, piece.failure, piece.lane))
        return left

    def records(self) -> list[QueueRecord]:
        now_ms = self._now_ms
        records: list[QueueRecord] = [
            Finished(merge_ranges(ranges), cause, now_ms) for cause, ranges in self._finished.items()
        ]
        if self._returned:
            records += [
                Returned(merge_ranges(ranges), available_ms, cause, now_ms, text, is_counted)
                for (available_ms, cause, text, is_counted), ranges in self._returned.items()
            ]
        if self._renewed:
            records += [Renewed(merge_ranges(ranges), until_ms, now_ms) for until_ms, ranges in self._renewed.items()]
        if self._died:
            records += [Died(merge_ranges(ranges), cause, now_ms, text) for (cause, text), ranges in self._died.items()]
        return records

    def effects(self, *, has_dying: bool = False) -> tuple[QueueEffect, ...]:
        effects: list[QueueEffect] = []
        frees_keys = bool(self._state.keys) and bool(self._finished or self._died)
        if self._returned or frees_keys or self._is_full():
            effects.append(_WAKE)
        if self._died or has_dying:
            effects.append(_DEAD_LETTERS)
        return tuple(effects)

    def _is_full(self) -> bool:
        """Whether somebody may have been sent away who has room now."""
        live, limit = self._state.live, self._config.in_flight_per_consumer_max
        if self._finished and live.live_count >= self._config.in_flight_max:
            return True
        return any(live.by_consumer.get(hold.consumer, 0) >= limit for hold in self._holds)


def decide_settle(
    state: QueueState, config: QueueConfig, command: Settle, now_ms: int, chance: Callable[[], float]
) -> Decision:
    fates = Fates(state, config, now_ms, chance)
    outcomes: list[Outcome] = []
    # One item alone has nobody to claim it from.
    claimed = _Claims() if len(command.items) > 1 else None
    is_refused = False
    for item in command.items:
        pieces = _held(state, item, command.consumer)
        if isinstance(pieces, Outcome) or not (claimed is None or claimed.claim(item.first, item.last)):
            outcomes.append(pieces if isinstance(pieces, Outcome) else Outcome.NOT_HELD)
            is_refused = True
            continue
        outcomes.append(Outcome.DONE)
        for piece in pieces:
            _settle(fates, piece, item, config)
    reply = Settled(tuple(outcomes))
    if is_refused and command.is_whole:
        return Decision((), reply)
    return Decision(tuple(fates.records()), reply, fates.effects())


def _held(state: QueueState, item: Settlement, consumer: str | None) -> list[Span] | Outcome:
    """The pieces of the item, if they all are whose they are said to be."""
    if item.first > item.last or (consumer is None and item.number == ANY_DELIVERY):
        return Outcome.NOT_HELD
    pieces = state.live.pieces(item.first, item.last)
    if not pieces:
        is_seen = item.last < max(state.cursors.values())
        return Outcome.FINISHED if is_seen else Outcome.NOT_HELD
    covered = 0
    for piece in pieces:
        if not _is_held(piece.hold, item, consumer):
            return Outcome.NOT_HELD
        covered += piece.last - piece.first + 1
    if covered != item.last - item.first + 1 and item.act is not Act.GAP:
        return Outcome.NOT_HELD
    return pieces


def _is_held(hold: Hold, item: Settlement, consumer: str | None) -> bool:
    if item.number not in (ANY_DELIVERY, hold.number):
        return False
    if hold.kind is HoldKind.LEASED:
        return consumer is None or hold.consumer == consumer
    # Its lease has run out, but nobody has got it since: the work is done, so nobody should do it again.
    # Only for who has the receipt: a share group's member has lost its lock.
    is_late = hold.kind is HoldKind.WAITING and item.act is Act.ACCEPT
    return is_late and item.number != ANY_DELIVERY and consumer is None


def _settle(fates: Fates, piece: Span, item: Settlement, config: QueueConfig) -> None:
    match item.act:
        case Act.ACCEPT:
            fates.finish(piece, Cause.ACCEPTED)
        case Act.GAP:
            fates.finish(piece, Cause.GAP)
        case Act.RELEASE:
            text = item.text[:TEXT_CHARACTERS_MAX]
            fates.come_back(piece, Cause.RELEASED, delay_ms=item.delay_ms, text=text)
        case Act.REJECT:
            fates.kill(piece, Cause.REJECTED, item.text[:TEXT_CHARACTERS_MAX])
        case Act.RENEW:
            fates.renew(piece, config.lease_ms if item.delay_ms is None else item.delay_ms)
        case Act.MOVE:
            fates.move(piece, item.text[:TEXT_CHARACTERS_MAX])


class _Claims:
    """A message can be named once in a command: what the first item does, the second must not undo."""

    __slots__ = ("_firsts", "_ranges")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ranges: dict[int, int] = {}

    def claim(self, first: int, last: int) -> bool:
        firsts = self._firsts
        if not firsts or first > self._ranges[firsts[-1]]:
            firsts.append(first)
            self._ranges[first] = last
            return True
        place = bisect_left(firsts, first)
        if place < len(firsts) and firsts[place] <= last:
            return False
        if place and self._ranges[firsts[place - 1]] >= first:
            return False
        firsts.insert(place, first)
        self._ranges[first] = last
        return True


def decide_gone(state: QueueState, config: QueueConfig, command: ConsumerGone, now_ms: int) -> Decision:
    fates = Fates(state, config, now_ms)
    holds = sorted(
        (hold for hold in state.live.leases if hold.consumer == command.consumer),
        key=lambda hold: (hold.number, hold.until_ms),
    )
    for piece in _spans_of(state, holds):
        fates.come_back(piece, Cause.CONSUMER_GONE, delay_ms=0, is_counted=command.is_counted)
    return Decision(tuple(fates.records()), Done(), fates.effects())


def decide_time(state: QueueState, config: QueueConfig, now_ms: int, chance: Callable[[], float]) -> Decision:
    fates = Fates(state, config, now_ms, chance)
    was_ready = _ready_spans(state)
    state.live.ripen(now_ms)
    for piece in _spans_of(state, state.live.expired_leases(now_ms, count_max=EXPIRED_MAX)):
        fates.come_back(piece, Cause.LEASE_EXPIRED, delay_ms=None)
    effects = fates.effects()
    if _ready_spans(state) > was_ready and _WAKE not in effects:
        effects = (_WAKE, *effects)
    return Decision(tuple(fates.records()), Done(), effects)


def _spans_of(state: QueueState, holds: list[Hold]) -> list[Span]:
    return [state.live.at(first) for hold in holds for first in sorted(hold.firsts)]


def _ready_spans(state: QueueState) -> int:
    return sum(len(firsts) for firsts in state.live.ready.values())


def _no_chance() -> float:
    return 0.0
