from __future__ import annotations

from penstock.domain.transaction_verification import NO_GUARD, VERIFICATIONS_MAX, TransactionVerifications


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
    assert verifications.expected_sequence(1) == (2, 1)


def test_newer_epoch_takes_the_guard_from_the_older_one() -> None:
    verifications = TransactionVerifications()
    old = begin(verifications, 1, epoch=3, sequence=9)
    new = begin(verifications, 1, epoch=4)
    assert not verifications.holds(1, 3, old)
    assert verifications.holds(1, 4, new)
    assert begin(verifications, 1, epoch=3) == NO_GUARD
    assert verifications.holds(1, 4, new)


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
