from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from penstock.domain.partitioner import StickyPartitions, murmur2, partition_for_key


@given(st.binary(max_size=70))
def test_murmur2_agrees_with_kafka_python(key: bytes) -> None:
    assert murmur2(key) & 0xFFFF_FFFF == kafka_python_murmur2(key) & 0xFFFF_FFFF


def test_known_keys_go_where_java_sends_them() -> None:
    # From Kafka's own UtilsTest.testMurmur2.
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    for key, expected in known.items():
        assert murmur2(key) == expected & 0xFFFF_FFFF


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_a_key_always_has_a_partition(key: bytes, count: int) -> None:
    assert 0 <= partition_for_key(key, count) < count


def test_batches_without_key_take_turns() -> None:
    sticky = StickyPartitions(3, first=4)
    assert [sticky.next_partition() for _ in range(5)] == [1, 2, 0, 1, 2]
