"""CreateDelegationToken: a token by which others act for a user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Bytes, Int16, Int32, Int64, Message, Request, Response, String, Versions


class CreatableRenewers(Message, frozen=True):
    principal_type: String = ""
    principal_name: String = ""


class CreateDelegationTokenRequest(Request, frozen=True):
    api_key = 38
    valid_versions = "1-3"
    flexible_versions = "2+"

    owner_principal_type: Annotated[String | None, Versions("3+")] = None
    owner_principal_name: Annotated[String | None, Versions("3+")] = None
    renewers: Sequence[CreatableRenewers] = ()
    max_lifetime_ms: Int64 = 0


class CreateDelegationTokenResponse(Response, frozen=True):
    api_key = 38
    valid_versions = "1-3"
    flexible_versions = "2+"

    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, Versions("3+")] = ""
    token_requester_principal_name: Annotated[String, Versions("3+")] = ""
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0
