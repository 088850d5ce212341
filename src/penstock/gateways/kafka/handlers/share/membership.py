"""Share groups and their members (KIP-932): ShareGroupHeartbeat, ShareGroupDescribe.

A member's heartbeat becomes one command of the group's machine. Which messages it gets is another door's business:
`fetch`.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.share.node import ShareGroups
from penstock.broker.topic.broker import Broker
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import share_group_describe as described
from penstock.codec.kafka.messages import share_group_heartbeat as beat
from penstock.codec.kafka.messages.share_group_describe import (
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from penstock.codec.kafka.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from penstock.domain.group.sizes import names_bytes
from penstock.domain.group.values import Assignment, GroupConfig, by_topic
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.domain.share.machine import ShareGroup, ShareHeartbeat, ShareMemberStored, ShareRefused
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import GROUP_CODES
from penstock.gateways.kafka.handlers.group.membership import client_host
from penstock.gateways.kafka.handlers.metadata import NOT_ASKED

# Kafka has one for share groups and names it so.
ASSIGNOR: Final = "simple"

Problem = tuple[ErrorCode, str]
# Of the names that one member subscribes to, as for other groups.
NAMES_BYTES_MAX: Final = GroupConfig().member_bytes_max


class ShareGroupsHandler:
    def __init__(self, broker: Broker, shares: ShareGroups, admission: Admission) -> None:
        self._broker = broker
        self._shares = shares
        self._admission = admission

    async def share_group_heartbeat(
        self, request: ShareGroupHeartbeatRequest, context: RequestContext
    ) -> ShareGroupHeartbeatResponse:
        problem = await self._problem(request, context)
        if problem is not None:
            return ShareGroupHeartbeatResponse(error_code=problem[0], error_message=problem[1])
        names = request.subscribed_topic_names
        command = ShareHeartbeat(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            topic_names=None if names is None else tuple(names),
            rack_id=request.rack_id,
            client_id=context.client_id or "",
            client_host=client_host(context),
        )
        reply = await self._shares.heartbeat(request.group_id, command)
        if isinstance(reply, ShareRefused):
            return ShareGroupHeartbeatResponse(error_code=GROUP_CODES[reply.error], error_message=_reason(reply))
        return ShareGroupHeartbeatResponse(
            member_id=reply.member_id,
            member_epoch=reply.member_epoch,
            heartbeat_interval_ms=reply.heartbeat_interval_ms,
            assignment=None if reply.assignment is None else _assigned(reply.assignment),
        )

    async def _problem(self, request: ShareGroupHeartbeatRequest, context: RequestContext) -> Problem | None:
        if not self._may(Operation.READ, request.group_id, context):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED, "not allowed to read with this group"
        if not request.group_id.strip():
            return ErrorCode.INVALID_REQUEST, "the group id is empty"
        names = request.subscribed_topic_names or ()
        if names_bytes(names) > NAMES_BYTES_MAX:
            return ErrorCode.INVALID_REQUEST, f"names of {names_bytes(names)} bytes, at most {NAMES_BYTES_MAX} are kept"
        hidden = []
        pace = context.pace()
        for name in names:
            if not self._admission.may(context.caller, Operation.DESCRIBE, access.topic(name)):
                hidden.append(name)
            await pace.rest_if_due()
        if hidden:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not allowed to see {', '.join(sorted(hidden))[:1000]}"
        return None

    # Looking

    async def share_group_describe(
        self, request: ShareGroupDescribeRequest, context: RequestContext
    ) -> ShareGroupDescribeResponse:
        with_operations = request.include_authorized_operations
        groups = [
            await self._describe(group_id, context, with_operations=with_operations)
            for group_id in dict.fromkeys(request.group_ids)
        ]
        return ShareGroupDescribeResponse(groups=groups)

    async def _describe(self, group_id: str, context: RequestContext, *, with_operations: bool) -> DescribedGroup:
        if not self._may(Operation.DESCRIBE, group_id, context):
            return _not_described(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED, "not allowed to see this group")
        if not group_id:
            return _not_described(group_id, ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        found = await self._shares.get(group_id)
        if isinstance(found, ShareRefused):
            return _not_described(group_id, GROUP_CODES[found.error], _reason(found))
        if not self._may_see_topics(found, context):
            message = "the group reads topics that you are not allowed to see"
            return _not_described(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
        operations = NOT_ASKED
        if with_operations:
            operations = self._admission.operations(context.caller, access.group(group_id))
        return DescribedGroup(
            group_id=group_id,
            group_state=found.state,
            group_epoch=found.epoch,
            # A new epoch and its target are made in one step.
            assignment_epoch=found.epoch,
            assignor_name=ASSIGNOR,
            members=[self._member(found, member) for _, member in sorted(found.members.items())],
            authorized_operations=operations,
        )

    def _member(self, group: ShareGroup, member: ShareMemberStored) -> Member:
        return Member(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.topic_names,
            assignment=self._named(group.targets.get(member.member_id, ())),
        )

    def _named(self, assignment: Assignment) -> described.Assignment:
        """Topics that have been deleted since are left out."""
        topics = []
        for topic_id, numbers in by_topic(assignment):
            served = self._broker.topic_by_id(topic_id)
            if served is not None:
                topics.append(described.TopicPartitions(topic_id, served.name, numbers))
        return described.Assignment(topics)

    def _may_see_topics(self, found: ShareGroup, context: RequestContext) -> bool:
        names = {name for member in found.members.values() for name in member.topic_names}
        may = self._admission.may
        return all(may(context.caller, Operation.DESCRIBE, access.topic(name)) for name in sorted(names))

    def _may(self, operation: Operation, group_id: str, context: RequestContext) -> bool:
        return self._admission.may(context.caller, operation, access.group(group_id))


def _assigned(assignment: Assignment) -> beat.Assignment:
    return beat.Assignment([beat.TopicPartitions(topic_id, numbers) for topic_id, numbers in by_topic(assignment)])


def _reason(refused: ShareRefused) -> str:
    return f"{refused.error.value}: {refused.detail}" if refused.detail else refused.error.value


def _not_described(group_id: str, code: ErrorCode, message: str) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=code, error_message=message)
