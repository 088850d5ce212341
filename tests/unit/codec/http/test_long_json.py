"""A long JSON text is taken apart in steps, as the decoder would take it."""

from __future__ import annotations

import json
from itertools import islice
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.base.long_work import all_at_once
from penstock.codec.http.long_json import NotJsonError, TooManyError, check_count, rough_count, split_array


def split(text: bytes, count_max: int = 1_000) -> list[bytes]:
    assert text.startswith(b"[")
    pieces, end = all_at_once(split_array(text, 1, count_max=count_max))
    assert end == len(text)
    return pieces


def some_value(random: Random, depth: int = 0) -> Any:
    letters = 'ab"\\,[]{}:\n é😀'
    kind = random.randrange(6 if depth < 4 else 3)
    if kind == 0:
        return random.choice((None, True, 1, -2.5, 10**20))
    if kind <= 2:
        return "".join(random.choices(letters, k=random.randrange(8)))
    if kind == 3:
        return {f"{number}{random.choice(letters)}": some_value(random, depth + 1) for number in range(3)}
    return [some_value(random, depth + 1) for _ in range(random.randrange(4))]


@pytest.mark.parametrize("seed", range(200))
def test_pieces_are_the_elements(seed: int) -> None:
    random = Random(seed)
    values = [some_value(random) for _ in range(random.randrange(6))]
    text = json.dumps(values, ensure_ascii=random.random() < 0.5, indent=random.choice((None, 2))).encode()
    assert [msgspec.json.decode(piece) for piece in split(text)] == values


def test_escapes_before_a_quote_are_counted() -> None:
    assert split(rb'["a\\","b\"],[",1]') == [rb'"a\\"', rb'"b\"],["', b"1"]


def test_an_empty_array_has_no_elements() -> None:
    assert split(b"[ \n]") == []


def test_more_elements_than_allowed_are_found_before_the_rest_is_looked_at() -> None:
    text = b"[" + b"{}," * 1_000_000
    steps = split_array(text, 1, count_max=100)
    with pytest.raises(TooManyError, match="more than 100 elements"):
        sum(1 for _ in islice(steps, 20))


@pytest.mark.parametrize("text", [b"[1,2", b'["a', b'["a\\"', b"[{}", b"["])
def test_a_text_that_ends_too_early_is_none(text: bytes) -> None:
    with pytest.raises(NotJsonError):
        split(text)


def test_a_missing_comma_leaves_a_piece_that_is_no_json() -> None:
    (piece,) = split(b'[{"a":1} {"b":2}]')
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(piece)


def test_values_are_counted_outside_of_strings() -> None:
    text = json.dumps({"value": "," * 10_000 + "[" * 10_000}).encode()
    assert all_at_once(rough_count(text)) > 20_000
    all_at_once(check_count(text, 10))
    with pytest.raises(TooManyError, match="more than 10 values"):
        all_at_once(check_count(json.dumps([[]] * 10).encode(), 10))


def test_no_depth_is_followed_for_ever() -> None:
    with pytest.raises(NotJsonError, match="nested"):
        all_at_once(check_count(b"[" * 100_000, 10_000))


@pytest.mark.parametrize("text", [b" " * 4_000_000, b"1" * 4_000_000, b'"' + b'\\"' * 1_000_000 + b'"'])
def test_no_text_is_looked_through_in_one_step(text: bytes) -> None:
    assert sum(1 for _ in split_array(b"[" + text + b"]", 1, count_max=10)) >= 60
