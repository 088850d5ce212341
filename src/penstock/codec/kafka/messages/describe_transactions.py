"""DescribeTransactions: the state of transactions, by transactional id."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int16, Int32, Int64, Message, Request, Response, String


class DescribeTransactionsRequest(Request, frozen=True):
    api_key = 65
    valid_versions = "0"
    flexible_versions = "0+"

    transactional_ids: Sequence[String] = ()


class TopicData(Message, frozen=True):
    topic: String = ""
    partitions: Sequence[Int32] = ()


class TransactionState(Message, frozen=True):
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: Sequence[TopicData] = ()


class DescribeTransactionsResponse(Response, frozen=True):
    api_key = 65
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    transaction_states: Sequence[TransactionState] = ()
