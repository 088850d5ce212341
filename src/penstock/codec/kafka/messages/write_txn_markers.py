"""WriteTxnMarkers: the coordinator tells partition leaders how transactions ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Request,
    Response,
    String,
    Versions,
)


class WritableTxnMarkerTopic(Message, frozen=True):
    name: String = ""
    partition_indexes: Sequence[Int32] = ()


class WritableTxnMarker(Message, frozen=True):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: Sequence[WritableTxnMarkerTopic] = ()
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, Versions("2+")] = 0


class WriteTxnMarkersRequest(Request, frozen=True):
    api_key = 27
    valid_versions = "1-2"
    flexible_versions = "1+"

    markers: Sequence[WritableTxnMarker] = ()


class WritableTxnMarkerPartitionResult(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Message, frozen=True):
    name: String = ""
    partitions: Sequence[WritableTxnMarkerPartitionResult] = ()


class WritableTxnMarkerResult(Message, frozen=True):
    producer_id: Int64 = 0
    topics: Sequence[WritableTxnMarkerTopicResult] = ()


class WriteTxnMarkersResponse(Response, frozen=True):
    api_key = 27
    valid_versions = "1-2"
    flexible_versions = "1+"

    markers: Sequence[WritableTxnMarkerResult] = ()
