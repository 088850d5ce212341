"""The transactions in one partition's log: which are under way, how far readers of committed records may read, and
what they must leave out.

    append of a transactional batch      the shell asks, in this order
        check(header)                    refuse all but Admitted and VerificationNeeded
        ProducerSequences.check(header)  a duplicate is answered with its offset; out of order is refused
        Admitted                         write, then apply(header)
        VerificationNeeded               guard = begin_verification(header, …); ask the coordinator; when it agrees,
                                         check(header, guard=guard) and the sequences again, and write;
                                         when it does not, withdraw_verification(header, guard)
    a marker from the coordinator        check_marker(…); written, then apply_marker(header, …)
    recovery                             from_bytes of a snapshot, then apply and apply_marker as the log is read
    the disk has it                      advance(high_watermark)

Rules:
- `apply` and `apply_marker` never refuse, and what they do depends on the log alone: recovery comes to the same state.
- The last stable offset is below every transaction that is under way, and below every one that has ended with a
  marker which is not readable yet. It never goes back.
- A producer's epoch comes from its transactional batches and from its markers. With version 2 of the protocol a marker
  carries the epoch after the transaction's, which shuts out whatever is late from the transaction that it ends.
- Everything at or above the high watermark can be undone by `truncate_to`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection
from typing import Final, Protocol

import msgspec

from penstock.domain.log.aborted_index import AbortedIndex, AbortedTransaction
from penstock.domain.log.producer_sequence import (
    PRODUCERS_MAX_DEFAULT,
    InvalidProducerEpoch,
    OutOfOrderSequence,
)
from penstock.domain.transaction.state import VERSION_TWO
from penstock.domain.transaction.verification import NO_GUARD, TransactionVerifications

NO_OFFSET: Final = -1
NO_COORDINATOR_EPOCH: Final = -1

_COUNT: Final = struct.Struct("<I")
_PRODUCER: Final = struct.Struct("<qhiqq")
_UNREADABLE: Final = struct.Struct("<qq")


class TransactionalBatch(Protocol):
    """What the rules need of a batch header."""

    @property
    def base_offset(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...


class Admitted(msgspec.Struct, frozen=True):
    pass


class VerificationNeeded(msgspec.Struct, frozen=True):
    """No batch of this transaction is here yet: the coordinator must be asked first."""


class NotVerified(msgspec.Struct, frozen=True):
    """The transaction that the coordinator spoke of has ended since (Kafka: INVALID_TXN_STATE)."""


class NotTransactional(msgspec.Struct, frozen=True):
    """The producer has a transaction under way, and the batch says that it is not part of it (INVALID_TXN_STATE)."""


class TransactionOpen(msgspec.Struct, frozen=True):
    """A transaction of an earlier epoch waits for its marker: try again (CONCURRENT_TRANSACTIONS)."""


AppendVerdict = (
    Admitted
    | VerificationNeeded
    | NotVerified
    | NotTransactional
    | TransactionOpen
    | InvalidProducerEpoch
    | OutOfOrderSequence
)


class WriteMarker(msgspec.Struct, frozen=True):
    pass


class MarkerStored(msgspec.Struct, frozen=True):
    """There is nothing to end, and nothing to learn from the marker: the last one, at this offset, said the same."""

    offset: int


class CoordinatorFenced(msgspec.Struct, frozen=True):
    """A newer coordinator has written here (TRANSACTION_COORDINATOR_FENCED)."""

    current: int
    actual: int


MarkerVerdict = WriteMarker | MarkerStored | CoordinatorFenced | InvalidProducerEpoch

_ADMITTED: Final = Admitted()
_WRITE: Final = WriteMarker()


class ProducerTransaction(msgspec.Struct, frozen=True, gc=False):
    """What the log says of one transactional producer."""

    producer_epoch: int
    # Of the transaction under way; -1: there is none.
    first_offset: int = NO_OFFSET
    # Of its last marker.
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    marker_offset: int = NO_OFFSET

    @property
    def is_ongoing(self) -> bool:
        return self.first_offset != NO_OFFSET


# (offset of the batch, producer id, what was known of the producer before it)
_Undo = tuple[int, int, ProducerTransaction | None]


class PartitionTransactions:
    __slots__ = (
        "_first_unstable",
        "_ongoing",
        "_producers",
        "_seen_ms",
        "_undo",
        "_undo_start",
        "_unreadable",
        "_verifications",
        "aborted",
        "change_count",
        "high_watermark",
        "log_start",
        "producers_max",
    )

    def __init__(self, producers_max: int = PRODUCERS_MAX_DEFAULT) -> None:
        self.producers_max = producers_max
        self.aborted = AbortedIndex()
        self.log_start = 0
        self.high_watermark = 0
        # Grows with every change: whoever saves the state knows whether what was saved is still true.
        self.change_count = 0
        # In the order of their last change.
        self._producers: dict[int, ProducerTransaction] = {}
        # First offsets of transactions under way, in their own order: offsets only grow.
        self._ongoing: dict[int, int] = {}
        # (marker's offset, first offset) of transactions whose marker lies at or above the high watermark.
        self._unreadable: deque[tuple[int, int]] = deque()
        self._first_unstable: int | None = None
        self._undo: deque[_Undo] = deque()
        self._undo_start = 0
        self._seen_ms: dict[int, int] = {}
        self._verifications = TransactionVerifications()

    # --- what may be written -------------------------------------------------------------------------------------

    def check(self, header: TransactionalBatch, *, guard: int = NO_GUARD) -> AppendVerdict:
        """Of a batch with a producer id that a client or a group coordinator wants to append. Changes nothing."""
        state = self._producers.get(header.producer_id)
        if not header.is_transactional:
            return NotTransactional() if state is not None and state.is_ongoing else _ADMITTED
        if state is not None:
            if header.producer_epoch < state.producer_epoch:
                return InvalidProducerEpoch(state.producer_epoch, header.producer_epoch)
            if state.is_ongoing:
                # A later epoch is a later transaction. It must not slip into the one before, whose marker is yet to
                # come and would decide about it.
                return _ADMITTED if header.producer_epoch == state.producer_epoch else TransactionOpen()
        if guard == NO_GUARD:
            return VerificationNeeded()
        if not self._verifications.holds(header.producer_id, header.producer_epoch, guard):
            return NotVerified()
        return self._check_first_sequence(header)

    def _check_first_sequence(self, header: TransactionalBatch) -> AppendVerdict:
        """Positions of a group come without a sequence; they are welcome in any order."""
        sequence = header.base_sequence
        lowest, version = self._verifications.expected_sequence(header.producer_id, header.producer_epoch)
        # With version 2 every transaction has an epoch of its own, in which sequences start from 0.
        expected = 0 if version >= VERSION_TWO else lowest
        return OutOfOrderSequence(expected, sequence) if sequence > expected else _ADMITTED

    def begin_verification(self, header: TransactionalBatch, *, version: int, now_ms: int) -> int:
        """After VerificationNeeded, and before the coordinator is asked: the guard for `check`."""
        return self._verifications.begin(
            header.producer_id, header.producer_epoch, header.base_sequence, version=version, now_ms=now_ms
        )

    def withdraw_verification(self, header: TransactionalBatch, guard: int) -> None:
        """The coordinator refused: nothing is left of what was asked."""
        self._verifications.withdraw(header.producer_id, header.producer_epoch, guard)

    def check_marker(
        self, producer_id: int, producer_epoch: int, *, coordinator_epoch: int, version: int
    ) -> MarkerVerdict:
        """Of a marker that a coordinator wants to append. Changes nothing."""
        state = self._producers.get(producer_id)
        if state is None:
            return _WRITE
        if coordinator_epoch < state.coordinator_epoch:
            return CoordinatorFenced(state.coordinator_epoch, coordinator_epoch)
        # With version 2 the marker's epoch is above the one of its transaction. One that is not has ended the
        # transaction before already, and comes late.
        is_late = version >= VERSION_TWO and state.is_ongoing and producer_epoch == state.producer_epoch
        if producer_epoch < state.producer_epoch or is_late:
            return InvalidProducerEpoch(state.producer_epoch, producer_epoch)
        is_known = (producer_epoch, coordinator_epoch) == (state.producer_epoch, state.coordinator_epoch)
        says_nothing_new = is_known and state.marker_offset != NO_OFFSET
        # A batch that waits for the coordinator's answer must learn that its transaction is over.
        if says_nothing_new and not state.is_ongoing and not self._verifications.is_open(producer_id):
            return MarkerStored(state.marker_offset)
        return _WRITE

    # --- what was written ----------------------------------------------------------------------------------------

    def apply(self, header: TransactionalBatch) -> None:
        """The batch, not a control batch, is in the log at `header.base_offset`."""
        if not header.is_transactional or header.producer_id < 0:
            return
        producer_id = header.producer_id
        self._verifications.clear(producer_id)
        state = self._producers.get(producer_id)
        if state is not None and state.is_ongoing and state.producer_epoch == header.producer_epoch:
            return
        first_offset = state.first_offset if state is not None and state.is_ongoing else header.base_offset
        if state is None:
            after = ProducerTransaction(header.producer_epoch, first_offset)
        else:
            after = ProducerTransaction(
                header.producer_epoch, first_offset, state.coordinator_epoch, state.marker_offset
            )
        self._ongoing.setdefault(producer_id, first_offset)
        # Offsets grow, so a new transaction is the first unstable one only if there is no other. One that ends stays
        # unstable until `advance`, so markers change nothing here.
        if self._first_unstable is None:
            self._first_unstable = first_offset
        self._change(header.base_offset, producer_id, state, after)

    def apply_marker(
        self, header: TransactionalBatch, *, is_commit: bool, coordinator_epoch: int
    ) -> AbortedTransaction | None:
        """The marker is in the log at `header.base_offset`; the transaction that it aborted, if it did."""
        producer_id, offset = header.producer_id, header.base_offset
        self._verifications.clear(producer_id)
        state = self._producers.get(producer_id)
        after = ProducerTransaction(header.producer_epoch, NO_OFFSET, coordinator_epoch, offset)
        first_offset = self._ongoing.pop(producer_id, NO_OFFSET)
        aborted = None
        if first_offset != NO_OFFSET:
            self._unreadable.append((offset, first_offset))
            if not is_commit:
                stable_offset = next(iter(self._ongoing.values()), offset + 1)
                aborted = AbortedTransaction(producer_id, first_offset, offset, stable_offset)
                self.aborted.append(aborted)
        self._change(offset, producer_id, state, after)
        return aborted

    def doubt(self, offset: int) -> list[AbortedTransaction]:
        """What stood at the offset is lost, and may have been the end of any transaction that is under way, or of all:
        nobody knows which, nor how it ended. Those who read what is committed never see what they hold so far. One that
        was not over goes on as another, from its next batch on."""
        doubtful = []
        while self._ongoing:
            producer_id, first_offset = next(iter(self._ongoing.items()))
            del self._ongoing[producer_id]
            self._unreadable.append((offset, first_offset))
            entry = AbortedTransaction(
                producer_id, first_offset, offset, next(iter(self._ongoing.values()), offset + 1)
            )
            doubtful.append(entry)
            state = self._producers[producer_id]
            after = ProducerTransaction(state.producer_epoch, NO_OFFSET, state.coordinator_epoch, state.marker_offset)
            self._change(offset, producer_id, state, after)
        self.aborted.append_all(doubtful)
        return doubtful

    def _change(
        self, offset: int, producer_id: int, before: ProducerTransaction | None, after: ProducerTransaction
    ) -> None:
        self._undo.append((offset, producer_id, before))
        self._producers.pop(producer_id, None)
        self._producers[producer_id] = after
        self._seen_ms.pop(producer_id, None)
        self.change_count += 1
        if len(self._producers) > self.producers_max:
            self._forget_longest_silent()

    def _forget_longest_silent(self) -> None:
        """Never one with a transaction under way: its marker must find it. Of the others the coordinator knows more."""
        silent = next((known for known, state in self._producers.items() if not state.is_ongoing), None)
        if silent is not None:
            del self._producers[silent]
            self._seen_ms.pop(silent, None)

    # --- how far it is -------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction has ended, and how is readable."""
        unstable = self._first_unstable
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, self.log_start), self.high_watermark)

    def advance(self, high_watermark: int) -> None:
        """Everything below is durable and readable."""
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        # After every turn of every partition: where there are no transactions this must cost nothing.
        if not self._undo and not self._unreadable:
            return
        self._undo_start = max(self._undo_start, high_watermark)
        while self._undo and self._undo[0][0] < high_watermark:
            self._undo.popleft()
        while self._unreadable and self._unreadable[0][0] < high_watermark:
            self._unreadable.popleft()
        self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        unstable = next(iter(self._ongoing.values()), None)
        for _marker_offset, first_offset in self._unreadable:
            if unstable is None or first_offset < unstable:
                unstable = first_offset
        self._first_unstable = unstable

    def move_log_start(self, log_start: int, *, kept_from: int | None = None) -> None:
        """Retention or a deletion: what lies below is gone. A transaction that began there is still under way.

        `kept_from`: records from there on may come back by a crash, and with them what was aborted.
        """
        self.log_start = max(self.log_start, log_start)
        self.change_count += bool(self.aborted.drop_before(self.log_start if kept_from is None else kept_from))

    def forget_aborts(self, marker_offsets: Collection[int]) -> None:
        """Compaction has left nothing of what these markers aborted, and may have taken the markers too: a reader who
        was told of them would wait for a marker, and leave out what the producer committed later."""
        self.change_count += bool(self.aborted.remove(marker_offsets))

    def follow(self, earlier: PartitionTransactions) -> None:
        """This one was read from the log and takes the place of `earlier`, whose guards open nothing here."""
        self._verifications.follow(earlier._verifications)

    def truncate_to(self, log_end: int) -> bool:
        """The batches from `log_end` on are gone. False, and nothing is changed: that is further back than is
        remembered, and the caller builds the state anew from the log.
        """
        if log_end < self._undo_start:
            return False
        while self._undo and self._undo[-1][0] >= log_end:
            _offset, producer_id, before = self._undo.pop()
            self._producers.pop(producer_id, None)
            if before is not None:
                self._producers[producer_id] = before
        self.aborted.truncate_to(log_end)
        while self._unreadable and self._unreadable[-1][0] >= log_end:
            self._unreadable.pop()
        self._verifications.clear_all()
        self.change_count += 1
        self._find_ongoing()
        return True

    def _find_ongoing(self) -> None:
        ongoing = [(state.first_offset, known) for known, state in self._producers.items() if state.is_ongoing]
        self._ongoing = {producer_id: first_offset for first_offset, producer_id in sorted(ongoing)}
        self._find_first_unstable()

    def expire(self, now_ms: int, *, expiration_ms: int) -> int:
        """A sweep, made now and then: forgets producers that were silent for so long, and says how many they were."""
        self._verifications.expire(now_ms, expiration_ms=expiration_ms)
        horizon = now_ms - expiration_ms
        silent = []
        for producer_id, state in self._producers.items():
            if state.is_ongoing:
                continue
            # Counted from the first sweep that found it silent, as with sequences: batches may carry old times.
            if self._seen_ms.setdefault(producer_id, now_ms) <= horizon:
                silent.append(producer_id)
        for producer_id in silent:
            del self._producers[producer_id], self._seen_ms[producer_id]
        self.change_count += bool(silent)
        return len(silent)

    # --- views and snapshots -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def is_empty(self) -> bool:
        """There is nothing to save."""
        return not self._producers and not len(self.aborted)

    def is_ongoing(self, producer_id: int) -> bool:
        return producer_id in self._ongoing

    def states(self) -> list[tuple[int, ProducerTransaction]]:
        """Taken at once, looked at later, by another thread."""
        return list(self._producers.items())

    def state_of(self, producer_id: int) -> ProducerTransaction | None:
        return self._producers.get(producer_id)

    def marker_offset_of(self, producer_id: int) -> int:
        """Where its last transaction here ended; -1: none has that is known of."""
        state = self._producers.get(producer_id)
        return NO_OFFSET if state is None else state.marker_offset

    @property
    def ongoing(self) -> dict[int, int]:
        """First offset by producer id, the lowest first."""
        return dict(self._ongoing)

    @property
    def producers(self) -> dict[int, ProducerTransaction]:
        return dict(sorted(self._producers.items()))

    def to_bytes(self) -> bytes:
        """The state after the last batch that was applied; `high_watermark` and `log_start` are the log's to keep."""
        parts = [_COUNT.pack(len(self._producers))]
        for producer_id, state in self._producers.items():
            fields = (state.producer_epoch, state.coordinator_epoch, state.first_offset, state.marker_offset)
            parts.append(_PRODUCER.pack(producer_id, *fields))
        parts.append(_COUNT.pack(len(self._unreadable)))
        parts.extend(_UNREADABLE.pack(*entry) for entry in self._unreadable)
        parts.append(self.aborted.to_bytes())
        return b"".join(parts)

    @classmethod
    def from_bytes(
        cls, data: bytes, *, log_end: int, producers_max: int = PRODUCERS_MAX_DEFAULT
    ) -> PartitionTransactions:
        """The state at `log_end`. The caller has checked that these are bytes of `to_bytes`."""
        transactions = cls(producers_max)
        transactions._undo_start = log_end
        (count,) = _COUNT.unpack_from(data)
        position = _COUNT.size
        for _ in range(count):
            producer_id, epoch, coordinator_epoch, first, marker = _PRODUCER.unpack_from(data, position)
            state = ProducerTransaction(epoch, first, coordinator_epoch, marker)
            transactions._producers[producer_id] = state
            position += _PRODUCER.size
        (count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        for _ in range(count):
            transactions._unreadable.append(_UNREADABLE.unpack_from(data, position))
            position += _UNREADABLE.size
        transactions.aborted = AbortedIndex.from_bytes(memoryview(data)[position:])
        transactions._find_ongoing()
        return transactions
