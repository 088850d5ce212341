"""JoinGroup: a member enters a classic group; the leader is told all members so that it can assign."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    Bool,
    Bytes,
    Int16,
    Int32,
    Message,
    Nullable,
    Request,
    Response,
    String,
    Versions,
)


class JoinGroupRequestProtocol(Message, frozen=True):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(Request, frozen=True):
    api_key = 11
    valid_versions = "0-9"
    flexible_versions = "6+"

    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, Versions("1+")] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, Versions("5+")] = None
    protocol_type: String = ""
    protocols: Sequence[JoinGroupRequestProtocol] = ()
    reason: Annotated[String | None, Versions("8+")] = None


class JoinGroupResponseMember(Message, frozen=True):
    member_id: String = ""
    group_instance_id: Annotated[String | None, Versions("5+")] = None
    metadata: Bytes = b""


class JoinGroupResponse(Response, frozen=True):
    api_key = 11
    valid_versions = "0-9"
    flexible_versions = "6+"

    throttle_time_ms: Annotated[Int32, Versions("2+")] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, Versions("7+")] = None
    protocol_name: Annotated[String | None, Nullable("7+")] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, Versions("9+")] = False
    member_id: String = ""
    members: Sequence[JoinGroupResponseMember] = ()
