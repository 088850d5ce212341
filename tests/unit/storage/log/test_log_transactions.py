"""Transactions in a partition's log: what an append, a crash, a cut and retention make of them."""

from __future__ import annotations

import errno

import pytest

from penstock.codec.batch.control import EndMarker, build_marker
from penstock.codec.batch.header import BatchHeader, walk_headers
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.log.aborted_index import AbortedTransaction
from penstock.domain.transaction.partition import Admitted, NotVerified, ProducerTransaction, VerificationNeeded
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.errors import DiskFullError
from penstock.storage.log.producers import ProducerFacts
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash
from support.storage.log_desk import LogDesk
from support.storage.transactions import differences, stored_batches


def state_of(desk: LogDesk) -> tuple[object, ...]:
    transactions = desk.log.transactions
    return transactions.producers, transactions.ongoing, transactions.aborted.entries(), desk.log.last_stable_offset


def some_transactions(desk: LogDesk) -> None:
    """One committed, one aborted while another one is open, and that one still is."""
    desk.append_in_transaction(1)
    desk.append_marker(1, is_commit=True, epoch=1, coordinator_epoch=4)
    desk.append_in_transaction(2)
    desk.append_in_transaction(1, epoch=1)
    desk.append_marker(1, is_commit=False, epoch=2, coordinator_epoch=5)
    desk.append(b"of nobody")
    desk.sync()


# --- appends ---------------------------------------------------------------------------------------------------------


def test_without_transactions_everything_readable_is_stable() -> None:
    desk = LogDesk()
    desk.append(b"a", b"b")
    assert desk.log.last_stable_offset == 0
    desk.sync()
    assert desk.log.last_stable_offset == desk.log.readable_end == 2


def test_open_transaction_holds_the_last_stable_offset() -> None:
    desk = LogDesk()
    desk.append(b"a")
    desk.append_in_transaction(1)
    desk.append(b"b")
    desk.sync()
    assert desk.log.last_stable_offset == 1
    assert desk.offsets(desk.read(0, up_to=desk.log.last_stable_offset)) == [0]
    assert desk.log.plan_read(1, bytes_max=1, up_to=desk.log.last_stable_offset) is None


def test_marker_counts_when_it_is_readable() -> None:
    desk = LogDesk()
    desk.append_in_transaction(1)
    desk.sync()
    desk.append_marker(1, is_commit=True)
    assert desk.log.last_stable_offset == 0
    desk.sync()
    assert desk.log.last_stable_offset == 2


def test_marker_behind_other_batches_of_its_append_is_found() -> None:
    desk = LogDesk()
    batches = [
        build_batch([Record(b"x" * 50)], base_offset=0, producer_id=1, producer_epoch=0, base_sequence=0,
                    is_transactional=True),
        build_marker(EndMarker(False, 0), producer_id=1, producer_epoch=0, timestamp_ms=1, base_offset=1),
        build_batch([Record(b"y")], base_offset=2, producer_id=1, producer_epoch=0, base_sequence=1,
                    is_transactional=True),
    ]  # fmt: skip
    data = bytearray(b"".join(batches))
    desk.log.append(memoryview(data), [header for _, header in walk_headers(data)])
    desk.sync()
    assert desk.log.transactions.ongoing == {1: 2}
    assert desk.log.transactions.aborted.entries() == [AbortedTransaction(1, 0, 1, 2)]


def test_marker_is_no_producers_last_batch() -> None:
    desk = LogDesk()
    desk.append_in_transaction(1, sequence=7)
    before = desk.log.producers.as_dict()
    desk.append_marker(1, is_commit=True)
    assert desk.log.producers.as_dict() == before


def test_batch_without_a_sequence_leaves_the_sequences_alone() -> None:
    desk = LogDesk()
    desk.append_in_transaction(1, sequence=-1)
    assert len(desk.log.producers) == 0
    assert desk.log.transactions.ongoing == {1: 0}


def test_failed_append_begins_no_transaction() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append(b"a")
    files.fail_next("write", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        desk.append_in_transaction(1)
    assert desk.log.transactions.is_empty


# --- crashes and starts ----------------------------------------------------------------------------------------------


def test_transactions_survive_a_clean_restart_without_a_scan() -> None:
    desk = LogDesk()
    some_transactions(desk)
    before = state_of(desk)
    desk.restart(clean=True)
    assert desk.store.statistics.scanned_bytes == 0
    assert state_of(desk) == before


def test_transactions_are_read_from_the_log_after_a_crash() -> None:
    desk = LogDesk()
    some_transactions(desk)
    before = state_of(desk)
    desk.restart(clean=False)
    assert state_of(desk) == before


def test_transactions_are_those_of_the_checkpoint_and_of_what_came_after_it() -> None:
    desk = LogDesk()
    some_transactions(desk)
    desk.store.checkpoint_now(every_log=True)
    desk.append_marker(2, is_commit=False, coordinator_epoch=6)
    desk.append_in_transaction(3)
    desk.sync()
    before = state_of(desk)
    desk.restart(clean=False)
    assert state_of(desk) == before
    assert desk.log.transactions.ongoing == {3: 7}


def test_transactions_are_rebuilt_when_what_was_saved_is_bad() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    some_transactions(desk)
    before = state_of(desk)
    desk.store.close()
    files.crash(CrashMode.KILL)
    files.flip_bit(f"{desk.log.home.directory}/producers", 8 * 60)
    desk.restart(clean=False)
    assert state_of(desk) == before


def test_transactions_without_sequences_are_saved_too() -> None:
    desk = LogDesk()
    desk.append_marker(9, is_commit=True, epoch=3, coordinator_epoch=2)
    desk.restart(clean=True)
    assert desk.store.statistics.scanned_bytes == 0
    assert desk.log.transactions.producers == {9: ProducerTransaction(3, -1, 2, 0)}


def test_lost_marker_leaves_the_transaction_open() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append_in_transaction(1)
    desk.sync()
    desk.append_marker(1, is_commit=True)
    files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert desk.log.transactions.ongoing == {1: 0}
    assert desk.log.last_stable_offset == 0


def test_guard_of_before_a_recovery_opens_nothing_after_it() -> None:
    desk = LogDesk()
    data = desk.batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    header = next(header for _, header in walk_headers(data))
    assert isinstance(header, BatchHeader)
    desk.append(b"something")
    desk.sync()
    guard = desk.log.transactions.begin_verification(header, version=2, now_ms=0)
    desk.log.fail("a test")
    desk.log.adopt(desk.store.recover_log(desk.log))
    assert desk.log.transactions.check(header, guard=guard) == NotVerified()
    assert desk.log.transactions.check(header) == VerificationNeeded()
    later = desk.log.transactions.begin_verification(header, version=2, now_ms=0)
    assert later != guard
    assert desk.log.transactions.check(header, guard=guard) == NotVerified()
    assert desk.log.transactions.check(header, guard=later) == Admitted()


def crash_story(desk: LogDesk) -> None:
    some_transactions(desk)
    desk.store.checkpoint_now(every_log=True)
    desk.append_marker(2, is_commit=False, coordinator_epoch=6)
    desk.log.roll()
    desk.append_in_transaction(3)
    desk.sync()
    desk.store.checkpoint_now(every_log=True)
    desk.append_in_transaction(1, epoch=2)
    desk.append_marker(3, is_commit=True)
    desk.sync()
    desk.store.truncate_log(desk.log, 8)
    desk.append_marker(3, is_commit=False)
    desk.sync()
    desk.store.checkpoint_now(every_log=True)


@pytest.mark.parametrize("mode", [CrashMode.KILL, CrashMode.LOST, CrashMode.ORDERED])
def test_crash_at_any_operation_leaves_what_the_log_says(mode: CrashMode) -> None:
    operation = 0
    is_over = False
    while not is_over:
        files = FaultyFiles()
        desk = LogDesk(files)
        files.crash_after(operation)
        try:
            crash_story(desk)
            is_over = True
        except SimulatedCrash:
            files.crash(mode)
        files.steps_left = -1
        desk.restart(clean=False)
        content = b"".join(files.content(segment.path) for segment in desk.log.segments)
        assert differences(desk.log, stored_batches(content), 0) is None, operation
        operation += 1
    assert operation > 40


# --- the end and the head --------------------------------------------------------------------------------------------


def test_truncation_takes_back_what_it_cuts_off() -> None:
    desk = LogDesk()
    some_transactions(desk)
    desk.store.checkpoint_now(every_log=True)
    desk.store.truncate_log(desk.log, 4)
    assert desk.log.transactions.ongoing == {2: 2, 1: 3}
    assert len(desk.log.transactions.aborted) == 0
    assert desk.log.last_stable_offset == 2


def test_truncation_of_the_unreadable_end_keeps_what_was_readable_apart() -> None:
    desk = LogDesk()
    desk.append_in_transaction(1)
    desk.sync()
    desk.append_marker(1, is_commit=True)
    desk.append(b"cut")
    desk.store.truncate_log(desk.log, 2)
    assert (desk.log.readable_end, desk.log.log_end) == (1, 2)
    assert desk.log.last_stable_offset == 0
    desk.sync()
    assert desk.log.last_stable_offset == 2


def test_deleted_records_leave_the_aborted_index_with_their_segment() -> None:
    desk = LogDesk(config=LogConfig(segment_bytes=200))
    some_transactions(desk)
    assert len(desk.log.transactions.aborted) == 1
    desk.store.checkpoint_now(every_log=True)
    desk.log.delete_before(6).run()
    assert desk.log.segments[0].base_offset > 4
    assert len(desk.log.transactions.aborted) == 0
    # Of the open transaction nothing is left to read, but its marker is yet to come.
    assert desk.log.last_stable_offset == 6
    assert desk.log.transactions.ongoing == {2: 2}


def test_deletion_that_a_crash_takes_back_brings_back_what_was_aborted() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append_in_transaction(1)
    desk.append_marker(1, is_commit=False)
    desk.append(b"a")
    desk.sync()
    desk.log.delete_before(3)
    desk.store.checkpoint_now(every_log=True)
    files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert desk.log.log_start == 0
    assert len(desk.log.transactions.aborted) == 1


# --- who is forgotten, and what is told of the others ----------------------------------------------------------------


def test_silent_producer_with_an_open_transaction_is_not_forgotten() -> None:
    desk = LogDesk()
    desk.append_in_transaction(1)
    desk.append_in_transaction(2)
    desk.append_marker(2, is_commit=True)
    for now_ms in (1_000, 2_000):
        desk.log.expire_producers(now_ms, expiration_ms=1_000)
    assert list(desk.log.producers.as_dict()) == [1]
    assert list(desk.log.transactions.producers) == [1]


def test_crowd_of_producers_does_not_push_out_an_open_transaction() -> None:
    settings = StorageConfig(free_bytes_min=0, sync_threads=1, producers_max=3)
    desk = LogDesk(settings=settings)
    desk.append_in_transaction(1)
    for producer_id in range(10, 20):
        desk.append(b"a", producer_id=producer_id, producer_epoch=0, base_sequence=0)
    assert sorted(desk.log.producers.as_dict()) == [1, 18, 19]
    desk.restart(clean=True)
    for producer_id in range(20, 30):
        desk.append(b"a", producer_id=producer_id, producer_epoch=0, base_sequence=0)
    assert sorted(desk.log.producers.as_dict()) == [1, 28, 29]


def test_producers_are_described_by_sequence_epoch_and_transaction() -> None:
    desk = LogDesk()
    desk.append(b"a", b"b", producer_id=7, producer_epoch=2, base_sequence=5, timestamp_ms=1_000)
    desk.append_in_transaction(8, epoch=1, sequence=0)
    desk.append_in_transaction(9)
    desk.append_marker(9, is_commit=True, epoch=1, coordinator_epoch=3)
    now_ms = desk.clock.now_ms()
    assert desk.log.describe_producers() == [
        ProducerFacts(7, 2, 6, 1_000, -1, -1),
        ProducerFacts(8, 1, 0, now_ms, -1, 2),
        ProducerFacts(9, 1, -1, now_ms, 3, -1),
    ]


# --- ends that are lost ----------------------------------------------------------------------------------------------


def with_lost_end(*, rotten: int) -> LogDesk:
    """An aborted transaction, and a committed one of the same producer; a bit of one batch has rotted since."""
    desk = LogDesk(files=FaultyFiles())
    desk.append_in_transaction(1, b"aborted")
    desk.append_marker(1, is_commit=False)
    desk.append_in_transaction(1, b"committed", sequence=1)
    desk.append_marker(1, is_commit=True)
    desk.append(b"of nobody")
    desk.sync()
    path = desk.log.segments[0].path
    assert isinstance(desk.files, FaultyFiles)
    places = [position for position, _ in walk_headers(desk.files.content(path))]
    desk.files.rot(path, 8 * (places[rotten] + 65))
    desk.restart(clean=False)
    return desk


def aborted_at(desk: LogDesk, offset: int) -> bool:
    return bool(desk.log.transactions.aborted.between(offset, offset + 1))


def test_what_was_aborted_stays_so_when_its_marker_has_rotted() -> None:
    desk = with_lost_end(rotten=1)
    assert aborted_at(desk, 0), "the end of the next transaction decided about it"
    assert not aborted_at(desk, 2)
    assert desk.log.last_stable_offset == desk.log.readable_end == 5
    assert [(damage.offset, damage.offset_end) for damage in desk.log.damages.places] == [(1, 2)]
    desk.store.checkpoint_now(every_log=True)
    desk.restart(clean=False)
    assert aborted_at(desk, 0), "it was not saved"


def test_what_is_no_marker_leaves_transactions_alone() -> None:
    desk = with_lost_end(rotten=2)
    assert aborted_at(desk, 0)
    assert not aborted_at(desk, 3)
    assert len(desk.log.transactions.aborted) == 1
    assert desk.log.last_stable_offset == 5
