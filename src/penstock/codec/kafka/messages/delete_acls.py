"""DeleteAcls: removes the rules that filters match."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int8, Int16, Int32, Message, Request, Response, String


class DeleteAclsFilter(Message, frozen=True):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = None
    host_filter: String | None = None
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsRequest(Request, frozen=True):
    api_key = 31
    valid_versions = "1-3"
    flexible_versions = "2+"

    filters: Sequence[DeleteAclsFilter] = ()


class DeleteAclsMatchingAcl(Message, frozen=True):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsFilterResult(Message, frozen=True):
    error_code: Int16 = 0
    error_message: String | None = None
    matching_acls: Sequence[DeleteAclsMatchingAcl] = ()


class DeleteAclsResponse(Response, frozen=True):
    api_key = 31
    valid_versions = "1-3"
    flexible_versions = "2+"

    throttle_time_ms: Int32 = 0
    filter_results: Sequence[DeleteAclsFilterResult] = ()
