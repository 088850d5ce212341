"""What a transaction coordinator is asked, what it answers, and what it wants done.

Independent of the wire: a door turns requests into commands and replies into responses. AddOffsetsToTxn is
`AddPartitions` of the group's partition of `__consumer_offsets`; a produce request of version 12 and a TxnOffsetCommit
of version 5 are an `AddPartitions` of version 2 before the append (KIP-890), earlier ones a `VerifyPartitions`.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.domain.transaction.state import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    VERSION_ONE,
    TopicPartition,
    TransactionRecord,
    TransactionState,
)

# --- commands ----------------------------------------------------------------------------------------------------


class InitProducer(msgspec.Struct, frozen=True):
    """A producer begins, or goes on after an error with the id and epoch that it had (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    # An id that nobody else will ever get; without one the answer may be `ProducerIdNeeded`.
    spare_producer_id: int = NO_PRODUCER_ID


class AddPartitions(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    version: int = VERSION_ONE


class VerifyPartitions(msgspec.Struct, frozen=True):
    """A partition's leader asks whether these are in the producer's transaction; nothing is added."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


class EndTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    # Version 2 from EndTxn 5 on.
    version: int = VERSION_ONE
    spare_producer_id: int = NO_PRODUCER_ID


class MarkersWritten(msgspec.Struct, frozen=True):
    """These partitions hold the marker, durably; or they are gone, or a newer epoch of the producer is known there."""

    transactional_id: str
    # From the `WriteMarkers` that asked for it.
    ended_ms: int
    partitions: tuple[TopicPartition, ...]


class TimePassed(msgspec.Struct, frozen=True):
    """The alarm of `next_deadline_ms` rang."""


TransactionCommand = InitProducer | AddPartitions | VerifyPartitions | EndTransaction | MarkersWritten | TimePassed

# --- replies -----------------------------------------------------------------------------------------------------


class TransactionProblem(Enum):
    """Named as Kafka names them; the gateway maps them to numbers."""

    INVALID_REQUEST = "the request makes no sense"
    INVALID_TRANSACTION_TIMEOUT = "the transaction timeout is not positive, or above the node's limit"
    INVALID_PRODUCER_ID_MAPPING = "the transactional id does not belong to that producer id"
    PRODUCER_FENCED = "a newer producer has the transactional id, or its transaction took too long"
    CONCURRENT_TRANSACTIONS = "the transaction before is still being ended: try again"
    INVALID_TXN_STATE = "there is no transaction that could end in this way"
    TRANSACTION_ABORTABLE = "the partition is not part of the transaction"
    TRANSACTIONAL_ID_NOT_FOUND = "nobody has used the transactional id, or not for a long time"
    # Never decided by the machine: its shell says it, or who looked for one.
    COORDINATOR_LOAD_IN_PROGRESS = "this node has begun to look after the transactional id, and reads what is known"
    COORDINATOR_NOT_AVAILABLE = "what the coordinator knows cannot be read or stored just now: try again"
    NOT_COORDINATOR = "another node looks after the transactional id"
    # No client tries this one again by itself: producers end with it.
    UNKNOWN_SERVER_ERROR = "what the coordinator knows is damaged: the node's log names the repair"


class Refused(msgspec.Struct, frozen=True):
    problem: TransactionProblem


class ProducerIdNeeded(msgspec.Struct, frozen=True):
    """Nothing was decided: take a new producer id and ask again with it."""


class ProducerReady(msgspec.Struct, frozen=True):
    producer_id: int
    producer_epoch: int


class PartitionsAdded(msgspec.Struct, frozen=True):
    pass


class PartitionsVerified(msgspec.Struct, frozen=True):
    """Which of the partitions are not in the transaction (TRANSACTION_ABORTABLE); the others are."""

    missing: tuple[TopicPartition, ...] = ()


class TransactionEnded(msgspec.Struct, frozen=True):
    """The decision is taken; from version 2 on the producer goes on with these."""

    producer_id: int
    producer_epoch: int


class Noted(msgspec.Struct, frozen=True):
    """To `MarkersWritten` and `TimePassed`, which nobody waits for."""


TransactionReply = (
    Refused | ProducerIdNeeded | ProducerReady | PartitionsAdded | PartitionsVerified | TransactionEnded | Noted
)

# --- effects -----------------------------------------------------------------------------------------------------


class WriteMarkers(msgspec.Struct, frozen=True):
    """Write a marker into each of these partitions, again and again until `MarkersWritten` can be said of it.

    Not before the records of the same decision are durable: a marker cannot be taken back. With version 1 no second
    copy may be under way while the first may still arrive, and what is heard of a copy that was given up does not
    count: a copy that comes after `MarkersWritten` would end the producer's next transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    version: int
    ended_ms: int
    partitions: tuple[TopicPartition, ...]


class Decision(msgspec.Struct, frozen=True):
    """Records to be applied at once and made durable; then, and not earlier, the reply and the effects."""

    records: tuple[TransactionRecord, ...]
    reply: TransactionReply
    effects: tuple[WriteMarkers, ...] = ()


# --- views -------------------------------------------------------------------------------------------------------


class TransactionListing(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    state: TransactionState
