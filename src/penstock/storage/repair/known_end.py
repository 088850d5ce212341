"""How far a log reached at least, by the files that are kept beside it: what they were made of was durable.

A log that ends before that has lost its end, also where the store's checkpoint is too old to know it.
"""

from __future__ import annotations

import msgspec

from penstock.domain.schedule.records import Stored, read_record
from penstock.storage.files.buckets import BucketFiles
from penstock.storage.files.protocols import Files
from penstock.storage.log.journal_snapshot import read_snapshot
from penstock.storage.log.replay_start import read_replay_start


def known_end(files: Files, directory: str) -> int:
    """Blocking. 0: nothing beside the log says anything."""
    snapshot = read_snapshot(files, directory)
    return max(
        0 if snapshot is None else snapshot.offset,
        read_replay_start(files, directory) or 0,
        _end_of_checkpoint(files, directory),
    )


def _end_of_checkpoint(files: Files, directory: str) -> int:
    try:
        payload = BucketFiles(files, directory).read_checkpoint()
        stored = None if payload is None else read_record(payload)
    except (OSError, msgspec.DecodeError):
        return 0
    return stored.next_position if isinstance(stored, Stored) else 0
