"""A transaction that is being ended is waited for, instead of telling the client to come again.

The end is confirmed when it is decided, and its markers follow within milliseconds; whoever begins the next transaction
meanwhile is told CONCURRENT_TRANSACTIONS by Kafka. Clients then wait for 20 to 500 ms, and kafkajs 2.2 fails. So the
question is held back for as long as an end usually takes, and only then answered so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.broker.transaction.node import TransactionCoordinators
from penstock.domain.transaction.commands import (
    AddPartitions,
    InitProducer,
    Refused,
    TransactionProblem,
    TransactionReply,
)

# A quarter of a second together: many turns of a slow disk, and less than any client's patience.
WAITS_MS: Final = (1, 2, 4, 8, 16, 32, 64, 128)

_ENDING: Final = Refused(TransactionProblem.CONCURRENT_TRANSACTIONS)


async def submit_patiently(
    transactions: TransactionCoordinators,
    command: InitProducer | AddPartitions,
    waits_ms: Sequence[int] = WAITS_MS,
) -> TransactionReply:
    for wait_ms in waits_ms:
        reply = await transactions.submit(command)
        if reply != _ENDING:
            return reply
        await asyncio.sleep(wait_ms / 1000)
    return await transactions.submit(command)
