"""LeaveGroup: members leave a classic group, several at once from version 3 on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Int16, Int32, Message, Request, Response, String, Versions


class MemberIdentity(Message, frozen=True):
    member_id: String = ""
    group_instance_id: String | None = None
    reason: Annotated[String | None, Versions("5+")] = None


class LeaveGroupRequest(Request, frozen=True):
    api_key = 13
    valid_versions = "0-5"
    flexible_versions = "4+"

    group_id: String = ""
    member_id: Annotated[String, Versions("0-2")] = ""
    members: Annotated[Sequence[MemberIdentity], Versions("3+")] = ()


class MemberResponse(Message, frozen=True):
    member_id: String = ""
    group_instance_id: String | None = None
    error_code: Int16 = 0


class LeaveGroupResponse(Response, frozen=True):
    api_key = 13
    valid_versions = "0-5"
    flexible_versions = "4+"

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16 = 0
    members: Annotated[Sequence[MemberResponse], Versions("3+")] = ()
