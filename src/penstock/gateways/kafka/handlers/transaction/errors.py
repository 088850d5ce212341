"""Kafka's error codes for what a transaction coordinator refuses."""

from __future__ import annotations

from typing import Final

from penstock.codec.kafka import ErrorCode
from penstock.domain.transaction.commands import Refused, TransactionProblem

# A problem has Kafka's name; one without a number fails here, when the door is loaded.
TRANSACTION_CODES: Final[dict[TransactionProblem, ErrorCode]] = {
    problem: ErrorCode[problem.name] for problem in TransactionProblem
}


def refusal_code(refused: Refused, *, knows_fenced: bool) -> ErrorCode:
    """Clients from before PRODUCER_FENCED know the same by an older name, and end on any error that is new to them."""
    code = TRANSACTION_CODES[refused.problem]
    if code is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
