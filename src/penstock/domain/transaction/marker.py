"""A marker on its way to one partition, and what became of it: values, whoever carries them."""

from __future__ import annotations

import enum

import msgspec

from penstock.domain.transaction.end import TransactionEnd


class MarkerOutcome(enum.Enum):
    WRITTEN = "written"
    # The topic was deleted, and the transaction's records with it.
    GONE = "gone"
    # A newer epoch of the producer is known there, so the transaction has been ended there.
    PRODUCER_FENCED = "producer fenced"
    # A marker with a higher coordinator's epoch is there, so the transaction has been ended there.
    COORDINATOR_FENCED = "coordinator fenced"
    # The disk is full or failed, or the groups are not loaded: again, later.
    UNAVAILABLE = "unavailable"
    # Again, to whoever leads then.
    NOT_LEADER = "not leader"


class Marker(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    end: TransactionEnd
