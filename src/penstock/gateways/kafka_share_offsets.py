"""Where share groups are, and moving them: DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets.

The start offset is where everything below is finished. Moved and forgotten it may be while the group has no members:
what they hold would be taken from them otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.broker import Broker
from penstock.broker.share_groups import ShareGroups
from penstock.codec.wire import ErrorCode
from penstock.codec.wire.messages import alter_share_group_offsets as altered
from penstock.codec.wire.messages import delete_share_group_offsets as deleted
from penstock.codec.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from penstock.codec.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from penstock.codec.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from penstock.codec.wire.schema import NO_UUID
from penstock.domain import access
from penstock.domain.access import Authorizer, Operation
from penstock.domain.queue_definition import QueueName
from penstock.domain.share_group import ShareRefused
from penstock.gateways.kafka_context import RequestContext
from penstock.gateways.kafka_errors import GROUP_CODES
from penstock.gateways.kafka_share_desk import ShareProblem
from penstock.gateways.kafka_store import StoreFailed, ask_store

NO_START = -1


class ShareOffsetsHandler:
    def __init__(self, broker: Broker, shares: ShareGroups, authorizer: Authorizer) -> None:
        self._broker = broker
        self._shares = shares
        self._authorizer = authorizer

    # Describe

    async def describe_share_group_offsets(
        self, request: DescribeShareGroupOffsetsRequest, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponse:
        return DescribeShareGroupOffsetsResponse(groups=[await self._group(group, context) for group in request.groups])

    async def _group(
        self, asked: DescribeShareGroupOffsetsRequestGroup, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponseGroup:
        group_id = asked.group_id
        problem = await self._problem(Operation.DESCRIBE, group_id, context)
        if problem is not None:
            return DescribeShareGroupOffsetsResponseGroup(
                group_id, error_code=problem.code, error_message=problem.message
            )
        if asked.topics is None:
            names = [definition.name.topic for definition in self._shares.queues_of(group_id)]
            wanted = [(name, None) for name in names if self._may_topic(Operation.DESCRIBE, name, context)]
            topics = [await self._topic(name, group_id, partitions, context) for name, partitions in wanted]
        else:
            topics = [await self._topic(each.topic_name, group_id, each.partitions, context) for each in asked.topics]
        return DescribeShareGroupOffsetsResponseGroup(group_id, topics)

    async def _topic(
        self, name: str, group_id: str, partitions: Sequence[int] | None, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponseTopic:
        topic = self._broker.topic(name)
        code = ErrorCode.NONE
        if not self._may_topic(Operation.DESCRIBE, name, context):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code is not ErrorCode.NONE or topic is None:
            return DescribeShareGroupOffsetsResponseTopic(
                name,
                partitions=[
                    DescribeShareGroupOffsetsResponsePartition(number, NO_START, error_code=code)
                    for number in partitions or ()
                ],
            )
        found = await self._shares.where(QueueName(name, group_id)) or {}
        told = []
        for number in sorted(found) if partitions is None else partitions:
            where = found.get(number)
            if where is not None:
                told.append(DescribeShareGroupOffsetsResponsePartition(number, where.start_offset, lag=where.lag))
            elif topic.partition(number) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                told.append(DescribeShareGroupOffsetsResponsePartition(number, NO_START, error_code=code))
            else:
                told.append(DescribeShareGroupOffsetsResponsePartition(number, NO_START))
        return DescribeShareGroupOffsetsResponseTopic(name, topic.topic_id, told)

    # Alter

    async def alter_share_group_offsets(
        self, request: AlterShareGroupOffsetsRequest, context: RequestContext
    ) -> AlterShareGroupOffsetsResponse:
        problem = await self._problem(Operation.READ, request.group_id, context, must_be_empty=True)
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
        for partition in asked.partitions:
            code = ErrorCode.NONE
            if not is_allowed:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or topic.partition(partition.partition_index) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                name = QueueName(topic.name, group_id)
                is_moved = await self._shares.move(name, partition.partition_index, partition.start_offset)
                code = ErrorCode.NONE if is_moved else ErrorCode.KAFKA_STORAGE_ERROR
            results.append(altered.AlterShareGroupOffsetsResponsePartition(partition.partition_index, code))
        topic_id = topic.topic_id if topic is not None and is_allowed else NO_UUID
        return altered.AlterShareGroupOffsetsResponseTopic(asked.topic_name, topic_id, results)

    # Delete

    async def delete_share_group_offsets(
        self, request: DeleteShareGroupOffsetsRequest, context: RequestContext
    ) -> DeleteShareGroupOffsetsResponse:
        problem = await self._problem(Operation.DELETE, request.group_id, context, must_be_empty=True)
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
            return deleted.DeleteShareGroupOffsetsResponseTopic(name, error_code=code)
        topic = self._broker.topic(name)
        outcome = await ask_store(self._shares.forget(QueueName(name, group_id)))
        if isinstance(outcome, StoreFailed):
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            code = ErrorCode.NONE if outcome else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic_id = NO_UUID if topic is None else topic.topic_id
        return deleted.DeleteShareGroupOffsetsResponseTopic(name, topic_id, code)

    # All of them

    async def _problem(
        self, operation: Operation, group_id: str, context: RequestContext, *, must_be_empty: bool = False
    ) -> ShareProblem | None:
        if not self._authorizer.authorize(context.principal, operation, access.group(group_id)):
            return ShareProblem(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not allowed with this group")
        if not group_id:
            return ShareProblem(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        found = await self._shares.get(group_id)
        if isinstance(found, ShareRefused):
            return ShareProblem(GROUP_CODES[found.error], found.detail or found.error.value)
        if must_be_empty and found.members:
            return ShareProblem(ErrorCode.NON_EMPTY_GROUP, "the group has members")
        return None

    def _may_topic(self, operation: Operation, name: str, context: RequestContext) -> bool:
        return self._authorizer.authorize(context.principal, operation, access.topic(name))
