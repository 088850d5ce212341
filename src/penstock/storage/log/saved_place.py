"""Where a file beside a log ends that was made of its records, and in which epoch the last of them was written.

Two logs that have the same epoch at an offset have the same records below it. So a file whose epoch is not the log's
was made of other records: of a log that was cut, and went on otherwise. It is done without.
"""

from __future__ import annotations

import msgspec

from penstock.storage.log.epochs import NO_EPOCH
from penstock.storage.log.partition_log import PartitionLog


class SavedPlace(msgspec.Struct, frozen=True):
    # The first offset that the file was not made of.
    offset: int
    # NO_EPOCH: not known, as of files that were made before this was written down.
    epoch: int = NO_EPOCH


def place_in(log: PartitionLog, offset: int) -> SavedPlace:
    """Of a file that is made now, of committed records."""
    return SavedPlace(offset, log.epochs.epoch_at(offset - 1))


def agrees(log: PartitionLog, place: SavedPlace) -> bool:
    """Whether the log, which reaches that far, has the records that the file was made of, as far as can be said."""
    if place.epoch == NO_EPOCH or place.offset <= log.log_start:
        return True
    return log.epochs.epoch_at(place.offset - 1) == place.epoch
