"""A transaction that is being ended is waited for, but not for ever."""

from __future__ import annotations

from typing import cast

from penstock.broker.transaction.node import TransactionCoordinators
from penstock.domain.transaction.commands import (
    AddPartitions,
    InitProducer,
    PartitionsAdded,
    Refused,
    TransactionProblem,
    TransactionReply,
)
from penstock.gateways.kafka.handlers.transaction.patience import WAITS_MS, submit_patiently

ENDING = Refused(TransactionProblem.CONCURRENT_TRANSACTIONS)
FENCED = Refused(TransactionProblem.PRODUCER_FENCED)
COMMAND = AddPartitions("payments", 1, 0, ())


class Coordinator:
    """Says what it is told to, and the last of it again and again."""

    def __init__(self, *replies: TransactionReply) -> None:
        self.replies = list(replies)
        self.asked = 0

    async def submit(self, command: AddPartitions | InitProducer) -> TransactionReply:
        self.asked += 1
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


async def ask(coordinator: Coordinator, waits_ms: tuple[int, ...] = WAITS_MS) -> TransactionReply:
    return await submit_patiently(cast(TransactionCoordinators, coordinator), COMMAND, waits_ms)


async def test_end_of_the_transaction_before_is_waited_for() -> None:
    coordinator = Coordinator(ENDING, ENDING, PartitionsAdded())
    assert await ask(coordinator) == PartitionsAdded()
    assert coordinator.asked == 3


async def test_every_other_answer_is_given_at_once() -> None:
    coordinator = Coordinator(FENCED)
    assert await ask(coordinator) == FENCED
    assert coordinator.asked == 1


async def test_patience_ends() -> None:
    coordinator = Coordinator(ENDING)
    assert await ask(coordinator, (0,) * len(WAITS_MS)) == ENDING
    assert coordinator.asked == len(WAITS_MS) + 1
