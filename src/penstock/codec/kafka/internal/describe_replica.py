"""DescribeReplica: what one node holds of one log, and checksums by which replicas are compared.

A range of a log is `step_offsets` long, the last one maybe shorter. Its checksum is over the batches that begin in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import NO_UUID, Int16, Int32, Int64, Message, Request, Response, String, Uuid


class DescribeReplicaRequest(Request, frozen=True):
    """Without checksums where `to_offset` is not above `from_offset`."""

    api_key = 20_002
    valid_versions = "0"
    flexible_versions = "0+"

    topic_id: Uuid = NO_UUID
    partition: Int32 = 0
    from_offset: Int64 = 0
    to_offset: Int64 = 0
    step_offsets: Int32 = 0


class EpochStart(Message, frozen=True):
    epoch: Int32 = -1
    start_offset: Int64 = -1


class RangeChecksum(Message, frozen=True):
    from_offset: Int64 = 0
    to_offset: Int64 = 0
    checksum: Int64 = 0


class DescribeReplicaResponse(Response, frozen=True):
    api_key = 20_002
    valid_versions = "0"
    flexible_versions = "0+"

    error_code: Int16 = 0
    error_message: String | None = None
    log_start: Int64 = -1
    log_end: Int64 = -1
    durable_end: Int64 = -1
    high_watermark: Int64 = -1
    epochs: Sequence[EpochStart] = ()
    checksums: Sequence[RangeChecksum] = ()
