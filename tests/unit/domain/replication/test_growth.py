from __future__ import annotations

from penstock.domain.replication.election import choose
from penstock.domain.replication.fetch import Refusal, refuse
from penstock.domain.replication.growth import MOVES_AT_ONCE, add, added, give_up, next_replica
from penstock.domain.replication.placement import PlaceableNode
from penstock.domain.replication.progress import GroupLog, LeaderProgress
from penstock.domain.replication.state import NO_LEADER, PartitionState
from penstock.domain.replication.view import Duty, Standing, View

LIFE = 10
ALL: View = {node: Standing(LIFE) for node in (1, 2, 3)}
PAIR = PartitionState(leader=1, life=LIFE, epoch=5, replicas=(1, 2), in_sync=(1, 2))
ALONE = PartitionState(leader=1, life=LIFE, epoch=5, replicas=(1,), in_sync=(1,))


def grown(state: PartitionState, new: int, view: View = ALL) -> PartitionState:
    after = add(state, new, view)
    assert after is not None
    return after


def test_who_is_added_is_no_replica_before_it_is_in_sync() -> None:
    adding = grown(PAIR, 3)
    assert (adding.adding, adding.replicas, adding.in_sync, adding.epoch) == ((3,), (1, 2), (1, 2), 5)
    assert added(adding) is None


def test_who_is_added_may_fetch_and_join_the_set() -> None:
    adding = grown(PAIR, 3)
    assert refuse(PAIR, ALL, follower=3, life=LIFE, epoch=5) is Refusal.NOT_A_REPLICA
    assert refuse(adding, ALL, follower=3, life=LIFE, epoch=5) is None
    book = LeaderProgress(1, adding, 7, minimum=1, log_ends=(4, 0, 0), watermarks=(4, 0, 0), now_ms=0)
    for log in GroupLog:
        book.on_fetch(3, log, offset=3 if log is GroupLog.DATA else 0, log_start=0, life=LIFE)
    assert book.caught_up(ALL) == []
    book.on_fetch(3, GroupLog.DATA, offset=4, log_start=0, life=LIFE)
    assert book.caught_up(ALL) == [3]


def test_who_was_added_and_is_in_sync_is_a_replica() -> None:
    joined = PartitionState(leader=1, life=LIFE, epoch=5, replicas=(1, 2), in_sync=(1, 2, 3), adding=(3,))
    after = added(joined)
    assert after is not None
    assert (after.replicas, after.adding) == ((1, 2, 3), ())
    preferred = added(joined, first=True)
    assert preferred is not None
    assert preferred.replicas == (3, 1, 2)


def test_single_replica_begins_an_epoch_with_the_first_that_is_added() -> None:
    # It went on over a restart without a key of its own: its life in the state is an earlier one.
    view = {1: Standing(LIFE + 1), 2: Standing(LIFE)}
    after = grown(ALONE, 2, view)
    assert (after.epoch, after.life, after.adding) == (6, LIFE + 1, (2,))
    assert not after.is_led_by(1, LIFE), "nobody goes on in the epoch of an earlier life from now on"
    # The second that is added finds the epoch begun.
    assert grown(after, 3, view | {3: Standing(LIFE)}).epoch == 6


def test_single_replica_that_dies_while_another_is_added_is_elected_anew() -> None:
    adding = grown(ALONE, 2)
    gone = choose(adding, {2: Standing(LIFE)}, minimum=1)
    assert gone is not None
    assert (gone.leader, gone.in_sync) == (NO_LEADER, (1,))
    back = choose(gone, {1: Standing(LIFE + 1), 2: Standing(LIFE)}, minimum=1)
    assert back is not None
    assert (back.leader, back.life, back.epoch) == (1, LIFE + 1, gone.epoch + 1)


def test_nobody_is_added_without_a_leader_to_fetch_from() -> None:
    assert add(PAIR, 3, {2: Standing(LIFE), 3: Standing(LIFE)}) is None
    assert add(PAIR, 3, {1: Standing(LIFE + 1), 3: Standing(LIFE)}) is None
    assert add(PAIR, 3, ALL | {1: Standing(LIFE, duty=Duty.DRAINING)}) is None
    assert add(PAIR, 2, ALL) is None


def test_who_is_away_stays_added_unless_somebody_else_could_be_asked() -> None:
    adding = grown(PAIR, 3)
    assert give_up(adding, {1: Standing(LIFE), 2: Standing(LIFE)}, [1, 2]) is None
    assert give_up(adding, ALL, [1, 2, 3, 4]) is None
    after = give_up(adding, {node: Standing(LIFE) for node in (1, 2, 4)}, [1, 2, 4])
    assert after is not None
    assert after.adding == ()


def test_next_replica_is_in_another_rack_and_where_least_is_held() -> None:
    nodes = [PlaceableNode(1, "a"), PlaceableNode(2, "b"), PlaceableNode(3, "b"), PlaceableNode(4, "c")]
    assert next_replica(PAIR, nodes, {4: 9}, {}) == 4
    assert next_replica(PAIR, nodes, {}, {4: MOVES_AT_ONCE}) == 3
    flat = [PlaceableNode(number) for number in (1, 2, 3, 4)]
    assert next_replica(PAIR, flat, {3: 2, 4: 1}, {}) == 4
    assert next_replica(PAIR, flat[:2], {}, {}) is None
