"""The partition of each row, for columns: the same as for one key at a time."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.domain.partitioner import murmur2, partition_for_key
from penstock.pipeline.sink.partitions import choose_partitions, murmur2_all

pytest.importorskip("numpy", reason="the extra `spark` is not installed")


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=60))
def test_hashes_of_a_column_are_those_of_its_keys(keys: list[bytes]) -> None:
    assert murmur2_all(keys).tolist() == [murmur2(key) for key in keys]


def test_one_long_key_among_short_ones() -> None:
    keys = [b"a", bytes(range(256)) * 20, b"", b"abcd"]
    assert murmur2_all(keys).tolist() == [murmur2(key) for key in keys]


def test_a_number_goes_before_the_key_and_the_key_before_the_turn() -> None:
    keys = pl.Series([b"a", None, b"b", None], dtype=pl.Binary)
    chosen = pl.Series([None, None, 4, 0], dtype=pl.Int32)
    partitions = choose_partitions(keys, chosen, partition_count=7, keyless=5)
    assert partitions.tolist() == [partition_for_key(b"a", 7), 5, 4, 0]


def test_columns_without_a_key_or_without_a_number() -> None:
    keys = pl.Series([b"a", b"b"], dtype=pl.Binary)
    by_key = choose_partitions(keys, None, partition_count=3, keyless=0)
    assert by_key.tolist() == [partition_for_key(b"a", 3), partition_for_key(b"b", 3)]
    by_number = choose_partitions(None, pl.Series([2, None], dtype=pl.Int32), partition_count=3, keyless=1)
    assert by_number.tolist() == [2, 1]
    nothing = choose_partitions(pl.Series([None], dtype=pl.Binary), None, partition_count=3, keyless=1)
    assert nothing.tolist() == [1]
