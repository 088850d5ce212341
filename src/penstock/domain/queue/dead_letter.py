"""The mover: messages go from here to another topic exactly once, whatever crashes.

    dying ──► intended ──► appended to the target ──► done
              (journal)    (producer id and sequence)  (journal)

1. The intent is journalled: a batch number, the sources, the target, a producer id and the first sequence number.
2. When that is durable, the caller appends to the target one record for each source, with that sequence.
3. When that is durable, `FinishMove`: the sources are finished.

There is one intent at a time, so after a crash at any point only the last one can be in doubt. It is appended once
more: if the target has the sequence already, its partition answers "duplicate", and either way it is done. That
holds because a batch never changes: a source that the log has lost meanwhile still gets a record, without its value.

Sequence numbers go on from batch to batch and belong to one producer id and one target; another target, or a producer
that the target has forgotten, needs a producer id that was never used, and begins at 0.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.domain.queue.commands import (
    AppendMove,
    BeginMove,
    DeadLettersWait,
    Decision,
    Done,
    DropMove,
    FinishMove,
    QueueEffect,
    QueueProblem,
    Refused,
    WakeReceivers,
)
from penstock.domain.queue.live import Span
from penstock.domain.queue.records import Move, MoveDone, MoveDropped, MoveIntended
from penstock.domain.queue.state import QueueState
from penstock.domain.queue.values import Cause, Failure, HoldKind, Range, count_of, merge_ranges

# One append: at 1 KB a message about 1 MB, which is Kafka's default for the largest batch.
MOVE_COUNT_MAX: Final = 1_000
# Kafka's sequence numbers are those of a signed 32-bit number, and begin again at 0.
_SEQUENCE_COUNT: Final = 1 << 31

REASON_HEADER: Final = "penstock-dead-letter-reason"
TEXT_HEADER: Final = "penstock-dead-letter-text"
TOPIC_HEADER: Final = "penstock-origin-topic"
PARTITION_HEADER: Final = "penstock-origin-partition"
OFFSET_HEADER: Final = "penstock-origin-offset"
GROUP_HEADER: Final = "penstock-origin-group"
DELIVERIES_HEADER: Final = "penstock-delivery-count"
FIRST_FAILURE_HEADER: Final = "penstock-first-failure-ms"
LAST_FAILURE_HEADER: Final = "penstock-last-failure-ms"
# As KIP-1191 names them: consumers that know Kafka's dead letters read ours.
KAFKA_PREFIX: Final = "__dlq.errors."


class DeadLetter(msgspec.Struct, frozen=True):
    """Messages with the same history, that are on their way out of the queue."""

    first: int
    last: int
    delivery_count: int
    failure: Failure


class Origin(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    group: str


def dying(state: QueueState, *, count_max: int = MOVE_COUNT_MAX) -> list[DeadLetter]:
    """The first ones that no move has taken yet."""
    if not state.live.counts[HoldKind.DYING]:
        return []
    taken = state.move.sources if state.move is not None and state.is_moving else ()
    letters: list[DeadLetter] = []
    for span in state.live:
        if span.hold.kind is not HoldKind.DYING or any(first <= span.first <= last for first, last in taken):
            continue
        letter = _letter(span)
        letters.append(msgspec.structs.replace(letter, last=min(letter.last, letter.first + count_max - 1)))
        count_max -= span.size
        if count_max <= 0:
            break
    return letters


def letters_of(state: QueueState, move: Move) -> list[DeadLetter]:
    """What is known of the sources of a move, in their order: one record in the target for each message."""
    return [_letter(piece) for first, last in move.sources for piece in state.live.pieces(first, last)]


def _letter(span: Span) -> DeadLetter:
    assert span.failure is not None, f"{span.first} is dying, and nothing says why"
    return DeadLetter(span.first, span.last, span.count, span.failure)


def headers_of(letter: DeadLetter, origin: Origin, *, offset: int) -> tuple[tuple[str, bytes], ...]:
    """To be put behind the message's own. Headers of an earlier death are the caller's to drop."""
    failure = letter.failure
    headers = [
        (REASON_HEADER, failure.cause.value),
        (TOPIC_HEADER, origin.topic),
        (PARTITION_HEADER, str(origin.partition)),
        (OFFSET_HEADER, str(offset)),
        (GROUP_HEADER, origin.group),
        (DELIVERIES_HEADER, str(letter.delivery_count)),
        (FIRST_FAILURE_HEADER, str(failure.first_ms)),
        (LAST_FAILURE_HEADER, str(failure.last_ms)),
        (f"{KAFKA_PREFIX}topic", origin.topic),
        (f"{KAFKA_PREFIX}partition", str(origin.partition)),
        (f"{KAFKA_PREFIX}offset", str(offset)),
        (f"{KAFKA_PREFIX}group", origin.group),
        (f"{KAFKA_PREFIX}delivery.count", str(letter.delivery_count)),
        (f"{KAFKA_PREFIX}message", failure.text or _KAFKA_TEXTS.get(failure.cause, failure.cause.value)),
    ]
    if failure.text:
        headers.insert(1, (TEXT_HEADER, failure.text))
    return tuple((name, text.encode("utf-8", "replace")) for name, text in headers)


_KAFKA_TEXTS: Final = {
    Cause.REJECTED: "The consumer rejected the message.",
    Cause.DELIVERIES_EXHAUSTED: "The message was delivered as often as the group allows.",
}


# ------------------------------------------------------------------ decisions


def decide_begin(state: QueueState, command: BeginMove, now_ms: int) -> Decision:
    if state.is_moving:
        return Decision((), Refused(QueueProblem.MOVE_UNDER_WAY))
    sources = merge_ranges(list(command.sources))
    if not sources or not _are_dying(state, sources):
        return Decision((), Refused(QueueProblem.NOT_DYING))
    sequence = _next_sequence(state.move, command)
    if sequence is None:
        return Decision((), Refused(QueueProblem.PRODUCER_ID_USED))
    move = Move(
        batch=1 if state.move is None else state.move.batch + 1,
        target_topic_id=command.target_topic_id,
        target_partition=command.target_partition,
        producer_id=command.producer_id,
        producer_epoch=command.producer_epoch,
        base_sequence=sequence,
        sources=sources,
    )
    return Decision((MoveIntended(move, now_ms),), Done(), (AppendMove(move),))


def _are_dying(state: QueueState, sources: tuple[Range, ...]) -> bool:
    pieces = [piece for first, last in sources for piece in state.live.pieces(first, last)]
    covered = sum(piece.size for piece in pieces if piece.hold.kind is HoldKind.DYING)
    return covered == count_of(sources)


def _next_sequence(last: Move | None, command: BeginMove) -> int | None:
    if last is None or last.producer_id != command.producer_id:
        return 0
    is_same = (last.target_topic_id, last.target_partition) == (command.target_topic_id, command.target_partition)
    if not is_same or last.producer_epoch != command.producer_epoch:
        return None
    return (last.base_sequence + count_of(last.sources)) % _SEQUENCE_COUNT


def decide_finish(state: QueueState, command: FinishMove, now_ms: int) -> Decision:
    if not state.is_moving or state.move is None or state.move.batch != command.batch:
        return Decision((), Refused(QueueProblem.NO_SUCH_MOVE))
    # A queue full of dying messages has room again.
    effects: list[QueueEffect] = [WakeReceivers()]
    if state.live.counts[HoldKind.DYING] > count_of(state.move.sources):
        effects.append(DeadLettersWait())
    return Decision((MoveDone(command.batch, now_ms, command.base_offset),), Done(), tuple(effects))


def decide_drop(state: QueueState, command: DropMove, now_ms: int) -> Decision:
    if not state.is_moving or state.move is None or state.move.batch != command.batch:
        return Decision((), Refused(QueueProblem.NO_SUCH_MOVE))
    return Decision((MoveDropped(command.batch, now_ms),), Done(), (DeadLettersWait(),))
