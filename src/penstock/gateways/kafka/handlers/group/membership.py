"""The life of a group's member: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and ConsumerGroupHeartbeat (KIP-848).

Each request becomes one command of the group's machine and its reply one response; what a group does is decided there.
Here is what differs between versions, who is allowed what, and where ids of members come from. JoinGroup and SyncGroup
wait for other members: the connection is busy meanwhile, as with Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.base.chance import Chance
from penstock.broker.group.node import GroupCoordinator
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import consumer_group_heartbeat as wire
from penstock.codec.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.codec.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.codec.kafka.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from penstock.codec.kafka.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from penstock.codec.kafka.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.domain.group.commands import (
    ConsumerAlive,
    ConsumerHeartbeat,
    GroupReply,
    Heartbeat,
    Join,
    Joined,
    Leave,
    LeavingMember,
    Left,
    Refused,
    Sync,
    Synced,
)
from penstock.domain.group.values import Assignment, by_topic
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import GROUP_CODES, group_code

# JoinGroup
REBALANCE_TIMEOUT_FROM: Final = 1
KNOWN_ID_FROM: Final = 4
PROTOCOL_TYPE_FROM: Final = 7
SKIP_ASSIGNMENT_FROM: Final = 9
# LeaveGroup
MANY_MEMBERS_FROM: Final = 3
# SyncGroup
NAMED_PROTOCOL_FROM: Final = 5
# ConsumerGroupHeartbeat
OWN_MEMBER_ID_FROM: Final = 1


class GroupsHandler:
    def __init__(self, groups: GroupCoordinator, admission: Admission, chance: Chance) -> None:
        self._groups = groups
        self._admission = admission
        self._chance = chance

    async def join_group(self, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
        version = context.api_version
        code = self._problem(request.group_id, context)
        if code is not None:
            return _not_joined(code, request.member_id, version)
        has_timeout = version >= REBALANCE_TIMEOUT_FROM
        reply = await self._groups.submit(
            request.group_id,
            Join(
                ticket=self._groups.next_ticket(),
                member_id=request.member_id,
                new_member_id=_new_member_id(request.group_instance_id, context, self._chance),
                protocol_type=request.protocol_type,
                protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms,
                instance_id=request.group_instance_id,
                client_id=context.client_id or "",
                client_host=client_host(context),
                requires_known_id=version >= KNOWN_ID_FROM,
                supports_skip_assignment=version >= SKIP_ASSIGNMENT_FROM,
            ),
        )
        if isinstance(reply, Refused):
            member_id = reply.member_id or request.member_id
            return _not_joined(GROUP_CODES[reply.error], member_id, version)
        assert isinstance(reply, Joined), reply
        return _joined(reply)

    async def sync_group(self, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
        is_complete = request.protocol_type is not None and request.protocol_name is not None
        if context.api_version >= NAMED_PROTOCOL_FROM and not is_complete:
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        code = self._problem(request.group_id, context)
        if code is not None:
            return SyncGroupResponse(error_code=code)
        reply = await self._groups.submit(
            request.group_id,
            Sync(
                ticket=self._groups.next_ticket(),
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
                assignments=tuple((given.member_id, given.assignment) for given in request.assignments),
            ),
        )
        if isinstance(reply, Refused):
            return SyncGroupResponse(error_code=GROUP_CODES[reply.error])
        assert isinstance(reply, Synced), reply
        return SyncGroupResponse(
            protocol_type=reply.protocol_type, protocol_name=reply.protocol, assignment=reply.assignment
        )

    async def heartbeat(self, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        code = self._problem(request.group_id, context)
        if code is not None:
            return HeartbeatResponse(error_code=code)
        command = Heartbeat(request.member_id, request.generation_id, request.group_instance_id)
        return HeartbeatResponse(error_code=_code_of(await self._groups.submit(request.group_id, command)))

    async def leave_group(self, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
        code = self._problem(request.group_id, context)
        if code is not None:
            return LeaveGroupResponse(error_code=code)
        is_batch = context.api_version >= MANY_MEMBERS_FROM
        leaving: Iterable[LeavingMember] = (LeavingMember(request.member_id),)
        if is_batch:
            leaving = (LeavingMember(member.member_id, member.group_instance_id) for member in request.members)
        reply = await self._groups.submit(request.group_id, Leave(tuple(leaving)))
        if isinstance(reply, Refused):
            return LeaveGroupResponse(error_code=GROUP_CODES[reply.error])
        assert isinstance(reply, Left), reply
        if not is_batch:
            return LeaveGroupResponse(error_code=group_code(reply.members[0].error))
        members = [
            MemberResponse(member.member_id, member.instance_id, group_code(member.error)) for member in reply.members
        ]
        return LeaveGroupResponse(members=members)

    def _problem(self, group_id: str, context: RequestContext) -> ErrorCode | None:
        if not self._admission.may(context.caller, Operation.READ, access.group(group_id)):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return None if group_id else ErrorCode.INVALID_GROUP_ID

    # The consumer protocol

    async def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        problem = await self._heartbeat_problem(request, context)
        if problem is not None:
            code, message = problem
            return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)
        names, owned = request.subscribed_topic_names, request.topic_partitions
        reply = await self._groups.submit(
            request.group_id,
            ConsumerHeartbeat(
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                new_member_id=str(self._chance.uuid()),
                instance_id=request.instance_id,
                rack_id=request.rack_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                topic_names=None if names is None else tuple(names),
                topic_regex=request.subscribed_topic_regex,
                assignor=request.server_assignor,
                owned=None if owned is None else _owned(owned),
                client_id=context.client_id or "",
                client_host=client_host(context),
                principal=str(context.caller),
            ),
        )
        if isinstance(reply, Refused):
            message = f"{reply.error.value}: {reply.detail}" if reply.detail else reply.error.value
            return ConsumerGroupHeartbeatResponse(error_code=GROUP_CODES[reply.error], error_message=message)
        assert isinstance(reply, ConsumerAlive), reply
        return ConsumerGroupHeartbeatResponse(
            member_id=reply.member_id,
            member_epoch=reply.member_epoch,
            heartbeat_interval_ms=reply.heartbeat_interval_ms,
            assignment=None if reply.assignment is None else _assignment(reply.assignment),
        )

    async def _heartbeat_problem(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> tuple[ErrorCode, str] | None:
        may = self._admission.may
        if not may(context.caller, Operation.READ, access.group(request.group_id)):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED, "not allowed to read with this group"
        pace = context.pace()
        for name in request.subscribed_topic_names or ():
            await pace.rest_if_due()
            if not may(context.caller, Operation.DESCRIBE, access.topic(name)):
                return ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not allowed to see the topic {name}"
        if not request.group_id:
            return ErrorCode.INVALID_REQUEST, "the group id is empty"
        if context.api_version >= OWN_MEMBER_ID_FROM and not request.member_id:
            return ErrorCode.INVALID_REQUEST, "from version 1 on a member brings its own id"
        return None


def client_host(context: RequestContext) -> str:
    """As Kafka shows it: tools that list members know the slash, and take it off."""
    return "/" + context.caller.address.rpartition(":")[0]


def _new_member_id(instance_id: str | None, context: RequestContext, chance: Chance) -> str:
    """Begins with what a person who reads it would look for."""
    return f"{instance_id or context.client_id or ''}-{chance.uuid()}"


def _code_of(reply: GroupReply) -> ErrorCode:
    return GROUP_CODES[reply.error] if isinstance(reply, Refused) else ErrorCode.NONE


def _not_joined(code: ErrorCode, member_id: str, version: int) -> JoinGroupResponse:
    # The protocol's name may be null from the version on that tells the protocol's type too.
    name = None if version >= PROTOCOL_TYPE_FROM else ""
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=name)


def _joined(reply: Joined) -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            JoinGroupResponseMember(member.member_id, member.instance_id, member.metadata) for member in reply.members
        ],
    )


def _owned(topics: Sequence[wire.TopicPartitions]) -> Assignment:
    return tuple(sorted({(topic.topic_id, number) for topic in topics for number in topic.partitions}))


def _assignment(assignment: Assignment) -> wire.Assignment:
    return wire.Assignment(
        topic_partitions=[wire.TopicPartitions(topic_id, numbers) for topic_id, numbers in by_topic(assignment)]
    )
