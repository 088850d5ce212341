"""The end of a producer's transaction, as its coordinator or an operator tells it to one partition after the other."""

from __future__ import annotations

import msgspec

from penstock.domain.transaction.state import VERSION_ONE


class TransactionEnd(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: int
    producer_epoch: int
    # A higher one has been told by a newer coordinator: what an older one says no longer counts.
    coordinator_epoch: int
    is_commit: bool
    # Of the protocol: with version 2 (KIP-890) each transaction has an epoch of its own.
    version: int = VERSION_ONE
