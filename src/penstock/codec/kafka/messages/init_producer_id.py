"""InitProducerId: a producer's id and epoch, with which it becomes idempotent or transactional."""

from __future__ import annotations

from typing import Annotated

from penstock.codec.kafka.schema import Int16, Int32, Int64, Request, Response, String, Versions


class InitProducerIdRequest(Request, frozen=True):
    api_key = 22
    valid_versions = "0-5"
    flexible_versions = "2+"

    transactional_id: String | None = None
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, Versions("3+")] = -1
    producer_epoch: Annotated[Int16, Versions("3+")] = -1


class InitProducerIdResponse(Response, frozen=True):
    api_key = 22
    valid_versions = "0-5"
    flexible_versions = "2+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
