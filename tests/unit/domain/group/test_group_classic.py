from __future__ import annotations

import pytest

from penstock.domain.group.classic import ClassicState
from penstock.domain.group.commands import (
    ALIVE,
    CommitOffsets,
    Heartbeat,
    Leave,
    LeavingMember,
    Left,
    OffsetToCommit,
    Refused,
    Unload,
)
from penstock.domain.group.records import ClassicGroupStored, GenerationStored
from penstock.domain.group.values import GroupConfig, GroupError
from support.group.world_desk import REBALANCE_MS, SESSION_MS, Desk


def two_that_have_joined(**others: int) -> Desk:
    """At generation 1, before anybody has synced."""
    desk = Desk(GroupConfig(initial_rebalance_delay_ms=1_000))
    tickets = [desk.join(new_member_id=name, **others) for name in ("a", "b")]  # type: ignore[arg-type]
    desk.pass_time(2_000)
    assert [desk.joined(ticket).generation for ticket in tickets] == [1, 1]
    return desk


def test_member_is_first_given_an_id() -> None:
    desk = Desk()
    ticket = desk.join(requires_known_id=True, new_member_id="a1")
    assert desk.answers[ticket] == Refused(GroupError.MEMBER_ID_REQUIRED, "a1")
    assert desk.records == ()
    joined = desk.joined(desk.join("a1", requires_known_id=True))
    assert (joined.member_id, joined.generation, joined.leader) == ("a1", 1, "a1")


def test_id_that_is_not_used_is_forgotten() -> None:
    desk = Desk()
    desk.join(requires_known_id=True, new_member_id="a1")
    desk.pass_time(SESSION_MS)
    assert desk.refused(desk.join("a1")) is GroupError.UNKNOWN_MEMBER_ID


def test_new_group_waits_for_more_members() -> None:
    desk = Desk(GroupConfig(initial_rebalance_delay_ms=3_000))
    first = desk.join(new_member_id="a")
    desk.pass_time(2_000)
    second = desk.join(new_member_id="b")
    desk.pass_time(1_000)
    assert desk.waits(first), "a newcomer draws the wait out"
    desk.pass_time(3_000)
    leader, follower = desk.joined(first), desk.joined(second)
    assert (leader.generation, follower.generation) == (1, 1)
    assert [member.member_id for member in leader.members] == ["a", "b"]
    assert follower.members == ()


def test_newcomers_cannot_draw_the_wait_out_for_ever() -> None:
    desk = Desk(GroupConfig(initial_rebalance_delay_ms=3_000))
    first = desk.join(new_member_id="a", rebalance_timeout_ms=10_000)
    for number in range(6):
        desk.pass_time(2_000)
        desk.join(new_member_id=f"b{number}", rebalance_timeout_ms=10_000)
    assert desk.joined(first).generation == 1


def test_assignment_is_handed_out_once_the_leader_has_sent_it() -> None:
    desk = two_that_have_joined()
    assert desk.records == (GenerationStored(1),)
    waiting = desk.sync("b", 1)
    assert desk.waits(waiting)
    leading = desk.sync("a", 1, {"a": b"mine", "b": b"yours", "stranger": b"?"})
    assert desk.synced(leading) == b"mine"
    assert desk.synced(waiting) == b"yours"
    (record,) = desk.records
    assert isinstance(record, ClassicGroupStored)
    assert {member.member_id: member.assignment for member in record.members} == {"a": b"mine", "b": b"yours"}
    assert desk.group.classic.state is ClassicState.STABLE


def test_member_that_the_leader_forgot_gets_nothing() -> None:
    desk = two_that_have_joined()
    waiting = desk.sync("b", 1)
    desk.sync("a", 1, {"a": b"all"})
    assert desk.synced(waiting) == b""


def test_heartbeat_says_where_the_group_stands() -> None:
    desk = Desk()
    generation = desk.settle("a")
    assert desk.ask(Heartbeat("a", generation)) == ALIVE
    assert desk.refusal(Heartbeat("a", generation - 1)) is GroupError.ILLEGAL_GENERATION
    assert desk.refusal(Heartbeat("x", generation)) is GroupError.UNKNOWN_MEMBER_ID
    desk.join(new_member_id="b")
    assert desk.refusal(Heartbeat("a", generation)) is GroupError.REBALANCE_IN_PROGRESS


def test_group_rebalances_for_a_newcomer_when_all_have_joined() -> None:
    desk = Desk()
    desk.settle("a")
    newcomer = desk.join(new_member_id="b")
    assert desk.waits(newcomer)
    desk.join("a")
    assert desk.joined(newcomer).generation == 2


def test_member_that_does_not_rejoin_in_time_is_out() -> None:
    desk = Desk()
    desk.settle("a")
    newcomer = desk.join(new_member_id="b")
    for _ in range(REBALANCE_MS // 5_000):
        desk.ask(Heartbeat("a", 1))
        desk.pass_time(5_000)
    assert desk.joined(newcomer).generation == 2
    assert desk.refusal(Heartbeat("a", 1)) is GroupError.UNKNOWN_MEMBER_ID


def test_silent_member_is_out_and_the_others_rebalance() -> None:
    desk = Desk()
    generation = desk.settle("a", "b")
    for _ in range(3):
        desk.pass_time(4_000)
        desk.ask(Heartbeat("a", generation))
    assert desk.refusal(Heartbeat("a", generation)) is GroupError.REBALANCE_IN_PROGRESS
    assert list(desk.group.classic.roster.members) == ["a"]


def test_commit_shows_life() -> None:
    desk = Desk()
    generation = desk.settle("a")
    for _ in range(5):
        desk.pass_time(4_000)
        desk.ask(CommitOffsets((OffsetToCommit("orders", 0, 1),), "a", generation))
    assert desk.ask(Heartbeat("a", generation)) == ALIVE


def test_member_that_does_not_sync_in_time_is_out() -> None:
    desk = two_that_have_joined(session_timeout_ms=100_000)
    desk.sync("a", 1, {"a": b"", "b": b""})
    desk.pass_time(REBALANCE_MS)
    assert list(desk.group.classic.roster.members) == ["a"]
    assert desk.refusal(Heartbeat("a", 1)) is GroupError.REBALANCE_IN_PROGRESS


def test_last_member_that_leaves_leaves_an_empty_generation() -> None:
    desk = Desk()
    desk.settle("a")
    assert desk.ask(Leave((LeavingMember("a"),)))
    (record,) = desk.records
    assert isinstance(record, ClassicGroupStored)
    assert (record.generation, record.members, record.protocol_type) == (2, (), "consumer")
    assert desk.group.is_empty
    assert desk.group.exists, "its offsets live on for a while"


def test_leaving_is_answered_one_by_one() -> None:
    desk = Desk()
    desk.settle("a", "b", "static1")
    reply = desk.ask(
        Leave((LeavingMember("a"), LeavingMember("x"), LeavingMember("", "static1"), LeavingMember("b", "static1")))
    )
    assert isinstance(reply, Left)
    assert [member.error for member in reply.members] == [
        None,
        GroupError.UNKNOWN_MEMBER_ID,
        None,
        GroupError.UNKNOWN_MEMBER_ID,
    ]
    assert list(desk.group.classic.roster.members) == ["b"]


def test_static_member_comes_back_without_a_rebalance() -> None:
    desk = Desk()
    generation = desk.settle("a", "static1")
    back = desk.joined(desk.join(instance_id="static1", new_member_id="again"))
    assert (back.generation, back.member_id) == (generation, "again")
    assert desk.synced(desk.sync("again", generation, instance_id="static1")) == b"for static1"
    assert desk.refusal(Heartbeat("static1", generation, "static1")) is GroupError.FENCED_INSTANCE_ID
    assert desk.ask(Heartbeat("a", generation)) == ALIVE
    desk.restart()
    assert desk.ask(Heartbeat("again", generation, "static1")) == ALIVE, "the new id is kept"


def test_static_leader_that_comes_back_must_not_assign_anew() -> None:
    desk = Desk()
    desk.settle("static1", "a")
    back = desk.joined(desk.join(instance_id="static1", new_member_id="again"))
    assert (back.leader, back.skip_assignment) == ("again", True)
    older = desk.joined(desk.join(instance_id="static1", new_member_id="third", supports_skip_assignment=False))
    assert (older.leader, older.members, older.skip_assignment) == ("again", (), False), (
        "it takes another for the leader"
    )


def test_static_member_that_comes_back_while_others_wait_for_its_partitions_makes_the_group_rebalance() -> None:
    desk = Desk()
    desk.join(instance_id="static1", new_member_id="s", owned=(("orders", (0, 1)),))
    desk.sync("s", 1, {"s": b""})
    again = desk.join(instance_id="static1", new_member_id="s2")
    assert desk.joined(again).generation == 2


def test_static_member_that_missed_a_round_must_let_go_first() -> None:
    desk = Desk()
    desk.settle("a", "static1")
    desk.join("a", protocols=("range", "sticky"), session_timeout_ms=100_000)
    for _ in range(4):
        desk.pass_time(SESSION_MS - 1)
        if "static1" in desk.group.classic.roster.members:
            desk.ask(Heartbeat("static1", 2, "static1"))
    assert desk.group.classic.generation == 3
    assert desk.refused(desk.join("static1", instance_id="static1")) is GroupError.UNKNOWN_MEMBER_ID
    assert desk.waits(desk.join(instance_id="static1", new_member_id="again")), "by its instance id it is welcome"


def test_old_static_process_is_cut_off_while_it_waits() -> None:
    desk = Desk()
    desk.settle("a", "static1")
    desk.join(new_member_id="b")
    waiting = desk.join("static1", instance_id="static1")
    desk.join(instance_id="static1", new_member_id="again")
    assert desk.refused(waiting) is GroupError.FENCED_INSTANCE_ID


def test_protocol_that_most_prefer_and_all_have_is_chosen() -> None:
    desk = Desk(GroupConfig(initial_rebalance_delay_ms=1_000))
    tickets = [
        desk.join(new_member_id="a", protocols=("range", "sticky")),
        desk.join(new_member_id="b", protocols=("odd", "sticky", "range")),
        desk.join(new_member_id="c", protocols=("sticky", "range")),
    ]
    desk.pass_time(2_000)
    assert {desk.joined(ticket).protocol for ticket in tickets} == {"sticky"}


@pytest.mark.parametrize(
    "wish",
    [{"protocols": ("sticky",)}, {"protocol_type": "connect"}, {"protocol_type": ""}, {"protocols": ()}],
    ids=str,
)
def test_member_without_a_common_protocol_is_refused(wish: dict[str, object]) -> None:
    desk = Desk()
    desk.settle("a")
    ticket = desk.join(**wish)  # type: ignore[arg-type]
    assert desk.refused(ticket) is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_session_timeout_has_limits() -> None:
    desk = Desk()
    assert desk.refused(desk.join(session_timeout_ms=5)) is GroupError.INVALID_SESSION_TIMEOUT


def test_full_group_takes_nobody_in() -> None:
    desk = Desk(GroupConfig(initial_rebalance_delay_ms=0, classic_members_max=2))
    desk.settle("a", "b")
    assert desk.refused(desk.join(new_member_id="c")) is GroupError.GROUP_MAX_SIZE_REACHED


def test_leader_can_make_a_stable_group_rebalance_and_a_follower_cannot() -> None:
    desk = Desk()
    generation = desk.settle("a", "b")
    assert desk.joined(desk.join("b")).generation == generation
    assert desk.waits(desk.join("a"))


def test_lost_join_answer_is_given_again() -> None:
    desk = Desk()
    desk.join(new_member_id="a")
    again = desk.joined(desk.join("a"))
    assert (again.generation, again.leader) == (1, "a")


def test_request_that_is_asked_again_ends_the_first_one() -> None:
    desk = Desk()
    desk.settle("a", "b")
    first = desk.join("a")
    second = desk.join("a")
    assert desk.refused(first) is GroupError.REBALANCE_IN_PROGRESS
    assert desk.waits(second)


def test_waiting_sync_is_told_when_the_group_rebalances_again() -> None:
    desk = two_that_have_joined()
    waiting = desk.sync("b", 1)
    desk.join(new_member_id="c")
    assert desk.refused(waiting) is GroupError.REBALANCE_IN_PROGRESS


def test_sync_of_another_generation_or_protocol_is_refused() -> None:
    desk = Desk()
    generation = desk.settle("a")
    assert desk.refused(desk.sync("a", generation + 1)) is GroupError.ILLEGAL_GENERATION
    assert desk.refused(desk.sync("a", generation, protocol="sticky")) is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert desk.refused(desk.sync("x", generation)) is GroupError.UNKNOWN_MEMBER_ID


def test_after_a_restart_a_stable_group_goes_on() -> None:
    desk = Desk()
    generation = desk.settle("a", "b")
    desk.restart()
    assert desk.ask(Heartbeat("a", generation)) == ALIVE
    assert desk.synced(desk.sync("b", generation)) == b"for b"


def test_number_of_an_unfinished_generation_is_not_used_again() -> None:
    desk = Desk()
    desk.settle("a")
    assert desk.joined(desk.join("a", protocols=("range", "sticky"))).generation == 2
    desk.restart()
    assert desk.refused(desk.sync("a", 2)) is GroupError.ILLEGAL_GENERATION
    assert desk.joined(desk.join("a", protocols=("range", "sticky", "third"))).generation == 3


def test_ghost_of_before_the_restart_goes_with_its_session() -> None:
    desk = Desk()
    desk.settle("a")
    desk.restart()
    desk.pass_time(SESSION_MS)
    assert desk.group.is_empty


def test_whoever_waits_is_told_when_another_node_takes_over() -> None:
    desk = Desk()
    desk.settle("a")
    waiting = desk.join(new_member_id="b")
    desk.ask(Unload())
    assert desk.refused(waiting) is GroupError.NOT_COORDINATOR


def test_commit_of_another_generation_is_refused() -> None:
    desk = Desk()
    generation = desk.settle("a")
    offsets = (OffsetToCommit("orders", 0, 5),)
    assert desk.refusal(CommitOffsets(offsets, "a", generation - 1)) is GroupError.ILLEGAL_GENERATION
    assert desk.refusal(CommitOffsets(offsets, "x", generation)) is GroupError.UNKNOWN_MEMBER_ID
    assert desk.refusal(CommitOffsets(offsets)) is GroupError.UNKNOWN_MEMBER_ID, "an operator has to wait"
    desk.join("a", protocols=("range", "sticky"))
    assert desk.refusal(CommitOffsets(offsets, "a", generation + 1)) is GroupError.REBALANCE_IN_PROGRESS


def test_connect_and_others_bring_their_own_protocol() -> None:
    desk = Desk()
    ticket = desk.join(protocol_type="connect", new_member_id="worker")
    assert desk.joined(ticket).protocol_type == "connect"
    assert desk.group.classic.subscribed_topics() is None
