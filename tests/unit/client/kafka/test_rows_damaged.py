"""Batches that cannot be read: named by their offsets, or passed over and counted."""

from __future__ import annotations

import pytest

from penstock.client.kafka.consumer import Fetched
from penstock.client.kafka.rows import SkippedBatches, UnreadableBatchError, rows_of
from penstock.codec.batch.records import Record, build_batch
from support.codec.unreadable_batches import with_checksum


def fetched() -> Fetched:
    broken = build_batch([Record(b"b"), Record(b"c")], base_offset=1)
    broken[-1:] = b"\x05"
    rotten = build_batch([Record(b"d")], base_offset=3)
    rotten[-2:-1] = b"x"
    data = (
        bytes(build_batch([Record(b"a")])) + with_checksum(broken) + rotten + build_batch([Record(b"e")], base_offset=4)
    )
    return Fetched("orders", 2, memoryview(data), 0, 5, 5)


def test_batch_that_cannot_be_read_is_named_by_its_offsets() -> None:
    with pytest.raises(UnreadableBatchError, match="partition 2 of topic 'orders', offsets 1 to 2: "):
        list(rows_of(fetched()))


def test_batches_that_cannot_be_read_are_skipped_and_counted() -> None:
    skipped = SkippedBatches()
    assert [row.value for row in rows_of(fetched(), skipped=skipped)] == [b"a", b"e"]
    assert (skipped.batch_count, skipped.offset_count) == (2, 3)
