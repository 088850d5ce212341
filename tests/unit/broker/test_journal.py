from __future__ import annotations

from penstock.broker.journal import BATCH_BYTES_MAX, _batches
from penstock.codec.records import Record


def decision(count: int, value_bytes: int, name: bytes) -> list[Record]:
    return [Record(value=bytes(value_bytes), key=name) for _ in range(count)]


def test_a_decision_is_never_cut_in_two() -> None:
    decisions = [decision(3, BATCH_BYTES_MAX // 4, b"%d" % number) for number in range(5)]
    batches = _batches(decisions)
    assert [record for batch in batches for record in batch] == [record for each in decisions for record in each]
    for each in decisions:
        assert sum(any(record is each[0] for record in batch) for batch in batches) == 1
        (holder,) = [batch for batch in batches if any(record is each[0] for record in batch)]
        assert all(any(record is other for other in holder) for record in each)


def test_a_decision_larger_than_a_batch_stays_whole() -> None:
    (small, large, last) = _batches(
        [decision(1, 10, b"a"), decision(9, BATCH_BYTES_MAX // 4, b"b"), decision(1, 10, b"c")]
    )
    assert [len(small), len(large), len(last)] == [1, 9, 1]


def test_small_decisions_share_a_batch() -> None:
    assert [len(batch) for batch in _batches([decision(2, 10, b"k") for _ in range(100)])] == [200]
