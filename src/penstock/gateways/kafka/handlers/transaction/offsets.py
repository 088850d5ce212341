"""TxnOffsetCommit: a group's positions as part of a transaction, which count when it commits.

The group checks who commits (generation, member, instance: KIP-447), the transaction's coordinator whether there is a
transaction to be part of. Up to version 4 the group's partition was added by AddOffsetsToTxn and is only asked about;
from version 5 on it is added here (KIP-890).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.broker.group.node import GroupCoordinator
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.served_topic import ServedTopic
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from penstock.domain.group.commands import (
    CommitTransactionOffsets,
    OffsetsWritten,
    OffsetToCommit,
)
from penstock.domain.group.commands import Refused as GroupRefused
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.domain.transaction.commands import AddPartitions, PartitionsVerified, Refused, VerifyPartitions
from penstock.domain.transaction.state import VERSION_TWO, TopicPartition
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import GROUP_CODES, group_code, transaction_code
from penstock.gateways.kafka.handlers.group.commit_parts import answer, sort_out
from penstock.gateways.kafka.handlers.group.offsets import AT_ONCE_MAX

LOADING_FROM: Final = 2
ABORTABLE_FROM: Final = 4
ADDS_FROM: Final = 5


class TransactionOffsetsHandler:
    def __init__(
        self, broker: Broker, transactions: TransactionCoordinators, groups: GroupCoordinator, admission: Admission
    ) -> None:
        self._broker = broker
        self._transactions = transactions
        self._groups = groups
        self._admission = admission

    async def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, context: RequestContext
    ) -> TxnOffsetCommitResponse:
        problem = self._problem(request, context)
        if problem is not None:
            return _refused(request, problem)
        offsets: list[OffsetToCommit] = []
        # By topic and partition as they were asked for: an error, or None for what the group is to decide.
        problems = await context.work.run(sort_out(request.topics, lambda topic: self._find(topic, context), offsets))
        outcomes: list[ErrorCode] = []
        pace = context.pace()
        for first in range(0, len(offsets), AT_ONCE_MAX):
            outcomes += await self._commit(request, offsets[first : first + AT_ONCE_MAX], context)
            await pace.rest_if_due()
        topics = answer(
            request.topics, problems, iter(outcomes), partition=TxnOffsetCommitResponsePartition, topic=_answered_topic
        )
        return TxnOffsetCommitResponse(topics=await context.work.run(topics))

    def _problem(self, request: TxnOffsetCommitRequest, context: RequestContext) -> ErrorCode | None:
        may = self._admission.may
        if not may(context.caller, Operation.WRITE, access.transactional_id(request.transactional_id)):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not may(context.caller, Operation.READ, access.group(request.group_id)):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return None if request.group_id else ErrorCode.INVALID_GROUP_ID

    def _find(self, topic: TxnOffsetCommitRequestTopic, context: RequestContext) -> ServedTopic | ErrorCode:
        if not self._admission.may(context.caller, Operation.READ, access.topic(topic.name)):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return self._broker.topic(topic.name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def _commit(
        self, request: TxnOffsetCommitRequest, offsets: list[OffsetToCommit], context: RequestContext
    ) -> list[ErrorCode]:
        """One for each offset, in order."""
        command = CommitTransactionOffsets(
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            offsets=tuple(offsets),
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
        )
        verify = partial(self._verify, request, context)
        reply = await self._groups.commit_in_transaction(request.group_id, command, verify)
        if isinstance(reply, ErrorCode | GroupRefused):
            code = reply if isinstance(reply, ErrorCode) else GROUP_CODES[reply.error]
            return [_as_known(code, context.api_version)] * len(offsets)
        assert isinstance(reply, OffsetsWritten), reply
        return [group_code(outcome.error) for outcome in reply.partitions]

    async def _verify(self, request: TxnOffsetCommitRequest, context: RequestContext) -> ErrorCode | None:
        """None: the group's partition is in the transaction."""
        places: tuple[TopicPartition, ...] = (self._groups.offsets_partition_of(request.group_id),)
        whose = (request.transactional_id, request.producer_id, request.producer_epoch)
        if context.api_version >= ADDS_FROM:
            reply = await self._transactions.submit(AddPartitions(*whose, places, VERSION_TWO))
        else:
            reply = await self._transactions.submit(VerifyPartitions(*whose, places))
        if isinstance(reply, Refused):
            # By its older name in every version, as Kafka does it.
            return transaction_code(reply, knows_fenced=False)
        if isinstance(reply, PartitionsVerified) and reply.missing:
            return ErrorCode.TRANSACTION_ABORTABLE
        return None


def _answered_topic(
    asked: TxnOffsetCommitRequestTopic, partitions: list[TxnOffsetCommitResponsePartition]
) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(name=asked.name, partitions=partitions)


def _as_known(code: ErrorCode, version: int) -> ErrorCode:
    """Said so that a client of this version understands it, and does what is right: try again, or give up."""
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_FROM:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    # Producers before Kafka 2.0 fall over a coordinator that says that it is loading.
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_FROM:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


def _refused(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(given.partition_index, code) for given in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
