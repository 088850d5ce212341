"""Who gets which messages: those that come back before those never seen, the higher lane before the lower.

Nothing is changed here. What the caller found in the log may have been overtaken meanwhile by another consumer's
receive: only what continues exactly at a lane's cursor is used.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.domain.queue.commands import DeadLettersWait, Decision, Delivery, Found, QueueEffect, Receive, Received
from penstock.domain.queue.lanes import DEFAULT_LANE, share_out
from penstock.domain.queue.live import Span
from penstock.domain.queue.records import Leased, Passed, QueueRecord, Take
from penstock.domain.queue.settle import Fates
from penstock.domain.queue.state import QueueState
from penstock.domain.queue.values import (
    NO_KEY,
    HoldKind,
    Limit,
    Ordering,
    QueueConfig,
    Range,
    count_of,
    merge_ranges,
)


def decide_receive(state: QueueState, config: QueueConfig, command: Receive, now_ms: int) -> Decision:
    if state.is_paused:
        return Decision((), Received(limit=Limit.PAUSED))
    held = state.live.by_consumer.get(command.consumer, 0)
    room = min(command.count_max, config.in_flight_per_consumer_max - held)
    if room <= 0:
        return Decision((), Received(limit=Limit.CONSUMER_FULL if command.count_max > 0 else Limit.NONE))
    state.live.ripen(now_ms)
    return _Receiving(state, config, command, now_ms).run(room)


class _Receiving:
    """One receive under way: what it takes, piece by piece."""

    __slots__ = ("_again", "_command", "_config", "_fates", "_fresh_room", "_limit", "_now_ms", "_state", "_takes")

    def __init__(self, state: QueueState, config: QueueConfig, command: Receive, now_ms: int) -> None:
        self._state = state
        self._config = config
        self._command = command
        self._now_ms = now_ms
        live = state.live
        self._fresh_room = config.in_flight_max - (live.live_count - live.counts[HoldKind.BLOCKED])
        self._limit = Limit.NONE
        self._again: list[Span] = []
        self._takes: list[Take] = []
        # Only if something comes back.
        self._fates: Fates | None = None

    def run(self, room: int) -> Decision:
        founds = {found.lane: found for found in self._command.found if found.since <= self._state.cursor(found.lane)}
        for lane, share in self._shares(founds, room):
            left = share - self._take_ready(lane, share)
            found = founds.get(lane)
            if found is not None:
                self._take_found(found, left)
        return self._decision()

    def _shares(self, founds: dict[int, Found], room: int) -> list[tuple[int, int]]:
        lanes = sorted({*self._state.live.ready, *founds}, reverse=True)
        if len(lanes) == 1:
            return [(lanes[0], room)]
        waiting = {lane: self._ready_count(lane, room) + self._found_count(founds.get(lane)) for lane in lanes}
        shares = share_out(waiting, count=room, delivered_count=self._state.delivered_count)
        # Also those that get nothing now: their cursors may move over what is not theirs.
        return [(lane, shares.get(lane, 0)) for lane in lanes]

    def _ready_count(self, lane: int, count_max: int) -> int:
        count = 0
        for first in self._state.live.ready.get(lane, ()):
            count += self._state.live.at(first).size
            if count >= count_max:
                break
        return count

    def _found_count(self, found: Found | None) -> int:
        if found is None:
            return 0
        cursor = self._state.cursor(found.lane)
        return sum(last - max(first, cursor) + 1 for first, last in found.ranges if last >= cursor)

    # ------------------------------------------------------------------ those that come back

    def _take_ready(self, lane: int, share: int) -> int:
        taken = 0
        live = self._state.live
        ready = live.ready.get(lane)
        if not ready:
            return 0
        fates = self._fates = self._fates or Fates(self._state, self._config, self._now_ms)
        for first in ready:
            if taken >= share:
                break
            for piece in fates.drop_expired(live.at(first)):
                if taken >= share:
                    break
                size = min(piece.size, share - taken)
                self._again.append(Span(piece.first, piece.first + size - 1, piece.count, piece.hold, None, lane))
                taken += size
        return taken

    # ------------------------------------------------------------------ those never seen

    def _take_found(self, found: Found, share: int) -> None:
        cursor = self._state.cursor(found.lane)
        room = max(self._fresh_room, 0)
        expired = {offset: at_ms for offset, at_ms in found.expiries if at_ms <= self._now_ms and offset >= cursor}
        upto_max = found.upto
        if expired and self._keeps_expired:
            upto_max = self._room_end(found, cursor, expired, room)
        share = min(share, room)
        if self._config.ordering is Ordering.KEY:
            assert found.lane == DEFAULT_LANE, f"lane {found.lane}: ordering by key has one lane for all messages"
            take = self._take_keyed(found, cursor, share, expired, upto_max)
        else:
            take = self._take_ranges(found, cursor, share, expired, upto_max)
        is_new_lane = found.lane not in self._state.cursors and bool(found.ranges)
        if take.upto > cursor or is_new_lane:
            self._takes.append(take)
            self._fresh_room -= count_of(take.ranges) + count_of(take.dying)
        if take.upto < found.upto and self._fresh_room <= 0:
            self._limit = Limit.QUEUE_FULL

    def _room_end(self, found: Found, cursor: int, expired: dict[int, int], room: int) -> int:
        """Those too old are in flight as well, until the mover has taken them: together no more than there is room."""
        ranges = [*self._unseen(found, cursor, expired), *((offset, offset) for offset in expired)]
        for first, last in sorted(ranges):
            if last - first >= room:
                return min(first + room, found.upto)
            room -= last - first + 1
        return found.upto

    def _take_ranges(self, found: Found, cursor: int, share: int, expired: dict[int, int], upto_max: int) -> Take:
        taken: list[Range] = []
        left, upto = share, upto_max
        for first, last in self._unseen(found, cursor, expired):
            if first >= upto_max:
                break
            last = min(last, upto_max - 1)
            if left <= 0:
                upto = first
                break
            if last - first >= left and not self._command.takes_whole_ranges:
                taken.append((first, first + left - 1))
                upto = first + left
                left = 0
                break
            taken.append((first, last))
            left -= last - first + 1
        return self._take(found, cursor, upto, merge_ranges(taken), expired)

    def _unseen(self, found: Found, cursor: int, expired: dict[int, int]) -> Iterator[Range]:
        """What may be delivered, without what is too old and what is still on its way to the dead letters."""
        for first, last in found.ranges:
            if last < cursor:
                continue
            first = max(first, cursor)
            kept = self._state.live.pieces(first, last)
            if not kept and not expired:
                yield (first, last)
                continue
            # Whichever are fewer: a batch may have a thousand messages, and so may the list of those too old.
            offsets = range(first, last + 1) if last - first < len(expired) else expired
            too_old = [(offset, offset) for offset in offsets if offset in expired and first <= offset <= last]
            for hole_first, hole_last in sorted([(piece.first, piece.last) for piece in kept] + too_old):
                # A dying message may be too old as well.
                if hole_last < first:
                    continue
                if hole_first > first:
                    yield (first, hole_first - 1)
                first = hole_last + 1
            if first <= last:
                yield (first, last)

    def _take_keyed(self, found: Found, cursor: int, share: int, expired: dict[int, int], upto_max: int) -> Take:
        state = self._state
        blocked_room = self._config.key_lookahead_max - state.live.counts[HoldKind.BLOCKED]
        taken: list[int] = []
        keys: list[int] = []
        blocked: list[tuple[int, int]] = []
        heads: set[int] = set()
        upto = upto_max
        offsets = (offset for first, last in found.ranges for offset in range(first, last + 1))
        for offset, key in zip(offsets, found.keys, strict=True):
            if offset >= upto_max:
                break
            if offset < cursor or offset in expired or state.live.find(offset) is not None:
                continue
            if key == NO_KEY or (key not in heads and state.keys.is_free(key)):
                if len(taken) >= share:
                    upto = offset
                    break
                taken.append(offset)
                keys.append(key)
                if key != NO_KEY:
                    heads.add(key)
            elif len(blocked) >= blocked_room:
                upto, self._limit = offset, Limit.KEYS_FULL
                break
            else:
                blocked.append((offset, key))
        ranges = merge_ranges([(offset, offset) for offset in taken])
        return self._take(found, cursor, upto, ranges, expired, keys=tuple(keys), blocked=tuple(blocked))

    @property
    def _keeps_expired(self) -> bool:
        return self._config.keeps_expired and self._config.has_dead_letters

    def _take(
        self,
        found: Found,
        cursor: int,
        upto: int,
        ranges: tuple[Range, ...],
        expired: dict[int, int],
        *,
        keys: tuple[int, ...] = (),
        blocked: tuple[tuple[int, int], ...] = (),
    ) -> Take:
        dying: tuple[Range, ...] = ()
        if expired and self._keeps_expired:
            find = self._state.live.find
            dying = merge_ranges([(offset, offset) for offset in expired if offset < upto and find(offset) is None])
        expiries = tuple(
            (offset, at_ms) for offset, at_ms in found.expiries if cursor <= offset < upto and offset not in expired
        )
        # In the order of the offsets the keys were collected, so the merged ranges unfold to them again.
        return Take(found.lane, upto, ranges, keys, blocked, dying, expiries)

    # ------------------------------------------------------------------ the answer

    def _decision(self) -> Decision:
        command, state, now_ms = self._command, self._state, self._now_ms
        deliveries = [Delivery(piece.first, piece.last, piece.count + 1, piece.lane) for piece in self._again]
        for take in self._takes:
            deliveries += [Delivery(first, last, 1, take.lane) for first, last in take.ranges]
        if self._again and self._takes:
            deliveries.sort(key=lambda delivery: -delivery.lane)
        records: list[QueueRecord] = []
        has_dying = any(take.dying for take in self._takes)
        effects: tuple[QueueEffect, ...] = (DeadLettersWait(),) if has_dying else ()
        if self._fates is not None:
            records, effects = self._fates.records(), self._fates.effects(has_dying=has_dying)
        if not deliveries:
            if self._takes:
                records.append(Passed(tuple(self._takes), now_ms))
            return Decision(tuple(records), Received(limit=self._limit), effects)
        lease_ms = min(command.lease_ms or self._config.lease_ms, self._config.lease_ms_max)
        number, until_ms = state.next_number, now_ms + lease_ms
        again = merge_ranges([(piece.first, piece.last) for piece in self._again])
        records.append(Leased(number, command.consumer, until_ms, now_ms, tuple(self._takes), again))
        reply = Received(number, until_ms, tuple(deliveries), self._limit)
        return Decision(tuple(records), reply, effects)
