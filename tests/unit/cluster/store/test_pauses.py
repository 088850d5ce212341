from __future__ import annotations

from penstock.cluster.store.pauses import Pauses

TTL_MS = 4000


def test_who_looks_all_the_time_spares_nobody() -> None:
    pauses = Pauses(0)
    for now_ms in range(0, 10_000, 50):
        pauses.look(now_ms)
        assert not pauses.spare(TTL_MS, now_ms)


def test_a_pause_longer_than_half_a_ttl_spares_for_one_ttl() -> None:
    pauses = Pauses(0)
    pauses.look(2_001)
    assert pauses.spare(TTL_MS, 2_001)
    assert pauses.spare(TTL_MS, 6_000)
    assert not pauses.spare(TTL_MS, 6_001)


def test_a_pause_of_half_a_ttl_spares_nobody() -> None:
    pauses = Pauses(0)
    pauses.look(2_000)
    assert not pauses.spare(TTL_MS, 2_000)


def test_a_short_pause_does_not_take_back_what_a_long_one_gave() -> None:
    pauses = Pauses(0)
    pauses.look(10_000)
    pauses.look(11_000)
    assert pauses.spare(TTL_MS, 12_000)
    assert pauses.spare(1_500, 11_000)


def test_what_is_remembered_stays_small() -> None:
    pauses = Pauses(0)
    now_ms = 0
    for length_ms in range(5_000, 300, -1):
        now_ms += length_ms
        pauses.look(now_ms)
        assert len(pauses._ended) <= 3
