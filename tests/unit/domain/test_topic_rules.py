from __future__ import annotations

import pytest

from penstock.domain import topic_rules as rules


@pytest.mark.parametrize("name", ["a", "orders", "a.b_c-D9", "__consumer_offsets", "...", "x" * 249])
def test_legal_names_pass(name: str) -> None:
    assert rules.check_name(name) is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "cannot be empty"),
        (".", "cannot be called '.'"),
        ("..", "cannot be called '..'"),
        ("x" * 250, "has 250 characters, more than 249"),
        ("a b", "only ASCII letters"),
        ("a/b", "only ASCII letters"),
        ("größe", "only ASCII letters"),
        ("orders\n", "only ASCII letters"),
        ("a\0", "only ASCII letters"),
    ],
)
def test_illegal_names_are_refused_with_a_reason(name: str, sentence: str) -> None:
    assert sentence in (rules.check_name(name) or "")


def test_names_that_begin_with_two_underscores_are_ours() -> None:
    assert rules.is_internal(rules.CONSUMER_OFFSETS)
    assert rules.is_internal("__anything")
    assert not rules.is_internal("_schemas")
    assert not rules.is_internal("orders")


def test_a_topic_has_from_one_to_many_partitions() -> None:
    assert rules.check_partition_count(1) is rules.check_partition_count(10_000) is None
    assert rules.check_partition_count(0) == "a topic needs at least 1 partition, not 0"
    assert "at most 100000" in (rules.check_partition_count(100_001) or "")


def test_partitions_grow_only() -> None:
    assert rules.check_partition_growth(2, 3) is None
    assert rules.check_partition_growth(2, 2) == "the topic already has 2 partitions"
    assert rules.check_partition_growth(2, 1) == "the topic has 2 partitions, which cannot be reduced to 1"
    assert "at most" in (rules.check_partition_growth(2, 1_000_000) or "")
