"""Whose password is checked next, and which need not be checked again."""

from __future__ import annotations

from penstock.domain.security.good_logins import GoodLogins
from penstock.domain.security.login_queue import WAITING_MAX, LoginQueue
from penstock.domain.security.scram import Mechanism, ScramCredential

STRANGERS = 600


def credential(stored_key: bytes = b"k" * 32) -> ScramCredential:
    return ScramCredential(Mechanism.SCRAM_SHA_256, 4_096, b"salt", stored_key=stored_key, server_key=b"s")


def flooded() -> LoginQueue[str]:
    queue: LoginQueue[str] = LoginQueue()
    for _ in range(STRANGERS):
        assert queue.add("10.0.0.1", "nobody", "stranger")
    return queue


def test_strangers_of_one_address_delay_others_by_one_turn() -> None:
    queue = flooded()
    assert queue.add("10.0.0.2", "alice", "alice")
    assert [queue.take(), queue.take()] == ["stranger", "alice"]
    assert queue.count == STRANGERS - 1


def test_strangers_who_try_one_name_delay_other_names_of_their_address_by_one_turn() -> None:
    queue = flooded()
    assert queue.add("10.0.0.1", "alice", "alice")
    assert [queue.take(), queue.take()] == ["stranger", "alice"]


def test_names_of_one_address_have_one_turn_together() -> None:
    queue: LoginQueue[str] = LoginQueue()
    for number in range(100):
        queue.add("10.0.0.1", f"guess-{number}", "stranger")
    for _ in range(3):
        queue.add("10.0.0.2", "alice", "alice")
    assert [queue.take() for _ in range(6)] == ["stranger", "alice"] * 3


def test_each_address_and_all_together_are_bounded() -> None:
    queue: LoginQueue[int] = LoginQueue(waiting_max=10, per_address_max=4)
    assert [queue.add("a", "u", number) for number in range(5)] == [True] * 4 + [False]
    assert sum(queue.add(f"address {number}", "u", number) for number in range(20)) == 6
    assert sorted(queue.take() or 0 for _ in range(10)) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    assert (queue.take(), queue.count) == (None, 0)
    assert queue.add("a", "u", 9)


def test_a_few_addresses_cannot_take_all_the_places() -> None:
    queue: LoginQueue[str] = LoginQueue()
    for number in range(WAITING_MAX):
        queue.add(f"10.0.0.{number % 20}", "nobody", "stranger")
    assert WAITING_MAX // 4 < queue.count <= WAITING_MAX // 2 + 20
    assert all(queue.add(f"10.1.0.{number}", "alice", "alice") for number in range(100))


def test_a_good_login_is_known_by_password_and_credential() -> None:
    good = GoodLogins(b"key")
    good.add("alice", credential(), "right")
    assert good.holds("alice", credential(), "right")
    assert not good.holds("alice", credential(), "wrong")
    assert not good.holds("bob", credential(), "right")
    assert not good.holds("alice", credential(b"another" * 5), "right")
    good.forget("alice")
    assert not good.holds("alice", credential(), "right")


def test_good_logins_are_bounded_and_the_least_recent_is_forgotten() -> None:
    good = GoodLogins(b"key", users_max=2)
    for user in ("a", "b"):
        good.add(user, credential(), "p")
    assert good.holds("a", credential(), "p")
    good.add("c", credential(), "p")
    assert len(good) == 2
    assert [good.holds(user, credential(), "p") for user in "abc"] == [True, False, True]


def test_no_password_can_be_read_from_what_is_remembered() -> None:
    good = GoodLogins(b"key")
    good.add("alice", credential(), "in Wonderland")
    assert b"Wonderland" not in b"".join(good._digests.values())
