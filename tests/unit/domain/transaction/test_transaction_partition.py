from __future__ import annotations

import msgspec
import pytest

from penstock.codec.batch.control import EndMarker, build_marker, read_marker
from penstock.codec.batch.header import BatchProblem, walk_headers
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.log.aborted_index import AbortedTransaction
from penstock.domain.log.producer_sequence import InvalidProducerEpoch, OutOfOrderSequence
from penstock.domain.transaction.partition import (
    Admitted,
    AppendVerdict,
    CoordinatorFenced,
    MarkerStored,
    MarkerVerdict,
    NotTransactional,
    NotVerified,
    PartitionTransactions,
    ProducerTransaction,
    TransactionOpen,
    VerificationNeeded,
    WriteMarker,
)


class Header(msgspec.Struct, frozen=True):
    base_offset: int
    producer_id: int
    producer_epoch: int = 0
    base_sequence: int = 0
    is_transactional: bool = True


class Partition:
    """A log of one offset for each batch."""

    def __init__(self) -> None:
        self.transactions = PartitionTransactions()
        self.log_end = 0

    def write(self, producer_id: int, epoch: int = 0) -> int:
        offset = self.log_end
        self.transactions.apply(Header(offset, producer_id, epoch))
        self.log_end += 1
        return offset

    def end(
        self, producer_id: int, epoch: int = 0, *, is_commit: bool = True, coordinator_epoch: int = 0
    ) -> AbortedTransaction | None:
        header = Header(self.log_end, producer_id, epoch, -1)
        self.log_end += 1
        return self.transactions.apply_marker(header, is_commit=is_commit, coordinator_epoch=coordinator_epoch)

    def sync(self) -> int:
        """Everything is durable; the last stable offset then."""
        self.transactions.advance(self.log_end)
        return self.transactions.last_stable_offset

    def check(self, producer_id: int, epoch: int = 0, *, sequence: int = 0, guard: int = 0) -> AppendVerdict:
        return self.transactions.check(Header(self.log_end, producer_id, epoch, sequence), guard=guard)

    def begin_verification(self, producer_id: int, epoch: int = 0, *, sequence: int = 0, version: int = 1) -> int:
        header = Header(self.log_end, producer_id, epoch, sequence)
        return self.transactions.begin_verification(header, version=version, now_ms=0)

    def check_marker(
        self, producer_id: int, epoch: int = 0, *, coordinator_epoch: int = 0, version: int = 1
    ) -> MarkerVerdict:
        return self.transactions.check_marker(producer_id, epoch, coordinator_epoch=coordinator_epoch, version=version)


@pytest.fixture
def partition() -> Partition:
    return Partition()


# --- the last stable offset --------------------------------------------------------------------------------------


def test_stable_offset_stands_before_the_first_open_transaction(partition: Partition) -> None:
    partition.log_end = 3
    assert partition.sync() == 3
    partition.write(1)
    partition.write(2)
    partition.write(1)
    assert partition.sync() == 3
    partition.end(2)
    assert partition.sync() == 3
    partition.end(1)
    assert partition.sync() == 8


def test_stable_offset_moves_to_the_next_open_transaction(partition: Partition) -> None:
    partition.write(1)
    partition.write(2)
    partition.end(1, is_commit=False)
    assert partition.sync() == 1
    assert partition.transactions.ongoing == {2: 1}


def test_stable_offset_waits_until_the_marker_is_readable(partition: Partition) -> None:
    partition.write(1)
    assert partition.sync() == 0
    partition.end(1)
    assert partition.transactions.last_stable_offset == 0
    partition.transactions.advance(1)
    assert partition.transactions.last_stable_offset == 0
    assert partition.sync() == 2


def test_stable_offset_is_never_above_the_high_watermark(partition: Partition) -> None:
    partition.log_end = 5
    assert partition.transactions.last_stable_offset == 0
    partition.transactions.advance(2)
    partition.write(1)
    assert partition.transactions.last_stable_offset == 2
    partition.transactions.advance(1)
    assert partition.transactions.last_stable_offset == 2


def test_marker_without_a_transaction_holds_nothing_up(partition: Partition) -> None:
    assert partition.end(1, is_commit=False) is None
    assert partition.sync() == 1
    assert len(partition.transactions.aborted) == 0


# --- aborted transactions ----------------------------------------------------------------------------------------


def test_abort_is_noted_with_the_stable_offset_after_it(partition: Partition) -> None:
    partition.write(1)
    partition.write(2)
    assert partition.end(1, is_commit=False) == AbortedTransaction(1, 0, 2, 1)
    assert partition.end(2, is_commit=False) == AbortedTransaction(2, 1, 3, 4)
    assert partition.end(2, is_commit=False) is None
    assert partition.transactions.aborted.between(0, 9) == [
        AbortedTransaction(1, 0, 2, 1),
        AbortedTransaction(2, 1, 3, 4),
    ]


def test_commit_is_not_noted(partition: Partition) -> None:
    partition.write(1)
    assert partition.end(1) is None
    assert partition.transactions.aborted.entries() == []


# --- what may be appended ----------------------------------------------------------------------------------------


def test_first_batch_of_a_transaction_must_be_vouched_for(partition: Partition) -> None:
    assert partition.check(1) == VerificationNeeded()
    guard = partition.begin_verification(1)
    assert partition.check(1) == VerificationNeeded()
    assert partition.check(1, guard=guard) == Admitted()
    partition.write(1)
    assert partition.check(1) == Admitted()
    assert partition.check(1, guard=guard) == Admitted()
    partition.end(1)
    assert partition.check(1) == VerificationNeeded()
    assert partition.check(1, guard=guard) == NotVerified()


def test_marker_takes_the_guard_away_even_without_records(partition: Partition) -> None:
    guard = partition.begin_verification(1)
    partition.end(1, is_commit=False)
    assert partition.check(1, guard=guard) == NotVerified()


def test_marker_is_written_for_the_sake_of_who_waits_for_the_coordinator(partition: Partition) -> None:
    partition.end(1)
    assert partition.check_marker(1) == MarkerStored(0)
    partition.begin_verification(1)
    assert partition.check_marker(1) == WriteMarker()


def test_older_epoch_is_fenced_by_batches_and_by_markers(partition: Partition) -> None:
    partition.write(1, epoch=3)
    assert partition.check(1, epoch=2) == InvalidProducerEpoch(3, 2)
    partition.end(1, epoch=4)
    assert partition.check(1, epoch=3) == InvalidProducerEpoch(4, 3)
    assert partition.check(1, epoch=4) == VerificationNeeded()


def test_later_epoch_waits_for_the_end_of_the_transaction_before(partition: Partition) -> None:
    partition.write(1, epoch=3)
    assert partition.check(1, epoch=4) == TransactionOpen()
    guard = partition.begin_verification(1, epoch=4)
    assert partition.check(1, epoch=4, guard=guard) == TransactionOpen()


def test_plain_batch_of_a_producer_in_a_transaction_is_refused(partition: Partition) -> None:
    plain = Header(0, 1, is_transactional=False)
    assert partition.transactions.check(plain) == Admitted()
    partition.write(1)
    assert partition.transactions.check(plain) == NotTransactional()
    partition.end(1)
    assert partition.transactions.check(plain) == Admitted()


def test_plain_batches_are_not_noted(partition: Partition) -> None:
    partition.transactions.apply(Header(0, 1, is_transactional=False))
    partition.transactions.apply(Header(1, -1, -1, -1))
    assert len(partition.transactions) == 0


def test_higher_sequence_waits_for_the_lower_one_that_asked_too(partition: Partition) -> None:
    guard = partition.begin_verification(1, sequence=4)
    partition.begin_verification(1, sequence=2)
    assert partition.check(1, sequence=4, guard=guard) == OutOfOrderSequence(2, 4)
    assert partition.check(1, sequence=2, guard=guard) == Admitted()


def test_with_version_two_a_transaction_begins_at_sequence_0(partition: Partition) -> None:
    guard = partition.begin_verification(1, sequence=4, version=2)
    assert partition.check(1, sequence=4, guard=guard) == OutOfOrderSequence(0, 4)
    assert partition.check(1, sequence=0, guard=guard) == Admitted()


@pytest.mark.parametrize("version", [1, 2])
def test_positions_of_a_group_need_no_sequence(partition: Partition, version: int) -> None:
    guard = partition.begin_verification(1, sequence=-1, version=version)
    assert partition.check(1, sequence=-1, guard=guard) == Admitted()


# --- markers -----------------------------------------------------------------------------------------------------


def test_marker_of_an_older_coordinator_is_refused(partition: Partition) -> None:
    partition.end(1, coordinator_epoch=5)
    partition.write(1)
    assert partition.check_marker(1, coordinator_epoch=4) == CoordinatorFenced(5, 4)
    assert partition.check_marker(1, coordinator_epoch=5) == WriteMarker()
    assert partition.check_marker(1, coordinator_epoch=6) == WriteMarker()
    assert partition.check_marker(2, coordinator_epoch=0) == WriteMarker()


def test_marker_of_an_older_epoch_is_refused(partition: Partition) -> None:
    partition.write(1, epoch=3)
    assert partition.check_marker(1, epoch=2) == InvalidProducerEpoch(3, 2)
    assert partition.check_marker(1, epoch=3) == WriteMarker()
    assert partition.check_marker(1, epoch=4) == WriteMarker()


def test_late_marker_of_version_two_cannot_end_the_next_transaction(partition: Partition) -> None:
    partition.write(1, epoch=3)
    assert partition.check_marker(1, epoch=4, version=2) == WriteMarker()
    partition.end(1, epoch=4)
    partition.write(1, epoch=4)
    assert partition.check_marker(1, epoch=4, version=2) == InvalidProducerEpoch(4, 4)
    assert partition.check_marker(1, epoch=5, version=2) == WriteMarker()


@pytest.mark.parametrize("version", [1, 2])
def test_repeated_marker_is_not_written_again(partition: Partition, version: int) -> None:
    partition.write(1, epoch=3)
    partition.end(1, epoch=4)
    assert partition.check_marker(1, epoch=4, version=version) == MarkerStored(1)
    # A new coordinator makes its epoch known.
    assert partition.check_marker(1, epoch=4, coordinator_epoch=1, version=version) == WriteMarker()


# --- the ends of the log -----------------------------------------------------------------------------------------


def test_cut_above_the_high_watermark_undoes_what_was_there(partition: Partition) -> None:
    partition.write(1)
    partition.write(2)
    partition.sync()
    before = partition.transactions.to_bytes()
    partition.end(1, is_commit=False)
    partition.write(3)
    partition.end(2, epoch=1)
    partition.write(2, epoch=1)
    guard = partition.begin_verification(9)
    assert partition.transactions.truncate_to(2)
    assert PartitionTransactions.from_bytes(before, log_end=2).producers == partition.transactions.producers
    assert partition.transactions.ongoing == {1: 0, 2: 1}
    assert partition.transactions.aborted.entries() == []
    assert partition.transactions.last_stable_offset == 0
    assert partition.check(9, guard=guard) == NotVerified()


def test_cut_in_between_undoes_only_what_is_gone(partition: Partition) -> None:
    partition.write(1)
    partition.sync()
    partition.end(1, is_commit=False)
    partition.write(1)
    assert partition.transactions.truncate_to(2)
    assert partition.transactions.producers == {1: ProducerTransaction(0, -1, 0, 1)}
    assert partition.transactions.aborted.entries() == [AbortedTransaction(1, 0, 1, 2)]


def test_cut_below_the_high_watermark_is_not_possible(partition: Partition) -> None:
    partition.write(1)
    partition.end(1)
    partition.sync()
    assert not partition.transactions.truncate_to(1)
    assert partition.transactions.last_stable_offset == 2


def test_snapshot_cannot_be_cut_below_its_end(partition: Partition) -> None:
    partition.write(1)
    loaded = PartitionTransactions.from_bytes(partition.transactions.to_bytes(), log_end=1)
    assert not loaded.truncate_to(0)
    assert loaded.truncate_to(1)


def test_log_start_takes_aborted_transactions_with_it(partition: Partition) -> None:
    for producer_id in (1, 2):
        partition.write(producer_id)
        partition.end(producer_id, is_commit=False)
    partition.sync()
    partition.transactions.move_log_start(2)
    assert [entry.producer_id for entry in partition.transactions.aborted.entries()] == [2]
    partition.transactions.move_log_start(1)
    assert partition.transactions.log_start == 2


def test_open_transaction_survives_the_deletion_of_its_records(partition: Partition) -> None:
    partition.write(1)
    partition.write(1)
    partition.sync()
    partition.transactions.move_log_start(1)
    assert partition.transactions.last_stable_offset == 1
    partition.transactions.move_log_start(2)
    assert partition.transactions.last_stable_offset == 2
    partition.write(1)
    assert partition.sync() == 2
    assert partition.end(1, is_commit=False) == AbortedTransaction(1, 0, 3, 4)
    assert partition.sync() == 4


# --- how much is kept --------------------------------------------------------------------------------------------


def test_silent_producers_are_forgotten_and_open_transactions_are_not(partition: Partition) -> None:
    partition.write(1)
    partition.write(2)
    partition.end(2)
    transactions = partition.transactions
    assert transactions.expire(1_000, expiration_ms=100) == 0
    assert transactions.expire(1_099, expiration_ms=100) == 0
    assert transactions.expire(1_100, expiration_ms=100) == 1
    assert list(transactions.producers) == [1]


def test_producer_that_writes_again_is_not_silent(partition: Partition) -> None:
    partition.end(1)
    partition.transactions.expire(1_000, expiration_ms=100)
    partition.end(1, epoch=1)
    assert partition.transactions.expire(1_200, expiration_ms=100) == 0


def test_longest_silent_gives_way_and_never_one_with_an_open_transaction() -> None:
    partition = Partition()
    partition.transactions = PartitionTransactions(producers_max=2)
    partition.write(1)
    partition.end(2)
    partition.end(3)
    assert list(partition.transactions.producers) == [1, 3]
    partition.write(4)
    partition.write(5)
    assert list(partition.transactions.producers) == [1, 4, 5]


def test_changes_are_counted(partition: Partition) -> None:
    counts = [partition.transactions.change_count]
    partition.write(1)
    counts.append(partition.transactions.change_count)
    partition.write(1)
    assert partition.transactions.change_count == counts[-1]
    partition.end(1)
    counts.append(partition.transactions.change_count)
    assert counts == sorted(set(counts))


# --- recovery ----------------------------------------------------------------------------------------------------


def test_snapshot_brings_back_the_same_state(partition: Partition) -> None:
    for producer_id in (1, 2, 3):
        partition.write(producer_id)
    partition.sync()
    partition.end(1, epoch=1, is_commit=False, coordinator_epoch=4)
    partition.end(2)
    loaded = PartitionTransactions.from_bytes(partition.transactions.to_bytes(), log_end=partition.log_end)
    loaded.advance(3)
    assert loaded.producers == partition.transactions.producers
    assert loaded.ongoing == partition.transactions.ongoing == {3: 2}
    assert loaded.aborted == partition.transactions.aborted
    assert loaded.last_stable_offset == partition.transactions.last_stable_offset == 0
    assert loaded.to_bytes() == partition.transactions.to_bytes()
    loaded.advance(5)
    assert loaded.last_stable_offset == 2


def test_log_of_real_batches_gives_the_state() -> None:
    """As recovery does it: headers of data batches, and the marker out of each control batch."""
    log = bytearray()
    log += build_batch(
        [Record(b"a"), Record(b"b")], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    log += build_batch([Record(b"plain")], base_offset=2)
    log += build_batch(
        [Record(b"c")], base_offset=3, producer_id=2, producer_epoch=5, base_sequence=0, is_transactional=True
    )
    log += build_marker(EndMarker(False, 9), producer_id=1, producer_epoch=1, timestamp_ms=7, base_offset=4)
    transactions = PartitionTransactions()
    for position, header in walk_headers(log):
        if header.is_control:
            marker = read_marker(log, position)
            assert marker is not None
            assert not isinstance(marker, BatchProblem)
            transactions.apply_marker(header, is_commit=marker.is_commit, coordinator_epoch=marker.coordinator_epoch)
        else:
            transactions.apply(header)
        transactions.advance(header.next_offset)
    assert transactions.producers == {1: ProducerTransaction(1, -1, 9, 4), 2: ProducerTransaction(5, 3)}
    assert transactions.aborted.entries() == [AbortedTransaction(1, 0, 4, 3)]
    assert transactions.last_stable_offset == 3


def test_aborted_transactions_stay_while_their_records_may_come_back(partition: Partition) -> None:
    partition.write(1)
    partition.end(1, is_commit=False)
    partition.sync()
    partition.transactions.move_log_start(2, kept_from=0)
    assert (partition.transactions.log_start, len(partition.transactions.aborted)) == (2, 1)
    partition.transactions.move_log_start(2, kept_from=2)
    assert len(partition.transactions.aborted) == 0


def test_what_compaction_left_nothing_of_is_forgotten_and_saved_anew(partition: Partition) -> None:
    for producer_id in (1, 2):
        partition.write(producer_id)
        partition.end(producer_id, is_commit=False)
    before = partition.transactions.change_count
    partition.transactions.forget_aborts([7])
    assert partition.transactions.change_count == before
    partition.transactions.forget_aborts([1])
    assert [entry.producer_id for entry in partition.transactions.aborted.entries()] == [2]
    assert partition.transactions.change_count > before


def test_high_watermark_moves_where_there_are_no_transactions(partition: Partition) -> None:
    partition.transactions.advance(5)
    assert partition.transactions.last_stable_offset == 5
    partition.log_end = 5
    partition.write(1)
    partition.transactions.advance(6)
    partition.transactions.advance(9)
    assert (partition.transactions.last_stable_offset, partition.transactions.high_watermark) == (5, 9)


def test_guard_of_the_state_before_is_not_given_out_again(partition: Partition) -> None:
    guard = partition.begin_verification(1)
    replayed = Partition()
    replayed.transactions.follow(partition.transactions)
    assert replayed.begin_verification(1) != guard
    assert replayed.check(1, guard=guard) == NotVerified()
