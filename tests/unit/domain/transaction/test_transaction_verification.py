from __future__ import annotations

from penstock.domain.transaction.verification import (
    EPOCHS_MAX,
    NO_GUARD,
    VERIFICATIONS_MAX,
    TransactionVerifications,
)


def begin(verifications: TransactionVerifications, producer_id: int, epoch: int = 0, sequence: int = 0) -> int:
    return verifications.begin(producer_id, epoch, sequence, version=1, now_ms=1_000)


def test_guard_opens_once_and_only_for_its_own_producer_and_epoch() -> None:
    verifications = TransactionVerifications()
    guard = begin(verifications, 1)
    assert guard != NO_GUARD
    assert verifications.holds(1, 0, guard)
    assert not verifications.holds(1, 1, guard)
    assert not verifications.holds(2, 0, guard)
    verifications.clear(1)
    assert not verifications.holds(1, 0, guard)


def test_guard_of_an_earlier_transaction_opens_nothing_later() -> None:
    verifications = TransactionVerifications()
    early = begin(verifications, 1)
    verifications.clear(1)
    late = begin(verifications, 1)
    assert early != late
    assert not verifications.holds(1, 0, early)


def test_batches_that_come_together_share_the_guard_and_the_lowest_goes_first() -> None:
    verifications = TransactionVerifications()
    assert begin(verifications, 1, sequence=5) == begin(verifications, 1, sequence=2) == begin(verifications, 1, 0, 7)
    assert verifications.expected_sequence(1, 0) == (2, 1)


def test_other_epochs_do_not_stand_in_the_way() -> None:
    """Whoever claims an epoch has to ask for it, and until the coordinator has answered nobody knows who is right."""
    verifications = TransactionVerifications()
    mine = begin(verifications, 1, epoch=3, sequence=9)
    claimed = begin(verifications, 1, epoch=4)
    assert verifications.holds(1, 3, mine)
    assert verifications.holds(1, 4, claimed)
    assert begin(verifications, 1, epoch=3) == mine
    verifications.clear(1)
    assert not verifications.holds(1, 3, mine)
    assert not verifications.holds(1, 4, claimed)


def test_what_was_refused_leaves_no_trace() -> None:
    verifications = TransactionVerifications()
    mine = begin(verifications, 1, sequence=9)
    assert begin(verifications, 1, sequence=0) == mine
    verifications.withdraw(1, 0, mine)
    assert verifications.holds(1, 0, mine), "the other one still waits for its answer"
    verifications.withdraw(1, 0, mine)
    assert not verifications.is_open(1)
    begin(verifications, 1, sequence=9)
    assert verifications.expected_sequence(1, 0) == (9, 1)
    verifications.withdraw(1, 0, mine)
    assert verifications.is_open(1), "a guard of the past takes nothing back"


def test_claims_on_one_producer_are_bounded() -> None:
    verifications = TransactionVerifications()
    for epoch in range(100):
        begin(verifications, 1, epoch=epoch)
    assert len(verifications) == EPOCHS_MAX


def test_those_that_never_come_back_are_forgotten() -> None:
    verifications = TransactionVerifications()
    begin(verifications, 1)
    verifications.expire(1_099, expiration_ms=100)
    assert verifications.is_open(1)
    verifications.expire(1_100, expiration_ms=100)
    assert not verifications.is_open(1)


def test_oldest_gives_way_when_there_are_too_many() -> None:
    verifications = TransactionVerifications()
    for producer_id in range(VERIFICATIONS_MAX + 1):
        begin(verifications, producer_id)
    assert len(verifications) == VERIFICATIONS_MAX
    assert not verifications.is_open(0)
    assert verifications.is_open(1)
