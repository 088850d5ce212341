"""Produce: batches from a client into partitions.

The batches stay views into the receive buffer; each partition's shell checks and writes its own before this returns.
Only the reply waits, and only for the last turn of the disk that any of its partitions joined: a turn covers
everything written before it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.broker.append_outcome import AppendRefused
from penstock.broker.broker import Broker
from penstock.broker.partition_shell import PartitionShell
from penstock.broker.served_topic import ServedTopic
from penstock.codec.wire import ErrorCode
from penstock.codec.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.domain.access import Authorizer, Operation
from penstock.gateways.kafka_context import NO_REPLY, NoReply, PendingReply, RequestContext
from penstock.gateways.kafka_errors import REFUSAL_CODES
from penstock.storage.group_commit import Turn

# Produce 13 and up names topics by their ids.
TOPIC_IDS_FROM: Final = 13
ACKS_NONE: Final = 0
ACKS_LEGAL: Final = frozenset({-1, 0, 1})


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    """A partition's answer that holds only if the turn it waits for ends well."""

    shell: PartitionShell
    turn: Turn


class ProduceHandler:
    def __init__(self, broker: Broker, authorizer: Authorizer) -> None:
        self._broker = broker
        self._authorizer = authorizer

    def produce(
        self, request: ProduceRequest, context: RequestContext
    ) -> ProduceResponse | PendingReply | NoReply:
        waiting: list[_Waiting | None] = []
        topics = [self._append_topic(topic, request.acks, context, waiting) for topic in request.topic_data]
        response = ProduceResponse(responses=topics)
        if request.acks == ACKS_NONE:
            return NO_REPLY
        turns = [entry.turn for entry in waiting if entry is not None]
        if not turns:
            return response
        # Joined in order on one loop, so the last one joined is the last one to end.
        return PendingReply(turns[-1], lambda: _settle(response, waiting))

    def _append_topic(
        self, data: TopicProduceData, acks: int, context: RequestContext, waiting: list[_Waiting | None]
    ) -> TopicProduceResponse:
        topic, refusal = self._find_topic(data, acks, context)
        partitions: list[PartitionProduceResponse] = []
        for partition in data.partition_data:
            shell = None if topic is None else topic.partition(partition.index)
            if shell is None:
                waiting.append(None)
                partitions.append(
                    PartitionProduceResponse(index=partition.index, error_code=refusal, base_offset=-1)
                )
            else:
                partitions.append(_append(shell, partition, waiting))
        return TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=partitions)

    def _find_topic(
        self, data: TopicProduceData, acks: int, context: RequestContext
    ) -> tuple[ServedTopic | None, ErrorCode]:
        """The topic, and the error for partitions that it does not have."""
        if context.api_version >= TOPIC_IDS_FROM:
            topic = self._broker.topic_by_id(data.topic_id)
            missing = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            topic = self._broker.topic(data.name)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None:
            return None, missing
        if not self._authorizer.authorize(context.principal, Operation.WRITE, topic.resource):
            return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if acks not in ACKS_LEGAL:
            return None, ErrorCode.INVALID_REQUIRED_ACKS
        return topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _append(
    shell: PartitionShell, data: PartitionProduceData, waiting: list[_Waiting | None]
) -> PartitionProduceResponse:
    outcome = shell.append(data.records)
    if isinstance(outcome, AppendRefused):
        waiting.append(None)
        return PartitionProduceResponse(
            index=data.index,
            error_code=REFUSAL_CODES[outcome.refusal],
            base_offset=-1,
            log_start_offset=shell.log_start,
            error_message=outcome.reason,
        )
    waiting.append(None if outcome.turn is None else _Waiting(shell, outcome.turn))
    return PartitionProduceResponse(
        index=data.index,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start,
    )


def _settle(response: ProduceResponse, waiting: list[_Waiting | None]) -> ProduceResponse:
    """The reply after its last turn: as prepared, unless the disk failed one of its partitions."""
    if not any(entry is not None and entry.shell.log in entry.turn.failed for entry in waiting):
        return response
    outcomes = iter(waiting)
    topics = []
    for topic in response.responses:
        partitions = []
        for partition in topic.partition_responses:
            entry = next(outcomes)
            if entry is not None and entry.shell.log in entry.turn.failed:
                partition = PartitionProduceResponse(
                    index=partition.index,
                    error_code=ErrorCode.KAFKA_STORAGE_ERROR,
                    base_offset=-1,
                    error_message="the disk did not take the batch",
                )
            partitions.append(partition)
        topics.append(msgspec.structs.replace(topic, partition_responses=partitions))
    return msgspec.structs.replace(response, responses=topics)
