"""Which batches a reader of committed records leaves out."""

from __future__ import annotations

from penstock.client.kafka.aborted_batches import aborted_batches
from penstock.client.kafka.consumer import Fetched
from penstock.client.kafka.rows import rows_of
from penstock.codec.batch.control import EndMarker, build_marker
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka.messages.fetch import AbortedTransaction


def written(offset: int, producer_id: int = 7, *, is_transactional: bool = True) -> bytes:
    records = [Record(b"%d" % place, timestamp_ms=1) for place in (offset, offset + 1)]
    return bytes(
        build_batch(
            records,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=is_transactional,
        )
    )


def ended(offset: int, producer_id: int = 7, *, is_commit: bool) -> bytes:
    marker = EndMarker(is_commit=is_commit, coordinator_epoch=0)
    return bytes(build_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=1, base_offset=offset))


def aborted(*pairs: tuple[int, int]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=producer_id, first_offset=first) for producer_id, first in pairs]


def test_a_list_of_nothing_leaves_nothing_out() -> None:
    assert aborted_batches(written(0), []) == frozenset()
    assert aborted_batches(written(0), None) == frozenset()


def test_an_aborted_transaction_ends_at_its_marker() -> None:
    data = written(0) + ended(2, is_commit=False) + written(3) + ended(5, is_commit=True)
    assert aborted_batches(data, aborted((7, 0))) == {0}


def test_a_transaction_that_began_before_the_piece_is_known_by_the_list() -> None:
    data = written(10) + written(12) + ended(14, is_commit=False)
    assert aborted_batches(data, aborted((7, 3))) == {10, 12}


def test_what_a_producer_wrote_before_its_aborted_transaction_is_shown() -> None:
    data = written(0) + ended(2, is_commit=True) + written(3) + ended(5, is_commit=False)
    assert aborted_batches(data, aborted((7, 3))) == {3}


def test_one_producer_aborts_twice_in_a_piece() -> None:
    data = written(0) + ended(2, is_commit=False) + written(3) + ended(5, is_commit=False)
    # In whatever order the broker names them.
    assert aborted_batches(data, aborted((7, 3), (7, 0))) == {0, 3}


def test_other_producers_and_plain_records_are_shown() -> None:
    data = written(0) + written(2, producer_id=8) + written(4, is_transactional=False) + ended(6, is_commit=False)
    left_out = aborted_batches(data, aborted((7, 0)))
    fetched = Fetched("t", 0, memoryview(data), 0, 7, 7, left_out)
    assert [row.offset for row in rows_of(fetched)] == [2, 3, 4, 5]
