"""Where share groups are, and moving them: DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets.

The start offset is where everything below is finished. Moved and forgotten it may be while the group has no members:
what they hold would be taken from them otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.broker.queue.shell import QueueUnavailable
from penstock.broker.share.node import ShareGroups
from penstock.broker.topic.broker import Broker
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import alter_share_group_offsets as altered
from penstock.codec.kafka.messages import delete_share_group_offsets as deleted
from penstock.codec.kafka.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from penstock.codec.kafka.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from penstock.codec.kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from penstock.codec.kafka.schema import NO_UUID
from penstock.domain.queue.definition import QueueName
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.domain.share.machine import ShareRefused
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import GROUP_CODES
from penstock.gateways.kafka.handlers.share.desk import ShareProblem
from penstock.gateways.kafka.store import StoreFailed, ask_store

NO_START: Final = -1
NO_LAG: Final = -1
NOT_ALLOWED: Final = "not allowed to use this topic"
NO_PARTITION: Final = "there is no such topic or partition"
NOT_MOVED: Final = "the group's state cannot be changed now"


class ShareOffsetsHandler:
    def __init__(self, broker: Broker, shares: ShareGroups, admission: Admission) -> None:
        self._broker = broker
        self._shares = shares
        self._admission = admission

    # Describe

    async def describe_share_group_offsets(
        self, request: DescribeShareGroupOffsetsRequest, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponse:
        # Named twice, told once.
        groups = []
        pace = context.pace()
        for group in dict.fromkeys(request.groups):
            groups.append(await self._group(group, context))
            await pace.rest_if_due()
        return DescribeShareGroupOffsetsResponse(groups=groups)

    async def _group(
        self, asked: DescribeShareGroupOffsetsRequestGroup, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponseGroup:
        """A group that is not there has no start anywhere, which is no error: Kafka's way."""
        group_id = asked.group_id
        problem = self._group_problem(Operation.DESCRIBE, group_id, context)
        if problem is not None:
            return DescribeShareGroupOffsetsResponseGroup(
                group_id, error_code=problem.code, error_message=problem.message
            )
        if asked.topics is None:
            names = [definition.name.topic for definition in self._shares.queues_of(group_id)]
            wanted = [name for name in names if self._may_topic(Operation.DESCRIBE, name, context)]
            topics = [await self._topic(name, group_id, None, context) for name in wanted]
        else:
            topics = [await self._topic(each.topic_name, group_id, each.partitions, context) for each in asked.topics]
        return DescribeShareGroupOffsetsResponseGroup(group_id, topics)

    async def _topic(
        self, name: str, group_id: str, partitions: Sequence[int] | None, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponseTopic:
        if not self._may_topic(Operation.DESCRIBE, name, context):
            code, message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, NOT_ALLOWED
            told = [
                DescribeShareGroupOffsetsResponsePartition(number, NO_START, error_code=code, error_message=message)
                for number in partitions or ()
            ]
            return DescribeShareGroupOffsetsResponseTopic(name, partitions=told)
        topic = self._broker.topic(name)
        found = await self._shares.where(QueueName(name, group_id)) or {}
        told = []
        pace = context.pace()
        for number in sorted(found) if partitions is None else partitions:
            await pace.rest_if_due()
            where = found.get(number)
            if isinstance(where, QueueUnavailable):
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                unsure = DescribeShareGroupOffsetsResponsePartition(
                    number, NO_START, error_code=code, error_message=where.reason
                )
                told.append(unsure)
                continue
            start, lag = (NO_START, NO_LAG) if where is None else (where.start_offset, where.lag)
            told.append(DescribeShareGroupOffsetsResponsePartition(number, start, lag=lag))
        return DescribeShareGroupOffsetsResponseTopic(name, NO_UUID if topic is None else topic.topic_id, told)

    # Alter

    async def alter_share_group_offsets(
        self, request: AlterShareGroupOffsetsRequest, context: RequestContext
    ) -> AlterShareGroupOffsetsResponse:
        problem = self._group_problem(Operation.READ, request.group_id, context)
        if problem is None:
            # A group that is not there yet begins where it is told to.
            refused = await self._shares.create(request.group_id)
            problem = _problem_of(refused) if refused is not None else await self._members_problem(request.group_id)
        if problem is not None:
            return AlterShareGroupOffsetsResponse(error_code=problem.code, error_message=problem.message)
        return AlterShareGroupOffsetsResponse(
            responses=[await self._alter_topic(topic, request.group_id, context) for topic in request.topics]
        )

    async def _alter_topic(
        self, asked: altered.AlterShareGroupOffsetsRequestTopic, group_id: str, context: RequestContext
    ) -> altered.AlterShareGroupOffsetsResponseTopic:
        topic = self._broker.topic(asked.topic_name)
        is_allowed = self._may_topic(Operation.READ, asked.topic_name, context)
        results = []
        pace = context.pace()
        for partition in asked.partitions:
            await pace.rest_if_due()
            code, message = ErrorCode.NONE, None
            if not is_allowed:
                code, message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, NOT_ALLOWED
            elif topic is None or not topic.has_partition(partition.partition_index):
                code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_PARTITION
            elif not await self._shares.move(
                QueueName(topic.name, group_id), partition.partition_index, partition.start_offset
            ):
                code, message = ErrorCode.KAFKA_STORAGE_ERROR, NOT_MOVED
            results.append(altered.AlterShareGroupOffsetsResponsePartition(partition.partition_index, code, message))
        topic_id = topic.topic_id if topic is not None and is_allowed else NO_UUID
        return altered.AlterShareGroupOffsetsResponseTopic(asked.topic_name, topic_id, results)

    # Delete

    async def delete_share_group_offsets(
        self, request: DeleteShareGroupOffsetsRequest, context: RequestContext
    ) -> DeleteShareGroupOffsetsResponse:
        problem = self._group_problem(Operation.DELETE, request.group_id, context)
        problem = problem or await self._members_problem(request.group_id)
        if problem is not None:
            return DeleteShareGroupOffsetsResponse(error_code=problem.code, error_message=problem.message)
        names = dict.fromkeys(topic.topic_name for topic in request.topics)
        return DeleteShareGroupOffsetsResponse(
            responses=[await self._delete_topic(name, request.group_id, context) for name in names]
        )

    async def _delete_topic(
        self, name: str, group_id: str, context: RequestContext
    ) -> deleted.DeleteShareGroupOffsetsResponseTopic:
        if not self._may_topic(Operation.READ, name, context):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return deleted.DeleteShareGroupOffsetsResponseTopic(name, error_code=code, error_message=NOT_ALLOWED)
        topic = self._broker.topic(name)
        topic_id = NO_UUID if topic is None else topic.topic_id
        outcome = await ask_store(self._shares.forget(QueueName(name, group_id)))
        if isinstance(outcome, StoreFailed):
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return deleted.DeleteShareGroupOffsetsResponseTopic(name, topic_id, code, NOT_MOVED)
        if not outcome:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return deleted.DeleteShareGroupOffsetsResponseTopic(name, topic_id, code, NO_PARTITION)
        return deleted.DeleteShareGroupOffsetsResponseTopic(name, topic_id)

    # All of them

    def _group_problem(self, operation: Operation, group_id: str, context: RequestContext) -> ShareProblem | None:
        if not self._admission.may(context.caller, operation, access.group(group_id)):
            return ShareProblem(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not allowed with this group")
        return None if group_id else ShareProblem(ErrorCode.INVALID_GROUP_ID, "the group id is empty")

    async def _members_problem(self, group_id: str) -> ShareProblem | None:
        found = await self._shares.get(group_id)
        if isinstance(found, ShareRefused):
            return _problem_of(found)
        return ShareProblem(ErrorCode.NON_EMPTY_GROUP, "the group has members") if found.members else None

    def _may_topic(self, operation: Operation, name: str, context: RequestContext) -> bool:
        return self._admission.may(context.caller, operation, access.topic(name))


def _problem_of(refused: ShareRefused) -> ShareProblem:
    return ShareProblem(GROUP_CODES[refused.error], refused.detail or refused.error.value)
