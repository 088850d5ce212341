"""CreateAcls: adds rules about who may do what."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int8, Int16, Int32, Message, Request, Response, String


class AclCreation(Message, frozen=True):
    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Int8 = 3
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class CreateAclsRequest(Request, frozen=True):
    api_key = 30
    valid_versions = "1-3"
    flexible_versions = "2+"

    creations: Sequence[AclCreation] = ()


class AclCreationResult(Message, frozen=True):
    error_code: Int16 = 0
    error_message: String | None = None


class CreateAclsResponse(Response, frozen=True):
    api_key = 30
    valid_versions = "1-3"
    flexible_versions = "2+"

    throttle_time_ms: Int32 = 0
    results: Sequence[AclCreationResult] = ()
