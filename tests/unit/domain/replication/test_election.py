from __future__ import annotations

import pytest

from penstock.domain.replication.election import (
    CHANGES_A_STEP_MAX,
    choose,
    choose_longest,
    elect_unclean,
    hand_over,
    leave,
    mended,
    prefer,
    renew,
)
from penstock.domain.replication.state import NO_LEADER, PartitionState, first_state
from penstock.domain.replication.view import Duty, Standing, View

# The life of a node in these tests, unless it has been started anew.
LIFE = 10


def state(
    leader: int = 1, *, in_sync: tuple[int, ...] = (1, 2, 3), replicas: tuple[int, ...] = (1, 2, 3), **changes: object
) -> PartitionState:
    fields = {"leader": leader, "life": LIFE, "epoch": 5, "replicas": replicas, "in_sync": in_sync, **changes}
    return PartitionState(**fields)  # type: ignore[arg-type]


def living(*nodes: int, **others: Standing) -> View:
    return {node: Standing(LIFE) for node in nodes} | {int(name[1:]): standing for name, standing in others.items()}


def chosen(before: PartitionState, view: View, minimum: int = 2) -> PartitionState:
    after = choose(before, view, minimum=minimum)
    assert after is not None
    return after


def test_nothing_changes_while_everybody_lives() -> None:
    assert choose(state(), living(1, 2, 3), minimum=2) is None


def test_first_in_sync_replica_takes_over_in_a_new_epoch() -> None:
    after = chosen(state(), living(2, 3))
    assert (after.leader, after.life, after.epoch) == (2, LIFE, 6)
    assert after.in_sync == (2, 3)


def test_order_of_replicas_is_the_order_of_preference() -> None:
    assert chosen(state(leader=3, replicas=(3, 2, 1)), living(1, 2)).leader == 2


def test_leader_of_another_life_is_replaced() -> None:
    view = living(2, 3, n1=Standing(LIFE + 1))
    after = chosen(state(), view)
    assert (after.leader, after.life, after.epoch) == (1, LIFE + 1, 6)


def test_who_is_not_admitted_does_not_lead_and_does_not_leave() -> None:
    view = living(2, 3, n1=Standing(LIFE + 1, is_admitted=False))
    after = chosen(state(), view)
    assert (after.leader, after.in_sync) == (2, (1, 2, 3))


def test_dead_follower_leaves_the_set_and_the_epoch_stays() -> None:
    after = chosen(state(), living(1, 2))
    assert (after.leader, after.epoch, after.in_sync, after.eligible) == (1, 5, (1, 2), ())


def test_all_who_leave_in_the_step_below_the_minimum_are_eligible() -> None:
    after = chosen(state(), living(1))
    assert (after.in_sync, after.eligible) == ((1,), (2, 3))


def test_without_anybody_the_set_stays() -> None:
    after = chosen(state(), {})
    assert (after.leader, after.epoch, after.in_sync, after.eligible) == (NO_LEADER, 6, (1, 2, 3), ())
    assert choose(after, {}, minimum=2) is None
    back = chosen(after, living(3))
    assert (back.leader, back.epoch, back.in_sync, back.eligible) == (3, 7, (3,), (1, 2))


def test_eligible_leads_alone_and_the_former_set_is_eligible() -> None:
    after = chosen(state(in_sync=(1,), eligible=(2,)), living(2, 3))
    assert (after.leader, after.in_sync, after.eligible) == (2, (2,), (1,))


def test_who_is_neither_in_sync_nor_eligible_never_leads() -> None:
    assert chosen(state(in_sync=(1, 2)), living(3)).leader == NO_LEADER


def test_draining_leader_hands_over_and_leaves_while_the_minimum_allows() -> None:
    view = living(2, 3, n1=Standing(LIFE, duty=Duty.DRAINING))
    after = chosen(state(), view)
    assert (after.leader, after.epoch, after.in_sync) == (2, 6, (2, 3))
    small = chosen(state(in_sync=(1, 2)), view)
    assert (small.leader, small.in_sync, small.eligible) == (2, (1, 2), ())


def test_draining_leader_stays_if_nobody_else_can() -> None:
    draining = Standing(LIFE, duty=Duty.DRAINING)
    assert choose(state(in_sync=(1,)), living(2, 3, n1=draining), minimum=1) is None
    assert choose(state(in_sync=(1, 2)), living(n1=draining, n2=draining), minimum=2) is None


def test_who_has_room_is_rather_elected() -> None:
    view = living(3, n2=Standing(LIFE, has_room=False))
    assert chosen(state(), view).leader == 3
    assert chosen(state(in_sync=(1, 2)), view).leader == 2


def test_single_replica_keeps_epoch_and_key_over_restarts() -> None:
    alone = first_state((1,), LIFE)
    for view in (living(), living(n1=Standing(LIFE + 1))):
        assert choose(alone, view, minimum=1) is None
    assert alone.is_led_by(1, LIFE + 1)
    renewed = renew(alone, 1, LIFE + 1)
    assert (renewed.epoch, renewed.life) == (1, LIFE + 1)


def test_a_leader_leads_in_its_own_life_alone() -> None:
    assert state().is_led_by(1, LIFE)
    assert not state().is_led_by(1, LIFE + 1)
    assert not state().is_led_by(2, LIFE)


def test_unsure_does_not_lead_until_all_are_back() -> None:
    before = state(unsure=(1, 2), leader=NO_LEADER)
    assert choose(before, living(1, 2), minimum=2) is None
    after = chosen(before, living(1, 2, 3))
    assert (after.leader, after.in_sync, after.eligible, after.unsure) == (3, (3,), (), ())


def test_unsure_leave_a_set_whose_leader_lives() -> None:
    after = chosen(state(unsure=(3,)), living(1, 2, 3))
    assert (after.epoch, after.in_sync, after.eligible, after.unsure) == (5, (1, 2), (), ())


def test_longest_log_leads_when_all_have_lost_their_memory_and_are_back() -> None:
    before = state(leader=NO_LEADER, unsure=(1, 2, 3))
    ends = {1: (5, 90), 2: (6, 80), 3: (6, 85)}
    assert choose_longest(before, living(1, 2), ends) is None
    assert choose_longest(before, living(1, 2, 3), {1: (5, 90), 2: (6, 80)}) is None
    after = choose_longest(before, living(1, 2, 3), ends)
    assert after is not None
    assert (after.leader, after.in_sync, after.unsure, after.unclean_epoch) == (3, (3,), (), 6)
    assert choose_longest(state(leader=NO_LEADER, unsure=(1, 2)), living(1, 2, 3), ends) is None


def test_leader_hands_over_and_leaves() -> None:
    after = hand_over(state(), 1, living(1, 2, 3), minimum=2, is_whole=False)
    assert after is not None
    assert (after.leader, after.epoch, after.in_sync, after.eligible) == (2, 6, (2, 3), ())


@pytest.mark.parametrize(("is_whole", "eligible"), [(True, (1,)), (False, ())])
def test_who_hands_over_is_eligible_only_if_it_is_whole(is_whole: bool, eligible: tuple[int, ...]) -> None:
    after = hand_over(state(in_sync=(1, 2)), 1, living(1, 2), minimum=2, is_whole=is_whole)
    assert after is not None
    assert after.eligible == eligible


def test_leader_without_successor_keeps_its_seat() -> None:
    assert hand_over(state(in_sync=(1,)), 1, living(1, 2, 3), minimum=1, is_whole=False) is None
    full = living(1, n2=Standing(LIFE, has_room=False), n3=Standing(LIFE, is_admitted=False))
    assert hand_over(state(), 1, full, minimum=2, is_whole=True) is None
    assert hand_over(state(leader=2), 1, living(1, 2, 3), minimum=2, is_whole=True) is None


def test_follower_takes_itself_out() -> None:
    damaged = leave(state(), 3, minimum=2, is_whole=False)
    assert damaged is not None
    assert (damaged.in_sync, damaged.eligible, damaged.epoch) == ((1, 2), (), 5)
    full = leave(state(in_sync=(1, 3)), 3, minimum=2, is_whole=True)
    assert full is not None
    assert (full.in_sync, full.eligible) == ((1,), (3,))


def test_nobody_leaves_twice_and_a_leader_does_not_leave() -> None:
    assert leave(state(in_sync=(1, 2)), 3, minimum=2, is_whole=True) is None
    assert leave(state(), 1, minimum=2, is_whole=True) is None


def test_last_one_that_holds_what_is_committed_stays() -> None:
    assert leave(state(leader=NO_LEADER, in_sync=(3,)), 3, minimum=1, is_whole=False) is None
    after = leave(state(leader=NO_LEADER, in_sync=(3,), eligible=(2,)), 3, minimum=2, is_whole=False)
    assert after is not None
    assert (after.in_sync, after.eligible) == ((2,), ())


def test_unclean_election_takes_who_lives_and_says_so() -> None:
    after = elect_unclean(state(in_sync=(1,)), living(2, 3), minimum=1)
    assert after is not None
    assert (after.leader, after.in_sync, after.eligible, after.epoch, after.unclean_epoch) == (2, (2,), (), 6, 6)
    rather = elect_unclean(state(in_sync=(1, 3), unsure=(3,)), living(2, 3), minimum=1)
    assert rather is not None
    assert rather.leader == 3


def test_unclean_election_is_clean_where_it_can_be() -> None:
    assert elect_unclean(state(), living(1, 2, 3), minimum=2) is None
    after = elect_unclean(state(), living(2, 3), minimum=2)
    assert after is not None
    assert (after.leader, after.unclean_epoch) == (2, -1)
    assert elect_unclean(state(), {}, minimum=2) is None


def test_preferred_leaders_come_back_if_enough_are_away() -> None:
    states = {number: state(leader=2 if number < 9 else 1) for number in range(100)}
    assert prefer(states, living(1, 2, 3)) == []
    states[9] = state(leader=2)
    moved = prefer(states, living(1, 2, 3))
    assert [key for key, _ in moved] == list(range(10))
    assert {(new.leader, new.epoch, new.in_sync) for _, new in moved} == {(1, 6, (1, 2, 3))}


def test_preferred_leaders_move_a_step_at_a_time_and_only_where_they_can() -> None:
    assert len(prefer({number: state(leader=2) for number in range(100)}, living(1, 2, 3))) == CHANGES_A_STEP_MAX
    cannot = {
        "out of sync": (state(leader=2, in_sync=(2, 3)), living(1, 2, 3)),
        "draining": (state(leader=2), living(2, 3, n1=Standing(LIFE, duty=Duty.DRAINING))),
        "full": (state(leader=2), living(2, 3, n1=Standing(LIFE, has_room=False))),
        "dead": (state(leader=2), living(2, 3)),
    }
    for reason, (one, view) in cannot.items():
        assert prefer({0: one}, view) == [], reason


def test_damaged_follower_is_mending_until_it_says_it_is_whole() -> None:
    out = leave(state(), 3, minimum=2, is_whole=False)
    assert out is not None
    assert out.mending == (3,)
    back = mended(out, 3)
    assert back is not None
    assert back.mending == ()
    assert mended(back, 3) is None


def test_damaged_leader_hands_over_to_who_is_eligible_if_nobody_is_in_sync() -> None:
    """It holds all that is committed, and the leader does not."""
    alone = state(in_sync=(1,), eligible=(2,))
    after = hand_over(alone, 1, living(1, 2, 3), minimum=2, is_whole=False)
    assert after is not None
    assert (after.leader, after.in_sync, after.eligible, after.mending) == (2, (2,), (), (1,))
    assert hand_over(alone, 1, living(1, 2, 3), minimum=2, is_whole=True) is None, "two would be as few as one"


def test_damaged_leader_hands_over_to_a_full_one_rather_than_to_nobody() -> None:
    view = {**living(1, 2, 3), 2: Standing(life=2, has_room=False)}
    after = hand_over(state(), 1, view, minimum=2, is_whole=False)
    assert after is not None
    assert after.leader == 3
    after = hand_over(state(in_sync=(1, 2)), 1, view, minimum=2, is_whole=False)
    assert after is not None
    assert after.leader == 2


def test_who_is_damaged_says_so_also_when_it_is_in_no_set() -> None:
    """Or its next fetch would bring it back."""
    after = leave(state(in_sync=(1, 2)), 3, minimum=2, is_whole=False)
    assert after is not None
    assert (after.in_sync, after.mending) == ((1, 2), (3,))
    assert leave(after, 3, minimum=2, is_whole=False) is None
    assert leave(state(in_sync=(1, 2)), 3, minimum=2, is_whole=True) is None
