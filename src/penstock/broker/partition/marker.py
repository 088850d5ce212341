"""The end of a producer's transaction in a partition's log: a marker, written once."""

from __future__ import annotations

from penstock.broker.partition.outcome import Appended, AppendRefused
from penstock.broker.partition.refusals import refuse_producer, refuse_unwritten
from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.control import EndMarker, build_marker
from penstock.codec.batch.header import NO_TIMESTAMP
from penstock.codec.batch.rewrite import header_of
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.partition import MarkerStored, WriteMarker
from penstock.storage.errors import StorageError


def refuse_marker(shell: PartitionShell, end: TransactionEnd) -> AppendRefused | MarkerStored | None:
    """Why a marker is not to be written: it may not be, or is there already."""
    refused = shell.refuse_any()
    if refused is not None:
        return refused
    if shell.log.failure is not None:
        return shell.refuse_offline()
    verdict = shell.log.transactions.check_marker(
        end.producer_id, end.producer_epoch, coordinator_epoch=end.coordinator_epoch, version=end.version
    )
    if isinstance(verdict, WriteMarker):
        return None
    return verdict if isinstance(verdict, MarkerStored) else refuse_producer(verdict)


def write_marker(shell: PartitionShell, end: TransactionEnd) -> Appended | AppendRefused:
    """It has a commitment wherever the topic promises less, too: a marker that its coordinator takes for written is
    never written again."""
    refused = refuse_marker(shell, end)
    if isinstance(refused, AppendRefused):
        return refused
    log = shell.log
    if isinstance(refused, MarkerStored):
        commitment = None if shell.is_kept(refused.offset) else shell.commit()
        return Appended(refused.offset, NO_TIMESTAMP, log.log_start, commitment)
    base_offset = log.log_end
    batch = build_marker(
        EndMarker(end.is_commit, end.coordinator_epoch),
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        timestamp_ms=shell.now_ms(),
        base_offset=base_offset,
        leader_epoch=shell.role.epoch,
    )
    try:
        log.append(memoryview(batch), (header_of(batch),))
    except StorageError as error:
        return refuse_unwritten(error, shell.replicated)
    return Appended(base_offset, NO_TIMESTAMP, log.log_start, shell.promise() or shell.commit())
