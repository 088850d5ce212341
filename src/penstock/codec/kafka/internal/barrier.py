"""Barrier: answered when everything is committed that the named logs held when it was asked.

A log is named by the id of its topic, or of a companion (`broker/topic/companion`), and its partition.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import NO_UUID, Int16, Int32, Int64, Message, Request, Response, Uuid


class BarrierLog(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partition: Int32 = 0
    leader_epoch: Int32 = -1


class BarrierRequest(Request, frozen=True):
    api_key = 20_001
    valid_versions = "0"
    flexible_versions = "0+"

    timeout_ms: Int32 = 0
    logs: Sequence[BarrierLog] = ()


class BarrierOutcome(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partition: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = -1
    # Who leads, as far as is known, where this node does not.
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class BarrierResponse(Response, frozen=True):
    api_key = 20_001
    valid_versions = "0"
    flexible_versions = "0+"

    error_code: Int16 = 0
    logs: Sequence[BarrierOutcome] = ()
