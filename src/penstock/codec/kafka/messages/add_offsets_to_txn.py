"""AddOffsetsToTxn: a group's positions enter a transaction."""

from __future__ import annotations

from penstock.codec.kafka.schema import Int16, Int32, Int64, Request, Response, String


class AddOffsetsToTxnRequest(Request, frozen=True):
    api_key = 25
    valid_versions = "0-4"
    flexible_versions = "3+"

    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


class AddOffsetsToTxnResponse(Response, frozen=True):
    api_key = 25
    valid_versions = "0-4"
    flexible_versions = "3+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
