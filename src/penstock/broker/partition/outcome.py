"""How an append ended: where the batch lies, why it was refused, or who must be asked first.

Expected outcomes are values. A door maps each `Refusal` to its own protocol's error, in one table.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from penstock.broker.partition.commitment import Commitment
from penstock.codec.batch.header import BatchHeader


class Refusal(enum.Enum):
    CORRUPT = "corrupt"
    INVALID = "invalid"
    UNSUPPORTED_CODEC = "unsupported codec"
    TOO_LARGE = "too large"
    BAD_TIMESTAMP = "bad timestamp"
    OUT_OF_ORDER_SEQUENCE = "out of order sequence"
    DUPLICATE_SEQUENCE = "duplicate sequence"
    SEQUENCE_REUSED = "sequence reused"
    PRODUCER_FENCED = "producer fenced"
    DISK_FULL = "disk full"
    OFFLINE = "offline"
    NOT_LEADER = "not leader"
    # In sync: the topic asks for more before it takes anything.
    NOT_ENOUGH_REPLICAS = "not enough replicas"
    # It is written, and whether it stays nobody knows yet.
    TIMED_OUT = "timed out"
    # Of what the write rests on: it stays so until an operator has repaired it.
    DAMAGED = "damaged"
    # Transactions: what the partition says,
    NOT_TRANSACTIONAL = "not transactional"
    NOT_VERIFIED = "not verified"
    TRANSACTION_OPEN = "transaction open"
    COORDINATOR_FENCED = "coordinator fenced"
    # and what the coordinator says of a batch that wants to begin one.
    NOT_IN_TRANSACTION = "not in transaction"
    NO_TRANSACTION = "no transaction"
    WRONG_PRODUCER = "wrong producer"
    COORDINATOR_AWAY = "coordinator away"


# Nothing is wrong with the batch: another time it may be taken.
PASSING: Final = frozenset(
    {Refusal.DISK_FULL, Refusal.OFFLINE, Refusal.NOT_LEADER, Refusal.NOT_ENOUGH_REPLICAS, Refusal.TIMED_OUT}
)


class Appended(msgspec.Struct, frozen=True, gc=False):
    base_offset: int
    # -1 unless the topic dates records itself.
    log_append_time_ms: int
    log_start: int
    # What the acknowledgement waits for; none where the topic promises no more than what is so already.
    commitment: Commitment | None


class AppendRefused(msgspec.Struct, frozen=True):
    refusal: Refusal
    # What, which and how much: shown to the client where its protocol has a field for it.
    reason: str
    # The records that are to blame, by their place in the batch; none named: the batch as a whole.
    records: tuple[int, ...] = ()


class VerificationNeeded(msgspec.Struct, frozen=True):
    """Nothing was written: the batch would begin a transaction here, and its coordinator must be asked first.

    `begin_verification` with this header, before asking, gives the guard with which the batch is appended when the
    coordinator has agreed.
    """

    header: BatchHeader


class DelayPossible(msgspec.Struct, frozen=True):
    """Nothing was written: some of the records may have to be delivered later, or the batch is too much to be looked at
    on the loop (`DelayedBatches` goes on from here)."""

    header: BatchHeader


AppendOutcome = Appended | AppendRefused | VerificationNeeded
