"""What a log knows of those who write to it: the sequences of their batches, and their transactions.

The two belong together. They are made of the same batches, saved in one file with the offset that they are of, and read
back or made anew together; whoever has a transaction under way is not forgotten by either of them.

    batch of an idempotent producer    sequences
    batch of a transaction             sequences, if it has one, and transactions
    control batch                      transactions alone: a marker has no sequence, and is no producer's last batch
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.codec.batch.control import EndMarker, read_marker
from penstock.codec.batch.header import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchBytes,
    BatchHeader,
)
from penstock.domain.log.producer_sequence import ProducerSequences
from penstock.domain.transaction.partition import NO_COORDINATOR_EPOCH, NO_OFFSET, PartitionTransactions

# Batches with neither of them concern sequences alone: nearly all.
IN_TRANSACTION: Final = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL

_LENGTH = struct.Struct("<I")


class ProducerFacts(msgspec.Struct, frozen=True):
    """One producer, for DescribeProducers; -1 where nothing is known."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    # Of the transaction under way.
    first_offset: int


def _pins_nobody(_producer_id: int) -> bool:
    return False


class LogProducers:
    __slots__ = ("is_pinned", "sequences", "transactions")

    def __init__(self, sequences: ProducerSequences, transactions: PartitionTransactions) -> None:
        self.sequences = sequences
        self.transactions = transactions
        # Whom a part of this node writes as: it goes on where it was, however long ago that is.
        self.is_pinned: Callable[[int], bool] = _pins_nobody
        sequences.is_spared = self._is_spared

    def _is_spared(self, producer_id: int) -> bool:
        return self.transactions.is_ongoing(producer_id) or self.is_pinned(producer_id)

    @classmethod
    def empty(cls, producers_max: int) -> LogProducers:
        return cls(ProducerSequences(producers_max), PartitionTransactions(producers_max))

    @property
    def is_empty(self) -> bool:
        return not len(self.sequences) and self.transactions.is_empty

    @property
    def change_count(self) -> int:
        """Grows with every change of either."""
        return self.sequences.change_count + self.transactions.change_count

    def apply(self, header: BatchHeader, data: BatchBytes, position: int = 0) -> None:
        """The batch is in the log. `data` holds it at `position`, and is looked at only if it is a control batch."""
        if header.attributes & ATTRIBUTE_CONTROL:
            marker = read_marker(data, position)
            # Of other types, and of one that cannot be read, nothing follows: it is nobody's end.
            if isinstance(marker, EndMarker):
                self.transactions.apply_marker(
                    header, is_commit=marker.is_commit, coordinator_epoch=marker.coordinator_epoch
                )
            return
        # In this order: the sequences spare a transaction that begins with this batch.
        self.transactions.apply(header)
        self.sequences.apply(header)

    def expire(self, now_ms: int, *, expiration_ms: int) -> int:
        """A sweep, made now and then; how many were forgotten."""
        forgotten = self.sequences.expire(now_ms, expiration_ms=expiration_ms)
        return forgotten + self.transactions.expire(now_ms, expiration_ms=expiration_ms)

    def describe(self) -> list[ProducerFacts]:
        sequences = dict(self.sequences.states())
        transactions = self.transactions.producers
        return [self._facts_of(producer_id) for producer_id in sorted(sequences.keys() | transactions.keys())]

    def _facts_of(self, producer_id: int) -> ProducerFacts:
        state = self.sequences.state_of(producer_id)
        transaction = self.transactions.state_of(producer_id)
        epoch = max(
            state.epoch if state is not None else -1,
            transaction.producer_epoch if transaction is not None else -1,
        )
        last_sequence, last_timestamp = NO_SEQUENCE, NO_TIMESTAMP
        # A marker may have begun the next epoch, in which nothing has a sequence yet.
        if state is not None and state.epoch == epoch:
            last_sequence = state.batches[-1][1]
        if state is not None:
            last_timestamp = state.batches[-1][3]
        return ProducerFacts(
            producer_id,
            epoch,
            last_sequence,
            last_timestamp,
            transaction.coordinator_epoch if transaction is not None else NO_COORDINATOR_EPOCH,
            transaction.first_offset if transaction is not None else NO_OFFSET,
        )

    def to_bytes(self) -> bytes:
        sequences = self.sequences.to_bytes()
        return _LENGTH.pack(len(sequences)) + sequences + self.transactions.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, *, log_end: int, producers_max: int, has_checksums: bool = True) -> LogProducers:
        """The state after everything below `log_end`. The caller has checked that these are bytes of `to_bytes`."""
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + length
        return cls(
            ProducerSequences.from_bytes(data[_LENGTH.size : end], producers_max, has_checksums=has_checksums),
            PartitionTransactions.from_bytes(data[end:], log_end=log_end, producers_max=producers_max),
        )
