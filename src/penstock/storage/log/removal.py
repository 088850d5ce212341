"""The second half of taking records from the head of a log: files go in a thread, after memory has let go of them.

The order matters, because a crash may come between any two steps and may keep a later one and lose an earlier one:

    1. directories are synced     the last segment's name, if the log just rolled to let the one before it go
    2. log_start is saved         from here on recovery removes what lies below by itself
    3. the files are removed, or get names that no start takes for a segment's (`files/retired`)
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.base.log_events import get_logger
from penstock.domain.log.retention import Retirement, SegmentFacts, segments_to_retire
from penstock.storage.errors import DiskFullError, StorageError
from penstock.storage.files.protocols import Files
from penstock.storage.files.reserve import DiskReserve
from penstock.storage.log.damage import DamagedPlaces
from penstock.storage.log.files import write_log_start
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.side_files import remove_side_files
from penstock.storage.segment.writer import SEGMENT_SUFFIXES

if TYPE_CHECKING:
    from penstock.storage.log.partition_log import PartitionLog

_log = get_logger("storage")


class LogRemoval:
    """`run` in a thread; until then the files stay, and readers that planned a read of them are not disturbed."""

    def __init__(
        self,
        log: PartitionLog,
        segments: Sequence[Segment],
        *,
        log_start: int,
        reason: str,
        directories: Sequence[str],
        damages: DamagedPlaces | None = None,
    ) -> None:
        self._log = log
        # Some of them were in what goes, and are to be forgotten with it.
        self._damages = damages
        self._segments = segments
        # Whose names must be durable before anything is saved in them; none: the log has never had a file.
        self._directories = directories
        self._log_start = log_start
        self._reason = reason

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def run(self) -> None:
        """Blocking. The new start is durable when it returns."""
        log = self._log
        context = log.context
        if not self._directories:
            return
        try:
            for directory in self._directories:
                context.files.sync_directory(directory)
            save_log_start(context.files, context.reserve, log.home.directory, self._log_start)
        except OSError as error:
            kind = DiskFullError if error.errno == errno.ENOSPC else StorageError
            raise kind(f"{log.home.directory}: the start of the log could not be saved: {error}") from error
        for segment in self._segments:
            self._retire_files(segment)
        if self._damages is not None:
            self._damages.save()
        context.metrics.retired_bytes.inc(self.size_bytes)
        if self._segments:
            _log.info(
                "segments removed",
                topic=log.home.topic,
                partition=log.home.partition,
                log_start=self._log_start,
                count=len(self._segments),
                bytes=self.size_bytes,
                reason=self._reason,
            )

    def _retire_files(self, segment: Segment) -> None:
        """Where there is no room they go at once, whatever the topic says."""
        context, delay_ms = self._log.context, self._log.config.file_delete_delay_ms
        if not delay_ms or context.is_full:
            remove_segment_files(context.files, segment.prefix)
            return
        # Nobody misses these: they are made of the log, by whoever wants them.
        remove_side_files(context.files, segment.prefix)
        paths = [segment.prefix + suffix for suffix in SEGMENT_SUFFIXES]
        try:
            context.retired.keep_files(paths, until_ms=context.clock.now_ms() + delay_ms)
        except OSError as error:
            _log.warning("retired segment not kept", segment=segment.path, error=str(error))
            remove_segment_files(context.files, segment.prefix)


def retirement_of(log: PartitionLog, now_ms: int, archived_end: int | None) -> Retirement:
    return segments_to_retire(
        [_facts_of(segment) for segment in log.segments],
        retention_ms=log.config.retention_ms,
        retention_bytes=log.config.retention_bytes,
        now_ms=now_ms,
        readable_end=log.readable_end,
        archived_end=archived_end,
    )


def _facts_of(segment: Segment) -> SegmentFacts:
    max_timestamp = segment.max_timestamp if segment.max_timestamp >= 0 else segment.begun_ms
    return SegmentFacts(segment.next_offset, segment.size, max_timestamp)


def save_log_start(files: Files, reserve: DiskReserve, directory: str, log_start: int) -> None:
    try:
        write_log_start(files, directory, log_start)
    except OSError as error:
        # On a full disk retention is what makes room, so it must not need any.
        if error.errno != errno.ENOSPC or not reserve.release():
            raise
        write_log_start(files, directory, log_start)


def remove_segment_files(files: Files, prefix: str) -> None:
    # The log last: an index without its log is swept up, a log without its index is read again.
    remove_side_files(files, prefix)
    for suffix in SEGMENT_SUFFIXES:
        files.remove(prefix + suffix)
