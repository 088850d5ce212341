from __future__ import annotations

import msgspec

from penstock.domain.queue.commands import (
    Act,
    AppendMove,
    BeginMove,
    DeadLettersWait,
    Done,
    DropMove,
    FinishMove,
    MoveStart,
    Outcome,
    QueueProblem,
    Refused,
    Snapshot,
    WakeReceivers,
)
from penstock.domain.queue.dead_letter import Origin, headers_of
from penstock.domain.queue.machine import Queue
from penstock.domain.queue.records import Move
from penstock.domain.queue.values import TEXT_CHARACTERS_MAX, Cause, QueueConfig, Range
from support.queue.desk import QueueDesk, offsets, rebuilt

TARGET = b"d" * 16
OTHER_TARGET = b"o" * 16


def begin(*sources: Range, target: bytes = TARGET, producer_id: int = 9, producer_epoch: int = 0) -> BeginMove:
    return BeginMove(target, 0, producer_id, producer_epoch, sources)


def desk_with_dying(*rejected: int, log_end: int = 10) -> QueueDesk:
    desk = QueueDesk(QueueConfig(lease_ms=1_000), log_end=log_end)
    received = desk.receive("ann", log_end)
    for offset in rejected:
        assert desk.settle(Act.REJECT, offset, number=received.number, text="broken") is Outcome.DONE
        assert desk.effects == (DeadLettersWait(),)
    return desk


def moved(desk: QueueDesk, command: BeginMove) -> Move:
    assert desk.submit(command) == Done()
    (effect,) = desk.effects
    assert isinstance(effect, AppendMove)
    return effect.move


def test_a_rejected_message_goes_to_the_dead_letters_and_is_finished_then() -> None:
    desk = desk_with_dying(0, 1, 5)
    assert [(letter.first, letter.last) for letter in desk.queue.dying()] == [(0, 0), (1, 1), (5, 5)]
    move = moved(desk, begin((0, 1), (5, 5)))
    assert (move.batch, move.base_sequence, move.sources) == (1, 0, ((0, 1), (5, 5)))
    assert desk.queue.finished_below == 0
    assert desk.queue.dying() == []
    assert desk.submit(FinishMove(1)) == Done()
    assert desk.queue.finished_below == 2
    assert desk.queue.pending_move() is None


def test_a_dying_message_is_never_delivered_again() -> None:
    desk = desk_with_dying(3)
    desk.pass_time(1_000)
    assert 3 not in offsets(desk.receive("bob", 20))
    desk.submit(MoveStart(0))
    assert 3 not in offsets(desk.receive("bob", 20))


def test_an_intent_survives_a_crash_and_is_the_same_batch() -> None:
    desk = desk_with_dying(0, 1)
    move = moved(desk, begin((0, 1)))
    queue = rebuilt(desk)
    assert queue.pending_move() == move
    assert [(letter.first, letter.last) for letter in queue.letters_of(move)] == [(0, 0), (1, 1)]
    desk.submit(Snapshot())
    restored = Queue(desk.config)
    restored.apply(desk.records()[-1])
    assert restored.pending_move() == move


def test_there_is_one_move_at_a_time_and_sequences_go_on() -> None:
    desk = desk_with_dying(0, 1, 2)
    moved(desk, begin((0, 1)))
    assert desk.submit(begin((2, 2))) == Refused(QueueProblem.MOVE_UNDER_WAY)
    assert desk.submit(FinishMove(7)) == Refused(QueueProblem.NO_SUCH_MOVE)
    desk.submit(FinishMove(1))
    assert desk.effects == (WakeReceivers(), DeadLettersWait())
    move = moved(desk, begin((2, 2)))
    assert (move.batch, move.base_sequence) == (2, 2)


def test_sequences_begin_again_after_the_largest_number() -> None:
    desk = desk_with_dying(0, 1)
    first = moved(desk, begin((0, 0)))
    desk.submit(FinishMove(1))
    huge = Move(first.batch, TARGET, 0, 9, 0, (1 << 31) - 1, ((0, 0),))
    stored = desk.queue.snapshot()
    queue = Queue(desk.config)
    queue.apply(msgspec.structs.replace(stored, move=huge))
    decision = queue.decide(begin((1, 1)), desk.now_ms)
    (effect,) = decision.effects
    assert isinstance(effect, AppendMove)
    assert effect.move.base_sequence == 0


def test_another_target_or_epoch_needs_a_producer_id_that_was_never_used() -> None:
    desk = desk_with_dying(0, 1, 2)
    moved(desk, begin((0, 0)))
    desk.submit(FinishMove(1))
    assert desk.submit(begin((1, 1), target=OTHER_TARGET)) == Refused(QueueProblem.PRODUCER_ID_USED)
    assert desk.submit(begin((1, 1), producer_epoch=1)) == Refused(QueueProblem.PRODUCER_ID_USED)
    assert moved(desk, begin((1, 1), target=OTHER_TARGET, producer_id=10)).base_sequence == 0


def test_what_is_not_dying_cannot_be_moved() -> None:
    desk = desk_with_dying(0)
    assert desk.submit(begin((0, 1))) == Refused(QueueProblem.NOT_DYING)
    assert desk.submit(begin()) == Refused(QueueProblem.NOT_DYING)


def test_a_dropped_move_gives_its_sources_and_its_sequence_back() -> None:
    desk = desk_with_dying(0, 1)
    moved(desk, begin((0, 1)))
    assert desk.submit(DropMove(1)) == Done()
    assert len(desk.queue.dying()) == 2
    move = moved(desk, begin((0, 0)))
    assert (move.batch, move.base_sequence) == (2, 0)


def test_a_move_task_takes_messages_that_failed_nowhere() -> None:
    desk = QueueDesk(QueueConfig(has_dead_letters=False), log_end=2)
    received = desk.receive("redrive")
    assert desk.settle(Act.MOVE, 0, 1, number=received.number, text="task 1") is Outcome.DONE
    (letter,) = desk.queue.dying()
    assert (letter.first, letter.last, letter.failure.cause) == (0, 1, Cause.MOVED)


def test_a_long_list_of_the_dying_is_cut_within_a_span() -> None:
    desk = QueueDesk(log_end=500)
    received = desk.receive("ann", 500)
    desk.settle(Act.REJECT, 0, 499, number=received.number)
    assert [(letter.first, letter.last) for letter in desk.queue.dying(120)] == [(0, 119)]


def test_headers_tell_where_it_came_from_and_why_it_died() -> None:
    desk = QueueDesk(QueueConfig(lease_ms=1_000, deliveries_max=2), log_end=8)
    for _attempt in range(2):
        received = desk.receive("ann", 8)
        desk.settle(Act.RELEASE, 7, number=received.number, text="no such customer", delay_ms=0)
        desk.settle(Act.ACCEPT, 0, 6, number=received.number)
        desk.now_ms += 50
    (letter,) = desk.queue.dying()
    headers = dict(headers_of(letter, Origin("orders", 3, "billing"), offset=7))
    assert headers["penstock-dead-letter-reason"] == b"deliveries-exhausted"
    assert headers["penstock-dead-letter-text"] == b"no such customer"
    assert headers["penstock-origin-topic"] == headers["__dlq.errors.topic"] == b"orders"
    assert headers["penstock-origin-partition"] == headers["__dlq.errors.partition"] == b"3"
    assert headers["penstock-origin-offset"] == headers["__dlq.errors.offset"] == b"7"
    assert headers["penstock-origin-group"] == headers["__dlq.errors.group"] == b"billing"
    assert headers["penstock-delivery-count"] == headers["__dlq.errors.delivery.count"] == b"2"
    assert headers["penstock-first-failure-ms"] == b"1000"
    assert headers["penstock-last-failure-ms"] == b"1050"


def test_a_consumers_text_is_cut() -> None:
    desk = QueueDesk(log_end=1)
    received = desk.receive("ann")
    desk.settle(Act.REJECT, 0, number=received.number, text="x" * 100_000)
    (letter,) = desk.queue.dying()
    assert len(letter.failure.text) == TEXT_CHARACTERS_MAX
