"""Sets and maps of places, against Python's own."""

from __future__ import annotations

from random import Random

from penstock.domain.schedule.positions import PositionMap, PositionSet


def test_set_of_places_is_a_set() -> None:
    rng = Random(1)
    places, model = PositionSet(), set[int]()
    for step in range(20_000):
        place = rng.randrange(step // 2 * 7 + 1)
        if rng.random() < 0.5:
            places.add(place)
            model.add(place)
        else:
            assert places.discard(place) == (place in model)
            model.discard(place)
        assert places.count == len(model)
        assert (place in places) == (place in model)
    assert list(places.since(0)) == sorted(model)
    assert list(places.since(30_000)) == sorted(place for place in model if place >= 30_000)
    assert places.first() == min(model)
    assert list(PositionSet(places.store()).since(0)) == sorted(model)


def test_set_of_places_without_places_has_no_first_one() -> None:
    places = PositionSet()
    places.add(10**12)
    places.discard(10**12)
    assert places.first() is None
    assert places.store() == ()


def test_map_of_places_is_a_map() -> None:
    rng = Random(2)
    places, model = PositionMap(), dict[int, int]()
    for _step in range(10_000):
        place, value = rng.randrange(50_000), rng.randrange(10**12)
        places.set(place, value)
        model[place] = value
    assert len(places) == len(model)
    assert all(places.get(place, -1) == model.get(place, -1) for place in range(50_000))
    places.keep(lambda place, value: place % 2 == 0 and value > 10**11)
    kept = {place: value for place, value in model.items() if place % 2 == 0 and value > 10**11}
    again = PositionMap(places.store())
    assert len(again) == len(kept)
    assert all(again.get(place, -1) == kept.get(place, -1) for place in range(50_000))


def test_a_set_counts_what_is_from_a_place_on() -> None:
    places = [0, 1, 7, 8, 9, 8_191, 8_192, 8_193, 20_000, 20_001]
    found = PositionSet()
    for place in places:
        found.add(place)
    for since in (0, 1, 2, 8, 10, 8_191, 8_192, 8_194, 15_000, 20_001, 20_002, 90_000):
        assert found.count_since(since) == sum(place >= since for place in places)
