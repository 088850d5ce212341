"""UnregisterBroker: a node that will not come back."""

from __future__ import annotations

from penstock.codec.kafka.schema import Int16, Int32, Request, Response, String


class UnregisterBrokerRequest(Request, frozen=True):
    api_key = 64
    valid_versions = "0"
    flexible_versions = "0+"

    broker_id: Int32 = 0


class UnregisterBrokerResponse(Response, frozen=True):
    api_key = 64
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
