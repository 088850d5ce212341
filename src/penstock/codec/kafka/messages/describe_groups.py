"""DescribeGroups: the state and the members of classic groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Bool, Bytes, Int16, Int32, Message, Request, Response, String, Versions


class DescribeGroupsRequest(Request, frozen=True):
    api_key = 15
    valid_versions = "0-6"
    flexible_versions = "5+"

    groups: Sequence[String] = ()
    include_authorized_operations: Annotated[Bool, Versions("3+")] = False


class DescribedGroupMember(Message, frozen=True):
    member_id: String = ""
    group_instance_id: Annotated[String | None, Versions("4+")] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribedGroup(Message, frozen=True):
    error_code: Int16 = 0
    error_message: Annotated[String | None, Versions("6+")] = None
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: Sequence[DescribedGroupMember] = ()
    authorized_operations: Annotated[Int32, Versions("3+")] = -0x80000000


class DescribeGroupsResponse(Response, frozen=True):
    api_key = 15
    valid_versions = "0-6"
    flexible_versions = "5+"

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    groups: Sequence[DescribedGroup] = ()
