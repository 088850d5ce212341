"""Produce: batches from a client into partitions.

The batches stay views into the receive buffer; each partition's shell checks and writes its own before this returns.
Only the reply waits, for one turn of the disk: a turn covers everything written before it.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec

from penstock.broker.append_outcome import Appended, AppendRefused
from penstock.broker.broker import Broker
from penstock.broker.partition_shell import PartitionShell
from penstock.broker.served_topic import ServedTopic
from penstock.codec.wire import ErrorCode
from penstock.codec.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.domain import access
from penstock.domain.access import Authorizer, Operation
from penstock.gateways.kafka_context import HANG_UP, NO_REPLY, NoReply, PendingReply, RequestContext
from penstock.gateways.kafka_errors import REFUSAL_CODES
from penstock.storage.group_commit import Turn

# Produce 13 and up names topics by their ids.
TOPIC_IDS_FROM: Final = 13
ACKS_NONE: Final = 0
ACKS_LEGAL: Final = frozenset({-1, 0, 1})


class _Waiting:
    """What a reply waits for: one turn of the disk, and the partitions it must not fail."""

    __slots__ = ("shells", "turn")

    def __init__(self) -> None:
        self.turn: Turn | None = None
        # One entry for each partition of the request, none where the answer is known already.
        self.shells: list[PartitionShell | None] = []

    def add(self, shell: PartitionShell, turn: Turn | None) -> None:
        # All appends of one request join the same turn: a turn starts between two requests, never within one.
        assert turn is None or self.turn is None or turn is self.turn
        self.turn = turn or self.turn
        self.shells.append(shell if turn is not None else None)


class ProduceHandler:
    def __init__(self, broker: Broker, authorizer: Authorizer) -> None:
        self._broker = broker
        self._authorizer = authorizer

    def produce(self, request: ProduceRequest, context: RequestContext) -> ProduceResponse | PendingReply | NoReply:
        waiting = _Waiting()
        topics = [self._append_topic(topic, request.acks, context, waiting) for topic in request.topic_data]
        if request.acks == ACKS_NONE:
            is_refused = any(answer.error_code for topic in topics for answer in topic.partition_responses)
            return HANG_UP if is_refused else NO_REPLY
        response = ProduceResponse(responses=topics)
        if waiting.turn is None:
            return response
        turn, shells = waiting.turn, waiting.shells
        return PendingReply(turn, lambda: _settle(response, turn, shells))

    def _append_topic(
        self, data: TopicProduceData, acks: int, context: RequestContext, waiting: _Waiting
    ) -> TopicProduceResponse:
        topic, refusal = self._find_topic(data, acks, context)
        partitions: list[PartitionProduceResponse] = []
        for partition in data.partition_data:
            shell = None if topic is None else topic.partition(partition.index)
            if shell is None:
                waiting.shells.append(None)
                partitions.append(PartitionProduceResponse(index=partition.index, error_code=refusal, base_offset=-1))
            else:
                outcome = shell.append(cast("memoryview | None", partition.records))
                waiting.add(shell, outcome.turn if isinstance(outcome, Appended) else None)
                partitions.append(partition_response(shell, outcome))
        return TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=partitions)

    def _find_topic(
        self, data: TopicProduceData, acks: int, context: RequestContext
    ) -> tuple[ServedTopic | None, ErrorCode]:
        """The topic, and the error for partitions that it does not have."""
        if context.api_version >= TOPIC_IDS_FROM:
            topic = self._broker.topic_by_id(data.topic_id)
            if topic is None:
                return None, ErrorCode.UNKNOWN_TOPIC_ID
            resource = topic.resource
        else:
            topic = self._broker.topic(data.name)
            resource = access.topic(data.name) if topic is None else topic.resource
        if not self._authorizer.authorize(context.principal, Operation.WRITE, resource):
            return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic is None:
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if acks not in ACKS_LEGAL:
            return None, ErrorCode.INVALID_REQUIRED_ACKS
        return topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def partition_response(shell: PartitionShell, outcome: Appended | AppendRefused) -> PartitionProduceResponse:
    if isinstance(outcome, AppendRefused):
        return PartitionProduceResponse(
            index=shell.index,
            error_code=REFUSAL_CODES[outcome.refusal],
            base_offset=-1,
            log_start_offset=shell.log_start,
            error_message=outcome.reason,
        )
    return PartitionProduceResponse(
        index=shell.index,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start,
    )


def disk_failed_response(index: int) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=ErrorCode.KAFKA_STORAGE_ERROR,
        base_offset=-1,
        error_message="the disk did not take the batch",
    )


def single_response(request: ProduceRequest, partition: PartitionProduceResponse) -> ProduceResponse:
    """The reply to a request for one partition."""
    topic = request.topic_data[0]
    answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=(partition,))
    return ProduceResponse(responses=(answer,))


def _settle(response: ProduceResponse, turn: Turn, shells: list[PartitionShell | None]) -> ProduceResponse:
    """The reply after its turn: as prepared, unless the disk failed one of its partitions."""
    if not turn.failed:
        return response
    waited = iter(shells)
    topics = []
    for topic in response.responses:
        partitions = []
        for partition in topic.partition_responses:
            shell = next(waited)
            is_failed = shell is not None and shell.log in turn.failed
            partitions.append(disk_failed_response(partition.index) if is_failed else partition)
        topics.append(msgspec.structs.replace(topic, partition_responses=partitions))
    return msgspec.structs.replace(response, responses=topics)
