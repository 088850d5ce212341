"""A compacted log without a loop: written to, sealed and cleaned by a test."""

from __future__ import annotations

from penstock.codec.batch.header import BatchHeader, read_header, walk_headers
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.log.compaction import CompactionRules
from penstock.storage.cleaner.log_cleaner import LogCleaner
from penstock.storage.config import LogConfig
from support.storage.faulty_files import FaultyFiles
from support.storage.log_desk import LogDesk

RULES = CompactionRules(min_cleanable_dirty_ratio=0.0, delete_retention_ms=1_000)


class CleaningDesk(LogDesk):
    def __init__(self) -> None:
        super().__init__(FaultyFiles(), config=LogConfig(retention_ms=-1, compaction=RULES))

    def put(self, key: bytes, value: bytes | None = b"value", *, producer_id: int = -1, sequence: int = 0) -> None:
        """One record; of a producer: in its transaction. No value: a tombstone."""
        is_transactional = producer_id >= 0
        data = build_batch(
            [Record(value, key=key, timestamp_ms=self.clock.now_ms())],
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
