"""What the disk is told of a topic's settings."""

from __future__ import annotations

from penstock.broker.partition.log_config import log_config
from penstock.domain.config.topic import make_topic_config
from penstock.storage.config import Durability


def test_segment_ends_before_its_index_is_larger_than_allowed() -> None:
    assert log_config(make_topic_config({})).segment_bytes == 64 * 1024 * 1024
    small = log_config(make_topic_config({"segment.index.bytes": "1200"}))
    assert small.segment_bytes == 100 * 4096, "a hundred entries of twelve bytes, one for each 4 KiB"
    assert log_config(make_topic_config({"segment.index.bytes": "4"})).segment_bytes == 1024


def test_jitter_of_segments_reaches_the_disk() -> None:
    assert log_config(make_topic_config({"segment.jitter.ms": "50"})).segment_jitter_ms == 50


def test_delay_of_removed_files_reaches_the_disk() -> None:
    assert log_config(make_topic_config({})).file_delete_delay_ms == 0
    assert log_config(make_topic_config({"file.delete.delay.ms": "50"})).file_delete_delay_ms == 50


def test_limit_of_unsynced_records_is_kept_by_syncing_each() -> None:
    interval = {"durability": "interval"}
    assert log_config(make_topic_config(interval)).durability is Durability.INTERVAL
    assert log_config(make_topic_config({**interval, "flush.messages": "1"})).durability is Durability.FSYNC
