"""What must hold whatever happens, each by a name that a story which breaks it prints."""

from __future__ import annotations

from typing import Final

ACKED_PRESENT: Final = "acked-present"
NO_PHANTOM: Final = "no-phantom"
ORDER_PER_PRODUCER: Final = "order-per-producer"
ONCE_IF_IDEMPOTENT: Final = "once-if-idempotent"
COMMITTED_OFFSET_KEPT: Final = "committed-offset-kept"
REPLY_AFTER_COMMIT: Final = "reply-after-commit"
# What a reader was given once is given to every reader after it.
READ_STAYS: Final = "read-stays"
# Nothing of an aborted transaction is read, nor of one whose end was not asked for, nor a part of one.
READ_COMMITTED: Final = "read-committed"
# What a consumer has accepted, and was told so, is never delivered again.
QUEUE_ACK_KEPT: Final = "queue-ack-kept"
ONE_LEASE_HOLDER: Final = "one-lease-holder"
# Every message of a queue is accepted, or a dead letter once.
DEAD_LETTER_ONCE: Final = "dead-letter-exactly-once"
DELAY_ONCE: Final = "delay-exactly-once-and-not-early"
CANCELLED_STAYS: Final = "cancelled-stays-cancelled"
# Of a partition's epoch there is one leader, in one of its lives.
ONE_LEADER: Final = "one-leader-per-epoch"
# What is committed stays so: neither a leader in its epoch nor whoever asks how far a partition goes sees it go back.
WATERMARK_MONOTONIC: Final = "watermark-monotonic"
# After quiet all replicas of a partition hold the same bytes below the watermark.
EQUAL_BELOW_WATERMARK: Final = "equal-below-watermark"
EPOCHS_GROW: Final = "epochs-grow-with-offsets"
# Who is in sync holds all that is committed.
SET_TRUTH: Final = "set-truth"
# Damage is told of what the disk has lost, and of nothing else.
NO_DAMAGE: Final = "no-damage"
# Without faults for a while, a node is up and answers.
WELL_AFTER_QUIET: Final = "well-after-quiet"
# A node has found something that it holds for impossible.
OWN_ASSERTION: Final = "own-assertion"


class InvariantError(AssertionError):
    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def check(invariant: str, *, holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(invariant, what)
