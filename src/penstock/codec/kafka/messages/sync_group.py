"""SyncGroup: the leader's assignment goes in, each member's own part comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Bytes, Int16, Int32, Message, Request, Response, String, Versions


class SyncGroupRequestAssignment(Message, frozen=True):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(Request, frozen=True):
    api_key = 14
    valid_versions = "0-5"
    flexible_versions = "4+"

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, Versions("3+")] = None
    protocol_type: Annotated[String | None, Versions("5+")] = None
    protocol_name: Annotated[String | None, Versions("5+")] = None
    assignments: Sequence[SyncGroupRequestAssignment] = ()


class SyncGroupResponse(Response, frozen=True):
    api_key = 14
    valid_versions = "0-5"
    flexible_versions = "4+"

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, Versions("5+")] = None
    protocol_name: Annotated[String | None, Versions("5+")] = None
    assignment: Bytes = b""
