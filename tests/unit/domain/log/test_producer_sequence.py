from __future__ import annotations

import msgspec
import pytest

from penstock.domain.log.producer_sequence import (
    ACCEPT,
    SEQUENCE_MAX,
    Duplicate,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    ProducerSequences,
    SequenceReused,
)


class Batch(msgspec.Struct, frozen=True):
    base_sequence: int
    count: int = 1
    base_offset: int = 0
    producer_id: int = 7
    producer_epoch: int = 0
    max_timestamp: int = 1000
    is_transactional: bool = False
    checksum_as_sent: int | None = 0xC0FFEE

    @property
    def last_offset_delta(self) -> int:
        return self.count - 1


def with_batches(*batches: Batch) -> ProducerSequences:
    sequences = ProducerSequences()
    for batch in batches:
        assert sequences.check(batch) == ACCEPT
        sequences.apply(batch)
    return sequences


def test_first_batch_of_an_unknown_producer_is_accepted_with_any_sequence() -> None:
    assert ProducerSequences().check(Batch(41)) == ACCEPT


def test_batches_follow_each_other() -> None:
    sequences = with_batches(Batch(0, 3), Batch(3, 2, base_offset=3))
    assert sequences.check(Batch(5)) == ACCEPT
    assert sequences.check(Batch(6)) == OutOfOrderSequence(expected=5, actual=6)


def test_repeated_batch_answers_with_its_first_offset() -> None:
    sequences = with_batches(*(Batch(number, base_offset=100 + number) for number in range(5)))
    assert sequences.check(Batch(0)) == Duplicate(100, 1000)
    assert sequences.check(Batch(4)) == Duplicate(104, 1000)


def test_batch_older_than_the_last_five_is_out_of_order() -> None:
    sequences = with_batches(*(Batch(number, base_offset=number) for number in range(6)))
    assert sequences.check(Batch(0)) == OutOfOrderSequence(expected=6, actual=0)


def test_same_first_sequence_with_another_length_is_no_duplicate() -> None:
    sequences = with_batches(Batch(0, 3))
    assert sequences.check(Batch(0, 2)) == OutOfOrderSequence(expected=3, actual=0)


def test_older_epoch_is_fenced() -> None:
    sequences = with_batches(Batch(0, producer_epoch=3))
    assert sequences.check(Batch(1, producer_epoch=2)) == InvalidProducerEpoch(current=3, actual=2)


def test_newer_epoch_begins_at_sequence_zero() -> None:
    sequences = with_batches(Batch(0), Batch(1))
    assert sequences.check(Batch(2, producer_epoch=1)) == OutOfOrderSequence(expected=0, actual=2)
    assert sequences.check(Batch(0, producer_epoch=1)) == ACCEPT
    sequences.apply(Batch(0, producer_epoch=1, base_offset=9))
    assert sequences.check(Batch(0, producer_epoch=1)) == Duplicate(9, 1000)


def test_sequences_wrap_to_zero() -> None:
    sequences = with_batches(Batch(SEQUENCE_MAX))
    assert sequences.check(Batch(0)) == ACCEPT
    across = with_batches(Batch(SEQUENCE_MAX - 1, 4))
    assert across.check(Batch(2)) == ACCEPT
    assert across.check(Batch(SEQUENCE_MAX - 1, 4)) == Duplicate(0, 1000)


def test_ordinary_batches_leave_no_trace() -> None:
    sequences = ProducerSequences()
    sequences.apply(Batch(-1, producer_id=-1))
    assert len(sequences) == 0


def test_bytes_and_back() -> None:
    sequences = with_batches(*(Batch(0, producer_id=number, base_offset=number) for number in range(20)))
    sequences.expire(5, expiration_ms=100)
    again = ProducerSequences.from_bytes(sequences.to_bytes())
    assert again == sequences
    assert again.expire(105, expiration_ms=100) == 20


def test_silent_producer_expires_and_a_writing_one_does_not() -> None:
    sequences = with_batches(Batch(0, producer_id=1), Batch(0, producer_id=2))
    assert sequences.expire(1_000, expiration_ms=500) == 0
    sequences.apply(Batch(1, producer_id=2))
    assert sequences.expire(1_500, expiration_ms=500) == 1
    assert sorted(sequences.as_dict()) == [2]


def test_batch_with_an_old_timestamp_does_not_expire_its_producer() -> None:
    sequences = with_batches(Batch(0, max_timestamp=1))
    sequences.expire(10**12, expiration_ms=1000)
    assert isinstance(sequences.check(Batch(0, max_timestamp=1)), Duplicate)


@pytest.mark.parametrize("producers_max", [1, 3])
def test_longest_silent_producer_makes_room(producers_max: int) -> None:
    sequences = ProducerSequences(producers_max)
    for producer_id in (1, 2, 3, 1, 4):
        sequences.apply(Batch(0, producer_id=producer_id))
    assert list(sequences.as_dict()) == [3, 1, 4][-producers_max:]


def test_batch_without_a_sequence_is_nobodys_last_batch() -> None:
    sequences = with_batches(Batch(0))
    before = sequences.as_dict()
    sequences.apply(Batch(-1, base_offset=9))
    assert sequences.as_dict() == before


def test_spared_producers_are_neither_pushed_out_nor_expired() -> None:
    sequences = ProducerSequences(producers_max=2)
    sequences.is_spared = lambda producer_id: producer_id == 1
    for producer_id in (1, 2, 3, 4):
        sequences.apply(Batch(0, producer_id=producer_id))
    assert list(sequences.as_dict()) == [1, 4]
    sequences.expire(1_000, expiration_ms=100)
    assert sequences.expire(2_000, expiration_ms=100) == 1
    assert list(sequences.as_dict()) == [1]


def test_crowd_of_spared_producers_may_be_larger_than_the_limit() -> None:
    sequences = ProducerSequences(producers_max=2)
    sequences.is_spared = lambda _producer_id: True
    for producer_id in range(5):
        sequences.apply(Batch(0, producer_id=producer_id))
    assert len(sequences) == 5


def in_transaction(sequence: int, *, base_offset: int = 0, checksum: int | None = 0xC0FFEE, count: int = 1) -> Batch:
    return Batch(sequence, count, base_offset, is_transactional=True, checksum_as_sent=checksum)


def test_what_lies_before_the_last_marker_is_no_duplicate() -> None:
    sequences = with_batches(in_transaction(0, base_offset=10), in_transaction(1, base_offset=11))
    marker_offset = 12
    # Taken back by its client, which gives the sequence to the next transaction's message.
    assert sequences.check(in_transaction(1), marker_offset=marker_offset) == SequenceReused(expected=2, actual=1)
    assert sequences.check(in_transaction(0, count=2), marker_offset=marker_offset) == SequenceReused(2, 0)
    assert sequences.check(in_transaction(2), marker_offset=marker_offset) == ACCEPT
    assert sequences.check(in_transaction(3), marker_offset=marker_offset) == OutOfOrderSequence(2, 3)


def test_retry_within_a_transaction_is_a_duplicate_if_it_is_the_same_batch() -> None:
    sequences = with_batches(in_transaction(0, base_offset=10))
    assert sequences.check(in_transaction(0), marker_offset=9) == Duplicate(10, 1000)
    assert sequences.check(in_transaction(0, checksum=0xBAD), marker_offset=9) == SequenceReused(1, 0)


@pytest.mark.parametrize(("stored", "sent"), [(None, 0xBAD), (0xC0FFEE, None)])
def test_checksums_are_compared_only_where_both_are_as_they_were_sent(stored: int | None, sent: int | None) -> None:
    sequences = with_batches(in_transaction(0, base_offset=10, checksum=stored))
    assert sequences.check(in_transaction(0, checksum=sent)) == Duplicate(10, 1000)


def test_retry_outside_a_transaction_may_be_dated_anew() -> None:
    sequences = with_batches(Batch(0, base_offset=10))
    assert sequences.check(Batch(0, checksum_as_sent=0xBAD)) == Duplicate(10, 1000)


def test_checksums_are_kept() -> None:
    sequences = with_batches(in_transaction(0, base_offset=10))
    kept = ProducerSequences.from_bytes(sequences.to_bytes())
    assert kept == sequences
    assert kept.check(in_transaction(0, checksum=0xBAD)) == SequenceReused(1, 0)


def test_batches_of_files_without_checksums_are_known_by_their_sequence() -> None:
    without = bytearray(with_batches(in_transaction(0, base_offset=10)).to_bytes())
    kept = ProducerSequences.from_bytes(bytes(without[:-4]), has_checksums=False)
    assert kept.check(in_transaction(0, checksum=0xBAD)) == Duplicate(10, 1000)
