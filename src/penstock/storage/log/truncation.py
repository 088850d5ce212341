"""Cuts off the end of a log's files. Blocking.

The last file goes first, each step durable before the next: a crash in between leaves a log that ends a little later,
and never one with a hole.
"""

from __future__ import annotations

from penstock.storage.errors import Damage
from penstock.storage.files.protocols import File, Files
from penstock.storage.files.small import write_small_file
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.files import (
    EPOCHS_FILE,
    EPOCHS_MAGIC,
    PRODUCERS_FILE,
    PRODUCERS_MAGIC,
    pack_producers,
    read_producers,
)
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.removal import remove_segment_files
from penstock.storage.segment.damage_search import scan_past_damage
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.index_file import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from penstock.storage.segment.side_files import remove_side_files


def save_forgotten_aborts(files: Files, log: PartitionLog) -> None:
    """Before the swaps since the checkpoint are forgotten: what they left nothing of must not come back by what was
    saved before them."""
    gone = [offset for swap in log.swaps for offset in swap.empty_aborts]
    saved = read_producers(files, log.home.directory, log.producers.producers_max) if gone else None
    if saved is not None:
        offset, producers = saved
        producers.transactions.forget_aborts(gone)
        payload = pack_producers(producers, offset)
        write_small_file(files, log.home.directory, PRODUCERS_FILE, PRODUCERS_MAGIC, payload)


def cut_segments(files: Files, log: PartitionLog, offset: int) -> None:
    """Removes every batch that does not lie wholly below `offset`."""
    kept_epochs = LeaderEpochs.from_bytes(log.epochs.to_bytes())
    kept_epochs.truncate_end(offset)
    # Saved epochs past the cut would speak of records that come later at their place.
    write_small_file(files, log.home.directory, EPOCHS_FILE, EPOCHS_MAGIC, kept_epochs.to_bytes())
    saved = read_producers(files, log.home.directory, log.producers.producers_max)
    if saved is not None and saved[0] > offset:
        # They are of records that go now, and would be taken for those that come at their place.
        files.remove(f"{log.home.directory}/{PRODUCERS_FILE}")
        files.sync_directory(log.home.directory)
    for segment in reversed(log.segments):
        if segment.next_offset <= offset:
            break
        if segment.base_offset >= offset and segment is not log.segments[0]:
            remove_segment_files(files, segment.prefix)
            files.sync_directory(log.home.directory)
            continue
        # Its index would speak of bytes that are gone, and later of others at their place.
        files.remove(segment.prefix + INDEX_SUFFIX)
        files.remove(segment.prefix + TIME_INDEX_SUFFIX)
        remove_side_files(files, segment.prefix)
        files.sync_directory(log.home.directory)
        file = files.open(segment.path)
        file.truncate(_end_below(file, segment, offset))
        file.sync()


def _end_below(file: File, segment: Segment, offset: int) -> int:
    """Where the last batch ends that lies wholly below the offset; damage counts as one."""
    ends = [0]

    def note(damage: Damage) -> None:
        if damage.offset_end <= offset:
            ends.append(damage.position_end)

    part = (segment.size, segment.next_offset)
    start = (0, segment.base_offset)
    for position, header, _ in scan_past_damage(file, segment, segment.index, start=start, end=part, on_damage=note):
        if header.next_offset > offset:
            break
        ends.append(position + header.size_bytes)
    return ends[-1]
