"""SaslHandshake: the choice of a mechanism. A refusal and a success both list what the broker offers."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int16, Request, Response, String


class SaslHandshakeRequest(Request, frozen=True):
    api_key = 17
    valid_versions = "0-1"
    flexible_versions = "none"

    mechanism: String = ""


class SaslHandshakeResponse(Response, frozen=True):
    api_key = 17
    valid_versions = "0-1"
    flexible_versions = "none"

    error_code: Int16 = 0
    mechanisms: Sequence[String] = ()
