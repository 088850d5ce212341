"""Idempotent producers: which batch of which producer a log holds already, so that a retry is stored once.

A batch names its producer (id, epoch) and the sequence numbers of its records, which count up from 0 and wrap after
2^31 - 1. `check` decides and changes nothing; `apply` follows a batch that was written, live and at recovery alike.

    no state for the id                     accept, whatever the sequence: the state may have gone with old records
    epoch below the stored one              fenced: another instance of the producer took over
    epoch above the stored one              accept at sequence 0, otherwise out of order
    same epoch, one of the last 5 batches   duplicate: answered with the offset it was stored at
    same epoch, follows the last batch      accept
    otherwise                               out of order

In a transaction a sequence alone does not make a duplicate. A client that aborts with a batch in flight may take the
batch back and give its sequence to a message of the next transaction: to answer "stored" would commit that transaction
without the message. So there

    stored before the producer's last marker    reused: that batch belongs to a transaction that has ended
    stored with another checksum                reused: a retry sends the same bytes
    follows what a marker closed, but lower     reused

Elsewhere checksums are not compared: some clients date their records anew when they send them again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

# What clients may have in flight (max.in.flight.requests.per.connection), so the oldest one a retry may repeat.
BATCHES_KEPT: Final = 5
PRODUCERS_MAX_DEFAULT: Final = 100_000
SEQUENCE_MAX: Final = 2**31 - 1

_COUNT = struct.Struct("<I")
_PRODUCER = struct.Struct("<qhqB")
_BATCH = struct.Struct("<iiqqI")
_BATCH_WITHOUT = struct.Struct("<iiqq")


class SequencedBatch(Protocol):
    """What the rules need of a batch header."""

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def checksum_as_sent(self) -> int | None: ...


class Accept(msgspec.Struct, frozen=True):
    pass


class Duplicate(msgspec.Struct, frozen=True):
    """Stored before, at `base_offset`."""

    base_offset: int
    timestamp_ms: int


class OutOfOrderSequence(msgspec.Struct, frozen=True):
    expected: int
    actual: int


class SequenceReused(msgspec.Struct, frozen=True):
    """Another batch was stored with these sequences: the producer must begin a new epoch."""

    expected: int
    actual: int


class InvalidProducerEpoch(msgspec.Struct, frozen=True):
    """Fenced: a newer instance of this producer has written."""

    current: int
    actual: int


SequenceVerdict = Accept | Duplicate | OutOfOrderSequence | SequenceReused | InvalidProducerEpoch

ACCEPT: Final = Accept()

# Of a batch that was changed on its way into the log, or that was stored before checksums were kept.
NO_CHECKSUM: Final = 0
NO_MARKER: Final = -1
# Sequences are a ring: of two, the one that is less than half of it behind the other is the earlier one.
_HALF: Final = 2**30

# (first sequence, last sequence, base offset, max timestamp, checksum)
BatchEntry = tuple[int, int, int, int, int]


# No sweep has seen the producer's last batch yet.
_UNSEEN: Final = 0


class ProducerState:
    __slots__ = ("batches", "epoch", "seen_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[BatchEntry] = []
        # When the first sweep after its last batch came by. Not the batch's own timestamp: a producer that copies
        # old records would be forgotten between its batch and the retry of it, and the retry stored twice.
        self.seen_ms = _UNSEEN

    def as_tuple(self) -> tuple[int, tuple[BatchEntry, ...]]:
        return self.epoch, tuple(self.batches)


def _spares_nobody(_producer_id: int) -> bool:
    return False


class ProducerSequences:
    __slots__ = ("_producers", "change_count", "is_spared", "producers_max")

    def __init__(self, producers_max: int = PRODUCERS_MAX_DEFAULT) -> None:
        # In the order of their last batch, so that the longest silent one is the first.
        self._producers: dict[int, ProducerState] = {}
        self.producers_max = producers_max
        # Not to be forgotten however silent: a transaction under way must go on where it was.
        self.is_spared: Callable[[int], bool] = _spares_nobody
        # Grows with every change: whoever saves the state knows whether what was saved is still true.
        self.change_count = 0

    def __len__(self) -> int:
        return len(self._producers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerSequences) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]

    def as_dict(self) -> dict[int, tuple[int, tuple[BatchEntry, ...]]]:
        return {producer_id: state.as_tuple() for producer_id, state in self._producers.items()}

    def states(self) -> list[tuple[int, ProducerState]]:
        """Taken at once, looked at later, by another thread: only the last batch of each may be asked for there."""
        return list(self._producers.items())

    def state_of(self, producer_id: int) -> ProducerState | None:
        return self._producers.get(producer_id)

    def check(self, header: SequencedBatch, *, marker_offset: int = NO_MARKER) -> SequenceVerdict:
        """`marker_offset`: where the producer's last transaction ended."""
        state = self._producers.get(header.producer_id)
        if state is None:
            return ACCEPT
        if header.producer_epoch < state.epoch:
            return InvalidProducerEpoch(state.epoch, header.producer_epoch)
        first = header.base_sequence
        if header.producer_epoch > state.epoch:
            return ACCEPT if first == 0 else OutOfOrderSequence(0, first)
        last = sequence_after(first, header.last_offset_delta)
        expected = sequence_after(state.batches[-1][1], 1)
        for kept_first, kept_last, base_offset, timestamp, checksum in state.batches:
            if kept_first == first and kept_last == last:
                if header.is_transactional and not _is_repeated(header, base_offset, checksum, marker_offset):
                    return SequenceReused(expected, first)
                return Duplicate(base_offset, timestamp)
        if first == expected:
            return ACCEPT
        is_closed = header.is_transactional and state.batches[-1][2] < marker_offset
        is_behind = (expected - first) & SEQUENCE_MAX < _HALF
        return SequenceReused(expected, first) if is_closed and is_behind else OutOfOrderSequence(expected, first)

    def apply(self, header: SequencedBatch) -> None:
        """The batch is in the log at `header.base_offset`. Never refuses."""
        producer_id = header.producer_id
        if producer_id < 0 or header.base_sequence < 0:
            return
        state = self._producers.pop(producer_id, None)
        if state is None or state.epoch != header.producer_epoch:
            state = ProducerState(header.producer_epoch)
        self._producers[producer_id] = state
        first = header.base_sequence
        last = sequence_after(first, header.last_offset_delta)
        batches = state.batches
        checksum = header.checksum_as_sent
        batches.append(
            (first, last, header.base_offset, header.max_timestamp, NO_CHECKSUM if checksum is None else checksum)
        )
        if len(batches) > BATCHES_KEPT:
            del batches[0]
        state.seen_ms = _UNSEEN
        self.change_count += 1
        if len(self._producers) > self.producers_max:
            self._forget_longest_silent()

    def _forget_longest_silent(self) -> None:
        silent = next((known for known in self._producers if not self.is_spared(known)), None)
        if silent is not None:
            del self._producers[silent]

    def expire(self, now_ms: int, *, expiration_ms: int) -> int:
        """A sweep, made now and then: forgets producers silent for so long, and says how many they were."""
        horizon = now_ms - expiration_ms
        silent = []
        for producer_id, state in self._producers.items():
            if state.seen_ms == _UNSEEN:
                state.seen_ms = now_ms
            elif state.seen_ms <= horizon and not self.is_spared(producer_id):
                silent.append(producer_id)
        for producer_id in silent:
            del self._producers[producer_id]
        self.change_count += bool(silent)
        return len(silent)

    def to_bytes(self) -> bytes:
        parts = [_COUNT.pack(len(self._producers))]
        for producer_id, state in self._producers.items():
            parts.append(_PRODUCER.pack(producer_id, state.epoch, state.seen_ms, len(state.batches)))
            parts.extend(_BATCH.pack(*entry) for entry in state.batches)
        return b"".join(parts)

    @classmethod
    def from_bytes(
        cls, data: bytes, producers_max: int = PRODUCERS_MAX_DEFAULT, *, has_checksums: bool = True
    ) -> ProducerSequences:
        """The caller has checked that these are bytes of `to_bytes`; older files have no checksums."""
        batch = _BATCH if has_checksums else _BATCH_WITHOUT
        sequences = cls(producers_max)
        (count,) = _COUNT.unpack_from(data)
        position = _COUNT.size
        for _ in range(count):
            producer_id, epoch, seen_ms, batch_count = _PRODUCER.unpack_from(data, position)
            position += _PRODUCER.size
            state = ProducerState(epoch)
            state.seen_ms = seen_ms
            for _ in range(batch_count):
                fields = batch.unpack_from(data, position)
                state.batches.append(fields if has_checksums else (*fields, NO_CHECKSUM))
                position += batch.size
            sequences._producers[producer_id] = state
        return sequences


def sequence_after(sequence: int, steps: int) -> int:
    """Sequences wrap from 2^31 - 1 to 0."""
    return (sequence + steps) & SEQUENCE_MAX


def _is_repeated(header: SequencedBatch, base_offset: int, checksum: int, marker_offset: int) -> bool:
    """The batch of a transaction is the stored one, sent again."""
    if base_offset < marker_offset:
        return False
    sent = header.checksum_as_sent
    return sent is None or checksum in (NO_CHECKSUM, sent)
