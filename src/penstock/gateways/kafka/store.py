"""Asking the metadata store for a change, where it may not be there: that is an answer, not the end of a connection."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

import msgspec

from penstock.base.log_events import get_logger
from penstock.cluster.store.protocol import StoreError
from penstock.codec.kafka import ErrorCode

log = get_logger("kafka")

# Clients take it for what it is: try again.
STORE_FAILED_CODE: Final = ErrorCode.REQUEST_TIMED_OUT

T = TypeVar("T")


class StoreFailed(msgspec.Struct, frozen=True):
    reason: str


async def ask_store(change: Awaitable[T]) -> T | StoreFailed:
    try:
        return await change
    except StoreError as error:
        log.error("metadata store failed", error=str(error))
        return StoreFailed(str(error))
