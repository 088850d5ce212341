"""Batches with holes and without records in a log: recovered, verified, searched by time and cleaned like any other."""

from __future__ import annotations

from collections.abc import Collection

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, BatchProblem, read_header, walk_headers
from penstock.codec.batch.holes import OpenBatch, leave_out, open_payload
from penstock.codec.batch.records import Record, build_batch, read_payload, read_records
from penstock.domain.log.compaction import CompactionRules
from penstock.domain.log.producer_sequence import Duplicate
from penstock.storage.cleaner.log_cleaner import LogCleaner
from penstock.storage.config import LogConfig
from penstock.storage.log.time_lookup import TimestampOffset
from penstock.storage.repair.check import verify
from support.storage.faulty_files import FaultyFiles
from support.storage.log_desk import ROOT, LogDesk

PRODUCER = 7
ALWAYS = CompactionRules(min_cleanable_dirty_ratio=0.0)


class HolesDesk(LogDesk):
    """One producer, whose batches lose some of their records."""

    def __init__(self, *, segment_bytes: int = 1 << 20, rules: CompactionRules | None = None) -> None:
        config = LogConfig(segment_bytes=segment_bytes, retention_ms=-1, compaction=rules)
        super().__init__(FaultyFiles(), config=config)
        self.sequence = 0
        # What a reader must find: offset, key.
        self.expected: list[tuple[int, bytes | None]] = []

    def put(self, count: int, left_out: Collection[int] = (), *, keys: int = 1000, codec: Codec = Codec.ZSTD) -> None:
        """Records a millisecond apart, from the desk's clock on."""
        now_ms, base_offset = self.clock.now_ms(), self.log.log_end
        names = [b"key %d" % ((base_offset + number) % keys) for number in range(count)]
        batch = build_batch(
            [Record(b"value", key=name, timestamp_ms=now_ms + number) for number, name in enumerate(names)],
            codec=codec,
            base_offset=base_offset,
            leader_epoch=0,
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        holed = leave_out(_opened(batch), left_out)
        header = read_header(holed)
        assert isinstance(header, BatchHeader)
        self.log.append(memoryview(holed), (header,))
        self.sequence += count
        self.expected += [(base_offset + number, name) for number, name in enumerate(names) if number not in left_out]

    def put_all_kinds(self, keys: int = 1000) -> None:
        self.put(4, range(4), keys=keys)
        self.put(5, keys=keys)
        self.put(6, (0, 2, 5), keys=keys)
        self.put(3, (1, 2), keys=keys, codec=Codec.NONE)
        self.put(7, range(7), keys=keys)

    def found(self, offset: int = 0) -> list[tuple[int, bytes | None]]:
        found: list[tuple[int, bytes | None]] = []
        while offset < self.log.readable_end:
            data = self.read(offset)
            for position, header in walk_headers(data):
                records = read_records(data, position)
                assert isinstance(records, list), records
                found += [(record.offset, record.key) for record in records if record.offset >= offset]
                offset = header.next_offset
        return found


def _opened(batch: bytearray) -> OpenBatch:
    header = read_header(batch)
    assert isinstance(header, BatchHeader)
    payload = read_payload(batch, 0, header)
    assert not isinstance(payload, BatchProblem)
    opened = open_payload(header, payload)
    assert isinstance(opened, OpenBatch)
    return opened


def test_log_with_holes_is_the_same_after_every_kind_of_start() -> None:
    for segment_bytes in (1 << 20, 150):
        for is_clean in (True, False):
            desk = HolesDesk(segment_bytes=segment_bytes)
            desk.put_all_kinds()
            desk.sync()
            producers, log_end, records = desk.log.producers.as_dict(), desk.log.log_end, desk.log.record_count
            assert desk.found() == desk.expected
            desk.restart(clean=is_clean)
            assert desk.found() == desk.expected
            assert (desk.log.log_end, desk.log.record_count) == (log_end, records) == (25, len(desk.expected))
            assert desk.log.producers.as_dict() == producers


def test_retry_of_a_batch_is_known_whatever_it_has_lost() -> None:
    desk = HolesDesk()
    desk.put_all_kinds()
    desk.sync()
    desk.restart(clean=False)
    first = 0
    for count, base_offset in ((4, 0), (5, 4), (6, 9), (3, 15), (7, 18)):
        retry = build_batch([Record(b"value")] * count, producer_id=PRODUCER, producer_epoch=0, base_sequence=first)
        header = read_header(retry)
        assert isinstance(header, BatchHeader)
        verdict = desk.log.producers.check(header)
        assert isinstance(verdict, Duplicate)
        assert verdict.base_offset == base_offset
        first += count


def test_every_offset_can_be_read_from() -> None:
    desk = HolesDesk(segment_bytes=150)
    desk.put_all_kinds()
    desk.sync()
    for offset in range(desk.log.log_end):
        assert desk.found(offset) == [each for each in desk.expected if each[0] >= offset]


def test_log_with_holes_is_whole() -> None:
    desk = HolesDesk(segment_bytes=150)
    desk.put_all_kinds()
    desk.sync()
    desk.store.close()
    (report,) = verify(ROOT, files=desk.files)
    assert report.problems == ()
    assert (report.record_count, report.log_start, report.log_end) == (len(desk.expected), 0, 25)


def test_search_by_time_finds_records_and_never_a_hole() -> None:
    desk = HolesDesk(segment_bytes=150)
    start_ms = desk.clock.now_ms()
    desk.put(3, range(3))
    desk.clock.advance_ms(100)
    desk.put(4, (0, 3))
    desk.clock.advance_ms(100)
    desk.put(2, range(2))
    desk.sync()
    for is_restarted in (False, True):
        if is_restarted:
            desk.restart(clean=True)
        log = desk.log
        assert log.offset_for_timestamp(start_ms) == TimestampOffset(4, start_ms + 101, 0)
        assert log.offset_for_timestamp(start_ms + 102) == TimestampOffset(5, start_ms + 102, 0)
        assert log.offset_for_timestamp(start_ms + 103) is None
        assert log.offset_of_max_timestamp() == TimestampOffset(5, start_ms + 102, 0)
        assert log.max_timestamp == start_ms + 102


def test_cleaning_keeps_the_last_of_each_key_and_the_sequence() -> None:
    desk = HolesDesk(rules=ALWAYS)
    for _ in range(10):
        desk.put_all_kinds(keys=6)
    last_of = {key: offset for offset, key in desk.expected}
    producers = desk.log.producers.as_dict()
    desk.sync()
    desk.log.roll()
    desk.store.checkpoint_now(every_log=True)
    desk.log.advance_readable(desk.log.durable_end)
    cleaning = LogCleaner(desk.store, desk.clock, seeds=(1, 2), sleep=lambda _: None).begin()
    assert cleaning is not None
    cleaning.index()
    while (swap := cleaning.write_next()) is not None:
        assert swap.apply()
        swap.finish()
    assert {key: offset for offset, key in desk.found()} == last_of
    assert len(desk.found()) == len(last_of)
    for is_clean in (False, True):
        desk.restart(clean=is_clean)
        assert {key: offset for offset, key in desk.found()} == last_of
        assert desk.log.producers.as_dict() == producers
