from __future__ import annotations

from penstock.domain.replication.progress import GroupLog, Join, LeaderProgress, Propose
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import Duty, Standing, View

LIFE = 10
LAG_MS = 10_000
EVERYBODY: View = {node: Standing(LIFE) for node in (1, 2, 3)}


def state(in_sync: tuple[int, ...] = (1, 2, 3), **changes: object) -> PartitionState:
    fields = {"leader": 1, "life": LIFE, "epoch": 5, "replicas": (1, 2, 3), "in_sync": in_sync, **changes}
    return PartitionState(**fields)  # type: ignore[arg-type]


def leading(first: PartitionState, *, minimum: int = 2, ends: tuple[int, int, int] = (0, 0, 0)) -> LeaderProgress:
    return LeaderProgress(1, first, 100, minimum=minimum, log_ends=ends, watermarks=(0, 0, 0), now_ms=0)


def ask(progress: LeaderProgress, node: int, *offsets: int, life: int = LIFE) -> None:
    for log, offset in enumerate(offsets):
        progress.on_fetch(node, log, offset=offset, log_start=0, life=life)


def own(progress: LeaderProgress, *ends: int) -> None:
    for log, end in enumerate(ends):
        progress.on_own_end(log, end)


def test_watermark_is_the_lowest_end_over_the_set() -> None:
    progress = leading(state())
    assert not progress.on_own_end(GroupLog.DATA, 10)
    ask(progress, 2, 8, 0, 0)
    assert progress.watermarks == [0, 0, 0]
    assert progress.on_fetch(3, GroupLog.DATA, offset=5, log_start=0, life=LIFE)
    assert progress.watermarks == [5, 0, 0]


def test_leader_counts_for_what_it_cannot_lose() -> None:
    progress = leading(state((1, 2)), ends=(10, 0, 0))
    ask(progress, 2, 10, 0, 0)
    assert progress.watermarks[0] == 0
    assert progress.on_own_end(GroupLog.DATA, 7)
    assert progress.watermarks[0] == 7


def test_watermark_does_not_go_back() -> None:
    progress = leading(state((1, 2)))
    own(progress, 10, 0, 0)
    ask(progress, 2, 10, 0, 0)
    ask(progress, 2, 4, 0, 0)
    assert progress.watermarks[0] == 10


def test_who_is_outside_the_set_is_not_waited_for() -> None:
    progress = leading(state((1, 2)))
    own(progress, 10, 0, 0)
    ask(progress, 2, 9, 0, 0)
    ask(progress, 3, 1, 0, 0)
    assert progress.watermarks[0] == 9


def test_single_replica_commits_by_itself() -> None:
    progress = leading(state((1,), replicas=(1,)), minimum=1)
    assert progress.on_own_end(GroupLog.SCHEDULE, 3)
    assert progress.watermarks == [0, 0, 3]
    assert progress.propose(0, LAG_MS, EVERYBODY) is None


def test_watermark_stands_still_below_the_minimum_and_moves_when_that_is_lowered() -> None:
    progress = leading(state((1,)))
    own(progress, 10, 0, 0)
    assert progress.watermarks[0] == 0
    assert not progress.is_writable
    assert progress.on_minimum(1)
    assert progress.watermarks[0] == 10


def test_eligible_are_emptied_before_the_watermark_moves() -> None:
    progress = leading(state((1,), eligible=(2,)), minimum=1)
    own(progress, 10, 0, 0)
    assert progress.watermarks[0] == 0
    proposal = progress.propose(0, LAG_MS, EVERYBODY)
    assert proposal == Propose(state((1,)), 100)
    assert progress.watermarks[0] == 0
    assert progress.on_stored(proposal.state, 101)
    assert progress.watermarks[0] == 10


def test_follower_that_lags_is_proposed_to_leave_and_counts_until_confirmed() -> None:
    progress = leading(state())
    own(progress, 10, 0, 0)
    ask(progress, 2, 10, 0, 0)
    ask(progress, 3, 4, 0, 0)
    progress.on_time(1_000, (10, 0, 0))
    ask(progress, 2, 10, 0, 0)
    assert progress.behind(11_000, LAG_MS) == []
    assert progress.behind(11_001, LAG_MS) == [3]
    proposal = progress.propose(11_001, LAG_MS, EVERYBODY)
    assert proposal == Propose(state((1, 2)), 100)
    assert progress.watermarks[0] == 4
    progress.on_stored(proposal.state, 101)
    assert progress.watermarks[0] == 10


def test_who_leaves_below_the_minimum_becomes_eligible() -> None:
    progress = leading(state((1, 3)))
    progress.on_time(0, (1, 0, 0))
    proposal = progress.propose(10_001, LAG_MS, EVERYBODY)
    assert proposal is not None
    assert (proposal.state.in_sync, proposal.state.eligible) == ((1,), (3,))


def test_follower_of_an_idle_log_does_not_lag_by_the_first_append_after_long() -> None:
    progress = leading(state((1, 2)))
    ask(progress, 2, 0, 0, 0)
    progress.on_time(100_000, (0, 0, 0))
    progress.on_time(101_000, (5, 0, 0))
    assert progress.behind(102_000, LAG_MS) == []


def test_lag_in_any_log_counts() -> None:
    progress = leading(state((1, 2)))
    ask(progress, 2, 5, 0, 0)
    progress.on_time(0, (5, 0, 3))
    ask(progress, 2, 9, 0, 0)
    assert progress.behind(10_001, LAG_MS) == [2]


def test_caught_up_follower_is_waited_for_before_the_proposal_leaves() -> None:
    progress = leading(state((1, 2)))
    own(progress, 10, 0, 0)
    ask(progress, 2, 10, 0, 0)
    ask(progress, 3, 10, 0, 0)
    proposal = progress.propose(0, LAG_MS, EVERYBODY)
    assert proposal == Propose(state(), 100, (Join(3, LIFE),))
    own(progress, 20, 0, 0)
    ask(progress, 2, 20, 0, 0)
    assert progress.watermarks[0] == 10
    ask(progress, 3, 15, 0, 0)
    assert progress.watermarks[0] == 15


def test_back_at_the_minimum_nobody_stays_eligible() -> None:
    progress = leading(state((1,), eligible=(2, 3)))
    ask(progress, 2, 0, 0, 0)
    proposal = progress.propose(0, LAG_MS, EVERYBODY)
    assert proposal is not None
    assert (proposal.state.in_sync, proposal.state.eligible) == ((1, 2), ())


def test_follower_joins_only_if_nothing_speaks_against_it() -> None:
    def joins(first: PartitionState, view: View, *held: int, life: int = LIFE) -> bool:
        progress = leading(first, ends=(10, 2, 3))
        own(progress, 10, 2, 3)
        ask(progress, 2, 10, 2, 3)
        ask(progress, 3, *held, life=life)
        return bool(progress.caught_up(view))

    alone = state((1, 2))
    assert joins(alone, EVERYBODY, 10, 2, 3)
    assert not joins(alone, EVERYBODY, 9, 2, 3)
    assert not joins(alone, EVERYBODY, 10, 2, 2)
    assert not joins(alone, EVERYBODY, 10, 2)
    assert not joins(alone, EVERYBODY, 10, 2, 3, life=9)
    assert not joins(alone, {1: Standing(LIFE)}, 10, 2, 3)
    assert not joins(alone, {**EVERYBODY, 3: Standing(LIFE, duty=Duty.DRAINING)}, 10, 2, 3)
    assert not joins(alone, {**EVERYBODY, 3: Standing(LIFE, is_admitted=False)}, 10, 2, 3)
    assert not joins(state((1, 2), mending=(3,)), EVERYBODY, 10, 2, 3)
    assert not joins(state((1, 2), replicas=(1, 2)), EVERYBODY, 10, 2, 3)


def test_new_life_of_a_follower_holds_nothing_yet() -> None:
    progress = leading(state((1, 2)))
    ask(progress, 3, 0, 0, 0)
    assert progress.caught_up(EVERYBODY) == [3]
    reborn = {**EVERYBODY, 3: Standing(11)}
    progress.on_fetch(3, GroupLog.DATA, offset=0, log_start=0, life=11)
    assert progress.caught_up(reborn) == []
    ask(progress, 3, 0, 0, 0, life=11)
    assert progress.caught_up(reborn) == [3]


def test_who_was_dropped_has_to_ask_again_before_it_joins() -> None:
    progress = leading(state((1, 2)), minimum=1)
    ask(progress, 2, 0, 0, 0)
    progress.on_time(0, (0, 0, 0))
    progress.on_time(1, (5, 0, 0))
    proposal = progress.propose(20_000, LAG_MS, EVERYBODY)
    assert proposal is not None
    progress.on_stored(proposal.state, 101)
    assert progress.propose(20_001, LAG_MS, EVERYBODY) is None
    ask(progress, 2, 0, 0, 0)
    assert progress.propose(20_002, LAG_MS, EVERYBODY) is not None


def test_one_proposal_at_a_time() -> None:
    progress = leading(state((1,), eligible=(2,)), minimum=1)
    assert progress.propose(0, LAG_MS, EVERYBODY) is not None
    assert progress.propose(0, LAG_MS, EVERYBODY) is None


def test_nothing_is_proposed_until_the_key_was_read() -> None:
    progress = leading(state((1,), eligible=(2,)), minimum=1)
    proposal = progress.propose(0, LAG_MS, EVERYBODY)
    assert proposal is not None
    progress.on_unknown(proposal)
    assert progress.must_read
    assert progress.propose(0, LAG_MS, EVERYBODY) is None
    progress.on_read(state((1,), eligible=(2,)), 100)
    assert progress.propose(0, LAG_MS, EVERYBODY) == proposal


def test_who_may_still_join_by_a_lost_proposal_is_waited_for_until_it_cannot() -> None:
    progress = leading(state((1, 2)))
    ask(progress, 2, 0, 0, 0)
    ask(progress, 3, 0, 0, 0)
    lost = progress.propose(0, LAG_MS, EVERYBODY)
    assert lost is not None
    progress.on_unknown(lost)
    progress.on_read(state((1, 2)), 100)
    own(progress, 5, 0, 0)
    ask(progress, 2, 5, 0, 0)
    assert progress.watermarks[0] == 0
    # Node 3 is gone, so there is nothing to change: the same state at a later revision makes the lost one fail.
    settled = progress.propose(0, LAG_MS, {1: Standing(LIFE), 2: Standing(LIFE)})
    assert settled == Propose(state((1, 2)), 100)
    assert progress.on_stored(state((1, 2)), 101)
    assert progress.watermarks[0] == 5


def test_outcome_of_an_old_proposal_says_nothing() -> None:
    progress = leading(state((1,), eligible=(2,)), minimum=1)
    proposal = progress.propose(0, LAG_MS, EVERYBODY)
    assert proposal is not None
    progress.on_stored(proposal.state, 101)
    progress.on_unknown(proposal)
    assert not progress.must_read
    assert not progress.on_stored(state((1, 2, 3)), 100)
    assert progress.state == proposal.state


def test_barrier_is_reached_when_all_three_logs_are_committed_to_where_the_epoch_began() -> None:
    progress = leading(state((1, 2)), ends=(4, 0, 2))
    own(progress, 4, 0, 2)
    ask(progress, 2, 4, 0, 1)
    assert not progress.has_barrier
    ask(progress, 2, 4, 0, 2)
    assert progress.has_barrier


def looks(progress: LeaderProgress, view: View, followed_ms: dict[int, int], *, is_held: bool = False) -> bool:
    return progress.may_answer_looks(10_000, view, followed_ms, is_held=is_held)


def test_looks_are_answered_while_every_living_member_was_just_heard() -> None:
    progress = leading(state((1, 2), eligible=(3,)))
    assert looks(progress, EVERYBODY, {2: 9_000, 3: 9_500})
    assert not looks(progress, EVERYBODY, {2: 9_000, 3: 8_999})
    assert not looks(progress, EVERYBODY, {2: 9_000})
    assert looks(progress, {1: Standing(LIFE), 2: Standing(LIFE)}, {2: 9_000}, is_held=True)


def test_looks_wait_for_the_session_where_a_member_is_not_there() -> None:
    # It may have come back, been elected and have committed by itself, if nobody tells this leader anything.
    progress = leading(state((1, 2), eligible=(3,)))
    assert not looks(progress, {1: Standing(LIFE), 2: Standing(LIFE)}, {2: 9_000}, is_held=False)


def test_looks_wait_for_who_is_about_to_join() -> None:
    # The store may have let it in and elected it, while this leader does not know how its proposal ended.
    progress = leading(state((1, 2)))
    ask(progress, 3, 0, 0, 0)
    assert progress.propose(0, LAG_MS, EVERYBODY) is not None
    assert not looks(progress, EVERYBODY, {2: 9_900}, is_held=True)
    assert looks(progress, EVERYBODY, {2: 9_900, 3: 9_900})


def test_alone_looks_are_answered_while_the_session_is_surely_there() -> None:
    progress = leading(state((1,)), minimum=1)
    assert looks(progress, EVERYBODY, {}, is_held=True)
    assert not looks(progress, EVERYBODY, {}, is_held=False)


def test_log_start_is_told_when_every_member_has_it() -> None:
    progress = leading(state((1, 2)))
    assert progress.told_log_start(GroupLog.DATA, 5) == -1
    progress.on_fetch(2, GroupLog.DATA, offset=9, log_start=3, life=LIFE)
    assert progress.told_log_start(GroupLog.DATA, 5) == 3
    progress.on_fetch(2, GroupLog.DATA, offset=9, log_start=7, life=LIFE)
    assert progress.told_log_start(GroupLog.DATA, 5) == 5
