"""Indexes of sealed segments, loaded when somebody asks, a bounded number of them kept.

Called by reading threads and by the loop, hence the lock. An index whose files are missing or bad is made anew by
walking the segment's headers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from penstock.base.log_events import get_logger
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import File, Files
from penstock.storage.segment.damage_search import scan_past_damage
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.index import SegmentIndex
from penstock.storage.segment.index_file import load_index, note_saved, take_delta

_log = get_logger("storage")


class IndexCache:
    def __init__(self, files: Files, *, segments_max: int, index_interval_bytes: int) -> None:
        self._files = files
        self._segments_max = segments_max
        self._index_interval_bytes = index_interval_bytes
        self._kept: OrderedDict[Segment, None] = OrderedDict()
        self._lock = threading.Lock()
        self._saving = threading.Lock()

    def index_of(self, segment: Segment, file: File) -> SegmentIndex:
        """May read from the disk."""
        index = segment.index
        if index is None:
            loaded = self._load(segment, file)
            with self._lock:
                # Whoever came first wins: the loop may have begun to append to the index that it loaded.
                index = segment.index
                if index is None:
                    index = segment.index = loaded
            self.keep(segment)
        return index

    def keep(self, segment: Segment) -> None:
        """Its index may be dropped when others are wanted more, if the files hold all of it."""
        with self._lock:
            if segment.is_active or segment.index is None or segment.index.covered_bytes != segment.size:
                return
            self._kept[segment] = None
            self._kept.move_to_end(segment)
            if len(self._kept) > self._segments_max:
                oldest, _ = self._kept.popitem(last=False)
                oldest.index = None

    def release(self, segment: Segment) -> None:
        """The segment is written to again, or gone."""
        with self._lock:
            self._kept.pop(segment, None)

    def part_with(self, segments: Iterable[Segment]) -> None:
        """Others take their names on disk: from now on their index files are not theirs."""
        with self._saving:
            for segment in segments:
                segment.is_replaced = True

    def _load(self, segment: Segment, file: File) -> SegmentIndex:
        index = load_index(self._files, segment.prefix)
        if segment.is_replaced:
            index = SegmentIndex()
        if index.covered_bytes == segment.size:
            return index
        if index.covered_bytes > segment.size:
            index = SegmentIndex()
        _log.info("index rebuilt", segment=segment.path, from_byte=index.covered_bytes, to_byte=segment.size)
        complete_index(segment, index, file, self._index_interval_bytes)
        if not segment.is_active:
            self._save(segment, index)
        return index

    def _save(self, segment: Segment, index: SegmentIndex) -> None:
        """So that the next one who asks finds it. A growing segment's index is the checkpoint's to save."""
        index.forget_saved()
        delta = take_delta(
            index,
            segment.prefix,
            covered_bytes=segment.size,
            covered_records=segment.record_count,
            max_timestamp=segment.max_timestamp,
        )
        try:
            with self._saving:
                if not segment.is_replaced:
                    delta.write(self._files)
        except OSError as error:
            _log.warning("index not saved", segment=segment.path, error=str(error))
        note_saved(index, delta)


def complete_index(segment: Segment, index: SegmentIndex, file: File, index_interval_bytes: int) -> None:
    """Walks on from where the index ends. Damage is not this function's business: it is stepped over, and whoever reads
    it finds it."""
    twin = Segment("", segment.base_offset, begun_ms=0)
    twin.index = index
    twin.size = index.covered_bytes
    twin.record_count = index.covered_records
    twin.max_timestamp = index.covered_max_timestamp
    start = (index.covered_bytes, None if index.covered_bytes else segment.base_offset)
    end = (segment.size, segment.next_offset)
    for position, header, _ in scan_past_damage(file, segment, None, start=start, end=end, on_damage=_overlook):
        # Behind damage the next batch stands further on.
        twin.size = position
        twin.take(header, index_interval_bytes)


def _overlook(_damage: Damage) -> None:
    return None
