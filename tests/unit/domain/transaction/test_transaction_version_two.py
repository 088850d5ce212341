"""EndTxn of version 5 and implicit partitions (KIP-890): every end has an epoch of its own."""

from __future__ import annotations

import pytest

from penstock.domain.transaction.commands import ProducerReady, Refused, TransactionEnded, TransactionProblem
from penstock.domain.transaction.state import (
    CLIENT_EPOCH_MAX,
    EPOCH_MAX,
    TransactionMetadata,
    TransactionState,
)
from support.transaction.talk import TIMEOUT_MS, A, Talk

FENCED = Refused(TransactionProblem.PRODUCER_FENCED)
CONCURRENT = Refused(TransactionProblem.CONCURRENT_TRANSACTIONS)
INVALID_STATE = Refused(TransactionProblem.INVALID_TXN_STATE)
WRONG_ID = Refused(TransactionProblem.INVALID_PRODUCER_ID_MAPPING)


def ended(talk: Talk, *, is_commit: bool) -> tuple[ProducerReady, ProducerReady]:
    """One transaction, to its end: the producer as it was in it, and as it is after it."""
    before = talk.ready()
    talk.add(before, A, version=2)
    reply = talk.end(before, is_commit=is_commit, version=2)
    assert isinstance(reply, TransactionEnded)
    talk.write_markers()
    return before, ProducerReady(reply.producer_id, reply.producer_epoch)


def at_last_epoch(talk: Talk) -> ProducerReady:
    producer = talk.begin_with(
        TransactionMetadata(50, CLIENT_EPOCH_MAX, TransactionState.EMPTY, TIMEOUT_MS, update_ms=0)
    )
    talk.add(producer, A, version=2)
    return producer


def test_end_raises_the_epoch_and_the_marker_has_the_raised_one() -> None:
    talk = Talk()
    before, after = ended(talk, is_commit=True)
    assert (before.producer_epoch, after.producer_epoch) == (0, 1)
    assert (talk.effects[0].producer_epoch, talk.effects[0].version) == (1, 2)
    assert talk.add(after, A, version=2) != FENCED


@pytest.mark.parametrize("is_commit", [True, False])
def test_repeated_end_gets_the_next_epoch_again_and_the_opposite_is_refused(is_commit: bool) -> None:
    talk = Talk()
    before, after = ended(talk, is_commit=is_commit)
    count = len(talk.records)
    same = TransactionEnded(after.producer_id, after.producer_epoch)
    assert talk.end(before, is_commit=is_commit, version=2) == same
    assert talk.end(before, is_commit=not is_commit, version=2) == INVALID_STATE
    assert len(talk.records) == count


def test_repeated_end_waits_for_the_markers() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A, version=2)
    talk.end(producer, is_commit=True, version=2)
    assert talk.end(producer, is_commit=True, version=2) == CONCURRENT


def test_late_end_cannot_end_the_next_transaction() -> None:
    talk = Talk()
    before, after = ended(talk, is_commit=True)
    talk.add(after, A, version=2)
    assert talk.end(before, is_commit=True, version=2) == FENCED
    assert talk.add(before, A, version=2) == FENCED


@pytest.mark.parametrize("is_commit", [True, False])
def test_abort_of_nothing_raises_the_epoch_with_one_record(is_commit: bool) -> None:
    talk = Talk()
    _before, after = ended(talk, is_commit=is_commit)
    count = len(talk.records)
    assert talk.end(after, is_commit=False, version=2) == TransactionEnded(101, 2)
    assert (talk.state.state, talk.state.start_ms) == (TransactionState.COMPLETE_ABORT, talk.now_ms)
    assert len(talk.records) == count + 1


def test_abort_right_after_the_start_raises_the_epoch() -> None:
    talk = Talk()
    assert talk.end(talk.ready(), is_commit=False, version=2) == TransactionEnded(101, 1)


def test_commit_of_nothing_is_refused() -> None:
    talk = Talk()
    assert talk.end(talk.ready(), is_commit=True, version=2) == INVALID_STATE
    _before, after = ended(talk, is_commit=True)
    assert talk.end(after, is_commit=True, version=2) == INVALID_STATE


def test_producer_whose_transaction_took_too_long_goes_on_by_aborting_it() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A, version=2)
    talk.wait(TIMEOUT_MS)
    assert talk.end(producer, is_commit=False, version=2) == CONCURRENT
    talk.write_markers()
    assert talk.end(producer, is_commit=True, version=2) == INVALID_STATE
    assert talk.end(producer, is_commit=False, version=2) == TransactionEnded(101, 1)


def test_last_epoch_is_followed_by_another_producer_id() -> None:
    talk = Talk()
    producer = at_last_epoch(talk)
    assert talk.end(producer, is_commit=True, version=2) == TransactionEnded(101, 0)
    assert (talk.effects[-1].producer_id, talk.effects[-1].producer_epoch) == (50, EPOCH_MAX)
    # The client has its new id, the coordinator's state not yet.
    assert talk.add(ProducerReady(101, 0), A, version=2) == CONCURRENT
    talk.write_markers()
    assert (talk.state.producer_id, talk.state.producer_epoch) == (101, 0)
    assert talk.end(producer, is_commit=True, version=2) == TransactionEnded(101, 0)
    assert talk.end(producer, is_commit=False, version=2) == INVALID_STATE
    talk.add(ProducerReady(101, 0), A, version=2)
    assert talk.end(producer, is_commit=True, version=2) == WRONG_ID


def test_nobody_gets_the_epoch_that_is_kept_for_fencing() -> None:
    talk = Talk()
    producer = at_last_epoch(talk)
    talk.wait(TIMEOUT_MS)
    talk.write_markers()
    assert talk.state.producer_epoch == EPOCH_MAX
    assert talk.end(producer, is_commit=False, version=2) == TransactionEnded(101, 0)
    assert talk.end(producer, is_commit=False, version=2) == TransactionEnded(101, 0)
    assert talk.state.last_producer_epoch == CLIENT_EPOCH_MAX


def test_end_without_an_epoch_is_nobodys_repeated_one() -> None:
    talk = Talk()
    producer = talk.ready()
    talk.add(producer, A)
    talk.end(producer, is_commit=True)
    talk.write_markers()
    assert talk.end(ProducerReady(101, -1), is_commit=True, version=2) == FENCED
