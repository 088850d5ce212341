"""What operators ask of groups: DescribeGroups, ConsumerGroupDescribe, ListGroups, DeleteGroups.

DescribeGroups knows classic groups alone and ConsumerGroupDescribe those of KIP-848 alone: to each, a group of the
other kind is not there. Tools ask the second first, and the first about what it did not find.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import Final

from penstock.broker.group.node import GroupCoordinator
from penstock.broker.share.node import ShareGroups
from penstock.broker.topic.broker import Broker
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import consumer_group_describe as consumer_wire
from penstock.codec.kafka.messages import describe_groups as classic_wire
from penstock.codec.kafka.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.codec.kafka.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from penstock.codec.kafka.messages.describe_groups import (
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.codec.kafka.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.domain.group.classic import ClassicState
from penstock.domain.group.commands import DeleteGroup, Refused
from penstock.domain.group.description import DEAD, GroupDescription, MemberDescription
from penstock.domain.group.values import Assignment, GroupError, GroupKind, by_topic
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, Operation
from penstock.domain.share.machine import ShareRefused
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import GROUP_CODES
from penstock.gateways.kafka.handlers.metadata import NOT_ASKED
from penstock.gateways.kafka.store import StoreFailed, ask_store

# DescribeGroups: older ones are told of a group that is not there by its state, Dead.
NOT_FOUND_FROM: Final = 6
CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
# As ListGroups names their type, and their protocol too.
SHARE: Final = "share"
# A list that somebody reads is in order. A longer one is as it comes: sorting is one step, and this many take 2 ms.
SORTED_GROUPS_MAX: Final = 10_000


class GroupAdminHandler:
    def __init__(self, broker: Broker, groups: GroupCoordinator, shares: ShareGroups, admission: Admission) -> None:
        self._broker = broker
        self._groups = groups
        self._shares = shares
        self._admission = admission

    # Classic groups

    async def describe_groups(self, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
        with_operations = request.include_authorized_operations
        groups = []
        pace = context.pace()
        for group_id in dict.fromkeys(request.groups):
            groups.append(await self._describe_classic(group_id, context, with_operations=with_operations))
            await pace.rest_if_due()
        return DescribeGroupsResponse(groups=groups)

    async def _describe_classic(
        self, group_id: str, context: RequestContext, *, with_operations: bool
    ) -> classic_wire.DescribedGroup:
        if not self._may(Operation.DESCRIBE, group_id, context):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return classic_wire.DescribedGroup(group_id=group_id, error_code=code)
        if not await self._groups.ready():
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return classic_wire.DescribedGroup(group_id=group_id, error_code=code)
        found = await self._groups.describe(group_id)
        if isinstance(found, Refused):
            message = found.detail or None if context.api_version >= NOT_FOUND_FROM else None
            return classic_wire.DescribedGroup(
                group_id=group_id, error_code=GROUP_CODES[found.error], error_message=message
            )
        if found.state == DEAD or found.kind is not GroupKind.CLASSIC:
            return self._no_classic_group(group_id, context, with_operations=with_operations)
        # Before a generation is stable its protocol and its members' parts are in the making: nobody is told them.
        is_stable = found.state == ClassicState.STABLE
        return classic_wire.DescribedGroup(
            group_id=group_id,
            group_state=found.state,
            protocol_type=found.protocol_type,
            protocol_data=found.protocol if is_stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in found.members
            ],
            authorized_operations=self._operations(group_id, context, with_operations=with_operations),
        )

    def _no_classic_group(
        self, group_id: str, context: RequestContext, *, with_operations: bool
    ) -> classic_wire.DescribedGroup:
        if context.api_version < NOT_FOUND_FROM:
            operations = self._operations(group_id, context, with_operations=with_operations)
            return classic_wire.DescribedGroup(group_id=group_id, group_state=DEAD, authorized_operations=operations)
        return classic_wire.DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"there is no classic group {group_id}",
            group_id=group_id,
            group_state=DEAD,
        )

    # Consumer groups

    async def consumer_group_describe(
        self, request: ConsumerGroupDescribeRequest, context: RequestContext
    ) -> ConsumerGroupDescribeResponse:
        with_operations = request.include_authorized_operations
        groups = []
        pace = context.pace()
        for group_id in dict.fromkeys(request.group_ids):
            groups.append(await self._describe_consumer(group_id, context, with_operations=with_operations))
            await pace.rest_if_due()
        return ConsumerGroupDescribeResponse(groups=groups)

    async def _describe_consumer(
        self, group_id: str, context: RequestContext, *, with_operations: bool
    ) -> consumer_wire.DescribedGroup:
        if not self._may(Operation.DESCRIBE, group_id, context):
            return _not_described(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED, "not allowed to see this group")
        if not group_id:
            return _not_described(group_id, ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        if not await self._groups.ready():
            return _not_described(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, "groups are not available yet")
        found = await self._groups.describe(group_id)
        if isinstance(found, Refused):
            return _not_described(group_id, GROUP_CODES[found.error], found.detail or found.error.value)
        if found.state == DEAD or found.kind is not GroupKind.CONSUMER:
            message = f"there is no group {group_id} of the consumer protocol"
            return _not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)
        if not self._may_see_topics(found, context):
            message = "the group reads topics that you are not allowed to see"
            return _not_described(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
        return consumer_wire.DescribedGroup(
            group_id=group_id,
            group_state=found.state,
            group_epoch=found.epoch,
            assignment_epoch=found.target_epoch,
            assignor_name=found.protocol,
            members=[self._consumer_member(member) for member in found.members],
            authorized_operations=self._operations(group_id, context, with_operations=with_operations),
        )

    def _consumer_member(self, member: MemberDescription) -> consumer_wire.Member:
        return consumer_wire.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.topic_names,
            # Empty, not null, where there is none: as Kafka says it.
            subscribed_topic_regex=member.topic_regex,
            assignment=self._named(member.assigned),
            target_assignment=self._named(member.target),
            member_type=CLASSIC_MEMBER if member.uses_classic_protocol else CONSUMER_MEMBER,
        )

    def _named(self, assignment: Assignment) -> consumer_wire.Assignment:
        """Topics that have been deleted since are left out."""
        topics = []
        for topic_id, numbers in by_topic(assignment):
            served = self._broker.topic_by_id(topic_id)
            if served is not None:
                topics.append(consumer_wire.TopicPartitions(topic_id, served.name, numbers))
        return consumer_wire.Assignment(topics)

    def _may_see_topics(self, found: GroupDescription, context: RequestContext) -> bool:
        names = {name for member in found.members for name in member.topic_names}
        topic_ids = {topic_id for member in found.members for topic_id, _ in (*member.assigned, *member.target)}
        served = (self._broker.topic_by_id(topic_id) for topic_id in sorted(topic_ids))
        names |= {topic.name for topic in served if topic is not None}
        may = self._admission.may
        return all(may(context.caller, Operation.DESCRIBE, access.topic(name)) for name in sorted(names))

    # All of them

    async def list_groups(self, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
        if not await self._groups.ready():
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        listed, shares = await self._groups.list_groups(), self._shares.all()
        if isinstance(listed, Refused):
            return ListGroupsResponse(error_code=_listing_code(listed.error))
        if isinstance(shares, ShareRefused):
            return ListGroupsResponse(error_code=_listing_code(shares.error))
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        # Who may see the cluster sees every group; others those that they may see.
        sees_all = self._admission.may(context.caller, Operation.DESCRIBE, CLUSTER)
        found = chain(
            (ListedGroup(group_id, group.protocol_type, group.state, group.kind) for group_id, group in listed),
            (ListedGroup(group_id, SHARE, group.state, SHARE) for group_id, group in shares),
        )
        groups = []
        pace = context.pace()
        for group in found:
            if (
                (not states or group.group_state.lower() in states)
                and (not types or group.group_type in types)
                and (sees_all or self._may(Operation.DESCRIBE, group.group_id, context))
            ):
                groups.append(group)
            await pace.rest_if_due()
        if len(groups) <= SORTED_GROUPS_MAX:
            groups.sort(key=attrgetter("group_id"))
        return ListGroupsResponse(groups=groups)

    async def delete_groups(self, request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
        results = []
        pace = context.pace()
        for group_id in dict.fromkeys(request.groups_names):
            results.append(await self._delete(group_id, context))
            await pace.rest_if_due()
        return DeleteGroupsResponse(results=results)

    async def _delete(self, group_id: str, context: RequestContext) -> DeletableGroupResult:
        if not self._may(Operation.DELETE, group_id, context):
            return DeletableGroupResult(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not isinstance(await self._shares.get(group_id), ShareRefused):
            return DeletableGroupResult(group_id, await self._delete_share_group(group_id))
        reply = await self._groups.submit(group_id, DeleteGroup())
        return DeletableGroupResult(group_id, GROUP_CODES[reply.error] if isinstance(reply, Refused) else 0)

    async def _delete_share_group(self, group_id: str) -> ErrorCode:
        refused = await ask_store(self._shares.delete(group_id))
        if isinstance(refused, StoreFailed):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE if refused is None else GROUP_CODES[refused.error]

    def _may(self, operation: Operation, group_id: str, context: RequestContext) -> bool:
        return self._admission.may(context.caller, operation, access.group(group_id))

    def _operations(self, group_id: str, context: RequestContext, *, with_operations: bool) -> int:
        if not with_operations:
            return NOT_ASKED
        return self._admission.operations(context.caller, access.group(group_id))


def _listing_code(error: GroupError) -> ErrorCode:
    """Whoever lists asks every node and looks for no coordinator: this one is to be asked again."""
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if error is GroupError.NOT_COORDINATOR else GROUP_CODES[error]


def _not_described(group_id: str, code: ErrorCode, message: str) -> consumer_wire.DescribedGroup:
    return consumer_wire.DescribedGroup(group_id=group_id, error_code=code, error_message=message)
