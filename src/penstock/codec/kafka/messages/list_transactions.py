"""ListTransactions: the transactions that this broker coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Int16, Int32, Int64, Message, Request, Response, String, Versions


class ListTransactionsRequest(Request, frozen=True):
    api_key = 66
    valid_versions = "0-2"
    flexible_versions = "0+"

    state_filters: Sequence[String] = ()
    producer_id_filters: Sequence[Int64] = ()
    duration_filter: Annotated[Int64, Versions("1+")] = -1
    transactional_id_pattern: Annotated[String | None, Versions("2+")] = None


class TransactionState(Message, frozen=True):
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


class ListTransactionsResponse(Response, frozen=True):
    api_key = 66
    valid_versions = "0-2"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: Sequence[String] = ()
    transaction_states: Sequence[TransactionState] = ()
