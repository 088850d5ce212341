"""Chance is drawn from one source: the same source gives the same draws."""

from __future__ import annotations

from random import Random

import pytest

from penstock.base.chance import SYSTEM_CHANCE, Chance


def draws(chance: Chance) -> tuple[object, ...]:
    return chance.bytes(8), chance.below(1_000), chance.fraction(), chance.uuid(), chance.text(24)


def test_the_same_seed_gives_the_same_draws() -> None:
    assert draws(Chance(Random(7).randbytes)) == draws(Chance(Random(7).randbytes))
    assert draws(Chance(Random(7).randbytes)) != draws(Chance(Random(8).randbytes))


def test_the_system_never_gives_the_same_twice() -> None:
    assert draws(SYSTEM_CHANCE) != draws(SYSTEM_CHANCE)


@pytest.mark.parametrize("bound", [1, 2, 3, 255, 256, 257, 1 << 31, 1 << 64])
def test_a_draw_is_below_its_bound(bound: int) -> None:
    chance = Chance(Random(1).randbytes)
    assert all(0 <= chance.below(bound) < bound for _ in range(200))


def test_every_number_below_a_bound_comes_up() -> None:
    chance = Chance(Random(1).randbytes)
    assert {chance.below(10) for _ in range(500)} == set(range(10))


def test_a_fraction_is_below_one() -> None:
    highest = Chance(lambda count: b"\xff" * count)
    assert 0.0 <= highest.fraction() < 1.0


def test_an_id_is_a_random_one() -> None:
    assert Chance(Random(1).randbytes).uuid().version == 4


def test_a_text_has_as_much_chance_as_asked_for() -> None:
    assert len(SYSTEM_CHANCE.text(24)) == 32
