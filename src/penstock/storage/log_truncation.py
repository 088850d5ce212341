"""Cuts off the end of a log's files. Blocking.

The last file goes first, each step durable before the next: a crash in between leaves a log that ends a little later,
and never one with a hole.
"""

from __future__ import annotations

from penstock.storage.batch_scan import BatchScan
from penstock.storage.file_protocols import Files
from penstock.storage.index_file import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from penstock.storage.log_files import PRODUCERS_FILE
from penstock.storage.log_removal import remove_segment_files
from penstock.storage.partition_log import PartitionLog


def cut_segments(files: Files, log: PartitionLog, offset: int) -> None:
    """Removes every batch that does not lie wholly below `offset`."""
    # They may be of records that go now, and would be taken for those that come at their place.
    files.remove(f"{log.home.directory}/{PRODUCERS_FILE}")
    files.sync_directory(log.home.directory)
    for segment in reversed(log.segments):
        if segment.next_offset <= offset:
            return
        if segment.base_offset >= offset and segment is not log.segments[0]:
            remove_segment_files(files, segment.prefix)
            files.sync_directory(log.home.directory)
            continue
        # Its index would speak of bytes that are gone, and later of others at their place.
        files.remove(segment.prefix + INDEX_SUFFIX)
        files.remove(segment.prefix + TIME_INDEX_SUFFIX)
        files.sync_directory(log.home.directory)
        file = files.open(segment.path)
        end = 0
        scan = BatchScan(file, start=0, end=segment.size, next_offset=None, checks_checksums=False)
        for position, header in scan:
            if header.next_offset > offset:
                break
            end = position + header.size_bytes
        file.truncate(end)
        file.sync()
