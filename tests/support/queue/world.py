"""A queue, its journal, its log, its consumers and the dead letters' topic in a world made from one seed.

Everything that happens is one of a list of events, drawn by the seed: a producer writes, a consumer receives, settles,
dies or tries what it has no right to; the disk catches up; the node crashes at any record; the mover works, and its
messages arrive late, twice or never. After the events comes quiet: everybody does their duty, and everything must end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from penstock.domain.queue.commands import (
    AppendMove,
    BeginMove,
    DeadLettersWait,
    Decision,
    DropMove,
    FinishMove,
    Found,
    MoveStart,
    Open,
    Pause,
    QueueCommand,
    QueueReply,
    Receive,
    Received,
    Resume,
    Snapshot,
    TimePassed,
    TrimLog,
    WakeReceivers,
)
from penstock.domain.queue.dead_letter import Origin, headers_of
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.machine import Queue
from penstock.domain.queue.records import Move, Stored, read_record, write_record
from penstock.domain.queue.values import (
    NO_KEY,
    BackOff,
    BackOffKind,
    HoldKind,
    Ordering,
    QueueConfig,
    Range,
    count_of,
)
from support.queue.world_check import (
    BOUNDED,
    FINISHED,
    HISTORY,
    IN_TIME,
    LIMITS,
    MOVED_ONCE,
    ONCE,
    ONE_HOLDER,
    PAUSED,
    SAME_STATE,
    WOKEN,
    Book,
    InvariantBrokenError,
    Message,
)
from support.queue.world_consumer import SimConsumer

EVENTS: Final = 500
QUIET_ROUNDS: Final = 400
FOUND_MAX: Final = 40


class Story(msgspec.Struct, frozen=True):
    """What a world is about."""

    config: QueueConfig
    lanes: tuple[int, ...] = (DEFAULT_LANE,)
    key_count: int = 0
    # Of messages that have a time to live, of offsets that hold no message.
    expiring_share: float = 0.0
    hole_share: float = 0.05
    # What consumers do with a message; the rest is accepted.
    release_share: float = 0.2
    reject_share: float = 0.05
    # Share groups: by the consumer's name, all or nothing, whole batches.
    by_name: bool = False
    troubles: tuple[str, ...] = ()


_BACK_OFF: Final = BackOff(BackOffKind.EXPONENTIAL, initial_ms=200, ms_max=2_000, jitter_share=0.5)
_PLAIN: Final = QueueConfig(
    lease_ms=1_000, deliveries_max=3, back_off=_BACK_OFF, in_flight_max=120, in_flight_per_consumer_max=50
)
STORIES: Final = {
    "everything": Story(
        _PLAIN,
        expiring_share=0.1,
        troubles=("crash", "crash", "gone", "pause", "reclaim", "snapshot", "target", "lose", "renew", "thief"),
    ),
    "keys": Story(
        msgspec.structs.replace(_PLAIN, ordering=Ordering.KEY, key_lookahead_max=30),
        key_count=5,
        expiring_share=0.05,
        troubles=("crash", "snapshot", "renew", "thief", "trim"),
    ),
    "lanes": Story(_PLAIN, lanes=(0, 2, 4, 9), troubles=("crash", "snapshot", "reclaim", "thief")),
    "share group": Story(
        msgspec.structs.replace(_PLAIN, back_off=BackOff(), deliveries_max=4),
        by_name=True,
        hole_share=0.15,
        troubles=("crash", "gone", "gone", "renew", "thief", "snapshot"),
    ),
    "dead letters": Story(
        msgspec.structs.replace(_PLAIN, keeps_expired=True, in_flight_max=60),
        reject_share=0.5,
        expiring_share=0.15,
        troubles=("crash", "crash", "target", "target", "lose", "lose", "retarget", "snapshot", "drop", "drop", "seek"),
    ),
    "short leases": Story(
        msgspec.structs.replace(_PLAIN, lease_ms=150, deliveries_max=6),
        release_share=0.1,
        troubles=("time", "time", "renew", "renew", "thief", "thief", "crash", "snapshot"),
    ),
    "hands on": Story(
        msgspec.structs.replace(_PLAIN, has_dead_letters=False),
        troubles=("purge", "trim", "pause", "gone", "crash", "snapshot", "thief"),
    ),
}


class World:
    def __init__(self, seed: int, story: str) -> None:
        self.rng = Random(f"{story} {seed}")
        self.story = STORIES[story]
        self.now_ms = 1_000_000
        self.book = Book(self._is_dying)
        self.book.deliveries_max = self.story.config.deliveries_max
        self.book.has_dead_letters = self.story.config.has_dead_letters
        self.is_quiet = False
        self.node = SimNode(self)
        self.target = SimTarget(self)
        self.network: list[Move] = []
        self.consumers = [SimConsumer(self, f"consumer-{number}") for number in range(self.rng.randint(1, 4))]
        self._producer_id = 7
        self._target_id = b"t" * 16
        self.restarts = 0
        self.dropped = 0

    def _is_dying(self, offset: int) -> bool:
        view = self.node.queue.look_up(offset)
        return view is not None and view.kind is HoldKind.DYING

    # ------------------------------------------------------------------ the log

    def produce(self) -> None:
        rng, story = self.rng, self.story
        for _number in range(rng.randint(1, 12)):
            self.book.append(
                Message(
                    offset=len(self.book.log),
                    lane=rng.choice(story.lanes),
                    key=rng.randrange(story.key_count) if story.key_count and rng.random() < 0.9 else NO_KEY,
                    expires_ms=self.now_ms + rng.randint(1, 3_000) if rng.random() < story.expiring_share else None,
                    is_message=rng.random() >= story.hole_share,
                )
            )
        self.wake()

    def found(self) -> tuple[Found, ...]:
        """Every lane from its cursor on; for the default lane's sake all lanes up to where that one is looked at."""
        queue, log = self.node.queue, self.book.log
        is_keyed = self.story.config.ordering is Ordering.KEY
        lanes = (DEFAULT_LANE,) if is_keyed else self.story.lanes
        founds: list[Found] = []
        default_upto = min(len(log), max(queue.cursor(), self.book.log_start) + FOUND_MAX)
        for lane in lanes:
            since = max(queue.cursor(lane), self.book.log_start)
            upto = default_upto if lane == DEFAULT_LANE else min(len(log), max(since + FOUND_MAX, default_upto))
            seen = [message for message in log[since:upto] if message.is_message and (is_keyed or message.lane == lane)]
            founds.append(
                Found(
                    lane,
                    min(since, queue.cursor(lane)),
                    upto,
                    self._ranges(seen),
                    tuple(message.key for message in seen) if is_keyed else (),
                    tuple((message.offset, message.expires_ms) for message in seen if message.expires_ms is not None),
                )
            )
        return tuple(founds)

    def _ranges(self, seen: list[Message]) -> tuple[Range, ...]:
        """Neighbours together, but now and then a batch ends."""
        ranges: list[Range] = []
        for message in seen:
            if ranges and ranges[-1][1] + 1 == message.offset and message.offset % 7:
                ranges[-1] = (ranges[-1][0], message.offset)
            else:
                ranges.append((message.offset, message.offset))
        return tuple(ranges)

    def wake(self) -> None:
        for consumer in self.consumers:
            consumer.is_parked = False

    # ------------------------------------------------------------------ events

    def run(self) -> None:
        self.node.submit(Open(0))
        self.node.sync()
        troubles = self.story.troubles
        for _event in range(EVENTS):
            kind = self.rng.choices(("produce", "consume", "sync", "time", "mover", "trouble"), (6, 30, 12, 10, 8, 5))[
                0
            ]
            if kind == "trouble":
                kind = self.rng.choice(troubles)
            self._event(kind)
            self._check()
        self._quiet()

    def _event(self, kind: str) -> None:
        rng, node = self.rng, self.node
        match kind:
            case "produce":
                self.produce()
            case "consume":
                rng.choice(self.consumers).act()
            case "sync":
                node.sync()
            case "time":
                self.now_ms += rng.choice((1, 20, 150, 400, 1_100))
                node.look_at_the_clock()
            case "mover":
                self._move()
            case "crash":
                node.crash()
            case "snapshot":
                node.submit(Snapshot())
            case "target":
                self.target.crash()
            case "lose":
                if self.network:
                    self.network.pop(rng.randrange(len(self.network)))
                    self._send_again()
            case "retarget":
                self._target_id = bytes([rng.randrange(1, 255)]) * 16
                self._producer_id += 1
            case "drop":
                self._drop_move()
            case "gone":
                rng.choice(self.consumers).leave(is_counted=rng.random() < 0.5)
            case "renew" | "thief":
                rng.choice(self.consumers).act(kind)
            case _:
                self._administer(kind)

    def _administer(self, kind: str) -> None:
        node, queue = self.node, self.node.queue
        match kind:
            case "pause":
                node.submit(Pause() if self.rng.random() < 0.5 else Resume())
            case "reclaim":
                node.sync()
                self._trim(queue.finished_below, is_reclaim=True)
            case "trim":
                self._trim(self.rng.randint(self.book.log_start, len(self.book.log)), is_reclaim=False)
            case "purge":
                start = self.rng.randint(queue.cursor(), len(self.book.log))
                node.submit(MoveStart(start))
                node.sync()
                self._forget(start)
            case "seek":
                node.sync()
                node.submit(MoveStart(self.rng.randint(self.book.log_start, queue.cursor())))
                node.sync()
                self.book.begin_again(queue.cursor())
            case _:
                raise AssertionError(kind)

    def _trim(self, log_start: int, *, is_reclaim: bool) -> None:
        if log_start <= self.book.log_start:
            return
        for offset in range(self.book.log_start, log_start):
            if is_reclaim:
                is_over = self.book.is_over(offset, self.now_ms)
                self.book.check(FINISHED, is_over, f"{offset} is deleted, and was not finished")
        self.book.log_start = log_start
        self.node.submit(TrimLog(log_start))
        self.node.sync()
        self._forget(log_start)

    def _forget(self, below: int) -> None:
        """Not those that a consumer has: it may settle them still."""
        for offset in range(below):
            fate = self.book.fates[offset]
            view = self.node.queue.look_up(offset)
            if view is None or view.kind is HoldKind.WAITING:
                fate.is_gone = True

    # ------------------------------------------------------------------ the mover

    def _move(self) -> None:
        queue = self.node.queue
        # A mover that has lost count is told so.
        is_hasty = not self.is_quiet and self.rng.random() < 0.2
        if self.node.is_told_of_dead_letters and (queue.pending_move() is None or is_hasty):
            letters = queue.dying(self.rng.choice((1, 3, 1_000)))
            if letters:
                sources = tuple((letter.first, letter.last) for letter in letters)
                self.node.submit(BeginMove(self._target_id, self.rng.choice((0, 0, 0)), self._producer_id, 0, sources))
        if self.network:
            move = self.network[self.rng.randrange(len(self.network))]
            # Some arrive twice.
            if self.is_quiet or self.rng.random() < 0.7:
                self.network.remove(move)
            self.target.append(move)
        if self.is_quiet or self.rng.random() < 0.7:
            self.target.sync()

    def send_move(self, move: Move) -> None:
        letters = self.node.queue.letters_of(move)
        told = sum(letter.last - letter.first + 1 for letter in letters)
        self.book.check(HISTORY, told == count_of(move.sources), f"{move}: {letters}")
        for letter in letters:
            fate = self.book.fates[letter.first]
            if fate.may_come_again:
                continue
            headers = dict(headers_of(letter, Origin("topic", 0, "group"), offset=letter.first))
            count = int(headers["penstock-delivery-count"])
            self.book.check(HISTORY, count >= fate.times, f"{letter} says {count}, was delivered {fate.times} times")
            first_ms = int(headers["penstock-first-failure-ms"])
            known_ms = fate.failed_first_ms
            is_true = known_ms is None or first_ms <= known_ms
            self.book.check(HISTORY, is_true, f"{letter} failed first at {known_ms}")
        self.network.append(move)

    def _send_again(self) -> None:
        """Whoever appends waits for an answer, and asks again."""
        move = self.node.durable_move()
        if move is not None and move not in self.network:
            self.network.append(move)

    def _drop_move(self) -> None:
        """The target is gone, and with it whatever was written there: only if nothing was."""
        move = self.node.durable_move()
        if move is None or self.target.has(move):
            return
        self.network = [other for other in self.network if other.batch != move.batch]
        self.dropped += 1
        # Sequence numbers that never were used in a topic that is no more.
        self._target_id = bytes([self.rng.randrange(1, 255)]) * 16
        self._producer_id += 1
        self.node.submit(DropMove(move.batch))

    # ------------------------------------------------------------------ checks

    def _check(self) -> None:
        queue, config = self.node.queue, self.story.config
        stats = queue.stats()
        in_flight = queue.in_flight_count - stats.blocked_count
        # A batch that is taken whole may go beyond it.
        slack = FOUND_MAX if self.story.by_name else 0
        self.book.check(BOUNDED, in_flight <= config.in_flight_max + slack, stats)
        self.book.check(BOUNDED, stats.blocked_count <= config.key_lookahead_max, stats)
        self.book.check(BOUNDED, queue.span_count <= queue.in_flight_count, stats)
        held_max = max((count for _consumer, count in stats.consumers), default=0)
        self.book.check(LIMITS, held_max <= config.in_flight_per_consumer_max + slack, stats)

    # ------------------------------------------------------------------ quiet

    def _quiet(self) -> None:
        """Consumers receive when they are woken, and not before; time goes on to where the queue's alarm is set."""
        self.is_quiet = True
        self.node.submit(Resume())
        self.node.sync()
        self.wake()
        for consumer in self.consumers:
            consumer.forget()
        for _round in range(QUIET_ROUNDS):
            for consumer in self.consumers:
                consumer.work_off()
            self.node.sync()
            self._move()
            self._send_again()
            self.node.sync()
            if all(consumer.is_parked for consumer in self.consumers) and not self.network:
                deadline_ms = self.node.queue.next_deadline_ms()
                if deadline_ms is None and not self.node.is_told_of_dead_letters:
                    break
                self.now_ms = max(self.now_ms, deadline_ms or 0)
                self.node.look_at_the_clock()
        self._check_end()

    def _check_end(self) -> None:
        stats = self.node.queue.stats()
        self.book.check(WOKEN, not stats.waiting_count, stats)
        self.book.check(IN_TIME, not stats.leased_count, stats)
        self.book.check(ONCE, not stats.dying_count and not stats.blocked_count, stats)
        self.book.check(FINISHED, self.node.queue.finished_below == len(self.book.log), stats)
        self.book.check(BOUNDED, self.node.queue.span_count == 0, stats)
        self.target.sync()
        self.book.check_all_ended(self.now_ms)


class SimNode:
    """The machine and its journal: replies leave when what they rest on is durable."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._journal: list[list[bytes]] = []
        self._durable = 0
        self._pending: deque[tuple[int, Callable[[], None]]] = deque()
        self._numbers: dict[int, int] = {}
        self._decision_count = 0
        self.is_told_of_dead_letters = False
        self.queue = self._new()

    def _new(self) -> Queue:
        return Queue(self._world.story.config, chance=self._world.rng.random)

    def submit(self, command: QueueCommand, then: Callable[[QueueReply, int, int], None] | None = None) -> int:
        """Returns the name of the decision; `then` gets the reply, that name, and when it was decided."""
        now_ms = self._world.now_ms
        before = self.queue.stats() if isinstance(command, Receive) else None
        decision = self.queue.decide(command, now_ms)
        if before is not None and isinstance(decision.reply, Received):
            self._world.book.check(PAUSED, not (before.is_paused and decision.reply.deliveries), decision.reply)
            self._check_free(decision.reply)
        for record in decision.records:
            self.queue.apply(record)
        self._decision_count += 1
        name = self._decision_count
        if isinstance(command, Receive) and isinstance(decision.reply, Received):
            for delivery in decision.reply.deliveries:
                for offset in range(delivery.first, delivery.last + 1):
                    self._world.book.decide_delivery(
                        offset, decision=name, consumer=command.consumer, number=decision.reply.number
                    )
        if decision.records:
            self._journal.append([write_record(record) for record in decision.records])
            self._numbers[len(self._journal)] = name
        self._pending.append((len(self._journal), lambda: self._answer(decision, then, name, now_ms)))
        return name

    def _check_free(self, reply: Received) -> None:
        for delivery in reply.deliveries:
            for offset in range(delivery.first, delivery.last + 1):
                view = self.queue.look_up(offset)
                is_free = view is None or view.kind is HoldKind.WAITING
                self._world.book.check(ONE_HOLDER, is_free, f"{offset} is delivered, and it is {view}")

    def _answer(
        self, decision: Decision, then: Callable[[QueueReply, int, int], None] | None, name: int, now_ms: int
    ) -> None:
        if then is not None:
            then(decision.reply, name, now_ms)
        for effect in decision.effects:
            match effect:
                case WakeReceivers():
                    self._world.wake()
                case DeadLettersWait():
                    self.is_told_of_dead_letters = True
                case AppendMove(move):
                    self.is_told_of_dead_letters = False
                    self._world.send_move(move)

    def sync(self) -> None:
        self._durable = len(self._journal)
        while self._pending:
            self._pending.popleft()[1]()

    def look_at_the_clock(self) -> None:
        now_ms = self._world.now_ms
        for _ring in range(50):
            deadline_ms = self.queue.next_deadline_ms()
            if deadline_ms is None or deadline_ms > now_ms:
                break
            self.submit(TimePassed())
        deadline_ms = self.queue.next_deadline_ms()
        self._world.book.check(IN_TIME, deadline_ms is None or deadline_ms > now_ms, f"{deadline_ms} at {now_ms}")

    def durable_move(self) -> Move | None:
        """Nobody appends before the intent is durable."""
        move = self.queue.pending_move()
        return move if self._durable == len(self._journal) else None

    def crash(self) -> None:
        """What was not durable is kept up to a point; answers that have not left never do."""
        world = self._world
        world.restarts += 1
        kept = world.rng.randint(self._durable, len(self._journal))
        before = self.queue.snapshot()
        has_lost = kept < len(self._journal)
        half = self._journal[kept][: world.rng.randrange(len(self._journal[kept]))] if has_lost else []
        for place in range(kept + 1, len(self._journal) + 1):
            world.book.lose(self._numbers[place], is_half=place == kept + 1 and bool(half))
        del self._journal[kept:]
        if half:
            self._journal.append(half)
            kept += 1
        self._pending.clear()
        self._durable = kept
        self.queue = self._rebuild(is_whole=False)
        again = self._rebuild(is_whole=True).snapshot()
        world.book.check(SAME_STATE, again == self.queue.snapshot(), "from the last snapshot, and from the beginning")
        world.book.check(SAME_STATE, has_lost or before == again, f"{before} became {again}")
        world.wake()
        self.is_told_of_dead_letters = bool(self.queue.dying())
        move = self.queue.pending_move()
        if move is not None:
            world.send_move(move)

    def _rebuild(self, *, is_whole: bool) -> Queue:
        queue = self._new()
        records = [read_record(value) for decision in self._journal for value in decision]
        places = [place for place, record in enumerate(records) if isinstance(record, Stored)]
        for record in records[0 if is_whole or not places else places[-1] :]:
            if not is_whole or not isinstance(record, Stored):
                queue.apply(record)
        return queue


class SimTarget:
    """A partition of the dead letters' topic: it knows the sequence numbers of its producers, and loses what it has
    not synced."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._batches: list[Move] = []
        self._durable = 0
        self._unanswered: list[Move] = []

    def has(self, move: Move) -> bool:
        return any(batch.batch == move.batch for batch in self._batches)

    def append(self, move: Move) -> None:
        place = (move.producer_id, move.target_topic_id, move.target_partition)
        before = [
            batch
            for batch in self._batches
            if (batch.producer_id, batch.target_topic_id, batch.target_partition) == place
        ]
        expected = before[-1].base_sequence + count_of(before[-1].sources) if before else 0
        if move.base_sequence == expected:
            self._batches.append(move)
        elif move not in before[-5:]:
            # An old copy that is under way for long is refused; a move that somebody waits for must not be.
            is_waited_for = move == self._world.node.queue.pending_move()
            self._world.book.check(MOVED_ONCE, not is_waited_for, f"{move}, expected {expected}")
            return
        self._unanswered.append(move)

    def sync(self) -> None:
        for move in self._batches[self._durable :]:
            for first, last in move.sources:
                for offset in range(first, last + 1):
                    self._world.book.die(offset)
        self._durable = len(self._batches)
        unanswered, self._unanswered = self._unanswered, []
        for move in unanswered:
            self._world.node.submit(FinishMove(move.batch))

    def crash(self) -> None:
        del self._batches[self._durable :]
        self._unanswered = []
        self._world._send_again()


def run_world(seed: int, story: str) -> World:
    world = World(seed, story)
    try:
        world.run()
    except InvariantBrokenError as error:
        error.add_note(f"seed {seed} of {story}")
        raise
    return world
