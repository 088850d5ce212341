"""Bugs planted into the schedule machine, each with the story that brings it out and the invariant that catches it."""

from __future__ import annotations

from typing import Final

import msgspec

from support.planted_bugs import Bug
from support.schedule.world_check import (
    BOUNDED,
    CANCELLED,
    COUNT,
    CRON,
    DUE_ORDER,
    FILES,
    IN_TIME,
    NEVER_EARLY,
    NOT_LOST,
    ONCE,
    PINNED,
    RATE,
    SAME_STATE,
    SEQUENCE,
)

_DOMAIN: Final = "penstock.domain"
WORLD: Final = "support.schedule.world"
# Everything that holds a name from a module which may be changed.
ANEW: Final = (f"{_DOMAIN}.schedule.", "penstock.base.timers", WORLD)


class ScheduleBug(msgspec.Struct, frozen=True):
    bug: Bug
    # Of the stories in `world`.
    story: str


def _bug(name: str, module: str, right: str, wrong: str, *, story: str, caught_by: str) -> ScheduleBug:
    where = f"penstock.base.{module}" if module == "timers" else f"{_DOMAIN}.{module}"
    return ScheduleBug(Bug(name, where, right, wrong, caught_by), story)


TIME_BUGS: Final = (
    _bug(
        "the wheel gives out what is due in five milliseconds",
        "timers",
        "            if at_ms >= before_ms or",
        "            if at_ms >= before_ms + 5 or",
        story="short",
        caught_by=NEVER_EARLY,
    ),
    _bug(
        "the wheel begins with the last millisecond",
        "timers",
        "            insort(self._near_times, at_ms)",
        "            self._near_times.append(at_ms)",
        story="short",
        caught_by=DUE_ORDER,
    ),
    _bug(
        "one more than was taken goes off the wheel",
        "schedule.machine",
        "wheel.drop(offer.entry_count)",
        "wheel.drop(offer.entry_count + (offer.entry_count > 4))",
        story="short",
        caught_by=IN_TIME,
    ),
    _bug(
        "what is in files does not hold up what is not",
        "schedule.release",
        "    before_ms = now_ms + 1 if known_until_ms is None else min(now_ms + 1, known_until_ms)",
        "    before_ms = now_ms + 1",
        story="clocks",
        caught_by=DUE_ORDER,
    ),
    _bug(
        "a file that is being read counts as read",
        "schedule.buckets",
        "        starts = [bucket.start_ms for bucket in self._reading.values()]",
        "        starts: list[int] = []",
        story="everything",
        caught_by=DUE_ORDER,
    ),
    _bug(
        "nobody is woken for a file",
        "schedule.machine",
        "        deadlines = [buckets.next_opening_ms(), self._state.crons.next_deadline_ms()]",
        "        deadlines = [self._state.crons.next_deadline_ms()]",
        story="long",
        caught_by=IN_TIME,
    ),
    _bug(
        "the throttle does not count",
        "schedule.release",
        "        self._busy_until_us = max(self._busy(now_ms), now_ms * 1000) + count * self._cost_us",
        "        self._busy_until_us = now_ms * 1000",
        story="burst",
        caught_by=RATE,
    ),
    _bug(
        "a night's silence is room for a whole night's messages",
        "schedule.release",
        "        self._busy_until_us = max(self._busy(now_ms), now_ms * 1000) + count * self._cost_us",
        "        self._busy_until_us = self._busy(now_ms) + count * self._cost_us",
        story="burst",
        caught_by=RATE,
    ),
    _bug(
        "a clock that was put back stops the throttle",
        "schedule.release",
        "        return now_ms * 1000 if is_stale else self._busy_until_us",
        "        return self._busy_until_us",
        story="clocks",
        caught_by=IN_TIME,
    ),
)

MOVER_BUGS: Final = (
    _bug(
        "two batches at once",
        "schedule.release",
        "    if state.is_moving:\n        return Decision((), Refused(ScheduleProblem.MOVE_UNDER_WAY)), 0\n",
        "",
        story="short",
        caught_by=DUE_ORDER,
    ),
    _bug(
        "every batch begins with the sequence number 0",
        "schedule.release",
        "    return (last.base_sequence + len(last.sources)) % _SEQUENCE_COUNT",
        "    return 0",
        story="short",
        caught_by=SEQUENCE,
    ),
    _bug(
        "a new producer goes on with the old sequence",
        "schedule.release",
        "    if last is None or last.producer_id != command.producer_id:",
        "    if last is None:",
        story="everything",
        caught_by=SEQUENCE,
    ),
    _bug(
        "the report of an old batch ends the new one",
        "schedule.release",
        "    if not state.is_moving or state.move is None or state.move.batch != command.batch:",
        "    if not state.is_moving or state.move is None:",
        story="short",
        caught_by=NOT_LOST,
    ),
    _bug(
        "a restarted node does not know of the batch under way",
        "schedule.machine",
        "        return self._state.move if self._state.is_moving else None",
        "        return None",
        story="short",
        caught_by=IN_TIME,
    ),
    _bug(
        "a batch is done before its messages are ended",
        "schedule.release",
        "    return Decision((*ends, MoveDone(state.move, now_ms)), Done())",
        "    return Decision((MoveDone(state.move, now_ms), *ends), Done())",
        story="long",
        caught_by=SAME_STATE,
    ),
    _bug(
        "released messages get no tombstones",
        "schedule.release",
        "    return Decision((*ends, MoveDone(state.move, now_ms)), Done())",
        "    return Decision((MoveDone(state.move, now_ms),), Done())",
        story="long",
        caught_by=SAME_STATE,
    ),
    _bug(
        "a batch that is intended counts as released",
        "schedule.state",
        "                self.moving = frozenset(record.move.sources)\n            case MoveDone",
        "                self.moving = frozenset(record.move.sources)\n"
        "                for position in self.moving:\n"
        "                    self.pending.discard(position)\n            case MoveDone",
        story="short",
        caught_by=COUNT,
    ),
    _bug(
        "an entry that stands twice is released twice",
        "schedule.release",
        "        sources=tuple(dict.fromkeys(found)),",
        "        sources=tuple(found),",
        story="long",
        caught_by=ONCE,
    ),
    _bug(
        "a checkpoint forgets the batch under way",
        "schedule.state",
        "        self.is_moving = record.is_moving\n",
        "        self.is_moving = False\n",
        story="short",
        caught_by=SAME_STATE,
    ),
)

CHANGE_BUGS: Final = (
    _bug(
        "a message is cancelled on its way",
        "schedule.machine",
        "        if position in state.moving:\n",
        "        if position in state.moving and now_ms < 0:\n",
        story="short",
        caught_by=COUNT,
    ),
    _bug(
        "a cancellation is not written down",
        "schedule.machine",
        "            return Decision((Ended(position, state.origin_of(position), End.CANCELLED, now_ms),), _DONE)",
        "            return Decision((), _DONE)",
        story="everything",
        caught_by=CANCELLED,
    ),
    _bug(
        "a message with another time waits in both places",
        "schedule.state",
        "            self._end(record.origin, record.replaces)\n",
        "",
        story="everything",
        caught_by=COUNT,
    ),
    _bug(
        "a message with another time is not found by its id",
        "schedule.state",
        "            self.places.set(record.origin, record.position)\n",
        "",
        story="everything",
        caught_by=NOT_LOST,
    ),
    _bug(
        "a tombstone ends only the place that it names",
        "schedule.state",
        "        self.pending.discard(self.place_of(origin))\n",
        "",
        story="everything",
        caught_by=SAME_STATE,
    ),
    _bug(
        "a checkpoint forgets where messages have gone",
        "schedule.state",
        "            places=self.places.store(),",
        "            places=(),",
        story="everything",
        caught_by=SAME_STATE,
    ),
    _bug(
        "what ends twice is counted twice",
        "schedule.positions",
        "        if position not in self:\n            return False\n",
        "        if position >> _SET_BITS not in self._blocks:\n            return False\n",
        story="short",
        caught_by=COUNT,
    ),
)

PRODUCER_BUGS: Final = (
    _bug(
        "a batch that is sent again is a new one",
        "schedule.state",
        "                return batch.count\n        return 0",
        "                return 0\n        return 0",
        story="producers",
        caught_by=ONCE,
    ),
    _bug(
        "a part of a batch counts as all of it",
        "schedule.machine",
        "        for index, due_ms in enumerate(command.dues_ms[repeated:], repeated):",
        "        for index, due_ms in enumerate(() if repeated else command.dues_ms, repeated):",
        story="producers",
        caught_by=NOT_LOST,
    ),
    _bug(
        "a checkpoint forgets what producers have sent",
        "schedule.state",
        "        self.producers = {producer_id: list(batches) for producer_id, batches in record.producers}",
        "        self.producers = {}",
        story="producers",
        caught_by=ONCE,
    ),
    _bug(
        "a message does not wait for its transaction",
        "schedule.state",
        "            if record.is_transactional:\n",
        "            if record.is_transactional and record.position % 2:\n",
        story="producers",
        caught_by=COUNT,
    ),
    _bug(
        "an aborted transaction's messages are released",
        "schedule.state",
        "        if record.is_commit:\n            for position",
        "        if record.is_commit is not None:\n            for position",
        story="producers",
        caught_by=COUNT,
    ),
    _bug(
        "an old transaction's end ends the new one",
        "schedule.state",
        "        if held is None or held.producer_epoch > record.producer_epoch:\n            return\n        del",
        "        if held is None:\n            return\n        del",
        story="producers",
        caught_by=COUNT,
    ),
    _bug(
        "a checkpoint forgets open transactions",
        "schedule.state",
        "        for producer_id, producer_epoch, entries in record.held:",
        "        for producer_id, producer_epoch, entries in ():",
        story="producers",
        caught_by=SAME_STATE,
    ),
    _bug(
        "the log may lose what an open transaction needs",
        "schedule.machine",
        "        return min([*held, *crons,",
        "        return min([*crons,",
        story="producers",
        caught_by=PINNED,
    ),
)

FILE_BUGS: Final = (
    _bug(
        "what is not in a file yet is lost when the file is opened",
        "schedule.buckets",
        "        self._sort_in(bucket, bucket.spill, now_ms)\n        bucket.spill = bytearray()\n",
        "        bucket.spill = bytearray()\n",
        story="long",
        caught_by=IN_TIME,
    ),
    _bug(
        "near messages are not written to files",
        "schedule.buckets",
        "            entries = self._still_pending(some) if bucket.is_near else some",
        '            entries = b"" if bucket.is_near else some',
        story="everything",
        caught_by=IN_TIME,
    ),
    _bug(
        "a file is forgotten while it is read",
        "schedule.buckets",
        "        if bucket.name.number not in self._reading:\n            del self._all[bucket.name.number]",
        "        self._all.pop(bucket.name.number, None)",
        story="long",
        caught_by=DUE_ORDER,
    ),
    _bug(
        "a file is forgotten when it has been read",
        "schedule.buckets",
        "            is_past = earliest_ms is None or bucket.end_ms <= earliest_ms",
        "            is_past = True",
        story="everything",
        caught_by=IN_TIME,
    ),
    _bug(
        "files are kept for ever",
        "schedule.buckets",
        "            if is_read and (is_past or not bucket.written_count):",
        "            if is_read and (is_past or not bucket.written_count) and bucket.name.number % 2:",
        story="everything",
        caught_by=BOUNDED,
    ),
    _bug(
        "a file is said to hold more than it does",
        "schedule.buckets",
        "            bucket.written_count += len(entries) // ENTRY_BYTES",
        "            bucket.written_count += -(-len(entries) // ENTRY_BYTES) + (len(entries) > 100)",
        story="long",
        caught_by=FILES,
    ),
    _bug(
        "a new message goes to a file that is past",
        "schedule.buckets",
        "            bucket.is_near = True\n        else:\n",
        "            pass\n        else:\n",
        story="everything",
        caught_by=IN_TIME,
    ),
)

CRON_BUGS: Final = (
    _bug(
        "a schedule is forgotten by a restart",
        "schedule.cron_book",
        "        self._crons = {cron.name: cron for cron in crons}",
        "        self._crons = {cron.name: cron for cron in crons[1:]}",
        story="crons",
        caught_by=SAME_STATE,
    ),
    _bug(
        "a time counts as fired before its message is there",
        "schedule.machine",
        "            records.append(Scheduled(command.position + len(records), due_ms, now_ms, cron=name))\n"
        "            records.append(CronFired(name, due_ms, now_ms))",
        "            records.append(CronFired(name, due_ms, now_ms))\n"
        "            records.append(Scheduled(command.position + len(records), due_ms, now_ms, cron=name))",
        story="crons",
        caught_by=CRON,
    ),
    _bug(
        "a message that was made does not say that its time is fired",
        "schedule.state",
        "            self.crons.note_fired(record.cron, record.due_ms)\n",
        "            pass\n",
        story="crons",
        caught_by=SAME_STATE,
    ),
    _bug(
        "missed times are not skipped",
        "schedule.cron_book",
        "        if cron.missed is not Missed.ALL and after_ms < fresh_ms - 1:",
        "        if cron.missed is Missed.ONCE and after_ms < fresh_ms - 1:",
        story="crons",
        caught_by=CRON,
    ),
    _bug(
        "none of the missed times is fired",
        "schedule.cron_book",
        "        if cron.missed is not Missed.ALL and after_ms < fresh_ms - 1:",
        "        if after_ms < fresh_ms - 1:",
        story="crons",
        caught_by=CRON,
    ),
    _bug(
        "the first of the missed times is fired, not the last",
        "schedule.cron",
        "            last_ms = later_ms\n",
        "            empty_ms = middle_ms\n",
        story="crons",
        caught_by=CRON,
    ),
)

BUGS: Final = TIME_BUGS + MOVER_BUGS + CHANGE_BUGS + PRODUCER_BUGS + FILE_BUGS + CRON_BUGS
