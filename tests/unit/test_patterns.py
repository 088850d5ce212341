"""Patterns from clients: Kafka's, and never slower than the text is long."""

from __future__ import annotations

import time

import pytest

from penstock.base.patterns import compile_pattern


@pytest.mark.parametrize(
    ("expression", "text", "is_match"),
    [("orders-.*", "orders-eu", True), ("orders", "orders-eu", False), ("a|b", "b", True), ("", "", True)],
)
def test_the_whole_text_has_to_match(expression: str, text: str, is_match: bool) -> None:
    matches = compile_pattern(expression)
    assert matches is not None
    assert matches(text) is is_match


@pytest.mark.parametrize("expression", ["(", "a{1001}", "(?=a)", "((a{500}){500}){500}", "a" * 5_000])
def test_what_cannot_be_matched_in_bounded_time_is_no_pattern(expression: str) -> None:
    assert compile_pattern(expression) is None


def test_a_pattern_made_to_take_for_ever_does_not() -> None:
    matches = compile_pattern("(a+)+b")
    assert matches is not None
    began = time.process_time()
    assert not matches("a" * 200)
    assert time.process_time() - began < 0.5
