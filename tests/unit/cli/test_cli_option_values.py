"""Texts of options: what they mean, and how a mistake in one is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC

import pytest

from penstock.cli.commands.bench import CompressionName, DurabilityName, _plan
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.option_values import (
    duration_ms,
    future_ms,
    moment_ms,
    moment_ms_if_given,
    partitions_by_topic,
    start_of,
)

NOW_MS = 1_794_744_000_000


@pytest.mark.parametrize(
    "read",
    [
        lambda: duration_ms("soon", "--wait"),
        lambda: moment_ms("soon", "--wait", now_ms=NOW_MS),
        lambda: moment_ms_if_given("soon", "--wait", now_ms=NOW_MS),
        lambda: start_of("soon", "--wait", now_ms=NOW_MS),
        lambda: future_ms("soon", "--wait", now_ms=NOW_MS),
        lambda: future_ms("1 hour ago", "--wait", now_ms=NOW_MS),
    ],
)
def test_a_mistake_is_one_of_usage_and_names_its_option(read: Callable[[], object]) -> None:
    with pytest.raises(CommandError, match="--wait: '") as raised:
        read()
    assert raised.value.exit_code == EXIT_USAGE


def test_a_moment_before_1970_is_not_a_special_time_of_the_wire() -> None:
    assert moment_ms("1969-12-31T23:59:59.998Z", "--at", now_ms=NOW_MS, zone=UTC) == 0


def test_an_option_that_is_not_given_has_no_moment() -> None:
    assert moment_ms_if_given(None, "--since", now_ms=NOW_MS) is None
    assert moment_ms_if_given("2h ago", "--since", now_ms=NOW_MS) == NOW_MS - 7_200_000


def test_a_time_to_come_is_counted_from_now() -> None:
    assert future_ms("in 5 minutes", "--at", now_ms=NOW_MS) == NOW_MS + 300_000


def test_topics_have_all_partitions_or_those_that_are_named() -> None:
    assert partitions_by_topic(["orders", "audit:3,0", "audit:1"]) == {"orders": [], "audit": [0, 1, 3]}


@pytest.mark.parametrize("text", [":1", "orders:", "orders:a", "orders:1,"])
def test_a_topic_with_partitions_that_are_no_numbers_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="TOPIC or TOPIC:0,1,2"):
        partitions_by_topic([text])


def test_a_bench_without_an_end_takes_ten_seconds() -> None:
    shared = {
        "bootstrap": "here:9092", "topic": None, "partitions": 2, "durability": DurabilityName.INTERVAL, "size": 7,
        "compression": CompressionName.LZ4, "keep": True, "as_json": False,
    }  # fmt: skip
    plan = _plan(messages=None, seconds=None, **shared, acks=1)
    assert (plan.seconds, plan.messages, plan.durability, plan.compression) == (10.0, None, "interval", "lz4")
    assert (plan.size_bytes, plan.acks, plan.is_kept) == (7, 1, True)
    assert _plan(messages=5, seconds=None, **shared).seconds is None
