"""A group's positions: OffsetCommit, OffsetFetch, OffsetDelete.

A partition may be refused by itself (not allowed, no such topic) while the rest of the request goes on to the group.
Topics are named by id from version 10 on; whoever names one by name means the topic that has it now, so offsets are
kept with its id either way, and a topic created again under an old name inherits none.

Very many positions go to the group a portion at a time, and others have their turn in between. A group that changes
meanwhile refuses the rest, partition by partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec

from penstock.base.long_work import Steps
from penstock.broker.group.node import GroupCoordinator
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.codec.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from penstock.codec.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from penstock.domain.group.commands import (
    CommitOffsets,
    DeleteOffsets,
    FetchedOffset,
    FetchOffsets,
    GroupReply,
    OffsetsFetched,
    OffsetsNamed,
    OffsetsWritten,
    OffsetToCommit,
    PartitionName,
    Refused,
)
from penstock.domain.group.values import NO_TOPIC_ID
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import GROUP_CODES, group_code
from penstock.gateways.kafka.handlers.group.commit_parts import Problems, answer, sort_out

TOPIC_IDS_FROM: Final = 10
# OffsetCommit
EPOCHS_FROM: Final = 9
# OffsetFetch
MANY_GROUPS_FROM: Final = 8
GROUP_ERROR_FROM: Final = 2
NO_OFFSET: Final = -1
# Positions that a group decides about at once: two milliseconds.
AT_ONCE_MAX: Final = 500


class GroupOffsetsHandler:
    def __init__(self, broker: Broker, groups: GroupCoordinator, admission: Admission) -> None:
        self._broker = broker
        self._groups = groups
        self._admission = admission

    # Commit

    async def offset_commit(self, request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
        if not self._may_use_group(Operation.READ, request.group_id, context):
            return _commit_refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        offsets: list[OffsetToCommit] = []
        # By topic and partition as they were asked for: an error, or None for what the group is to decide.
        problems = await context.work.run(
            sort_out(
                request.topics,
                lambda topic: self._find(topic.name, topic.topic_id, Operation.READ, context),
                offsets,
            )
        )
        outcomes = iter(await self._commit(request, offsets, context))
        topics = answer(
            request.topics, problems, outcomes, partition=OffsetCommitResponsePartition, topic=_committed_topic
        )
        return OffsetCommitResponse(topics=await context.work.run(topics))

    async def _commit(
        self, request: OffsetCommitRequest, offsets: Sequence[OffsetToCommit], context: RequestContext
    ) -> list[ErrorCode]:
        """One for each, in order."""
        outcomes: list[ErrorCode] = []
        pace = context.pace()
        for first in range(0, len(offsets), AT_ONCE_MAX):
            portion = tuple(offsets[first : first + AT_ONCE_MAX])
            command = CommitOffsets(
                offsets=portion,
                member_id=request.member_id,
                generation=request.generation_id_or_member_epoch,
                instance_id=request.group_instance_id,
                retention_ms=request.retention_time_ms,
                knows_epochs=context.api_version >= EPOCHS_FROM,
            )
            outcomes += _outcomes(await self._groups.submit(request.group_id, command), len(portion))
            await pace.rest_if_due()
        return outcomes

    # Fetch

    async def offset_fetch(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
        if context.api_version >= MANY_GROUPS_FROM:
            # Named twice, told once: of a group that is asked for everything that may be much.
            wanted_groups = {(group.group_id, group.topics): group for group in request.groups}
            groups = [
                await self._fetch(group, context, requires_stable=request.require_stable)
                for group in wanted_groups.values()
            ]
            return OffsetFetchResponse(groups=groups)
        topics = None
        if request.topics is not None:
            topics = [
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in request.topics
            ]
        wanted = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
        answer = await self._fetch(wanted, context, requires_stable=request.require_stable)
        return _as_one_group(answer, wanted, context.api_version)

    async def _fetch(
        self, wanted: OffsetFetchRequestGroup, context: RequestContext, *, requires_stable: bool
    ) -> OffsetFetchResponseGroup:
        group_id = wanted.group_id
        if not self._may_use_group(Operation.DESCRIBE, group_id, context):
            return OffsetFetchResponseGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        refused: list[OffsetFetchResponseTopics] = []
        fetch = FetchOffsets((), wanted.member_id, wanted.member_epoch, requires_stable)
        places = await self._places(wanted, fetch, refused, context)
        fetched = places if isinstance(places, Refused) else await self._fetch_places(group_id, fetch, places, context)
        if isinstance(fetched, Refused):
            return OffsetFetchResponseGroup(group_id=group_id, error_code=GROUP_CODES[fetched.error])
        # A topic that was asked for in portions is told as one: clients take its last entry for all there is.
        topics = await context.work.run(self._fetched(fetched, context, is_everything=wanted.topics is None))
        return OffsetFetchResponseGroup(group_id=group_id, topics=[*topics, *refused])

    async def _places(
        self,
        wanted: OffsetFetchRequestGroup,
        fetch: FetchOffsets,
        refused: list[OffsetFetchResponseTopics],
        context: RequestContext,
    ) -> list[PartitionName] | Refused:
        """What the group is to be asked about, those of a topic together."""
        if wanted.topics is None:
            reply = await self._groups.submit(wanted.group_id, msgspec.structs.replace(fetch, partitions=None))
            if isinstance(reply, Refused):
                return reply
            assert isinstance(reply, OffsetsNamed), reply
            return await context.work.run(_by_topic(reply.places))
        places: list[PartitionName] = []
        pace = context.pace()
        for topic in wanted.topics:
            await pace.rest_if_due()
            found = self._name_of(topic, context)
            if isinstance(found, ErrorCode):
                refused.append(_topic_refused(topic, found))
            else:
                name, topic_id = found
                # Named twice, told once.
                places += [PartitionName(name, index, topic_id) for index in dict.fromkeys(topic.partition_indexes)]
        return places

    async def _fetch_places(
        self, group_id: str, fetch: FetchOffsets, places: Sequence[PartitionName], context: RequestContext
    ) -> list[FetchedOffset] | Refused:
        fetched: list[FetchedOffset] = []
        pace = context.pace()
        for portion in _portions(places):
            reply = await self._groups.submit(group_id, msgspec.structs.replace(fetch, partitions=portion))
            if isinstance(reply, Refused):
                return reply
            assert isinstance(reply, OffsetsFetched), reply
            fetched += reply.partitions
            await pace.rest_if_due()
        return fetched

    def _name_of(self, topic: OffsetFetchRequestTopics, context: RequestContext) -> tuple[str, bytes] | ErrorCode:
        """What a group has committed may be asked for even if the topic is gone."""
        if context.api_version >= TOPIC_IDS_FROM:
            found = self._find("", topic.topic_id, Operation.DESCRIBE, context)
            return found if isinstance(found, ErrorCode) else (found.name, found.topic_id)
        if not self._may_use_topic(Operation.DESCRIBE, topic.name, context):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        served = self._broker.topic(topic.name)
        return topic.name, NO_TOPIC_ID if served is None else served.topic_id

    def _fetched(
        self, offsets: Sequence[FetchedOffset], context: RequestContext, *, is_everything: bool
    ) -> Steps[list[OffsetFetchResponseTopics]]:
        by_id = context.api_version >= TOPIC_IDS_FROM
        topics = []
        for name, found in groupby(offsets, key=lambda offset: offset.topic):
            yield
            # Who asked for everything is not told of what it may not see, nor of what has no id any more.
            if is_everything and not self._may_use_topic(Operation.DESCRIBE, name, context):
                continue
            served = self._broker.topic(name)
            if by_id and served is None:
                continue
            partitions = []
            for offset in found:
                if is_everything and offset.offset == NO_OFFSET and offset.error is None:
                    # Removed since it was named.
                    continue
                told = OffsetFetchResponsePartitions(
                    offset.partition, offset.offset, offset.leader_epoch, offset.metadata, group_code(offset.error)
                )
                partitions.append(told)
                yield
            topic_id = NO_TOPIC_ID if served is None else served.topic_id
            topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=partitions))
        return topics

    # Delete

    async def offset_delete(self, request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
        if not self._may_use_group(Operation.DELETE, request.group_id, context):
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not request.group_id:
            return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        places: list[PartitionName] = []
        problems = await context.work.run(self._sort_out_deleted(request, places, context))
        outcomes: list[ErrorCode] = []
        pace = context.pace()
        for portion in _portions(places):
            reply = await self._groups.submit(request.group_id, DeleteOffsets(portion))
            if isinstance(reply, Refused):
                return OffsetDeleteResponse(error_code=GROUP_CODES[reply.error])
            outcomes += _outcomes(reply, len(portion))
            await pace.rest_if_due()
        topics = answer(
            request.topics, problems, iter(outcomes), partition=OffsetDeleteResponsePartition, topic=_deleted_topic
        )
        return OffsetDeleteResponse(topics=await context.work.run(topics))

    def _sort_out_deleted(
        self, request: OffsetDeleteRequest, places: list[PartitionName], context: RequestContext
    ) -> Steps[Problems]:
        problems: Problems = []
        for topic in request.topics:
            found = self._find(topic.name, NO_TOPIC_ID, Operation.READ, context)
            codes: list[ErrorCode | None] = []
            for given in topic.partitions:
                yield
                if isinstance(found, ErrorCode):
                    codes.append(found)
                elif not found.has_partition(given.partition_index):
                    codes.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    codes.append(None)
                    places.append(PartitionName(found.name, given.partition_index, found.topic_id))
            problems.append(codes)
        return problems

    # Looking up

    def _may_use_group(self, operation: Operation, group_id: str, context: RequestContext) -> bool:
        return self._admission.may(context.caller, operation, access.group(group_id))

    def _may_use_topic(self, operation: Operation, name: str, context: RequestContext) -> bool:
        return self._admission.may(context.caller, operation, access.topic(name))

    def _find(
        self, name: str, topic_id: bytes, operation: Operation, context: RequestContext
    ) -> ServedTopic | ErrorCode:
        """By name, or by id where the version has one. A name that may not be used is not even looked for."""
        if context.api_version >= TOPIC_IDS_FROM:
            topic = self._broker.topic_by_id(topic_id)
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            name = topic.name
        if not self._may_use_topic(operation, name, context):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topic = self._broker.topic(name)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic


def _by_topic(places: Sequence[tuple[str, int]]) -> Steps[list[PartitionName]]:
    """By name, and by number within a topic; a topic's are sorted at once, which takes a millisecond for 10,000."""
    indexes: dict[str, list[int]] = {}
    for topic, index in places:
        indexes.setdefault(topic, []).append(index)
        yield
    named: list[PartitionName] = []
    for topic in sorted(indexes):
        for index in sorted(indexes[topic]):
            named.append(PartitionName(topic, index))
            yield
    return named


def _portions(places: Sequence[PartitionName]) -> list[tuple[PartitionName, ...]]:
    """One at least, so that the group is asked whether it may be."""
    starts = range(0, max(len(places), 1), AT_ONCE_MAX)
    return [tuple(places[first : first + AT_ONCE_MAX]) for first in starts]


def _outcomes(reply: GroupReply, count: int) -> list[ErrorCode]:
    """One for each partition that went to the group, in the order they went."""
    if isinstance(reply, Refused):
        return [GROUP_CODES[reply.error]] * count
    assert isinstance(reply, OffsetsWritten), reply
    return [group_code(outcome.error) for outcome in reply.partitions]


def _committed_topic(
    asked: OffsetCommitRequestTopic, partitions: list[OffsetCommitResponsePartition]
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=partitions)


def _deleted_topic(
    asked: OffsetDeleteRequestTopic, partitions: list[OffsetDeleteResponsePartition]
) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(name=asked.name, partitions=partitions)


def _commit_refused(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[OffsetCommitResponsePartition(given.partition_index, code) for given in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _topic_refused(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, error_code=code)
            for index in topic.partition_indexes
        ],
    )


def _as_one_group(
    answer: OffsetFetchResponseGroup, wanted: OffsetFetchRequestGroup, version: int
) -> OffsetFetchResponse:
    """Before version 8 the group's answer is the response itself; in version 1 its error stands at each partition."""
    topics = answer.topics
    if answer.error_code != ErrorCode.NONE and version < GROUP_ERROR_FROM:
        topics = [_topic_refused(topic, ErrorCode(answer.error_code)) for topic in wanted.topics or ()]
    return OffsetFetchResponse(
        error_code=answer.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        found.partition_index,
                        found.committed_offset,
                        found.committed_leader_epoch,
                        found.metadata,
                        found.error_code,
                    )
                    for found in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
