"""Files beside a log that were made of its records, each with the offset that it was made up to, and the epoch there.
Blocking.

    journal-snapshot     what the records of a journal come to
    queues.start         where the replay of a queue journal begins
    schedule checkpoint  what is pending, with its bucket files

They are made of committed records, which no ordinary cut touches. Where a log is cut below one of them all the same, it
goes with the records: it would speak of others that come at their place. Lanes, zones and indexes belong to a segment,
are gone with what is cut of it, and know by themselves which bytes they were made of.
"""

from __future__ import annotations

import msgspec

from penstock.domain.schedule.records import Stored, read_record
from penstock.storage.files.buckets import BucketFiles
from penstock.storage.files.protocols import Files
from penstock.storage.log.journal_snapshot import SNAPSHOT_FILE, read_snapshot_place
from penstock.storage.log.replay_start import FILE_NAME, read_replay_start


def known_end(files: Files, directory: str) -> int:
    """How far the log reached at least, by these files: what they were made of was durable. A log that ends before that
    has lost its end, also where the store's checkpoint is too old to know it. 0: they say nothing."""
    snapshot = read_snapshot_place(files, directory)
    return max(
        0 if snapshot is None else snapshot.offset,
        read_replay_start(files, directory) or 0,
        _end_of_checkpoint(files, directory),
    )


def drop_derived(files: Files, directory: str, offset: int) -> None:
    """Durable when it returns: nothing beside the log was made of what lies past the offset."""
    snapshot = read_snapshot_place(files, directory)
    if snapshot is not None and snapshot.offset > offset:
        files.remove(f"{directory}/{SNAPSHOT_FILE}")
    if (read_replay_start(files, directory) or 0) > offset:
        files.remove(f"{directory}/{FILE_NAME}")
    if _end_of_checkpoint(files, directory) > offset:
        BucketFiles(files, directory).clear()
    files.sync_directory(directory)


def _end_of_checkpoint(files: Files, directory: str) -> int:
    try:
        payload = BucketFiles(files, directory).read_checkpoint()
        stored = None if payload is None else read_record(payload)
    except (OSError, msgspec.DecodeError):
        return 0
    return stored.next_position if isinstance(stored, Stored) else 0
