"""Writes what a cleaning keeps of some segments into one new one: the log and its indexes, under names of their own.

    <base offset>.log.cleaned   <base offset>.index.cleaned   <base offset>.timeindex.cleaned

Until a swap was committed (`log/swap`) they are nothing: the next start removes them. Batches go on without a gap, so
offsets whose batches are gone become one batch without records. Blocking.
"""

from __future__ import annotations

from typing import Final

from penstock.codec.batch.header import BatchHeader
from penstock.codec.batch.rewrite import BATCH_OFFSETS_MAX, filler_batch, header_of
from penstock.storage.files.protocols import Files
from penstock.storage.files.small import write_fully
from penstock.storage.segment.facts import LOG_SUFFIX, Segment
from penstock.storage.segment.index import SegmentIndex
from penstock.storage.segment.index_file import INDEX_SUFFIX, TIME_INDEX_SUFFIX, note_saved, take_delta
from penstock.storage.segment.throttle import Throttle

CLEANED_SUFFIX: Final = ".cleaned"
SEGMENT_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)

_BUFFER_BYTES: Final = 1 << 20
# Synced every so often: one sync of it all would stand in front of the syncs of producers for as long as it takes.
_SYNC_BYTES: Final = 8 << 20


class SegmentWriter:
    def __init__(self, files: Files, throttle: Throttle, segment: Segment, *, index_interval_bytes: int) -> None:
        """`segment` is new and empty; it is filled as batches come."""
        self.segment = segment
        segment.index = SegmentIndex()
        # False while everything came as it goes, but for a gap that is still open.
        self.is_changed = False
        self._files = files
        self._throttle = throttle
        self._index_interval_bytes = index_interval_bytes
        remove_cleaned(files, segment.prefix)
        self._file = files.open(segment.path + CLEANED_SUFFIX, create=True)
        self._parts: list[bytes | bytearray | memoryview] = []
        self._written_bytes = 0
        self._synced_bytes = 0
        # Offsets without records that wait for what comes next, and whether one batch stood for exactly them before.
        self._gap: tuple[int, int, int] | None = None
        self._is_gap_old = False

    def copy(self, header: BatchHeader, data: memoryview) -> None:
        """A batch that stays as it is."""
        self.close_gap()
        self._put(header, data)

    def replace(self, batch: bytearray) -> None:
        """A batch that has changed."""
        self.close_gap()
        self.is_changed = True
        self._put(header_of(batch), batch)

    def skip(self, header: BatchHeader) -> None:
        """A batch that goes."""
        is_filler = header.record_count == 0 and header.producer_id < 0
        gap = self._gap
        if gap is not None and gap[2] == header.leader_epoch and header.next_offset - gap[0] <= BATCH_OFFSETS_MAX:
            self._gap = (gap[0], header.next_offset, gap[2])
            self._is_gap_old = False
            return
        # Leader epochs are read off batches when what was saved of them is lost, so none of them may vanish.
        self.close_gap()
        self._gap = (header.base_offset, header.next_offset, header.leader_epoch)
        self._is_gap_old = is_filler

    def close(self) -> None:
        """The files are complete and durable when it returns, but for their names."""
        self.close_gap()
        self._flush()
        self._file.sync()
        segment = self.segment
        assert segment.index is not None
        delta = take_delta(
            segment.index,
            segment.prefix,
            covered_bytes=segment.size,
            covered_records=segment.record_count,
            max_timestamp=segment.max_timestamp,
        )
        for suffix, data in ((INDEX_SUFFIX, delta.data), (TIME_INDEX_SUFFIX, delta.time_data)):
            file = self._files.open(segment.prefix + suffix + CLEANED_SUFFIX, create=True)
            write_fully(file, data, 0)
            file.sync()
        note_saved(segment.index, delta)

    def discard(self) -> None:
        remove_cleaned(self._files, self.segment.prefix)

    def close_gap(self) -> None:
        """Nothing more goes where the last batches went."""
        if self._gap is None:
            return
        base_offset, next_offset, leader_epoch = self._gap
        self._gap = None
        self.is_changed |= not self._is_gap_old
        batch = filler_batch(base_offset=base_offset, next_offset=next_offset, leader_epoch=leader_epoch)
        self._put(header_of(batch), batch)

    def _put(self, header: BatchHeader, data: bytearray | memoryview) -> None:
        assert header.base_offset == self.segment.next_offset, (header.base_offset, self.segment.next_offset)
        self.segment.take(header, self._index_interval_bytes)
        self._parts.append(data)
        if self.segment.size - self._written_bytes >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        write_fully(self._file, data, self._written_bytes)
        self._written_bytes += len(data)
        if self._written_bytes - self._synced_bytes >= _SYNC_BYTES:
            self._file.sync()
            self._synced_bytes = self._written_bytes
        self._throttle.take(len(data))


def remove_cleaned(files: Files, prefix: str) -> None:
    for suffix in SEGMENT_SUFFIXES:
        files.remove(prefix + suffix + CLEANED_SUFFIX)
