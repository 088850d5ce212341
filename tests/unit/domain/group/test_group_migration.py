"""A group changes its protocol, empty or with members in it."""

from __future__ import annotations

from penstock.domain.group.commands import (
    ALIVE,
    LEAVE_EPOCH,
    CommitOffsets,
    ConsumerHeartbeat,
    Heartbeat,
    Leave,
    LeavingMember,
    Left,
    OffsetsWritten,
    OffsetToCommit,
)
from penstock.domain.group.subscription import NamedPartitions, read_assignment, write_assignment
from penstock.domain.group.values import Assignment, GroupConfig, GroupError, GroupKind, Migration
from support.group.world_desk import Desk

ORDERS = b"orders".ljust(16, b".")


def orders(*numbers: int) -> Assignment:
    return tuple((ORDERS, number) for number in numbers)


def named(*numbers: int) -> NamedPartitions:
    return (("orders", numbers),)


def classic_pair(config: GroupConfig | None = None) -> Desk:
    """`c1` holds orders 0 and 1, `c2` holds 2 and 3, at generation 2."""
    desk = Desk(config, orders=4)
    desk.join(new_member_id="c1")
    desk.join(new_member_id="c2")
    desk.join("c1")
    given = {"c1": write_assignment(named(0, 1), version=3), "c2": write_assignment(named(2, 3), version=3)}
    desk.sync("c2", 2)
    desk.sync("c1", 2, given)
    return desk


def newcomer(member_id: str = "n") -> ConsumerHeartbeat:
    return ConsumerHeartbeat(member_id, 0, rebalance_timeout_ms=1_000, topic_names=("orders",), owned=())


def assigned(desk: Desk, member_id: str, generation: int) -> NamedPartitions | None:
    return read_assignment(desk.synced(desk.sync(member_id, generation)))


def test_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets() -> None:
    desk = Desk(orders=2)
    desk.ask(CommitOffsets((OffsetToCommit("orders", 0, 7),)))
    generation = desk.settle("c")
    desk.ask(Leave((LeavingMember("c"),)))
    reply = desk.enter("n")
    assert reply.member_epoch > generation, "epochs count on from generations"
    assert desk.group.kind is GroupKind.CONSUMER
    desk.restart()
    assert desk.group.kind is GroupKind.CONSUMER
    stored = desk.group.offsets.get("orders", 0)
    assert stored is not None
    assert stored.offset == 7


def test_empty_consumer_group_becomes_a_classic_group() -> None:
    desk = Desk(orders=2)
    epoch = desk.enter("n").member_epoch
    desk.beat("n", LEAVE_EPOCH)
    joined = desk.joined(desk.join(new_member_id="c"))
    assert joined.generation > epoch
    assert desk.group.kind is GroupKind.CLASSIC
    desk.sync("c", joined.generation, {"c": b"all"})
    desk.restart()
    assert desk.group.kind is GroupKind.CLASSIC
    assert desk.ask(Heartbeat("c", joined.generation)) == ALIVE


def test_classic_members_go_on_when_the_first_of_the_other_protocol_comes() -> None:
    desk = classic_pair()
    assert isinstance(desk.ask(newcomer()), object)
    assert desk.group.kind is GroupKind.CONSUMER
    offsets = (OffsetToCommit("orders", 0, 5),)
    assert isinstance(desk.ask(CommitOffsets(offsets, "c1", 2)), OffsetsWritten), "it still holds what it held"
    assert desk.beat("n", 4).assignment is None, "nothing is free"
    assert desk.refusal(Heartbeat("c1", 2)) is GroupError.REBALANCE_IN_PROGRESS


def test_classic_member_gives_up_what_moves_and_keeps_the_rest() -> None:
    desk = classic_pair()
    desk.ask(newcomer())
    first = desk.joined(desk.join("c1", owned=named(0, 1)))
    kept = assigned(desk, "c1", first.generation)
    second = desk.joined(desk.join("c2", owned=named(2, 3)))
    also_kept = assigned(desk, "c2", second.generation)
    assert kept is not None
    assert also_kept is not None
    held = {number for each in (kept, also_kept) for _topic, numbers in each for number in numbers}
    assert len(held) == 3, "one of four moves"
    loser, generation, rest = (
        ("c1", first.generation, kept) if kept != named(0, 1) else ("c2", second.generation, also_kept)
    )
    assert desk.refusal(Heartbeat(loser, generation)) is GroupError.REBALANCE_IN_PROGRESS
    assert desk.beat("n", 4).assignment is None, "it has not said that it let go"
    again = desk.joined(desk.join(loser, owned=rest))
    assert assigned(desk, loser, again.generation) == rest
    assert desk.ask(Heartbeat(loser, again.generation)) == ALIVE
    (moved,) = desk.beat("n", 4).assignment or ()
    assert moved[1] not in held


def test_eager_classic_member_needs_one_round() -> None:
    desk = classic_pair()
    desk.ask(newcomer())
    for member_id in ("c1", "c2"):
        joined = desk.joined(desk.join(member_id, owned=()))
        assigned(desk, member_id, joined.generation)
        assert desk.ask(Heartbeat(member_id, joined.generation)) == ALIVE
    assert len(desk.beat("n", 4).assignment or ()) == 1


def test_member_that_was_away_must_let_go_first() -> None:
    desk = classic_pair()
    desk.ask(newcomer())
    assert desk.refused(desk.join("stranger", owned=named(0))) is GroupError.UNKNOWN_MEMBER_ID
    assert desk.refused(desk.join("c1", owned=named(0, 3))) is GroupError.UNKNOWN_MEMBER_ID


def test_group_becomes_classic_again_when_the_last_of_the_other_protocol_leaves() -> None:
    desk = classic_pair()
    desk.ask(newcomer())
    desk.beat("n", LEAVE_EPOCH)
    assert desk.group.kind is GroupKind.CLASSIC
    desk.pass_time(0)
    generation = desk.group.classic.generation
    assert desk.refusal(Heartbeat("c1", generation)) is GroupError.REBALANCE_IN_PROGRESS
    desk.join("c1")
    ticket = desk.join("c2")
    assert desk.joined(ticket).generation == generation + 1
    desk.restart()
    assert sorted(desk.group.classic.roster.members) == ["c1", "c2"]


def test_classic_members_leave_a_consumer_group_by_the_classic_request() -> None:
    desk = classic_pair()
    desk.ask(newcomer())
    reply = desk.ask(Leave((LeavingMember("c1"), LeavingMember("n"), LeavingMember("x"))))
    assert isinstance(reply, Left)
    assert [member.error for member in reply.members] == [
        None,
        GroupError.UNKNOWN_MEMBER_ID,
        GroupError.UNKNOWN_MEMBER_ID,
    ]
    reply = desk.beat("n", 4)
    assert len(reply.assignment or ()) == 2, "what c1 held is free"


def test_classic_group_with_members_stays_if_it_may_not_change() -> None:
    desk = classic_pair(GroupConfig(initial_rebalance_delay_ms=0, migration=Migration.DISABLED))
    assert desk.refusal(newcomer()) is GroupError.GROUP_ID_NOT_FOUND
    assert desk.ask(Heartbeat("c1", 2)) == ALIVE


def test_group_of_another_protocol_type_does_not_change() -> None:
    desk = Desk(orders=1)
    desk.join(protocol_type="connect", new_member_id="worker")
    assert desk.refusal(newcomer()) is GroupError.GROUP_ID_NOT_FOUND


def test_members_that_wait_are_told_to_join_again() -> None:
    desk = classic_pair()
    waiting = desk.join("c1", protocols=("range", "sticky"))
    desk.ask(newcomer())
    assert desk.refused(waiting) is GroupError.REBALANCE_IN_PROGRESS


def test_commit_from_before_the_change_does_not_count_of_a_member_that_has_joined_since() -> None:
    """It may be of partitions that the member gave up for the next generation, and that others have by now."""
    desk = classic_pair()
    desk.join("c1", owned=named(0), protocols=("range", "sticky"))
    desk.ask(newcomer())
    offsets = (OffsetToCommit("orders", 1, 5),)
    assert desk.refusal(CommitOffsets(offsets, "c1", 2)) is GroupError.ILLEGAL_GENERATION
    assert isinstance(desk.ask(CommitOffsets(offsets, "c2", 2)), OffsetsWritten)
