"""A schedule, its log, its files, its producers and the log it releases to, in a world made from one seed.

Everything that happens is one of a list of events, drawn by the seed: somebody schedules, cancels, changes a time, ends
a transaction, sends a batch again; the disk catches up; files are read part by part; clocks are put forward and back;
the node crashes at any row; the mover's batches arrive late, twice or never. After the events comes quiet: everybody
does their duty, clocks run, and everything must come out.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from penstock.domain.schedule.commands import (
    Accepted,
    Cancel,
    DefineCron,
    DeleteCron,
    Done,
    EndTransaction,
    Refused,
    Reschedule,
    Schedule,
    ScheduleProblem,
    ScheduleReply,
)
from penstock.domain.schedule.machine import ScheduleConfig
from penstock.domain.schedule.records import Missed, ProducerBatch
from support.schedule.world_check import (
    BOUNDED,
    COUNT,
    IN_TIME,
    NOT_LOST,
    RATE,
    TOO_LATE,
    Book,
    InvariantBrokenError,
    Told,
    check,
)
from support.schedule.world_node import SimNode, SimTarget

__all__ = ["STORIES", "InvariantBrokenError", "World", "run_world"]

EVENTS: Final = 350
QUIET_ROUNDS: Final = 3_000
SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
# From what is over at once to what goes through every level of files.
DELAYS: Final = (0, 1, 40, SECOND, 20 * SECOND, 3 * MINUTE, HOUR, 6 * HOUR, 3 * DAY, 40 * DAY, 1_000 * DAY)


class Story(msgspec.Struct, frozen=True):
    """What a world is about."""

    troubles: tuple[str, ...]
    delays: tuple[int, ...] = DELAYS
    config: ScheduleConfig = ScheduleConfig(release_rate_max=10_000, batch_count_max=20)
    # By how much time goes on, at the most: to the next alarm, or so far.
    step_ms: int = HOUR
    events: int = EVENTS


STORIES: Final = {
    "everything": Story(
        ("crash", "crash", "cancel", "change", "checkpoint", "clock", "target", "lose", "compact", "trim", "producer")
    ),
    "short": Story(
        (
            "crash",
            "crash",
            "cancel",
            "cancel",
            "change",
            "checkpoint",
            "checkpoint",
            "spill",
            "target",
            "lose",
            "compact",
        ),
        delays=(0, 1, 40, SECOND, 5 * SECOND),
        step_ms=SECOND,
    ),
    "long": Story(
        ("checkpoint", "checkpoint", "spill", "crash", "change", "cancel", "compact", "snapshot"),
        delays=(HOUR, 6 * HOUR, 3 * DAY, 40 * DAY, 1_000 * DAY, 60_000 * DAY),
        step_ms=20 * DAY,
    ),
    "producers": Story(
        (
            "crash",
            "crash",
            "crash",
            "retry",
            "retry",
            "end",
            "end",
            "begin",
            "checkpoint",
            "marker",
            "snapshot",
            "trim",
            "trim",
        )
    ),
    "clocks": Story(("clock", "clock", "clock", "crash", "checkpoint", "cancel", "change"), step_ms=5 * MINUTE),
    "burst": Story(
        ("night",),
        delays=(0, 40, SECOND, HOUR),
        config=ScheduleConfig(release_rate_max=100, batch_count_max=20),
        step_ms=SECOND,
    ),
    "crons": Story(
        ("define", "define", "drop", "crash", "crash", "checkpoint", "compact", "night", "snapshot"),
        delays=(SECOND, MINUTE),
        step_ms=2 * MINUTE,
        events=200,
    ),
}


class SimProducer:
    """Sends its batches until they are accepted. With transactions: until its commit or abort is."""

    def __init__(self, world: World, producer_id: int, *, is_transactional: bool) -> None:
        self._world = world
        self._producer_id = producer_id
        self._is_transactional = is_transactional
        self._epoch = 0
        self._sequence = 0
        self._sent_since = 0
        self.waiting: dict[int, tuple[tuple[str, ...], tuple[int, ...]]] = {}
        self._names: list[str] = []
        self._ending: bool | None = None
        self._old_markers: list[EndTransaction] = []

    def send(self) -> None:
        if self._ending is not None:
            return
        # In order: a batch that is not accepted yet holds up the ones behind it.
        if self.waiting and self._sent_since >= 3:
            self.retry()
            return
        self._sent_since = self._sent_since + 1 if self.waiting else 0
        names = self._world.new_names(self._world.rng.randint(1, 4))
        dues = tuple(self._world.draw_due() for _name in names)
        self.waiting[self._sequence] = (names, dues)
        self._names += names
        for name in names:
            told = self._world.book.messages[name] = Told(name)
            told.is_uncommitted = self._is_transactional
        self._submit(self._sequence)
        self._sequence += self._world.rng.randint(len(names), 9)

    def retry(self) -> None:
        for sequence in sorted(self.waiting):
            self._submit(sequence)

    def _submit(self, sequence: int) -> None:
        names, dues = self.waiting[sequence]
        batch = ProducerBatch(self._producer_id, self._epoch, sequence)
        node = self._world.node
        command = Schedule(node.end, dues, batch, self._is_transactional)

        def then(reply: ScheduleReply) -> None:
            assert isinstance(reply, Accepted), reply
            for name in names:
                self._world.book.messages[name].is_accepted = True
            self.waiting.pop(sequence, None)

        node.submit(command, names, then)

    def end(self) -> None:
        """Once decided, it is sent until it is done."""
        if not self._is_transactional or self.waiting or not self._names:
            return
        if self._ending is None:
            self._ending = self._world.rng.random() < 0.6
            for name in self._names:
                told = self._world.book.messages[name]
                told.is_aborted = not self._ending
                told.is_uncommitted = False
        is_commit = self._ending
        marker = EndTransaction(self._producer_id, self._epoch, is_commit)

        def then(reply: ScheduleReply) -> None:
            if self._ending is None or marker.producer_epoch != self._epoch:
                return
            self._ending = None
            self._names = []
            self._old_markers.append(marker)
            self._epoch += 1
            self._sequence = 0

        self._world.node.submit(marker, then=then)

    def repeat_old_marker(self) -> None:
        if self._old_markers:
            self._world.node.submit(self._world.rng.choice(self._old_markers))


class World:
    def __init__(self, seed: int, story: str) -> None:
        self.rng = Random(f"{story} {seed}")
        self.story = STORIES[story]
        self.book = Book()
        self.node = SimNode(self.rng, self.book, self.story.config, SimTarget(self.rng, self.book))
        self.node.now_ms = 1_700_000_000_000
        self.producers = [SimProducer(self, 1, is_transactional=False), SimProducer(self, 2, is_transactional=True)]
        self.crons: dict[str, tuple[int, int, Missed]] = {}
        self._name_count = 0
        self.restarts = 0
        self.is_quiet = False
        self.fired_expected: set[str] = set()

    def new_names(self, count: int) -> tuple[str, ...]:
        self._name_count += count
        return tuple(f"message {self._name_count - place}" for place in range(count))

    def draw_due(self) -> int:
        return self.node.now_ms + self.rng.choice(self.story.delays) + self.rng.randint(0, 3)

    # ------------------------------------------------------------------ events

    def run(self) -> None:
        for _event in range(self.story.events):
            kind = self.rng.choices(
                ("schedule", "send", "sync", "time", "read", "mover", "trouble"), (10, 4, 14, 16, 8, 14, 9)
            )[0]
            self._event(self.rng.choice(self.story.troubles) if kind == "trouble" else kind)
            self._check()
        self._quiet()

    def _event(self, kind: str) -> None:
        rng, node = self.rng, self.node
        match kind:
            case "schedule":
                self._schedule()
            case "send" | "begin":
                rng.choice(self.producers).send()
            case "retry":
                rng.choice(self.producers).retry()
            case "end":
                self.producers[1].end()
            case "marker":
                self.producers[1].repeat_old_marker()
            case "sync":
                node.sync()
                if rng.random() < 0.3:
                    node.end_checkpoint()
            case "spill":
                node.spill()
            case "time":
                self._pass_time()
            case "read":
                node.read_some(rng.randint(1, 5))
            case "mover":
                self._move()
            case "cancel" | "change":
                self._change(kind)
            case _:
                self._trouble(kind)

    def _trouble(self, kind: str) -> None:
        rng, node = self.rng, self.node
        match kind:
            case "crash" | "snapshot":
                self.restarts += 1
                node.crash(is_snapshot_lost=kind == "snapshot" and not node.is_trimmed)
            case "checkpoint":
                node.begin_checkpoint()
                # Or later, when the disk is done with it.
                if rng.random() < 0.4:
                    node.end_checkpoint()
            case "clock":
                node.now_ms += rng.choice((-DAY, -HOUR, -MINUTE, -30, 30, MINUTE, HOUR, DAY))
            case "night":
                node.now_ms += rng.choice((10 * MINUTE, 8 * HOUR))
            case "target":
                node.target.crash()
            case "lose":
                if node.network:
                    node.network.pop(rng.randrange(len(node.network)))
            case "compact":
                waiting = [batch for producer in self.producers for batch in producer.waiting.values()]
                node.compact(frozenset(name for names, _dues in waiting for name in names))
            case "trim":
                node.trim()
            case "producer":
                if node.schedule.pending_move() is None:
                    node.producer_id += 1
            case "define" | "drop":
                self._cron(kind)
            case _:
                raise AssertionError(kind)

    def _schedule(self) -> None:
        names = self.new_names(self.rng.randint(1, 5))
        # Many at the same time, now and then.
        dues = (self.draw_due(),) * len(names) if self.rng.random() < 0.3 else tuple(self.draw_due() for _ in names)
        position = self.node.end
        for name in names:
            self.book.messages[name] = Told(name)

        def then(reply: ScheduleReply) -> None:
            assert reply == Accepted(len(names), position), reply
            for place, name in enumerate(names):
                told = self.book.messages[name]
                told.is_accepted, told.origin = True, position + place

        self.node.submit(Schedule(position, dues), names, then)

    def _change(self, kind: str) -> None:
        known = [told for told in self.book.messages.values() if told.origin is not None]
        if not known:
            return
        # Those that wait, mostly: who waits longest is asked for soonest.
        waiting = [told for told in known if told.name not in self.book.seen]
        told = self.rng.choice(waiting if waiting and self.rng.random() < 0.8 else known)
        leaving = [self.book.messages[name] for name in self.node.on_their_way() if name in self.book.messages]
        if leaving and self.rng.random() < 0.3:
            told = self.rng.choice(leaving)
        if told.origin is None:
            return
        if kind == "cancel":
            told.is_maybe_cancelled = True
            self.node.submit(Cancel(told.origin), then=lambda reply: self._told(told, reply))
        else:
            self.node.submit(
                Reschedule(self.node.end, told.origin, self.draw_due()),
                (told.name,),
                lambda reply: self._told_change(told, reply),
            )

    def _told(self, told: Told, reply: ScheduleReply) -> None:
        match reply:
            case Done():
                check(TOO_LATE, told.name not in self.book.seen, told)
                told.is_cancelled = True
            case Refused(ScheduleProblem.BEING_RELEASED):
                told.is_too_late = True
            case _:
                self._told_change(told, reply)

    def _told_change(self, told: Told, reply: ScheduleReply) -> None:
        if reply == Refused(ScheduleProblem.NOT_PENDING):
            is_over = told.name in self.book.seen or told.is_cancelled or told.is_maybe_cancelled
            check(NOT_LOST, is_over, f"{told} does not wait, they say")

    def _cron(self, kind: str) -> None:
        name = f"cron {self.rng.randrange(3)}"
        if kind == "drop":
            self.node.submit(DeleteCron(name))
        else:
            missed = self.rng.choice(tuple(Missed))
            self.node.submit(DefineCron(self.node.end, name, "* * * * *", "UTC", missed))

    def _pass_time(self) -> None:
        node = self.node
        deadline_ms = node.schedule.next_deadline_ms(node.now_ms)
        step_ms = self.rng.choice((0, 1, 7, 50, self.rng.randint(1, self.story.step_ms)))
        if deadline_ms is not None and self.rng.random() < 0.5:
            step_ms = min(max(0, deadline_ms - node.now_ms), self.story.step_ms)
        node.now_ms += step_ms
        node.ring()

    def _move(self) -> None:
        node = self.node
        if not node.network and (self.is_quiet or self.rng.random() < 0.3):
            node.send_again()
        node.deliver(may_repeat=not self.is_quiet)
        # A mover that has lost count is told so.
        if not self.is_quiet and self.rng.random() < 0.15:
            node.release()
        if self.is_quiet or self.rng.random() < 0.7:
            node.settle()

    # ------------------------------------------------------------------ checks

    def _check(self) -> None:
        node = self.node
        schedule = node.schedule
        check(COUNT, schedule.pending_count == len(node.model.pending), schedule.pending_count)
        due_ms = min(node.model.pending.values(), default=None)
        if due_ms is None or schedule.pending_move() is not None or node.is_reading:
            return
        deadline_ms = schedule.next_deadline_ms(node.now_ms)
        # A throttle lets something go every 20 ms, at a hundred a second.
        is_set = deadline_ms is not None and deadline_ms <= max(due_ms, node.now_ms + 50)
        check(IN_TIME, is_set, f"{due_ms} is due, the alarm is set for {deadline_ms}, now is {node.now_ms}")

    # ------------------------------------------------------------------ quiet

    def _quiet(self) -> None:
        self.is_quiet = True
        node = self.node
        for name in [cron.name for cron in node.schedule.crons()]:
            node.submit(DeleteCron(name))
        for producer in self.producers:
            producer.retry()
        node.sync()
        self.producers[1].end()
        node.sync()
        for _round in range(QUIET_ROUNDS):
            node.sync()
            self._move()
            node.read_some(1_000)
            node.sync()
            if not node.ring():
                deadline_ms = node.schedule.next_deadline_ms(node.now_ms)
                if deadline_ms is None and node.schedule.pending_move() is None:
                    break
                node.now_ms = max(node.now_ms, deadline_ms or 0)
        self._check_end()

    def _check_end(self) -> None:
        node = self.node
        check(NOT_LOST, not node.model.pending, node.model.pending)
        check(COUNT, node.schedule.pending_count == 0, node.schedule.pending_count)
        check(BOUNDED, node.schedule.near_count == 0, node.schedule.near_count)
        self.book.check_ends()
        node.check_fired()
        node.spill()
        node.begin_checkpoint()
        node.end_checkpoint()
        check(BOUNDED, not node.files, f"{len(node.files)} files, and nothing waits")
        if self.story is STORIES["burst"]:
            self._check_rate()

    def _check_rate(self) -> None:
        rate = self.story.config.release_rate_max
        releases = self.node.releases
        for first, (since_ms, _count) in enumerate(releases):
            count = sum(count for at_ms, count in releases[first:] if at_ms < since_ms + SECOND)
            check(RATE, count <= rate * 1.1 + 2, f"{count} from {since_ms} on")


def run_world(seed: int, story: str) -> World:
    world = World(seed, story)
    world.run()
    return world
