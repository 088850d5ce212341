"""EndTxn: commit or abort. From version 5 on the reply carries the producer's next epoch."""

from __future__ import annotations

from typing import Annotated

from penstock.codec.kafka.schema import Bool, Int16, Int32, Int64, Request, Response, String, Versions


class EndTxnRequest(Request, frozen=True):
    api_key = 26
    valid_versions = "0-5"
    flexible_versions = "3+"

    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


class EndTxnResponse(Response, frozen=True):
    api_key = 26
    valid_versions = "0-5"
    flexible_versions = "3+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, Versions("5+")] = -1
    producer_epoch: Annotated[Int16, Versions("5+")] = -1
