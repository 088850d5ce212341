"""Batches of a Produce that cannot be written at once.

A transaction's first batch in a partition waits for its coordinator's word:

    Produce up to 11    the client has added the partition before: the coordinator verifies that
    from 12 on          the coordinator adds it now (KIP-890)

Later batches of the same transaction need no word: the partition knows that it is under way. One with records that are
to be delivered later, of a transaction or not, waits for the schedule. Whatever waits is copied, because the receive
buffer that it came in is used for what comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.broker.partition.acks import ALL, Acks
from penstock.broker.partition.outcome import Appended, AppendRefused, DelayPossible, Refusal, VerificationNeeded
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.delayed_batches import DelayedBatches
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.codec.batch.header import ATTRIBUTE_TRANSACTIONAL, MAGIC, BatchHeader
from penstock.codec.kafka.messages.produce import ProduceRequest
from penstock.domain.transaction.commands import PartitionsVerified, Refused, TransactionProblem
from penstock.domain.transaction.state import VERSION_ONE, VERSION_TWO, TopicPartition
from penstock.domain.transaction.verification import NO_GUARD

ADDS_PARTITIONS_FROM: Final = 12
MAGIC_AT: Final = 16
# The low byte of the attributes.
ATTRIBUTES_AT: Final = 22

_REFUSALS: Final[dict[TransactionProblem, Refusal]] = {
    TransactionProblem.CONCURRENT_TRANSACTIONS: Refusal.TRANSACTION_OPEN,
    TransactionProblem.PRODUCER_FENCED: Refusal.PRODUCER_FENCED,
    TransactionProblem.INVALID_PRODUCER_ID_MAPPING: Refusal.WRONG_PRODUCER,
    TransactionProblem.COORDINATOR_NOT_AVAILABLE: Refusal.COORDINATOR_AWAY,
    TransactionProblem.COORDINATOR_LOAD_IN_PROGRESS: Refusal.COORDINATOR_AWAY,
    TransactionProblem.NOT_COORDINATOR: Refusal.COORDINATOR_AWAY,
    TransactionProblem.UNKNOWN_SERVER_ERROR: Refusal.DAMAGED,
}
_NOT_PART: Final = AppendRefused(Refusal.NOT_IN_TRANSACTION, "the partition is not part of the transaction")


class HeldBatch(msgspec.Struct, frozen=True):
    shell: PartitionShell
    header: BatchHeader
    # A copy of our own.
    records: memoryview
    # Of one that its coordinator has to vouch for.
    guard: int = NO_GUARD
    acks: Acks = ALL

    @property
    def producer(self) -> tuple[int, int]:
        return self.header.producer_id, self.header.producer_epoch

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.shell.topic, self.shell.index)


def holds_transactional(request: ProduceRequest) -> bool:
    """One look at one byte of each batch, which need not be a sound one."""
    for topic in request.topic_data:
        for partition in topic.partition_data:
            records = partition.records
            if (
                records is not None
                and len(records) > ATTRIBUTES_AT
                and records[ATTRIBUTES_AT] & ATTRIBUTE_TRANSACTIONAL
                and records[MAGIC_AT] == MAGIC
            ):
                return True
    return False


def hold_back(
    shell: PartitionShell,
    records: memoryview,
    outcome: VerificationNeeded | DelayPossible,
    api_version: int,
    acks: Acks,
) -> HeldBatch:
    """The guard is taken here, before anybody is asked: an answer that comes too late opens nothing."""
    copy = memoryview(bytearray(records))
    if isinstance(outcome, DelayPossible):
        return HeldBatch(shell, outcome.header, copy, acks=acks)
    guard = shell.begin_verification(outcome.header, version=_protocol_version(api_version))
    return HeldBatch(shell, outcome.header, copy, guard, acks)


async def append_held(
    transactions: TransactionCoordinators,
    delays: DelayedBatches,
    transactional_id: str,
    batches: Sequence[HeldBatch],
    api_version: int,
) -> list[Appended | AppendRefused]:
    """How each of the batches ended, in their order."""
    unverified = [batch for batch in batches if batch.guard != NO_GUARD]
    refused = await _verify(transactions, transactional_id, unverified, api_version)
    # No await up to the last of them: what is appended now joins one turn of the disk.
    outcomes = [_append(batch, refused.get((*batch.producer, batch.partition))) for batch in batches]
    delayed = [batch for batch, outcome in zip(batches, outcomes, strict=True) if isinstance(outcome, DelayPossible)]
    if not delayed:
        return [outcome for outcome in outcomes if not isinstance(outcome, DelayPossible)]
    # Of one request they share a turn of the disk, too.
    appends = (delays.append(each.shell, each.records, guard=each.guard, acks=each.acks) for each in delayed)
    later = iter(await asyncio.gather(*appends))
    return [next(later) if isinstance(outcome, DelayPossible) else outcome for outcome in outcomes]


async def _verify(
    transactions: TransactionCoordinators, transactional_id: str, batches: Sequence[HeldBatch], api_version: int
) -> dict[tuple[int, int, TopicPartition], AppendRefused]:
    """Which of them their coordinators refuse, and why."""
    refused: dict[tuple[int, int, TopicPartition], AppendRefused] = {}
    for producer_id, producer_epoch in sorted({batch.producer for batch in batches}):
        partitions = tuple(batch.partition for batch in batches if batch.producer == (producer_id, producer_epoch))
        reply = await transactions.admit(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=partitions,
            version=_protocol_version(api_version),
        )
        if isinstance(reply, Refused):
            refusal = AppendRefused(_REFUSALS.get(reply.problem, Refusal.NO_TRANSACTION), reply.problem.value)
            refused |= {(producer_id, producer_epoch, partition): refusal for partition in partitions}
        elif isinstance(reply, PartitionsVerified):
            refused |= {(producer_id, producer_epoch, partition): _NOT_PART for partition in reply.missing}
    return refused


def _append(batch: HeldBatch, refused: AppendRefused | None) -> Appended | AppendRefused | DelayPossible:
    if batch.guard == NO_GUARD:
        return DelayPossible(batch.header)
    if refused is not None:
        batch.shell.withdraw_verification(batch.header, batch.guard)
        return refused
    outcome = batch.shell.produce(batch.records, guard=batch.guard, acks=batch.acks)
    assert not isinstance(outcome, VerificationNeeded), "a batch with a guard is verified or it is not"
    return outcome


def _protocol_version(api_version: int) -> int:
    return VERSION_TWO if api_version >= ADDS_PARTITIONS_FROM else VERSION_ONE
