"""ExpireDelegationToken: a token ends sooner."""

from __future__ import annotations

from penstock.codec.kafka.schema import Bytes, Int16, Int32, Int64, Request, Response


class ExpireDelegationTokenRequest(Request, frozen=True):
    api_key = 40
    valid_versions = "1-2"
    flexible_versions = "2+"

    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = 0


class ExpireDelegationTokenResponse(Response, frozen=True):
    api_key = 40
    valid_versions = "1-2"
    flexible_versions = "2+"

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
