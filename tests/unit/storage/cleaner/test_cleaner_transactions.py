"""Compaction of a topic that is written to in transactions."""

from __future__ import annotations

from penstock.codec.batch.header import BatchHeader, read_header, walk_headers
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.log.compaction import CompactionRules
from penstock.storage.cleaner.log_cleaner import LogCleaner
from penstock.storage.config import LogConfig
from support.storage.faulty_files import CrashMode, FaultyFiles
from support.storage.log_desk import LogDesk

RULES = CompactionRules(min_cleanable_dirty_ratio=0.0, delete_retention_ms=1_000)


class CleaningDesk(LogDesk):
    def __init__(self) -> None:
        super().__init__(FaultyFiles(), config=LogConfig(retention_ms=-1, compaction=RULES))

    def put(self, key: bytes, *, producer_id: int = -1, sequence: int = 0) -> None:
        """One record; of a producer: in its transaction."""
        is_transactional = producer_id >= 0
        data = build_batch(
            [Record(b"value", key=key, timestamp_ms=self.clock.now_ms())],
            base_offset=self.log.log_end,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=0 if is_transactional else -1,
            base_sequence=sequence if is_transactional else -1,
            is_transactional=is_transactional,
        )
        header = read_header(data)
        assert isinstance(header, BatchHeader)
        self.log.append(memoryview(data), [header])

    def seal(self) -> None:
        self.sync()
        self.log.roll()
        self.store.checkpoint_now(every_log=True)
        self.log.advance_readable(self.log.durable_end)

    def clean(self) -> bool:
        cleaning = LogCleaner(self.store, self.clock, seeds=(1, 2), sleep=lambda _: None).begin()
        if cleaning is None:
            return False
        cleaning.index()
        while (swap := cleaning.write_next()) is not None:
            assert swap.apply()
            swap.finish()
        self.log.clean_end = cleaning.finish().end_offset
        return True

    def clean_again(self) -> None:
        """After something else was written, without which there is nothing to clean."""
        self.put(b"other")
        self.seal()
        assert self.clean()

    def kept(self) -> list[int]:
        """Offsets of batches that hold something."""
        found: list[int] = []
        offset = self.log.log_start
        while offset < self.log.readable_end:
            headers = [header for _, header in walk_headers(self.read(offset))]
            found += [header.base_offset for header in headers if header.record_count]
            offset = headers[-1].next_offset
        return found


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
