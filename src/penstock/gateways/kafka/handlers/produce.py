"""Produce: batches from a client into partitions.

The batches stay views into the receive buffer; each partition's shell checks and writes its own before this returns.
Only the reply waits, until each of them is known to be kept or lost. The exception are batches that begin a transaction
in their partition, which wait for its coordinator, and those with records to be delivered later, which wait for the
schedule; the connection's other requests wait behind them, so that a producer's batches stay in order. A request for
very many partitions is written in slices: each batch at one moment, as ever, but others have their turn between two of
them.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Final, cast

import msgspec

from penstock.base.long_work import Steps
from penstock.broker.partition.acks import Acks
from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.outcome import Appended, AppendRefused, DelayPossible, VerificationNeeded
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.delayed_batches import DelayedBatches
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.broker.topic.served_topic import ServedTopic
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import HANG_UP, NO_REPLY, NoReply, PendingReply, RequestContext
from penstock.gateways.kafka.errors import ABSENCE_CODES, LOSS_CODES, refusal_code
from penstock.gateways.kafka.handlers.produce_held import HeldBatch, append_held, hold_back, holds_transactional

# Produce 13 and up names topics by their ids.
TOPIC_IDS_FROM: Final = 13
ACKS_NONE: Final = 0
ACKS_ALL: Final = -1
ACKS_LEGAL: Final = frozenset({-1, 0, 1})
# Partitions that are written to at once: two milliseconds.
AT_ONCE_MAX: Final = 64
# With the others a producer may compare it with what it has written, to see whether its state has been lost.
LOG_START_UNTOLD: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


# Why a request is refused as a whole.
_REASONS: Final = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "a transactional batch without a transactional id for its sender",
    ErrorCode.INVALID_REQUIRED_ACKS: "a transactional batch that does not ask to be kept (acks=all)",
    ErrorCode.INVALID_REQUEST: "a partition is named more than once",
}

ProduceResult = ProduceResponse | PendingReply


class _Appends:
    """What became of each partition of a request, and what its reply waits for."""

    __slots__ = ("acks", "answers", "held", "waiting")

    def __init__(self, acks: Acks) -> None:
        self.acks = acks
        # One entry for each partition of the request, none where the answer is known already.
        self.waiting: list[Commitment | None] = []
        # Batches that wait for somebody else: the entry, and where their answer will stand.
        self.held: list[HeldBatch] = []
        self.answers: list[tuple[int, list[PartitionProduceResponse], int]] = []

    def hold(self, batch: HeldBatch, partitions: list[PartitionProduceResponse]) -> None:
        self.held.append(batch)
        self.answers.append((len(self.waiting), partitions, len(partitions)))
        self.waiting.append(None)
        partitions.append(PartitionProduceResponse(index=batch.shell.index))

    def reply(self, response: ProduceResponse) -> ProduceResult:
        commitments = [commitment for commitment in self.waiting if commitment is not None]
        if not commitments:
            return response
        return PendingReply(commitments, lambda: _settle(response, self.waiting))


class ProduceHandler:
    def __init__(
        self, broker: Broker, admission: Admission, transactions: TransactionCoordinators, delays: DelayedBatches
    ) -> None:
        self._broker = broker
        self._admission = admission
        self._transactions = transactions
        self._delays = delays

    def produce(
        self, request: ProduceRequest, context: RequestContext
    ) -> ProduceResult | NoReply | Steps[ProduceResponse] | Coroutine[object, object, ProduceResult | NoReply]:
        count = sum(len(topic.partition_data) for topic in request.topic_data)
        refusal = self._refuse(request, context, count)
        if refusal is not None:
            return HANG_UP if request.acks == ACKS_NONE else _refuse_all(request, refusal)
        appends = _Appends(acks_of(request))
        if count > AT_ONCE_MAX:
            if context.connection is not None:
                context.connection.keep_frame()
            return self._append_many(request, context, appends)
        topics = [self._append_topic(topic, request.acks, context, appends) for topic in request.topic_data]
        response = ProduceResponse(responses=topics)
        if appends.held:
            if context.connection is not None:
                # What waits is copied, and counts as the frame does.
                context.connection.keep_frame()
            return self._append_held(request, response, appends, context.api_version)
        return _silence(response) if request.acks == ACKS_NONE else appends.reply(response)

    async def _append_many(
        self, request: ProduceRequest, context: RequestContext, appends: _Appends
    ) -> ProduceResult | NoReply:
        response = await context.work.run(self._append_in_steps(request, context, appends))
        if appends.held:
            return await self._append_held(request, response, appends, context.api_version)
        return _silence(response) if request.acks == ACKS_NONE else appends.reply(response)

    def _append_in_steps(
        self, request: ProduceRequest, context: RequestContext, appends: _Appends
    ) -> Steps[ProduceResponse]:
        topics = []
        for data in request.topic_data:
            topic, refusal = self._find_topic(data, request.acks, context)
            partitions: list[PartitionProduceResponse] = []
            for partition in data.partition_data:
                self._append(topic, refusal, partition, context, appends, partitions)
                yield
            topics.append(TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=partitions))
            yield
        return ProduceResponse(responses=topics)

    def _refuse(self, request: ProduceRequest, context: RequestContext, count: int) -> ErrorCode | None:
        # Which of two batches would be kept is nobody's guess.
        if count > 1 and count != len(_places(request)):
            return ErrorCode.INVALID_REQUEST
        return self._refuse_transaction(request, context) if holds_transactional(request) else None

    def _refuse_transaction(self, request: ProduceRequest, context: RequestContext) -> ErrorCode | None:
        transactional_id = request.transactional_id
        if transactional_id is None or not self._admission.may(
            context.caller, Operation.WRITE, access.transactional_id(transactional_id)
        ):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return None if request.acks == ACKS_ALL else ErrorCode.INVALID_REQUIRED_ACKS

    def _append_topic(
        self, data: TopicProduceData, acks: int, context: RequestContext, appends: _Appends
    ) -> TopicProduceResponse:
        topic, refusal = self._find_topic(data, acks, context)
        partitions: list[PartitionProduceResponse] = []
        for partition in data.partition_data:
            self._append(topic, refusal, partition, context, appends, partitions)
        return TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=partitions)

    def _append(
        self,
        topic: ServedTopic | None,
        refusal: ErrorCode,
        partition: PartitionProduceData,
        context: RequestContext,
        appends: _Appends,
        partitions: list[PartitionProduceResponse],
    ) -> None:
        shell = None if topic is None else topic.find(partition.index)
        if shell is None or isinstance(shell, NotHere):
            code = refusal if shell is None else ABSENCE_CODES[shell.why]
            appends.waiting.append(None)
            partitions.append(PartitionProduceResponse(index=partition.index, error_code=code, base_offset=-1))
            return
        records = cast("memoryview | None", partition.records)
        outcome = shell.produce(records, acks=appends.acks)
        if isinstance(outcome, VerificationNeeded | DelayPossible):
            assert records is not None
            appends.hold(hold_back(shell, records, outcome, context.api_version, appends.acks), partitions)
        else:
            appends.waiting.append(outcome.commitment if isinstance(outcome, Appended) else None)
            partitions.append(partition_response(shell, outcome, context.api_version))

    async def _append_held(
        self, request: ProduceRequest, response: ProduceResponse, appends: _Appends, api_version: int
    ) -> ProduceResult | NoReply:
        batches = appends.held
        transactional_id = request.transactional_id or ""
        outcomes = await append_held(self._transactions, self._delays, transactional_id, batches, api_version)
        for batch, outcome, (entry, partitions, place) in zip(batches, outcomes, appends.answers, strict=True):
            partitions[place] = partition_response(batch.shell, outcome, api_version)
            if isinstance(outcome, Appended):
                appends.waiting[entry] = outcome.commitment
        return _silence(response) if request.acks == ACKS_NONE else appends.reply(response)

    def _find_topic(
        self, data: TopicProduceData, acks: int, context: RequestContext
    ) -> tuple[ServedTopic | None, ErrorCode]:
        """The topic, or the error for all of its partitions."""
        if context.api_version >= TOPIC_IDS_FROM:
            topic = self._broker.topic_by_id(data.topic_id)
            if topic is None:
                return None, ErrorCode.UNKNOWN_TOPIC_ID
            resource = topic.resource
        else:
            topic = self._broker.topic(data.name)
            resource = access.topic(data.name) if topic is None else topic.resource
        if not self._admission.may(context.caller, Operation.WRITE, resource):
            return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic is None:
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic.is_coordinators:
            return None, ErrorCode.INVALID_TOPIC_EXCEPTION
        if acks not in ACKS_LEGAL:
            return None, ErrorCode.INVALID_REQUIRED_ACKS
        return topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def acks_of(request: ProduceRequest) -> Acks:
    return Acks(request.acks == ACKS_ALL, max(request.timeout_ms, 0))


def _silence(response: ProduceResponse) -> NoReply:
    """For who asked for no reply."""
    is_refused = any(answer.error_code for topic in response.responses for answer in topic.partition_responses)
    return HANG_UP if is_refused else NO_REPLY


def partition_response(
    shell: PartitionShell, outcome: Appended | AppendRefused, api_version: int
) -> PartitionProduceResponse:
    if isinstance(outcome, AppendRefused):
        code = refusal_code(outcome.refusal, api_version)
        return PartitionProduceResponse(
            index=shell.index,
            error_code=code,
            base_offset=-1,
            log_start_offset=-1 if code in LOG_START_UNTOLD else shell.log_start,
            record_errors=[BatchIndexAndErrorMessage(place, outcome.reason) for place in outcome.records],
            error_message=outcome.reason,
        )
    return PartitionProduceResponse(
        index=shell.index,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start,
    )


def lost_response(index: int, loss: Loss) -> PartitionProduceResponse:
    """Of a batch that was written and may be gone."""
    return PartitionProduceResponse(index=index, error_code=LOSS_CODES[loss], base_offset=-1, error_message=loss.value)


def single_response(request: ProduceRequest, partition: PartitionProduceResponse) -> ProduceResponse:
    """The reply to a request for one partition."""
    topic = request.topic_data[0]
    answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=(partition,))
    return ProduceResponse(responses=(answer,))


def _places(request: ProduceRequest) -> set[tuple[str, bytes, int]]:
    return {
        (topic.name, topic.topic_id, partition.index)
        for topic in request.topic_data
        for partition in topic.partition_data
    }


def _refuse_all(request: ProduceRequest, code: ErrorCode) -> Steps[ProduceResponse]:
    topics = []
    for topic in request.topic_data:
        partitions = []
        for partition in topic.partition_data:
            partitions.append(
                PartitionProduceResponse(
                    index=partition.index, error_code=code, base_offset=-1, error_message=_REASONS[code]
                )
            )
            yield
        topics.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions))
    return ProduceResponse(responses=topics)


def _settle(response: ProduceResponse, waiting: list[Commitment | None]) -> ProduceResponse:
    """The reply when all is known: as prepared, unless something is lost."""
    if not any(commitment is not None and commitment.loss for commitment in waiting):
        return response
    waited = iter(waiting)
    topics = []
    for topic in response.responses:
        partitions = []
        for partition in topic.partition_responses:
            commitment = next(waited)
            loss = None if commitment is None else commitment.loss
            partitions.append(partition if loss is None else lost_response(partition.index, loss))
        topics.append(msgspec.structs.replace(topic, partition_responses=partitions))
    return msgspec.structs.replace(response, responses=topics)
