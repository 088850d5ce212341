"""SaslAuthenticate: one step of the chosen mechanism."""

from __future__ import annotations

from typing import Annotated

from penstock.codec.kafka.schema import Bytes, Int16, Int64, Request, Response, String, Versions


class SaslAuthenticateRequest(Request, frozen=True):
    api_key = 36
    valid_versions = "0-2"
    flexible_versions = "2+"

    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(Response, frozen=True):
    api_key = 36
    valid_versions = "0-2"
    flexible_versions = "2+"

    error_code: Int16 = 0
    error_message: String | None = None
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, Versions("1+")] = 0
