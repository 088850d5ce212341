"""Asks again while a broker is away, starts, or hands its work to another: up to a deadline, then its last word.

Only for what may be asked twice: a question, or a request that the broker recognises when it comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock.base.slow_waits import told_if_slow
from penstock.codec.kafka import ErrorCode
from penstock.net.errors import BrokerError, BrokerUnreachableError, ConnectionLostError, RequestTimeoutError

# The first wait is short, because most of what is waited for is a marker that is being written.
RETRY_MS_FIRST: Final = 5
RETRY_MS_MAX: Final = 200

UNREACHED: Final = (BrokerUnreachableError, ConnectionLostError, RequestTimeoutError)
NOT_YET: Final = frozenset({
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
})  # fmt: skip

Answer = TypeVar("Answer")


async def ask_patiently(question: Callable[[], Awaitable[Answer]], *, patience_ms: int) -> Answer:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_ms / 1000
    wait_ms = RETRY_MS_FIRST
    problem = "no answer yet"
    with told_if_slow(lambda: f"{problem}; asking again for up to {patience_ms / 1000:g} s"):
        while True:
            try:
                return await question()
            except UNREACHED as error:
                if loop.time() >= deadline:
                    raise
                problem = str(error)
            except BrokerError as error:
                if error.code not in NOT_YET or loop.time() >= deadline:
                    raise
                problem = str(error)
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = min(2 * wait_ms, RETRY_MS_MAX)
