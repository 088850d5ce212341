"""What the disk needs to know of a topic's settings."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.domain.config.topic import TopicConfig
from penstock.domain.log.compaction import CompactionRules
from penstock.storage.config import UNLIMITED, Durability, LogConfig

# Of an entry in an offset index's file.
INDEX_ENTRY_BYTES: Final = 12
# The least that lies between two entries: an index reaches at least so far.
INDEX_INTERVAL_BYTES: Final = 4 * 1024
SEGMENT_BYTES_MIN: Final = 1024


def log_config(config: TopicConfig) -> LogConfig:
    common = LogConfig(
        segment_bytes=min(config.segment_bytes, _indexed_bytes_max(config.segment_index_bytes)),
        segment_ms=config.segment_ms,
        segment_jitter_ms=config.segment_jitter_ms,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        # How many replicas have to have it is no matter of this disk.
        durability=Durability.FSYNC if config.is_synced else Durability.INTERVAL,
        archive_group=config.retention_archive_group if config.retention_after_archive else None,
        file_delete_delay_ms=config.file_delete_delay_ms,
    )
    if config.is_compacted:
        return _compacted(common, config)
    if not config.cleanup_policy:
        return msgspec.structs.replace(common, retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
    return common


def _indexed_bytes_max(index_bytes: int) -> int:
    """How far an offset index of this size reaches; a segment takes one batch at least."""
    return max(index_bytes // INDEX_ENTRY_BYTES * INDEX_INTERVAL_BYTES, SEGMENT_BYTES_MIN)


def _compacted(common: LogConfig, config: TopicConfig) -> LogConfig:
    is_deleted = "delete" in config.cleanup_policy
    return msgspec.structs.replace(
        common,
        # Only sealed segments are compacted, so none may stay open for longer than a record may wait for it.
        segment_ms=min(config.segment_ms, config.max_compaction_lag_ms),
        retention_ms=config.retention_ms if is_deleted else UNLIMITED,
        retention_bytes=config.retention_bytes if is_deleted else UNLIMITED,
        compaction=CompactionRules(
            min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            max_compaction_lag_ms=config.max_compaction_lag_ms,
            delete_retention_ms=config.delete_retention_ms,
        ),
    )
