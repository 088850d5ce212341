"""A producer's transaction: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn.

Each request becomes one command of the coordinator's machine and its reply one response. Here is what differs between
versions and who is allowed what. Clients of version 2 (KIP-890) send none but EndTxn 5: their partitions enter the
transaction with the first batch. AddPartitionsToTxn from version 4 on is for brokers that ask about several
transactions at once, and needs a broker's rights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.base.long_work import Steps
from penstock.broker.group.node import GroupCoordinator
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.codec.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from penstock.codec.kafka.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, Operation
from penstock.domain.topic_rules import is_internal
from penstock.domain.transaction.commands import (
    AddPartitions,
    EndTransaction,
    PartitionsAdded,
    PartitionsVerified,
    Refused,
    TransactionEnded,
    VerifyPartitions,
)
from penstock.domain.transaction.state import VERSION_ONE, VERSION_TWO, TopicPartition
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import ABSENCE_CODES, GROUP_CODES, transaction_code

# AddPartitionsToTxn
MANY_TRANSACTIONS_FROM: Final = 4
# Older clients know a fenced producer by another error: all three APIs.
FENCED_FROM: Final = 2
# EndTxn
VERSION_TWO_FROM: Final = 5

Problems = dict[TopicPartition, ErrorCode]


class TransactionsHandler:
    def __init__(
        self, broker: Broker, transactions: TransactionCoordinators, groups: GroupCoordinator, admission: Admission
    ) -> None:
        self._broker = broker
        self._transactions = transactions
        self._groups = groups
        self._admission = admission

    # Partitions enter

    async def add_partitions_to_txn(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        if context.api_version < MANY_TRANSACTIONS_FROM:
            asked = AddPartitionsToTxnTransaction(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                topics=request.v3_and_below_topics,
            )
            result = await self._add_for_client(asked, context)
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)
        if not self._admission.may(context.caller, Operation.CLUSTER_ACTION, CLUSTER):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        results = []
        pace = context.pace()
        for asked in request.transactions:
            results.append(await self._add_or_verify(asked, VERSION_TWO, context))
            await pace.rest_if_due()
        return AddPartitionsToTxnResponse(results_by_transaction=results)

    async def _add_for_client(
        self, asked: AddPartitionsToTxnTransaction, context: RequestContext
    ) -> AddPartitionsToTxnResult:
        if not self._may_write(asked.transactional_id, context):
            problems = _all(asked, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return await context.work.run(_result(asked, problems))
        forbidden = set()
        pace = context.pace()
        for topic in asked.topics:
            # What is the node's own is written on behalf of clients, never by them.
            if is_internal(topic.name) or not self._admission.may(
                context.caller, Operation.WRITE, access.topic(topic.name)
            ):
                forbidden.add(topic.name)
            await pace.rest_if_due()
        return await self._add_or_verify(asked, VERSION_ONE, context, forbidden)

    async def _add_or_verify(
        self,
        asked: AddPartitionsToTxnTransaction,
        version: int,
        context: RequestContext,
        forbidden: Iterable[str] = (),
    ) -> AddPartitionsToTxnResult:
        problems = await context.work.run(self._problems(asked, frozenset(forbidden)))
        if problems:
            # Whole or not at all: what is right with the others is not looked at.
            problems = _all(asked, ErrorCode.OPERATION_NOT_ATTEMPTED) | problems
            return await context.work.run(_result(asked, problems))
        names = tuple(dict.fromkeys(_partitions(asked.topics)))
        whose = (asked.transactional_id, asked.producer_id, asked.producer_epoch)
        if asked.verify_only:
            reply = await self._transactions.submit(VerifyPartitions(*whose, names))
        else:
            reply = await self._transactions.submit_patiently(AddPartitions(*whose, names, version))
        return await context.work.run(_result(asked, self._outcomes(asked, reply, context)))

    def _problems(self, asked: AddPartitionsToTxnTransaction, forbidden: frozenset[str]) -> Steps[Problems]:
        problems: Problems = {}
        for place in _partitions(asked.topics):
            yield
            if place.topic in forbidden:
                problems[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            found = self._broker.find(place.topic, place.partition)
            # Led elsewhere: where no marker would reach it from here, a transaction that it is part of could never end.
            # Who only asks leads it itself.
            is_reached = asked.verify_only or self._transactions.reaches_others
            if isinstance(found, NotHere) and (found.is_unknown or not is_reached):
                problems[place] = ABSENCE_CODES[found.why]
        return problems

    @staticmethod
    def _outcomes(asked: AddPartitionsToTxnTransaction, reply: object, context: RequestContext) -> Problems:
        match reply:
            case PartitionsAdded():
                return {}
            case PartitionsVerified(missing):
                return dict.fromkeys(missing, ErrorCode.TRANSACTION_ABORTABLE)
            case Refused():
                knows_fenced = context.api_version >= FENCED_FROM
                return _all(asked, transaction_code(reply, knows_fenced=knows_fenced))
            case _:
                raise AssertionError(reply)

    async def add_offsets_to_txn(
        self, request: AddOffsetsToTxnRequest, context: RequestContext
    ) -> AddOffsetsToTxnResponse:
        if not self._may_write(request.transactional_id, context):
            return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not self._admission.may(context.caller, Operation.READ, access.group(request.group_id)):
            return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not await self._groups.ready():
            return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        damaged = self._groups.refusal(request.group_id)
        if damaged is not None:
            # A transaction that the group is part of could never end.
            return AddOffsetsToTxnResponse(error_code=GROUP_CODES[damaged.error])
        reply = await self._transactions.submit_patiently(
            AddPartitions(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                (self._groups.offsets_partition_of(request.group_id),),
            )
        )
        if isinstance(reply, Refused):
            code = transaction_code(reply, knows_fenced=context.api_version >= FENCED_FROM)
            return AddOffsetsToTxnResponse(error_code=code)
        assert isinstance(reply, PartitionsAdded), reply
        return AddOffsetsToTxnResponse()

    # The end

    async def end_txn(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        if not self._may_write(request.transactional_id, context):
            return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        reply = await self._transactions.submit(
            EndTransaction(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                is_commit=request.committed,
                version=VERSION_TWO if context.api_version >= VERSION_TWO_FROM else VERSION_ONE,
            )
        )
        if isinstance(reply, Refused):
            return EndTxnResponse(error_code=transaction_code(reply, knows_fenced=context.api_version >= FENCED_FROM))
        assert isinstance(reply, TransactionEnded), reply
        return EndTxnResponse(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)

    def _may_write(self, transactional_id: str, context: RequestContext) -> bool:
        resource = access.transactional_id(transactional_id)
        return self._admission.may(context.caller, Operation.WRITE, resource)


def _partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def _all(asked: AddPartitionsToTxnTransaction, code: ErrorCode) -> Problems:
    return dict.fromkeys(_partitions(asked.topics), code)


def _result(asked: AddPartitionsToTxnTransaction, problems: Problems) -> Steps[AddPartitionsToTxnResult]:
    topics = []
    for topic in asked.topics:
        results = []
        for index in topic.partitions:
            code = problems.get(TopicPartition(topic.name, index), ErrorCode.NONE)
            results.append(AddPartitionsToTxnPartitionResult(index, code))
            yield
        topics.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results))
    return AddPartitionsToTxnResult(transactional_id=asked.transactional_id, topic_results=topics)
