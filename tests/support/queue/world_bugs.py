"""Bugs planted into the queue machine, each with the story that brings it out and the invariant that catches it."""

from __future__ import annotations

from typing import Final

import msgspec

from support.planted_bugs import Bug
from support.queue.world_check import (
    BOUNDED,
    DELIVERIES,
    FINISHED,
    HELD,
    HISTORY,
    IN_TIME,
    KEY_ORDER,
    LIMITS,
    MESSAGES_ALONE,
    MOVED_ONCE,
    NEVER_BACK,
    ONCE,
    ONE_HOLDER,
    PAUSED,
    RECEIPTS,
    SAME_STATE,
    TIME_TO_LIVE,
    WOKEN,
)

_DOMAIN: Final = "penstock.domain"
WORLD: Final = "support.queue.world"
# Everything that holds a name from a module which may be changed.
ANEW: Final = (f"{_DOMAIN}.queue.", WORLD)


class QueueBug(msgspec.Struct, frozen=True):
    bug: Bug
    # Of the stories in `world`.
    story: str


def _bug(name: str, module: str, right: str, wrong: str, *, story: str, caught_by: str) -> QueueBug:
    return QueueBug(Bug(name, f"{_DOMAIN}.{module}", right, wrong, caught_by), story)


SETTLE_BUGS: Final = (
    _bug(
        "an old receipt settles a newer delivery",
        "queue.settle",
        "    if item.number not in (ANY_DELIVERY, hold.number):\n        return False\n",
        "",
        story="short leases",
        caught_by=RECEIPTS,
    ),
    _bug(
        "any member settles any member's message",
        "queue.settle",
        "        return consumer is None or hold.consumer == consumer",
        "        return True",
        story="share group",
        caught_by=RECEIPTS,
    ),
    _bug(
        "who has lost its lock accepts by name",
        "queue.settle",
        "    return is_late and item.number != ANY_DELIVERY and consumer is None",
        "    return is_late",
        story="share group",
        caught_by=RECEIPTS,
    ),
    _bug(
        "deliveries are not counted against the limit",
        "queue.settle",
        "if is_counted and 0 < self._config.deliveries_max <= part.count:",
        "if is_counted and 0 < self._config.deliveries_max < part.count:",
        story="everything",
        caught_by=DELIVERIES,
    ),
    _bug(
        "a release ignores its delay",
        "queue.settle",
        "            available_ms = self._now_ms + wait_ms if wait_ms > 0 else 0",
        "            available_ms = 0",
        story="everything",
        caught_by=IN_TIME,
    ),
    _bug(
        "a rejected message comes back",
        "queue.settle",
        "            fates.kill(piece, Cause.REJECTED, item.text[:TEXT_CHARACTERS_MAX])",
        "            fates.come_back(piece, Cause.REJECTED, delay_ms=0)",
        story="everything",
        caught_by=ONCE,
    ),
    _bug(
        "a whole command is carried out by half",
        "queue.settle",
        "    if is_refused and command.is_whole:",
        "    if is_refused and command.is_whole and not fates.records():",
        story="short leases",
        caught_by=ONE_HOLDER,
    ),
    _bug(
        "leases do not end",
        "queue.settle",
        "        fates.come_back(piece, Cause.LEASE_EXPIRED, delay_ms=None)",
        "        pass",
        story="everything",
        caught_by=IN_TIME,
    ),
    _bug(
        "a consumer that is gone keeps what it has",
        "queue.settle",
        "hold.consumer == command.consumer),",
        "hold.consumer > command.consumer),",
        story="share group",
        caught_by=RECEIPTS,
    ),
    _bug(
        "an expired message comes back to be delivered",
        "queue.settle",
        "            if expiries.get(offset, now_ms + 1) > now_ms:",
        "            if True:",
        story="everything",
        caught_by=TIME_TO_LIVE,
    ),
    _bug(
        "nobody is woken when a message comes back",
        "queue.settle",
        "        if self._returned or frees_keys or",
        "        if frees_keys or False and",
        story="share group",
        caught_by=WOKEN,
    ),
    _bug(
        "nobody is woken when the next message of a key may go",
        "queue.settle",
        "        if self._returned or frees_keys or",
        "        if self._returned or False and",
        story="keys",
        caught_by=WOKEN,
    ),
)

RECEIVE_BUGS: Final = (
    _bug(
        "a paused queue delivers",
        "queue.receive",
        "    if state.is_paused:",
        "    if state.is_paused and not command.found:",
        story="everything",
        caught_by=PAUSED,
    ),
    _bug(
        "what is dying is delivered when the start is set back",
        "queue.receive",
        "            kept = self._state.live.pieces(first, last)\n",
        "            kept = []\n",
        story="dead letters",
        caught_by=ONE_HOLDER,
    ),
    _bug(
        "the cursor goes to the end of what was found",
        "queue.receive",
        "                upto = first + left\n",
        "                upto = upto_max\n",
        story="everything",
        caught_by=ONCE,
    ),
    _bug(
        "a lane that gets nothing is not remembered",
        "queue.receive",
        "        if take.upto > cursor or is_new_lane:",
        "        if take.upto > cursor:",
        story="lanes",
        caught_by=FINISHED,
    ),
    _bug(
        "the limit of the queue is not looked at",
        "queue.receive",
        "        share = min(share, room)\n",
        "",
        story="dead letters",
        caught_by=BOUNDED,
    ),
    _bug(
        "a consumer's limit does not count what it has",
        "queue.receive",
        "    room = min(command.count_max, config.in_flight_per_consumer_max - held)",
        "    room = min(command.count_max, config.in_flight_per_consumer_max)",
        story="everything",
        caught_by=LIMITS,
    ),
    _bug(
        "two messages of a key go out together",
        "queue.receive",
        "            if key == NO_KEY or (key not in heads and state.keys.is_free(key)):",
        "            if key == NO_KEY or state.keys.is_free(key):",
        story="keys",
        caught_by=KEY_ORDER,
    ),
    _bug(
        "a message overtakes one of its key that is with a consumer",
        "queue.receive",
        "            if key == NO_KEY or (key not in heads and state.keys.is_free(key)):",
        "            if key == NO_KEY or key not in heads:",
        story="keys",
        caught_by=KEY_ORDER,
    ),
    _bug(
        "the number of blocked messages has no end",
        "queue.receive",
        "            elif len(blocked) >= blocked_room:",
        "            elif len(blocked) >= self._config.key_lookahead_max:",
        story="keys",
        caught_by=BOUNDED,
    ),
    _bug(
        "what is too old on arrival is delivered",
        "queue.receive",
        "if at_ms <= self._now_ms and offset >= cursor}",
        "if at_ms <= self._now_ms - 10_000 and offset >= cursor}",
        story="everything",
        caught_by=TIME_TO_LIVE,
    ),
    _bug(
        "the time to live of what is delivered is forgotten",
        "queue.receive",
        "if cursor <= offset < upto and offset not in expired",
        "if cursor <= offset < upto - 1 and offset not in expired",
        story="everything",
        caught_by=TIME_TO_LIVE,
    ),
)

STATE_BUGS: Final = (
    _bug(
        "a lease is not counted as a delivery",
        "queue.state",
        "count=piece.count + 1, hold=hold",
        "count=piece.count, hold=hold",
        story="everything",
        caught_by=DELIVERIES,
    ),
    _bug(
        "accepting one message accepts its neighbours",
        "queue.live",
        "            if whole.last > piece.last:\n",
        "            if whole.last > piece.last + 1:\n",
        story="everything",
        caught_by=ONCE,
    ),
    _bug(
        "what comes back has the name of no delivery",
        "queue.state",
        "holds[number] = Hold(HoldKind.WAITING, number=number, until_ms=record.available_ms)",
        "holds[number] = Hold(HoldKind.WAITING, until_ms=record.available_ms)",
        story="short leases",
        caught_by=HELD,
    ),
    _bug(
        "a renewal forgets the deadline",
        "queue.state",
        "consumer=old.consumer,\n                        until_ms=record.until_ms,",
        "consumer=old.consumer,\n                        until_ms=old.until_ms,",
        story="short leases",
        caught_by=ONE_HOLDER,
    ),
    _bug(
        "the next delivery has the number of the last",
        "queue.state",
        "        self.next_number = record.number + 1",
        "        self.next_number = record.number",
        story="everything",
        caught_by=RECEIPTS,
    ),
    _bug(
        "the next of a key goes when the one before comes back",
        "queue.state",
        "                live.add(\n                    piece.first,\n                    piece.last,\n"
        "                    count=piece.count if record.is_counted",
        "                self._settled(piece)\n"
        "                live.add(\n                    piece.first,\n                    piece.last,\n"
        "                    count=piece.count if record.is_counted",
        story="keys",
        caught_by=KEY_ORDER,
    ),
    _bug(
        "the next message of a key does not get its turn",
        "queue.state",
        "            if successor is None:\n",
        "            if successor is None or offset % 5 == 0:\n",
        story="keys",
        caught_by=ONCE,
    ),
    _bug(
        "the finished offset does not wait for what is in flight",
        "queue.state",
        "        return cursor if first is None else min(first, cursor)",
        "        return cursor",
        story="everything",
        caught_by=FINISHED,
    ),
    _bug(
        "the finished offset does not wait for every lane",
        "queue.state",
        "        cursor = min(self.cursors.values())\n",
        "        cursor = self.cursors[DEFAULT_LANE]\n",
        story="lanes",
        caught_by=FINISHED,
    ),
    _bug(
        "a snapshot forgets the times to live",
        "queue.state",
        "            expiries=tuple(sorted(self.expiries.items())),",
        "            expiries=(),",
        story="everything",
        caught_by=TIME_TO_LIVE,
    ),
    _bug(
        "a snapshot forgets the numbers of deliveries",
        "queue.state",
        "        self.next_number = record.next_number\n",
        "        self.next_number = record.next_number - 1\n",
        story="everything",
        caught_by=SAME_STATE,
    ),
    _bug(
        "a pause ends with the node",
        "queue.state",
        "        self.is_paused = record.is_paused\n",
        "",
        story="everything",
        caught_by=SAME_STATE,
    ),
    _bug(
        "a purge leaves leases behind",
        "queue.state",
        "        dying = [span for span in self.live if span.hold.kind is HoldKind.DYING]",
        "        dying = list(self.live)",
        story="hands on",
        caught_by=ONCE,
    ),
    _bug(
        "a wait ends late",
        "queue.live",
        "        while delayed and delayed[0][0] <= now_ms:",
        "        while delayed and delayed[0][0] < now_ms:",
        story="everything",
        caught_by=IN_TIME,
    ),
    _bug(
        "an alarm is lost when its span is cut",
        "queue.live",
        "                heappush(self._delayed, (hold.until_ms, first))\n            else:",
        "                if not hold.firsts:\n                    heappush(self._delayed, (hold.until_ms, first))\n"
        "            else:",
        story="everything",
        caught_by=WOKEN,
    ),
)

MOVER_BUGS: Final = (
    _bug(
        "two moves at once",
        "queue.dead_letter",
        "    if state.is_moving:\n        return Decision((), Refused(QueueProblem.MOVE_UNDER_WAY))\n",
        "",
        story="dead letters",
        caught_by=ONCE,
    ),
    _bug(
        "every batch begins with the sequence number 0",
        "queue.dead_letter",
        "    return (last.base_sequence + count_of(last.sources)) % _SEQUENCE_COUNT",
        "    return 0",
        story="dead letters",
        caught_by=MOVED_ONCE,
    ),
    _bug(
        "a new target goes on with the old sequence",
        "queue.dead_letter",
        "    if last is None or last.producer_id != command.producer_id:",
        "    if last is None:",
        story="dead letters",
        caught_by=ONCE,
    ),
    _bug(
        "a restarted node does not know of the move under way",
        "queue.machine",
        "        return self._state.move if self._state.is_moving else None",
        "        return None",
        story="dead letters",
        caught_by=ONCE,
    ),
    _bug(
        "a move is done when it is intended",
        "queue.state",
        "                self.move = record.move\n                self.is_moving = True",
        "                self.move = record.move\n                self._forget(record.move.sources)",
        story="dead letters",
        caught_by=HISTORY,
    ),
    _bug(
        "the report of an old batch ends the new move",
        "queue.dead_letter",
        "def decide_finish(state: QueueState, command: FinishMove, now_ms: int) -> Decision:\n"
        "    if not state.is_moving or state.move is None or state.move.batch != command.batch:\n"
        "        return Decision((), Refused(QueueProblem.NO_SUCH_MOVE))\n",
        "def decide_finish(state: QueueState, command: FinishMove, now_ms: int) -> Decision:\n"
        "    if not state.is_moving or state.move is None:\n"
        "        return Decision((), Refused(QueueProblem.NO_SUCH_MOVE))\n"
        "    command = FinishMove(state.move.batch)\n",
        story="dead letters",
        caught_by=HISTORY,
    ),
    _bug(
        "a dropped move keeps its sources",
        "queue.state",
        "        if isinstance(record, MoveDone):\n            self._forget",
        "        if record:\n            self._forget",
        story="dead letters",
        caught_by=ONCE,
    ),
    _bug(
        "a dead letter forgets how often it was delivered",
        "queue.dead_letter",
        "    return DeadLetter(span.first, span.last, span.count, span.failure)",
        "    return DeadLetter(span.first, span.last, 0, span.failure)",
        story="dead letters",
        caught_by=HISTORY,
    ),
    _bug(
        "a dead letter knows its last failure alone",
        "queue.state",
        "    first_ms = record.at_ms if before is None else before.first_ms",
        "    first_ms = record.at_ms",
        story="dead letters",
        caught_by=HISTORY,
    ),
    _bug(
        "nobody is told that there are dead letters",
        "queue.settle",
        "        if self._died or has_dying:",
        "        if has_dying:",
        story="everything",
        caught_by=ONCE,
    ),
)

LANE_BUGS: Final = (
    _bug(
        "a message is delivered as one of another lane",
        "queue.receive",
        "        return Take(found.lane, upto, ranges, keys, blocked, dying, expiries)",
        "        return Take(max(found.lane - 5, 4), upto, ranges, keys, blocked, dying, expiries)",
        story="lanes",
        caught_by=MESSAGES_ALONE,
    ),
    _bug(
        "what was accepted is forgotten when the cursor of its lane is set back",
        "queue.state",
        "            self.cursors[lane] = take.upto\n",
        "            self.cursors[lane] = take.upto - (take.upto - self.cursor(lane) > 30)\n",
        story="lanes",
        caught_by=NEVER_BACK,
    ),
)

BUGS: Final = SETTLE_BUGS + RECEIVE_BUGS + STATE_BUGS + MOVER_BUGS + LANE_BUGS
