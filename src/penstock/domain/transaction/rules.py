"""What one transactional id answers to a command, given what is known of it. Nothing is changed here.

How EndTransaction is answered when nothing is ongoing ("repeat": with the epoch before the present one):

                      version 1                 version 2
                      commit      abort         commit             abort
    Empty             invalid     invalid       invalid            aborts nothing, raises the epoch; repeat: fenced
    CompleteCommit    done        invalid       repeat: done       aborts nothing, raises the epoch; repeat: invalid
    CompleteAbort     invalid     done          invalid            aborts nothing, raises the epoch; repeat: done

While a transaction is prepared everybody is told CONCURRENT_TRANSACTIONS, which clients answer by trying again.
"""

from __future__ import annotations

import msgspec

from penstock.domain.transaction.commands import (
    AddPartitions,
    Decision,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    PartitionsVerified,
    ProducerIdNeeded,
    ProducerReady,
    Refused,
    TransactionEnded,
    TransactionProblem,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.domain.transaction.state import (
    CLIENT_EPOCH_MAX,
    COMPLETE,
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    VERSION_TWO,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    add,
    begin,
    begin_again,
    complete,
    fence,
    prepare,
)


class TransactionSettings(msgspec.Struct, frozen=True):
    # Kafka's transaction.max.timeout.ms: every reader of committed records may have to wait for so long.
    timeout_ms_max: int = 15 * 60 * 1000
    # Kafka's transactional.id.expiration.ms.
    id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    # What the node says is finalized as `transaction.version`: how the coordinator itself ends transactions.
    version: int = VERSION_TWO


def refuse(problem: TransactionProblem) -> Decision:
    return Decision((), Refused(problem))


def markers_of(transactional_id: str, metadata: TransactionMetadata, coordinator_epoch: int) -> WriteMarkers:
    """What a prepared transaction still wants done."""
    assert metadata.is_prepared, f"{transactional_id} is {metadata.state.label}: nothing is decided"
    return WriteMarkers(
        transactional_id,
        metadata.producer_id,
        metadata.producer_epoch,
        coordinator_epoch,
        metadata.is_commit,
        metadata.client_version,
        metadata.update_ms,
        metadata.partitions,
    )


# --- InitProducerId ----------------------------------------------------------------------------------------------


def decide_init(
    metadata: TransactionMetadata | None,
    command: InitProducer,
    now_ms: int,
    *,
    settings: TransactionSettings,
    coordinator_epoch: int,
) -> Decision:
    has_id, has_epoch = command.producer_id != NO_PRODUCER_ID, command.producer_epoch != NO_EPOCH
    if not command.transactional_id or has_id != has_epoch:
        return refuse(TransactionProblem.INVALID_REQUEST)
    if not 0 < command.timeout_ms <= settings.timeout_ms_max:
        return refuse(TransactionProblem.INVALID_TRANSACTION_TIMEOUT)
    if metadata is None:
        if command.spare_producer_id == NO_PRODUCER_ID:
            return Decision((), ProducerIdNeeded())
        first = begin(command.spare_producer_id, timeout_ms=command.timeout_ms, now_ms=now_ms)
        return _ready(command.transactional_id, first)
    if metadata.is_prepared:
        return refuse(TransactionProblem.CONCURRENT_TRANSACTIONS)
    if has_id and not _may_go_on(metadata, command):
        return refuse(TransactionProblem.PRODUCER_FENCED)
    if metadata.state is TransactionState.ONGOING:
        # Whoever asks must ask again: by then the markers are written. A successor's epoch is raised once more then,
        # so that nobody has the epoch of the abort.
        fenced = fence(metadata, version=settings.version, by_successor=not has_id, now_ms=now_ms)
        return end_with(
            command.transactional_id,
            fenced,
            Refused(TransactionProblem.CONCURRENT_TRANSACTIONS),
            now_ms,
            coordinator_epoch=coordinator_epoch,
        )
    return _raise_epoch(metadata, command, now_ms)


def _may_go_on(metadata: TransactionMetadata, command: InitProducer) -> bool:
    """Whether the producer that says what it had is the last one that had it."""
    if command.producer_id == metadata.producer_id:
        if command.producer_epoch == metadata.producer_epoch:
            return True
        # Repeated: the answer was lost. Not with a transaction under way, which its producer began later, having had
        # the answer: the request is a late one, or a zombie's, and must not abort what its successor does.
        return command.producer_epoch == metadata.last_producer_epoch and metadata.state is not TransactionState.ONGOING
    # Repeated, and the answer that was lost moved it to its next producer id.
    return (
        command.producer_id == metadata.previous_producer_id
        and command.producer_epoch == metadata.last_producer_epoch
        and command.producer_epoch >= CLIENT_EPOCH_MAX
        and metadata.state is not TransactionState.ONGOING
    )


def _raise_epoch(metadata: TransactionMetadata, command: InitProducer, now_ms: int) -> Decision:
    is_new = command.producer_id == NO_PRODUCER_ID
    is_repeat = not is_new and (command.producer_id, command.producer_epoch) != (
        metadata.producer_id,
        metadata.producer_epoch,
    )
    # After a fence at the last epoch even a repeat cannot have the present one.
    if is_repeat and metadata.producer_epoch < EPOCH_MAX:
        producer_id, epoch, last_epoch = metadata.producer_id, metadata.producer_epoch, metadata.last_producer_epoch
    elif metadata.is_epoch_exhausted:
        if command.spare_producer_id == NO_PRODUCER_ID:
            return Decision((), ProducerIdNeeded())
        producer_id, epoch, last_epoch = command.spare_producer_id, 0, NO_EPOCH if is_new else command.producer_epoch
    else:
        producer_id, epoch = metadata.producer_id, metadata.producer_epoch + 1
        # A new producer has no epoch before: nobody else may pass for it by repeating an old request.
        last_epoch = NO_EPOCH if is_new else metadata.producer_epoch
    again = begin_again(
        metadata,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=command.timeout_ms,
        now_ms=now_ms,
    )
    return _ready(command.transactional_id, again)


def _ready(transactional_id: str, metadata: TransactionMetadata) -> Decision:
    record = TransactionRecord(transactional_id, metadata)
    return Decision((record,), ProducerReady(metadata.producer_id, metadata.producer_epoch))


# --- AddPartitionsToTxn, AddOffsetsToTxn -------------------------------------------------------------------------


def decide_add(metadata: TransactionMetadata | None, command: AddPartitions, now_ms: int) -> Decision:
    if not command.transactional_id:
        return refuse(TransactionProblem.INVALID_REQUEST)
    if metadata is None:
        return refuse(TransactionProblem.INVALID_PRODUCER_ID_MAPPING)
    # Before the id: at the end of its epochs a producer knows its next id already, and the state does not yet.
    if metadata.is_prepared:
        return refuse(TransactionProblem.CONCURRENT_TRANSACTIONS)
    problem = _problem_of_producer(metadata, command)
    if problem is not None:
        return refuse(problem)
    if metadata.state is TransactionState.ONGOING and metadata.includes(command.partitions):
        return Decision((), PartitionsAdded())
    added = add(metadata, command.partitions, version=command.version, now_ms=now_ms)
    return Decision((TransactionRecord(command.transactional_id, added),), PartitionsAdded())


def decide_verify(metadata: TransactionMetadata | None, command: VerifyPartitions) -> Decision:
    if not command.transactional_id:
        return refuse(TransactionProblem.INVALID_REQUEST)
    if metadata is None:
        return refuse(TransactionProblem.INVALID_PRODUCER_ID_MAPPING)
    problem = _problem_of_producer(metadata, command)
    if problem is not None:
        return refuse(problem)
    if metadata.is_prepared:
        return refuse(TransactionProblem.CONCURRENT_TRANSACTIONS)
    missing = tuple(partition for partition in command.partitions if partition not in metadata.partitions)
    return Decision((), PartitionsVerified(missing))


def _problem_of_producer(
    metadata: TransactionMetadata, command: AddPartitions | VerifyPartitions | EndTransaction
) -> TransactionProblem | None:
    if command.producer_id != metadata.producer_id:
        return TransactionProblem.INVALID_PRODUCER_ID_MAPPING
    if command.producer_epoch != metadata.producer_epoch:
        return TransactionProblem.PRODUCER_FENCED
    return None


# --- EndTxn ------------------------------------------------------------------------------------------------------


def decide_end(
    metadata: TransactionMetadata | None, command: EndTransaction, now_ms: int, *, coordinator_epoch: int
) -> Decision:
    if not command.transactional_id:
        return refuse(TransactionProblem.INVALID_REQUEST)
    if metadata is None:
        return refuse(TransactionProblem.INVALID_PRODUCER_ID_MAPPING)
    if command.version < VERSION_TWO:
        return _end_version_one(metadata, command, now_ms, coordinator_epoch=coordinator_epoch)
    return _end_version_two(metadata, command, now_ms, coordinator_epoch=coordinator_epoch)


def _end_version_one(
    metadata: TransactionMetadata, command: EndTransaction, now_ms: int, *, coordinator_epoch: int
) -> Decision:
    problem = _problem_of_producer(metadata, command)
    if problem is not None:
        return refuse(problem)
    if metadata.is_prepared:
        return refuse(TransactionProblem.CONCURRENT_TRANSACTIONS)
    if metadata.state is TransactionState.ONGOING:
        return _end_now(metadata, command, now_ms, coordinator_epoch=coordinator_epoch)
    if metadata.state is _completed(command):
        return Decision((), TransactionEnded(metadata.producer_id, metadata.producer_epoch))
    return refuse(TransactionProblem.INVALID_TXN_STATE)


def _end_version_two(
    metadata: TransactionMetadata, command: EndTransaction, now_ms: int, *, coordinator_epoch: int
) -> Decision:
    if metadata.is_prepared:
        return refuse(TransactionProblem.CONCURRENT_TRANSACTIONS)
    is_repeat = _is_repeated_end(metadata, command)
    if command.producer_id != metadata.producer_id and not is_repeat:
        return refuse(TransactionProblem.INVALID_PRODUCER_ID_MAPPING)
    if command.producer_epoch != metadata.producer_epoch and not is_repeat:
        return refuse(TransactionProblem.PRODUCER_FENCED)
    if metadata.state is TransactionState.ONGOING:
        return _end_now(metadata, command, now_ms, coordinator_epoch=coordinator_epoch)
    if is_repeat and metadata.state is not _completed(command):
        return refuse(TransactionProblem.INVALID_TXN_STATE)
    # The epoch kept for fencing is not for clients: who was fenced at its last epoch goes on under another id.
    if is_repeat and metadata.producer_epoch < EPOCH_MAX:
        return Decision((), TransactionEnded(metadata.producer_id, metadata.producer_epoch))
    # The producer sent records that never came to a partition, so the coordinator knows of no transaction. Its epoch
    # is raised all the same, so that those records find no transaction to join.
    if not command.is_commit:
        return _end_now(metadata, command, now_ms, coordinator_epoch=coordinator_epoch)
    return refuse(TransactionProblem.INVALID_TXN_STATE)


def _is_repeated_end(metadata: TransactionMetadata, command: EndTransaction) -> bool:
    """The end with which the last transaction ended, or one that came after the coordinator's own end of it."""
    if metadata.state not in COMPLETE or metadata.last_producer_epoch == NO_EPOCH:
        return False
    if command.producer_epoch != metadata.last_producer_epoch:
        return False
    if command.producer_id == metadata.producer_id:
        return command.producer_epoch + 1 == metadata.producer_epoch
    return (
        command.producer_id == metadata.previous_producer_id
        and command.producer_epoch == CLIENT_EPOCH_MAX
        and metadata.producer_epoch == 0
    )


def _completed(command: EndTransaction) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if command.is_commit else TransactionState.COMPLETE_ABORT


def _end_now(
    metadata: TransactionMetadata, command: EndTransaction, now_ms: int, *, coordinator_epoch: int
) -> Decision:
    next_producer_id = NO_PRODUCER_ID
    if command.version >= VERSION_TWO and metadata.is_epoch_exhausted:
        if command.spare_producer_id == NO_PRODUCER_ID:
            return Decision((), ProducerIdNeeded())
        next_producer_id = command.spare_producer_id
    state = TransactionState.PREPARE_COMMIT if command.is_commit else TransactionState.PREPARE_ABORT
    prepared = prepare(metadata, state, version=command.version, next_producer_id=next_producer_id, now_ms=now_ms)
    later = complete(prepared, now_ms=now_ms)
    return end_with(
        command.transactional_id,
        prepared,
        TransactionEnded(later.producer_id, later.producer_epoch),
        now_ms,
        coordinator_epoch=coordinator_epoch,
    )


def end_with(
    transactional_id: str,
    prepared: TransactionMetadata,
    reply: TransactionEnded | Refused,
    now_ms: int,
    *,
    coordinator_epoch: int,
) -> Decision:
    """A transaction without partitions is complete at once: there is nobody to tell."""
    if not prepared.partitions:
        return Decision((TransactionRecord(transactional_id, complete(prepared, now_ms=now_ms)),), reply)
    record = TransactionRecord(transactional_id, prepared)
    return Decision((record,), reply, (markers_of(transactional_id, prepared, coordinator_epoch),))
