"""DescribeDelegationToken: which tokens there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Bytes, Int16, Int32, Int64, Message, Request, Response, String, Versions


class DescribeDelegationTokenOwner(Message, frozen=True):
    principal_type: String = ""
    principal_name: String = ""


class DescribeDelegationTokenRequest(Request, frozen=True):
    api_key = 41
    valid_versions = "1-3"
    flexible_versions = "2+"

    owners: Sequence[DescribeDelegationTokenOwner] | None = None


class DescribedDelegationTokenRenewer(Message, frozen=True):
    principal_type: String = ""
    principal_name: String = ""


class DescribedDelegationToken(Message, frozen=True):
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, Versions("3+")] = ""
    token_requester_principal_name: Annotated[String, Versions("3+")] = ""
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    renewers: Sequence[DescribedDelegationTokenRenewer] = ()


class DescribeDelegationTokenResponse(Response, frozen=True):
    api_key = 41
    valid_versions = "1-3"
    flexible_versions = "2+"

    error_code: Int16 = 0
    tokens: Sequence[DescribedDelegationToken] = ()
    throttle_time_ms: Int32 = 0
