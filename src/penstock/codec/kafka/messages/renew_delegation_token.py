"""RenewDelegationToken: a token lives longer."""

from __future__ import annotations

from penstock.codec.kafka.schema import Bytes, Int16, Int32, Int64, Request, Response


class RenewDelegationTokenRequest(Request, frozen=True):
    api_key = 39
    valid_versions = "1-2"
    flexible_versions = "2+"

    hmac: Bytes = b""
    renew_period_ms: Int64 = 0


class RenewDelegationTokenResponse(Response, frozen=True):
    api_key = 39
    valid_versions = "1-2"
    flexible_versions = "2+"

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
