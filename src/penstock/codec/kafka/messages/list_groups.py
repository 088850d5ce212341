"""ListGroups: the groups that this broker looks after, by state and type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Int16, Int32, Message, Request, Response, String, Versions


class ListGroupsRequest(Request, frozen=True):
    api_key = 16
    valid_versions = "0-5"
    flexible_versions = "3+"

    states_filter: Annotated[Sequence[String], Versions("4+")] = ()
    types_filter: Annotated[Sequence[String], Versions("5+")] = ()


class ListedGroup(Message, frozen=True):
    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, Versions("4+")] = ""
    group_type: Annotated[String, Versions("5+")] = ""


class ListGroupsResponse(Response, frozen=True):
    api_key = 16
    valid_versions = "0-5"
    flexible_versions = "3+"

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16 = 0
    groups: Sequence[ListedGroup] = ()
