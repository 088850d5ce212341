from __future__ import annotations

import pytest

from penstock.domain.replication.fetch import Refusal, refuse
from penstock.domain.replication.state import NO_EPOCH, first_state
from penstock.domain.replication.truncation import (
    BeginAnew,
    Behind,
    Cut,
    CutRefused,
    Diverging,
    answer,
    plan_beginning,
    plan_cut,
)
from penstock.domain.replication.view import Standing
from penstock.storage.log.epochs import LeaderEpochs


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs()
    for epoch, start in entries:
        made.assign(epoch, start)
    return made


LEADER = epochs((1, 0), (3, 10), (6, 20))


@pytest.mark.parametrize(
    ("last_epoch", "offset", "answered"),
    [
        (6, 25, None),
        (6, 30, None),
        (3, 20, None),
        (3, 15, None),
        (1, 10, None),
        (NO_EPOCH, 5, None),
        (NO_EPOCH, 31, Diverging(NO_EPOCH, 30)),
        (3, 21, Diverging(3, 20)),
        (1, 11, Diverging(1, 10)),
        # Epochs that the leader never had: the largest of its own below them.
        (5, 18, Diverging(3, 20)),
        (2, 7, Diverging(1, 10)),
        # A tail that only the follower has.
        (6, 31, Diverging(6, 30)),
        (3, 4, Behind(5)),
    ],
)
def test_leader_answers_by_where_the_follower_ends(
    last_epoch: int, offset: int, answered: Diverging | Behind | None
) -> None:
    assert answer(LEADER, log_start=5, log_end=30, last_epoch=last_epoch, fetch_offset=offset) == answered


def test_leader_that_has_noted_no_epoch_of_its_own_still_answers() -> None:
    assert answer(epochs((1, 0)), log_start=0, log_end=8, last_epoch=2, fetch_offset=9) == Diverging(1, 8)


def cut(
    own: LeaderEpochs, diverging: Diverging, *, end: int, watermark: int = 0, unclean: int = -1
) -> Cut | CutRefused:
    return plan_cut(own, diverging, log_end=end, watermark=watermark, unclean_epoch=unclean)


def test_follower_cuts_to_where_both_have_the_epoch() -> None:
    own = epochs((1, 0), (2, 6), (4, 12))
    assert cut(own, Diverging(3, 20), end=15) == Cut(12)
    assert cut(own, Diverging(2, 9), end=15) == Cut(9)
    assert cut(own, Diverging(1, 10), end=15) == Cut(6)
    assert cut(own, Diverging(NO_EPOCH, 0), end=15) == Cut(0)


def test_follower_cuts_its_list_also_where_its_log_ends() -> None:
    assert cut(epochs((3, 0), (5, 10)), Diverging(3, 12), end=10) == Cut(10)


def test_steps_of_cutting_lead_to_agreement() -> None:
    own, end = epochs((1, 0), (2, 6), (4, 9), (5, 12)), 14
    steps = 0
    while True:
        found = answer(LEADER, log_start=0, log_end=30, last_epoch=own.latest, fetch_offset=end)
        if found is None:
            break
        assert isinstance(found, Diverging)
        plan = cut(own, found, end=end)
        assert isinstance(plan, Cut)
        end = plan.offset
        own.truncate_end(end)
        steps += 1
    assert (end, steps) == (6, 2)


def test_nothing_is_cut_below_the_watermark_without_an_unclean_election() -> None:
    own = epochs((1, 0), (2, 6))
    refused = cut(own, Diverging(1, 6), end=9, watermark=8)
    assert refused == CutRefused(6, 8)
    assert "offset 6, below our watermark 8" in refused.reason
    assert cut(own, Diverging(1, 6), end=9, watermark=6) == Cut(6)


def test_unclean_election_allows_it_also_to_who_comes_back_epochs_later() -> None:
    own = epochs((1, 0), (2, 6))
    assert cut(own, Diverging(1, 6), end=9, watermark=8, unclean=3) == Cut(6)
    # Of that epoch or a later one: what it holds was written after the loss.
    assert cut(own, Diverging(1, 6), end=9, watermark=8, unclean=2) == CutRefused(6, 8)


def test_follower_begins_anew_behind_the_start_or_the_tombstones() -> None:
    assert plan_beginning(log_end=9, leader_log_start=10, tombstone_horizon=0) == BeginAnew(10)
    assert plan_beginning(log_end=10, leader_log_start=10, tombstone_horizon=10) is None
    assert plan_beginning(log_end=19, leader_log_start=10, tombstone_horizon=20) == BeginAnew(10)


def test_fetch_is_refused_by_replica_epoch_and_life() -> None:
    state = first_state((1, 2), 10)
    view = {1: Standing(10), 2: Standing(11), 3: Standing(12)}
    assert refuse(state, view, follower=2, life=11, epoch=0) is None
    assert refuse(state, view, follower=3, life=12, epoch=0) is Refusal.NOT_A_REPLICA
    assert refuse(state, view, follower=2, life=11, epoch=-1) is Refusal.OLD_EPOCH
    assert refuse(state, view, follower=2, life=11, epoch=1) is Refusal.NEW_EPOCH
    assert refuse(state, view, follower=2, life=10, epoch=0) is Refusal.STALE_LIFE
    assert refuse(state, {1: Standing(10)}, follower=2, life=11, epoch=0) is Refusal.STALE_LIFE
    unadmitted = {2: Standing(11, is_admitted=False)}
    assert refuse(state, unadmitted, follower=2, life=11, epoch=0) is Refusal.STALE_LIFE
