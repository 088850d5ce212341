"""Compaction of a topic that is written to in transactions."""

from __future__ import annotations

from support.cleaner.cleaning_desk import CleaningDesk
from support.storage.faulty_files import CrashMode, FaultyFiles


def test_nothing_past_an_open_transaction_is_cleaned() -> None:
    desk = CleaningDesk()
    desk.put(b"a")
    desk.put(b"a")
    desk.seal()
    desk.put(b"a", producer_id=1)
    desk.put(b"a")
    desk.put(b"a")
    desk.seal()
    assert desk.clean()
    assert desk.kept() == [1, 2, 3, 4]
    desk.append_marker(1, is_commit=True)
    desk.seal()
    assert desk.clean()
    # The marker of a transaction with its last batch: 2 stays, without its record, for the producer's sequence.
    assert desk.kept() == [4, 5]


def test_aborted_records_go_and_the_value_before_them_stays() -> None:
    desk = CleaningDesk()
    desk.put(b"a")
    desk.put(b"a", producer_id=1)
    desk.append_marker(1, is_commit=False)
    desk.seal()
    assert desk.clean()
    assert desk.kept() == [0, 2]


def test_aborted_transaction_with_nothing_left_leaves_the_index_for_good() -> None:
    desk = CleaningDesk()
    desk.put(b"a", producer_id=1)
    desk.append_marker(1, is_commit=False)
    # Later than the aborted batch: now that one is not the producer's last any more.
    desk.put(b"b", producer_id=1, sequence=1)
    desk.append_marker(1, is_commit=True)
    desk.seal()
    assert desk.clean()
    assert len(desk.log.transactions.aborted) == 1
    desk.clean_again()
    assert len(desk.log.transactions.aborted) == 0
    # Before the next checkpoint: what was saved still names it, and the swap does not let it come back.
    assert isinstance(desk.files, FaultyFiles)
    desk.files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert len(desk.log.transactions.aborted) == 0
    assert 1 in desk.kept()
    # Its time is over, and it is not the last marker of its producer.
    desk.clock.advance_ms(2_000)
    desk.clean_again()
    assert 1 not in desk.kept()
    assert 3 in desk.kept()


def test_last_marker_of_a_producer_stays_though_it_ended_nothing_here() -> None:
    desk = CleaningDesk()
    desk.append_marker(1, is_commit=True, epoch=4, coordinator_epoch=2)
    desk.append_marker(2, is_commit=True, epoch=4)
    desk.append_marker(2, is_commit=True, epoch=5)
    desk.seal()
    desk.clean()
    for _ in range(3):
        desk.clock.advance_ms(2_000)
        desk.clean_again()
    assert desk.kept()[:2] == [0, 2]
    known = desk.log.transactions.producers
    assert isinstance(desk.files, FaultyFiles)
    desk.files.remove(f"{desk.log.home.directory}/producers")
    desk.restart(clean=False)
    assert desk.log.transactions.producers == known


def test_truncation_after_a_cleaning_brings_no_aborted_transaction_back() -> None:
    desk = CleaningDesk()
    desk.put(b"a", producer_id=1)
    desk.append_marker(1, is_commit=False)
    desk.put(b"b", producer_id=1, sequence=1)
    desk.append_marker(1, is_commit=True)
    desk.seal()
    assert desk.clean()
    desk.clean_again()
    assert len(desk.log.transactions.aborted) == 0
    desk.put(b"cut")
    desk.store.truncate_log(desk.log, desk.log.log_end - 1)
    assert len(desk.log.transactions.aborted) == 0
    desk.restart(clean=False)
    assert len(desk.log.transactions.aborted) == 0
