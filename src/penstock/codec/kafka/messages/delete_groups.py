"""DeleteGroups: removes empty groups."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int16, Int32, Message, Request, Response, String


class DeleteGroupsRequest(Request, frozen=True):
    api_key = 42
    valid_versions = "0-2"
    flexible_versions = "2+"

    groups_names: Sequence[String] = ()


class DeletableGroupResult(Message, frozen=True):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Response, frozen=True):
    api_key = 42
    valid_versions = "0-2"
    flexible_versions = "2+"

    throttle_time_ms: Int32 = 0
    results: Sequence[DeletableGroupResult] = ()
