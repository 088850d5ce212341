"""What is sent on as it is, and what has to be put together anew."""

from __future__ import annotations

import pytest

from penstock.client.kafka.consumer import Fetched
from penstock.client.kafka.rows import UnreadableBatchError
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, check_batch
from penstock.codec.batch.records import Record, build_batch, read_records
from penstock.pipeline.mirror.batches import Outgoing, outgoing
from penstock.pipeline.mirror.runs import Stretch


def record(number: int, *, delta: int | None = None) -> Record:
    return Record(f"value {number}".encode(), b"key", 1_000 + number, (("n", str(number).encode()),), delta)


def fetched(*batches: bytearray, position: int, aborted: frozenset[int] = frozenset()) -> Fetched:
    return Fetched("orders", 2, memoryview(b"".join(batches)), position, 99, 99, aborted)


def sent(piece: Fetched, *, keeps_transactional: bool = True) -> list[Outgoing]:
    return list(outgoing(piece, keeps_transactional=keeps_transactional))


def values(batch: Outgoing) -> list[bytes | None]:
    stored = read_records(memoryview(batch.data), 0)
    assert isinstance(stored, list)
    return [each.value for each in stored]


def header(batch: Outgoing) -> BatchHeader:
    found = check_batch(memoryview(batch.data), 0)
    assert isinstance(found, BatchHeader)
    return found


@pytest.mark.parametrize("codec", list(Codec))
def test_a_dense_batch_is_sent_as_it_is(codec: Codec) -> None:
    whole = build_batch([record(1), record(2)], codec=codec, base_offset=40)
    (batch,) = sent(fetched(whole, position=40))
    assert batch.data == whole
    assert batch.stretches(7) == [Stretch(40, 7, 2)]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_compacted_batch_is_made_dense_and_remembers_its_holes(codec: Codec) -> None:
    thinned = build_batch(
        [record(1, delta=2), record(2), record(3, delta=7)], codec=codec, base_offset=40, last_offset_delta=9
    )
    (batch,) = sent(fetched(thinned, position=40))
    assert header(batch).record_count == header(batch).last_offset_delta + 1 == 3
    assert header(batch).codec == codec
    assert values(batch) == [b"value 1", b"value 2", b"value 3"]
    assert batch.stretches(100) == [Stretch(42, 100, 2), Stretch(47, 102, 1)]


def test_what_lies_before_the_position_stays_behind() -> None:
    whole = build_batch([record(1), record(2), record(3)], base_offset=40)
    (batch,) = sent(fetched(whole, position=41))
    assert values(batch) == [b"value 2", b"value 3"]
    assert batch.stretches(0) == [Stretch(41, 0, 2)]


def test_markers_aborted_records_and_empty_batches_stay_behind() -> None:
    aborted = build_batch([record(1)], base_offset=40, producer_id=5, producer_epoch=0, is_transactional=True)
    marker = build_batch(
        [record(2)], base_offset=41, producer_id=5, producer_epoch=0, is_transactional=True, is_control=True
    )
    empty = build_batch([], base_offset=42, last_offset_delta=3)
    assert sent(fetched(aborted, marker, empty, position=40, aborted=frozenset({40}))) == []


def test_a_transactional_batch_is_kept_only_by_who_signs_it_anew() -> None:
    committed = build_batch([record(1)], base_offset=40, producer_id=5, producer_epoch=0, is_transactional=True)
    (kept,) = sent(fetched(committed, position=40))
    assert kept.data == committed
    (plain,) = sent(fetched(committed, position=40), keeps_transactional=False)
    assert header(plain).attributes == 0
    assert values(plain) == [b"value 1"]


def test_a_damaged_batch_is_reported_and_never_sent() -> None:
    whole = build_batch([record(1)], base_offset=40)
    whole[-1] ^= 1
    with pytest.raises(UnreadableBatchError, match="partition 2 of topic 'orders' after offset 40"):
        sent(fetched(whole, position=40))
