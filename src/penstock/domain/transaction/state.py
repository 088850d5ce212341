"""What a coordinator knows of one transactional id, and the steps that change it.

    Empty ──add──> Ongoing ──end──> PrepareCommit ──markers written──> CompleteCommit
      ^               │                                                     │
      │               └──end, timeout, ──> PrepareAbort ──markers──> CompleteAbort
      │                  newer producer                                     │
      └───────────────────────── a producer begins ─────────────────────────┘
    CompleteCommit, CompleteAbort ──add──> Ongoing      idle for long ──> forgotten

Rules:
- The decision about a transaction is its Prepare record: once that is durable, nothing but its markers follows.
- A producer is known by (id, epoch). Epoch 32766 is the last that a client gets; 32767 stays for fencing it, after
  which the transactional id moves to another producer id.
- Version 2 of the protocol (KIP-890) raises the epoch with every end, so that nothing late from one transaction can
  reach the next. With version 1 the epoch stays, and only a newer producer or a timeout raises it.
- Dead and PrepareEpochFence have their numbers and names as with Kafka, and are never stored: forgetting is one
  record, fencing and aborting are one record.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import msgspec

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
EPOCH_MAX: Final = 2**15 - 1
# Clients get no higher one: there must always be one left to fence them with.
CLIENT_EPOCH_MAX: Final = EPOCH_MAX - 1

# Kafka's `transaction.version`: 0 and 1 differ in the form of their records alone.
VERSION_ONE: Final = 1
VERSION_TWO: Final = 2


class TransactionState(IntEnum):
    """Numbers as in Kafka's transaction log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As Kafka's admin tools write it: `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMPLETE: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
STATES_BY_LABEL: Final = {state.label: state for state in TransactionState}


class TopicPartition(msgspec.Struct, frozen=True, order=True, gc=False):
    topic: str
    partition: int


class TransactionMetadata(msgspec.Struct, frozen=True):
    """The fields of Kafka's TransactionLogValue, and one more: the epoch before the present one."""

    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int
    # Sorted, each once.
    partitions: tuple[TopicPartition, ...] = ()
    start_ms: int = NO_TIME
    # Of a Prepare record also its name: no two of one transactional id have the same.
    update_ms: int = NO_TIME
    # The producer id before the last step, which differs from the present one just after a change of id.
    previous_producer_id: int = NO_PRODUCER_ID
    # Prepared with version 2 at the last epoch: the producer id that goes on, from epoch 0.
    next_producer_id: int = NO_PRODUCER_ID
    # The epoch that the same producer had before this one, which shows its repeated requests; -1 if there is none, or
    # if it was another producer. Kafka keeps it in memory and forgets it when the coordinator moves.
    last_producer_epoch: int = NO_EPOCH
    client_version: int = 0

    @property
    def is_prepared(self) -> bool:
        return self.state in PREPARED

    @property
    def is_commit(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= CLIENT_EPOCH_MAX

    def includes(self, partitions: Iterable[TopicPartition]) -> bool:
        return all(partition in self.partitions for partition in partitions)


class TransactionRecord(msgspec.Struct, frozen=True):
    """One change, whole: the last record of a transactional id is its state. Without metadata: it is forgotten."""

    transactional_id: str
    metadata: TransactionMetadata | None


def begin(producer_id: int, *, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """A transactional id that nobody knew."""
    return TransactionMetadata(producer_id, 0, TransactionState.EMPTY, timeout_ms, update_ms=now_ms)


def begin_again(
    metadata: TransactionMetadata,
    *,
    producer_id: int,
    producer_epoch: int,
    last_producer_epoch: int,
    timeout_ms: int,
    now_ms: int,
) -> TransactionMetadata:
    """A producer takes the transactional id over, or its own up again after an error."""
    return msgspec.structs.replace(
        metadata,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        state=TransactionState.EMPTY,
        timeout_ms=timeout_ms,
        partitions=(),
        start_ms=NO_TIME,
        update_ms=max(now_ms, metadata.update_ms),
        previous_producer_id=metadata.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        last_producer_epoch=last_producer_epoch,
    )


def add(
    metadata: TransactionMetadata, partitions: Iterable[TopicPartition], *, version: int, now_ms: int
) -> TransactionMetadata:
    """The first partitions begin a transaction, and its time begins to run."""
    is_first = metadata.state is not TransactionState.ONGOING
    return msgspec.structs.replace(
        metadata,
        state=TransactionState.ONGOING,
        partitions=tuple(sorted({*metadata.partitions, *partitions})),
        start_ms=now_ms if is_first else metadata.start_ms,
        update_ms=max(now_ms, metadata.update_ms),
        previous_producer_id=metadata.producer_id,
        client_version=version,
    )


def prepare(
    metadata: TransactionMetadata,
    state: TransactionState,
    *,
    version: int,
    now_ms: int,
    next_producer_id: int = NO_PRODUCER_ID,
) -> TransactionMetadata:
    """The producer's own end of its transaction. One without partitions is completed in the same breath."""
    raises_epoch = version >= VERSION_TWO
    last_epoch = min(metadata.producer_epoch, CLIENT_EPOCH_MAX)
    return msgspec.structs.replace(
        metadata,
        state=state,
        producer_epoch=last_epoch + 1 if raises_epoch else metadata.producer_epoch,
        last_producer_epoch=last_epoch if raises_epoch else metadata.last_producer_epoch,
        start_ms=metadata.start_ms if metadata.state is TransactionState.ONGOING else now_ms,
        update_ms=_time_of_end(metadata, now_ms),
        previous_producer_id=metadata.producer_id,
        next_producer_id=next_producer_id,
        client_version=version,
    )


def fence(metadata: TransactionMetadata, *, version: int, by_successor: bool, now_ms: int) -> TransactionMetadata:
    """The coordinator's end of a transaction: aborted, and its producer's epoch is over.

    With version 2 a producer whose transaction took too long may learn its next epoch by asking for the abort itself,
    and go on. With version 1, or if another producer takes the transactional id, it is out.
    """
    assert metadata.producer_epoch < EPOCH_MAX, f"producer {metadata.producer_id} holds the epoch kept for fencing"
    may_go_on = version >= VERSION_TWO and not by_successor
    return msgspec.structs.replace(
        metadata,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=metadata.producer_epoch + 1,
        last_producer_epoch=metadata.producer_epoch if may_go_on else NO_EPOCH,
        update_ms=_time_of_end(metadata, now_ms),
        previous_producer_id=metadata.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        client_version=version,
    )


def complete(metadata: TransactionMetadata, *, now_ms: int) -> TransactionMetadata:
    """Every partition has its marker. A producer whose epochs are used up goes on under its next id."""
    changes_id = metadata.next_producer_id != NO_PRODUCER_ID
    return msgspec.structs.replace(
        metadata,
        producer_id=metadata.next_producer_id if changes_id else metadata.producer_id,
        producer_epoch=0 if changes_id else metadata.producer_epoch,
        state=TransactionState.COMPLETE_COMMIT if metadata.is_commit else TransactionState.COMPLETE_ABORT,
        partitions=(),
        update_ms=max(now_ms, metadata.update_ms),
        previous_producer_id=metadata.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def _time_of_end(metadata: TransactionMetadata, now_ms: int) -> int:
    # Later than every one before, whatever the clock says: a report about the markers of another transaction of this
    # id, which with version 1 has the same producer and epoch, is known by it.
    return max(now_ms, metadata.update_ms + 1)
