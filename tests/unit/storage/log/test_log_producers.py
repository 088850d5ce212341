from __future__ import annotations

from random import Random

import pytest

from penstock.codec.batch.control import EndMarker, build_marker
from penstock.codec.batch.header import BatchHeader, read_header
from penstock.codec.batch.records import Record, build_batch
from penstock.storage.log.producers import LogProducers

PRODUCERS_MAX = 4


def random_batch(random: Random, offset: int, producers: LogProducers) -> bytearray:
    producer_id = random.randrange(9)
    epoch = offset // 20
    if random.random() < (0.6 if producers.transactions.is_ongoing(producer_id) else 0.1):
        marker = EndMarker(random.random() < 0.5, epoch)
        return build_marker(marker, producer_id=producer_id, producer_epoch=epoch, timestamp_ms=1, base_offset=offset)
    return build_batch(
        [Record(b"x")],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=offset,
        is_transactional=producer_id % 2 == 0,
    )


def apply(producers: LogProducers, batch: bytearray) -> None:
    header = read_header(batch)
    assert isinstance(header, BatchHeader)
    producers.apply(header, batch)


@pytest.mark.parametrize("seed", range(20))
def test_saved_half_way_and_applied_on_comes_to_the_same_also_when_some_are_pushed_out(seed: int) -> None:
    random = Random(seed)
    live = LogProducers.empty(PRODUCERS_MAX)
    batches = []
    saved_at = random.randrange(60)
    saved = b""
    for offset in range(60):
        if offset == saved_at:
            saved = live.to_bytes()
        batches.append(random_batch(random, offset, live))
        apply(live, batches[-1])
    loaded = LogProducers.from_bytes(saved, log_end=saved_at, producers_max=PRODUCERS_MAX)
    for batch in batches[saved_at:]:
        apply(loaded, batch)
    assert loaded.to_bytes() == live.to_bytes()
    for producers in (live, loaded):
        ongoing = set(producers.transactions.ongoing)
        assert ongoing <= set(producers.transactions.producers)
        assert ongoing <= set(producers.sequences.as_dict())


def test_control_batch_that_is_no_marker_says_nothing() -> None:
    producers = LogProducers.empty(PRODUCERS_MAX)
    other = build_batch(
        [Record(b"value", key=b"\0\0\0\7")],
        producer_id=1,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )
    apply(producers, other)
    assert producers.is_empty
    assert producers.change_count == 0


def test_nothing_is_saved_of_a_log_without_producers() -> None:
    producers = LogProducers.empty(PRODUCERS_MAX)
    apply(producers, build_batch([Record(b"x")]))
    assert producers.is_empty
    assert producers.describe() == []
