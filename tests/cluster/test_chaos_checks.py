"""The checker of the chaos tests is seen to catch each thing that it is there for, and to accuse nobody else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from support.chaos.checks import Acked, Sent, Violation, check_log, told
from support.chaos.delay_checks import Arrived, Delayed, check_delays
from support.chaos.group_checks import Committed, Seen, check_positions, check_read
from support.chaos.queue_checks import Delivered, Settled, check_acks, check_fates, check_holders
from support.chaos.replicas import Batch, compare_logs
from support.chaos.transaction_checks import Copy, Fate, Transaction, check_copies, check_transactions

LEASE_SECONDS = 10.0


def rules(found: list[Violation]) -> set[str]:
    return {violation.rule for violation in found}


# A log

SENT = {value: Sent("ann", number, began_at=float(number)) for number, value in enumerate("abc")}
ACKED = {value: Acked(0, number, at=number + 0.5) for number, value in enumerate("abc")}
Log = list[tuple[int, str]]
GOOD: Log = [(0, "a"), (1, "b"), (2, "c")]


def test_log_that_is_as_it_was_told_is_accused_of_nothing() -> None:
    assert check_log(SENT, ACKED, {0: GOOD}) == []
    # Nobody was told of `c`: it may be there, or not.
    open_ended = {value: ack for value, ack in ACKED.items() if value != "c"}
    assert check_log(SENT, open_ended, {0: GOOD}) == check_log(SENT, open_ended, {0: GOOD[:2]}) == []


@pytest.mark.parametrize(
    ("rule", "log"),
    [
        ("acked-lost", GOOD[:2]),
        ("phantom", [*GOOD, (3, "nobody's")]),
        ("duplicate", [*GOOD, (3, "a")]),
        ("moved", [(0, "a"), (1, "b"), (5, "c")]),
        ("reorder", [(0, "b"), (1, "a"), (2, "c")]),
    ],
)
def test_log_is_accused_of(rule: str, log: Log) -> None:
    assert rule in rules(check_log(SENT, ACKED, {0: log}))


def test_log_is_accused_of_a_message_behind_one_that_began_when_it_was_acked() -> None:
    sent = {"early": Sent("ann", 0, began_at=0.0), "late": Sent("bob", 0, began_at=9.0)}
    acked = {"early": Acked(0, 1, at=1.0), "late": Acked(0, 0, at=9.5)}
    assert rules(check_log(sent, acked, {0: [(0, "late"), (1, "early")]})) == {"real-time"}
    # Both were under way at once: either order is right.
    sent["late"] = Sent("bob", 0, began_at=0.5)
    assert check_log(sent, acked, {0: [(0, "late"), (1, "early")]}) == []


def test_first_cases_of_each_rule_are_told() -> None:
    found = check_log(SENT, ACKED, {0: []})
    assert told(found).startswith("acked-lost (3): 'a', acknowledged at 0/0; 'b'")
    assert told([]) == ""


# Positions of a group


def commit(offset: int, at: float, *, is_confirmed: bool = True) -> Committed:
    return Committed(0, offset, began_at=at, confirmed_at=at + 0.1 if is_confirmed else None)


def look(offset: int, at: float) -> Seen:
    return Seen(0, offset, began_at=at, at=at + 0.1)


def test_positions_that_only_rise_are_accused_of_nothing() -> None:
    commits = [commit(5, 1.0), commit(8, 2.0, is_confirmed=False), commit(12, 4.0)]
    assert check_positions(commits, [look(0, 0.0), look(5, 1.5), look(8, 3.0), look(12, 5.0)]) == []
    assert check_positions(commits, [look(5, 3.0)]) == [], "nobody was told of 8"


def test_position_that_went_back_or_ran_ahead_is_accused() -> None:
    commits = [commit(5, 1.0), commit(12, 4.0)]
    assert rules(check_positions(commits, [look(5, 5.0)])) == {"offset-regress"}
    assert rules(check_positions(commits, [look(12, 2.0)])) == {"offset-ahead"}
    assert check_positions(commits, [look(5, 4.05)]) == [], "asked before the answer was there"


def test_message_that_nobody_read_is_accused() -> None:
    assert rules(check_read(["a", "b"], {"a"})) == {"unread"}
    assert check_read(["a"], {"a", "b"}) == []


# Queues


def delivered(holder: str, at: float, message: str = "m") -> Delivered:
    return Delivered(message, holder, asked_at=at, at=at + 0.1)


def settled(holder: str, at: float, fate: str = "ack", message: str = "m", *, is_confirmed: bool = True) -> Settled:
    return Settled(message, holder, fate, asked_at=at, confirmed_at=at + 0.1 if is_confirmed else None)


@pytest.mark.parametrize(
    ("second_at", "given_back", "is_broken"),
    [
        (3.0, None, True),
        (10.0, None, False),  # the first lease is over
        (3.0, settled("ann", 2.0, "release"), False),
        (3.0, settled("ann", 2.0, is_confirmed=False), False),  # it may have been done
        (3.0, settled("ann", 5.0, "release"), True),  # given back too late
        (3.0, settled("bob", 2.0, "release"), True),  # by somebody who did not have it
    ],
)
def test_two_holders_at_one_time_are_accused(second_at: float, given_back: Settled | None, *, is_broken: bool) -> None:
    deliveries = [delivered("ann", 1.0 if second_at == 3.0 else 0.0), delivered("bob", second_at)]
    found = check_holders(deliveries, [given_back] if given_back else [], lease_seconds=LEASE_SECONDS)
    assert rules(found) == ({"two-holders"} if is_broken else set())


def test_one_holder_that_is_given_it_twice_within_its_lease_is_accused_too() -> None:
    found = check_holders([delivered("ann", 1.0), delivered("ann", 2.0)], [], lease_seconds=LEASE_SECONDS)
    assert rules(found) == {"two-holders"}


def test_message_that_comes_back_after_its_ack_is_accused() -> None:
    acks = [settled("ann", 2.0)]
    assert rules(check_acks([delivered("ann", 1.0), delivered("bob", 3.0)], acks)) == {"acked-back"}
    assert check_acks([delivered("ann", 1.0), delivered("bob", 2.05)], acks) == [], "asked before it was confirmed"
    assert check_acks([delivered("bob", 3.0)], [settled("ann", 2.0, is_confirmed=False)]) == []


@pytest.mark.parametrize(
    ("rule", "fates", "dead"),
    [
        ("queue-lost", [], []),
        ("dead-twice", [settled("ann", 1.0, "reject")], ["m", "m"]),
        ("dead-and-acked", [settled("ann", 1.0)], ["m"]),
        ("dead-lost", [settled("ann", 1.0, "reject")], []),
        ("dead-phantom", [settled("ann", 1.0)], ["nobody's"]),
    ],
)
def test_queue_is_accused_of(rule: str, fates: list[Settled], dead: list[str]) -> None:
    assert rule in rules(check_fates({"m"}, fates, dead))


def test_queue_whose_messages_are_acked_or_buried_once_is_accused_of_nothing() -> None:
    assert check_fates({"m"}, [settled("ann", 1.0)], []) == []
    assert check_fates({"m"}, [settled("ann", 1.0, "reject")], ["m"]) == []
    assert check_fates({"m"}, [], ["m"]) == [], "delivered too often"
    assert check_fates({"m"}, [settled("ann", 1.0, is_confirmed=False)], []) == []


# Delays


@pytest.mark.parametrize(
    ("rule", "promise", "arrived_ms"),
    [
        ("early", Delayed(1_000, is_confirmed=True), [999]),
        ("delay-twice", Delayed(1_000, is_confirmed=True), [1_000, 1_001]),
        ("delay-twice", Delayed(1_000, is_confirmed=False), [1_000, 1_001]),
        ("delay-lost", Delayed(1_000, is_confirmed=True), []),
        ("cancelled-delivered", Delayed(1_000, is_confirmed=True, is_cancelled=True), [1_000]),
    ],
)
def test_delay_is_accused_of(rule: str, promise: Delayed, arrived_ms: list[int]) -> None:
    assert rules(check_delays({"m": promise}, [Arrived("m", at_ms) for at_ms in arrived_ms])) == {rule}


def test_delays_that_are_kept_are_accused_of_nothing() -> None:
    kept = Delayed(1_000, is_confirmed=True)
    assert check_delays({"m": kept}, [Arrived("m", 1_000)]) == []
    assert check_delays({"m": replace(kept, is_cancelled=True)}, []) == []
    for doubtful in (replace(kept, is_perhaps_cancelled=True), replace(kept, is_confirmed=False)):
        assert check_delays({"m": doubtful}, []) == check_delays({"m": doubtful}, [Arrived("m", 1_000)]) == []
    assert rules(check_delays({}, [Arrived("m", 1_000)])) == {"delay-phantom"}


# Transactions


def copies(*values: str, number: int = 0) -> list[Copy]:
    return [Copy(0, offset, value, "ann", number) for offset, value in enumerate(values)]


def transaction(fate: Fate) -> Transaction:
    return Transaction("ann", 0, ("a", "b"), fate)


@pytest.mark.parametrize(
    ("rule", "fate", "read"),
    [
        ("aborted-read", Fate.ABORTED, copies("a", "b")),
        ("torn-read", Fate.COMMITTED, copies("a")),
        ("torn-read", Fate.UNKNOWN, copies("b")),
        ("torn-read", Fate.COMMITTED, copies("a", "b", "b")),
        ("committed-lost", Fate.COMMITTED, []),
        ("phantom", Fate.COMMITTED, [*copies("a", "b"), *copies("c", number=7)]),
    ],
)
def test_transaction_is_accused_of(rule: str, fate: Fate, read: list[Copy]) -> None:
    assert rules(check_transactions([transaction(fate)], read)) - {"transaction-order"} == {rule}


def test_whole_transactions_are_accused_of_nothing() -> None:
    for fate in (Fate.COMMITTED, Fate.UNKNOWN):
        assert check_transactions([transaction(fate)], copies("a", "b")) == []
    for fate in (Fate.ABORTED, Fate.UNKNOWN):
        assert check_transactions([transaction(fate)], []) == []


def test_transactions_of_a_producer_in_another_order_are_accused() -> None:
    both = [Transaction("ann", number, (value,), Fate.COMMITTED) for number, value in enumerate("ab")]
    read = [Copy(0, 0, "b", "ann", 1), Copy(0, 1, "a", "ann", 0)]
    assert rules(check_transactions(both, read)) == {"transaction-order"}


def test_input_without_a_copy_or_with_two_is_accused() -> None:
    assert rules(check_copies(["a", "b"], copies("a", "a"))) == {"copy-twice", "copy-lost"}
    assert check_copies(["a", "b"], copies("a", "b")) == []


# Replicas


def test_replicas_that_differ_below_the_lowest_end_are_accused() -> None:
    first: list[Batch] = [(0, 5, 11), (5, 9, 22), (9, 12, 33)]
    assert compare_logs({1: first, 2: first[:2], 3: first}) == [], "what is past the lowest end counts for nobody"
    assert compare_logs({1: first, 2: [(0, 5, 11), (5, 9, 99), (9, 12, 33)]}) == [
        "nodes 1 and 2 differ at 5 (below 12)"
    ]
    assert compare_logs({1: first, 2: [(0, 5, 11), (9, 12, 33)]}) == ["nodes 1 and 2 differ at 5 (below 12)"]
    assert compare_logs({1: first, 2: first[1:]}) == [], "retention has moved one start"
