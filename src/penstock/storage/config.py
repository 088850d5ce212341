"""Settings of the disk layer: one set for the node, one for each topic's logs."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from penstock.base.file_limit import log_files_max
from penstock.domain.log.compaction import CompactionRules

UNLIMITED: Final = -1

KIB: Final = 1024
MIB: Final = 1024 * KIB
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

# Positions in a segment are kept as 32 bits in the index.
SEGMENT_BYTES_LIMIT: Final = 1024 * MIB


class Durability(enum.StrEnum):
    """What a produce reply promises."""

    FSYNC = "fsync"  # on this node's disk
    INTERVAL = "interval"  # on this node's disk within the topic's durability.interval.ms
    REPLICATED = "replicated"  # in the memory of every in-sync replica


class LogConfig(msgspec.Struct, frozen=True):
    """Of the logs of one topic; -1 is unlimited."""

    segment_bytes: int = 64 * MIB
    segment_ms: int = 7 * DAY_MS
    # By so much at the most a segment is closed earlier, so that not all logs do it at once.
    segment_jitter_ms: int = 0
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = UNLIMITED
    durability: Durability = Durability.FSYNC
    # None: its records are not compacted.
    compaction: CompactionRules | None = None
    # The group whose positions say what is archived: retention removes nothing else. None: it does not wait.
    archive_group: str | None = None
    # How long files of retired segments, and of a deleted topic, stay on the disk.
    file_delete_delay_ms: int = 0


class StorageConfig(msgspec.Struct, frozen=True):
    """Of the node."""

    # Open files of segments; 0: as many as the process may have, less 512 for sockets, at most 4096.
    handles_max: int = 0
    # One index entry for so many bytes of log: a read starts at most this far before what it wants.
    index_interval_bytes: int = 4 * KIB
    # Indexes of sealed segments held in memory. A segment of 64 MiB has 16,384 entries of 20 bytes: 20 MiB in all.
    index_cache_segments_max: int = 64
    # A log is due for the checkpoint after so much, and all changed logs are when their sum is over the second pair:
    # that sum is what an unclean start reads. Measured: 1.2 µs a small batch, 1 GB/s for large ones.
    checkpoint_log_bytes: int = 4 * MIB
    checkpoint_log_batches: int = 2_000
    checkpoint_sum_bytes: int = 64 * MIB
    checkpoint_sum_batches: int = 50_000
    # Files of one turn that are synced side by side; 1: one after another.
    sync_threads: int = 16
    # Below this the node takes no more writes: it needs room itself for indexes, checkpoints and metadata.
    free_bytes_min: int = 64 * MIB
    producer_expiration_ms: int = DAY_MS
    # Idempotent producers remembered in one log; over it the longest silent one is forgotten.
    producers_max: int = 100_000
    # Bytes of old log that are checked on the event loop before a thread is taken: about 10 µs of checksum.
    inline_check_bytes_max: int = 64 * KIB
    # What compaction may take for the keys of one log, 64 bytes each: over it, the log is cleaned in several passes.
    cleaner_map_bytes: int = 128 * MIB
    # How much of the disk's speed compaction may take, reads and writes together.
    cleaner_bytes_per_second: int = 64 * MIB
    # How fast the scrubber reads all logs to see whether they have rotted, 0: not at all. At 4 MiB/s it reads 340 GB a
    # day and takes a hundredth of a slow disk. It begins anew no sooner than so long after it began the last time.
    scrub_bytes_per_second: int = 4 * MIB
    scrub_interval_ms: int = DAY_MS


def handles_max_of(config: StorageConfig) -> int:
    return config.handles_max or log_files_max()
