"""AddPartitionsToTxn: partitions enter a transaction; several transactions at once from version 4 on, between
brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Bool, Int16, Int32, Int64, Message, Request, Response, String, Versions


class AddPartitionsToTxnTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[Int32] = ()


class AddPartitionsToTxnTransaction(Message, frozen=True):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    verify_only: Bool = False
    topics: Sequence[AddPartitionsToTxnTopic] = ()


class AddPartitionsToTxnRequest(Request, frozen=True):
    api_key = 24
    valid_versions = "0-5"
    flexible_versions = "3+"

    transactions: Annotated[Sequence[AddPartitionsToTxnTransaction], Versions("4+")] = ()
    v3_and_below_transactional_id: Annotated[String, Versions("0-3")] = ""
    v3_and_below_producer_id: Annotated[Int64, Versions("0-3")] = 0
    v3_and_below_producer_epoch: Annotated[Int16, Versions("0-3")] = 0
    v3_and_below_topics: Annotated[Sequence[AddPartitionsToTxnTopic], Versions("0-3")] = ()


class AddPartitionsToTxnPartitionResult(Message, frozen=True):
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Message, frozen=True):
    name: String = ""
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = ()


class AddPartitionsToTxnResult(Message, frozen=True):
    transactional_id: String = ""
    topic_results: Sequence[AddPartitionsToTxnTopicResult] = ()


class AddPartitionsToTxnResponse(Response, frozen=True):
    api_key = 24
    valid_versions = "0-5"
    flexible_versions = "3+"

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Versions("4+")] = 0
    results_by_transaction: Annotated[Sequence[AddPartitionsToTxnResult], Versions("4+")] = ()
    results_by_topic_v3_and_below: Annotated[Sequence[AddPartitionsToTxnTopicResult], Versions("0-3")] = ()
