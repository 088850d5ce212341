"""What Kafka's brokers ask each other about share groups: only they may ask, and here is nobody to ask.

What a share group has done with a partition lies beside the partition, on the same node. So nobody has to fetch it or
bring it back from elsewhere, and nobody else may change it. Clients never ask this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from penstock.base.long_work import Steps
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import delete_share_group_state as deleting
from penstock.codec.kafka.messages import initialize_share_group_state as beginning
from penstock.codec.kafka.messages import read_share_group_state as reading
from penstock.codec.kafka.messages import read_share_group_state_summary as summing
from penstock.codec.kafka.messages import write_share_group_state as writing
from penstock.codec.kafka.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from penstock.codec.kafka.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from penstock.codec.kafka.messages.read_share_group_state import ReadShareGroupStateRequest, ReadShareGroupStateResponse
from penstock.codec.kafka.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from penstock.codec.kafka.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from penstock.domain.security.access import CLUSTER, Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext

KEPT_HERE: Final = "the state of share groups is kept beside the partition; other brokers cannot read or change it"


class _Partition(Protocol):
    @property
    def partition(self) -> int: ...


class _Topic(Protocol):
    @property
    def topic_id(self) -> bytes: ...

    @property
    def partitions(self) -> Sequence[_Partition]: ...


PartitionT = TypeVar("PartitionT")
TopicT = TypeVar("TopicT")


class ShareStateHandler:
    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def initialize(
        self, request: InitializeShareGroupStateRequest, context: RequestContext
    ) -> Steps[InitializeShareGroupStateResponse]:
        told = beginning.PartitionResult, beginning.InitializeStateResult
        return InitializeShareGroupStateResponse((yield from self._refused(request.topics, *told, context)))

    def read(self, request: ReadShareGroupStateRequest, context: RequestContext) -> Steps[ReadShareGroupStateResponse]:
        told = reading.PartitionResult, reading.ReadStateResult
        return ReadShareGroupStateResponse((yield from self._refused(request.topics, *told, context)))

    def write(
        self, request: WriteShareGroupStateRequest, context: RequestContext
    ) -> Steps[WriteShareGroupStateResponse]:
        told = writing.PartitionResult, writing.WriteStateResult
        return WriteShareGroupStateResponse((yield from self._refused(request.topics, *told, context)))

    def delete(
        self, request: DeleteShareGroupStateRequest, context: RequestContext
    ) -> Steps[DeleteShareGroupStateResponse]:
        told = deleting.PartitionResult, deleting.DeleteStateResult
        return DeleteShareGroupStateResponse((yield from self._refused(request.topics, *told, context)))

    def summarize(
        self, request: ReadShareGroupStateSummaryRequest, context: RequestContext
    ) -> Steps[ReadShareGroupStateSummaryResponse]:
        told = summing.PartitionResult, summing.ReadStateSummaryResult
        return ReadShareGroupStateSummaryResponse((yield from self._refused(request.topics, *told, context)))

    def _refused(
        self,
        topics: Sequence[_Topic],
        partition_result: Callable[[int, int, str], PartitionT],
        topic_result: Callable[[bytes, Sequence[PartitionT]], TopicT],
        context: RequestContext,
    ) -> Steps[list[TopicT]]:
        code, reason = self._refusal(context)
        results = []
        for topic in topics:
            outcomes = []
            for each in topic.partitions:
                outcomes.append(partition_result(each.partition, code, reason))
                yield
            results.append(topic_result(topic.topic_id, outcomes))
        return results

    def _refusal(self, context: RequestContext) -> tuple[ErrorCode, str]:
        if self._admission.may(context.caller, Operation.CLUSTER_ACTION, CLUSTER):
            return ErrorCode.INVALID_REQUEST, KEPT_HERE
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{context.caller} may not act as a broker of the cluster"
