from __future__ import annotations

import pytest

from penstock.domain.group.commands import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    CommitOffsets,
    ConsumerHeartbeat,
    FetchOffsets,
    OffsetsWritten,
    OffsetToCommit,
)
from penstock.domain.group.consumer import ConsumerState
from penstock.domain.group.records import TargetStored
from penstock.domain.group.settings import member_config
from penstock.domain.group.values import Assignment, GroupConfig, GroupError, heartbeat_interval_ms
from support.group.world_desk import REBALANCE_MS, Desk

ORDERS = b"orders".ljust(16, b".")


def orders(*numbers: int) -> Assignment:
    return tuple((ORDERS, number) for number in numbers)


def joining(member_id: str, **wishes: object) -> ConsumerHeartbeat:
    given: dict[str, object] = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": ("orders",), "owned": ()}
    return ConsumerHeartbeat(member_id, 0, **{**given, **wishes})  # type: ignore[arg-type]


def two_settled() -> Desk:
    """`a` holds orders 0 and 1, `b` holds 2 and 3; both at epoch 2."""
    desk = Desk(orders=4)
    desk.enter("a")
    desk.enter("b")
    desk.beat("a", 1, orders(0, 1, 2, 3))
    desk.beat("a", 1, orders(0, 1))
    assert desk.beat("b", 2).assignment == orders(2, 3)
    assert desk.group.consumer is not None
    assert desk.group.consumer.state() is ConsumerState.STABLE
    return desk


def test_first_member_gets_everything_at_once() -> None:
    desk = Desk(orders=4)
    reply = desk.enter("a")
    assert (reply.member_epoch, reply.assignment, reply.heartbeat_interval_ms) == (1, orders(0, 1, 2, 3), 500)


def test_heartbeat_without_news_says_and_stores_nothing() -> None:
    desk = two_settled()
    reply = desk.beat("a", 2)
    assert (reply.assignment, desk.records) == (None, ())


def test_only_partitions_that_move_stop() -> None:
    desk = Desk(orders=4)
    desk.enter("a")
    newcomer = desk.enter("b")
    assert (newcomer.member_epoch, newcomer.assignment) == (2, ()), "what it shall have is not free yet"
    told = desk.beat("a", 1, orders(0, 1, 2, 3))
    assert (told.member_epoch, told.assignment) == (1, orders(0, 1)), "it keeps two, and gives two up"
    assert desk.beat("b", 2).assignment is None
    assert desk.beat("a", 1).assignment is None, "silence is no confirmation"
    assert desk.beat("a", 1, orders(0, 1)).member_epoch == 2
    assert desk.beat("b", 2).assignment == orders(2, 3)


def test_partition_that_was_given_a_moment_ago_is_asked_back_before_another_gets_it() -> None:
    desk = Desk(orders=2)
    desk.enter("a")
    desk.enter("b")
    desk.beat("a", 1, ())  # it has not got round to what it was told at first
    assert desk.beat("b", 2).assignment is None
    desk.beat("a", 1, orders(0))
    assert desk.beat("b", 2).assignment == orders(1)


def test_member_that_leaves_frees_its_partitions_at_once() -> None:
    desk = two_settled()
    assert desk.beat("b", LEAVE_EPOCH).member_epoch == LEAVE_EPOCH
    reply = desk.beat("a", 2)
    assert (reply.member_epoch, reply.assignment) == (3, orders(0, 1, 2, 3))


def test_silent_member_is_out_after_its_session() -> None:
    desk = two_settled()
    for _ in range(9):
        desk.pass_time(5_000)
        desk.beat("a", desk.group.consumer.current("a").epoch if desk.group.consumer else 0)
    assert desk.beat("a", 3, orders(0, 1)).member_epoch == 3
    assert desk.refusal(ConsumerHeartbeat("b", 2)) is GroupError.UNKNOWN_MEMBER_ID


def test_member_that_does_not_let_go_in_time_is_out_though_it_is_alive() -> None:
    desk = Desk(orders=2)
    desk.enter("a")
    desk.enter("b")
    for _ in range(4):
        desk.beat("a", 1, orders(0, 1))
        desk.beat("b", 2)
        desk.pass_time(REBALANCE_MS // 4)
    assert desk.refusal(ConsumerHeartbeat("a", 1)) is GroupError.UNKNOWN_MEMBER_ID
    assert desk.beat("b", 2).assignment == orders(0, 1)


def test_answer_that_was_lost_is_given_again() -> None:
    desk = Desk(orders=4)
    desk.enter("a")
    desk.enter("b")
    desk.beat("a", 1, orders(0, 1, 2, 3))
    desk.beat("a", 1, orders(0, 1))  # it is at epoch 2 now, and does not hear of it
    again = desk.beat("a", 1, orders(0, 1), rebalance_timeout_ms=REBALANCE_MS, topic_names=("orders",))
    assert (again.member_epoch, again.assignment) == (2, orders(0, 1))


@pytest.mark.parametrize(("epoch", "owned"), [(1, None), (1, orders(2)), (7, orders(0))], ids=str)
def test_member_at_another_epoch_is_fenced(epoch: int, owned: Assignment | None) -> None:
    desk = two_settled()
    assert desk.refusal(ConsumerHeartbeat("a", epoch, owned=owned)) is GroupError.FENCED_MEMBER_EPOCH


def test_fenced_member_joins_again_with_nothing() -> None:
    desk = two_settled()
    reply = desk.enter("a")
    assert (reply.member_epoch, reply.assignment) == (2, orders(0, 1))
    assert desk.group.consumer is not None
    assert desk.group.consumer.epoch == 2, "nothing has changed for the others"


def test_unknown_member_is_told_so() -> None:
    desk = Desk(orders=1)
    assert desk.refusal(ConsumerHeartbeat("a", 5)) is GroupError.UNKNOWN_MEMBER_ID
    desk.enter("b")
    assert desk.refusal(ConsumerHeartbeat("a", 5)) is GroupError.UNKNOWN_MEMBER_ID
    assert desk.refusal(ConsumerHeartbeat("a", LEAVE_EPOCH)) is GroupError.UNKNOWN_MEMBER_ID


def test_member_without_an_id_is_given_one() -> None:
    desk = Desk(orders=1)
    assert desk.enter("", new_member_id="given").member_id == "given"


def test_static_member_that_leaves_for_a_while_keeps_its_partitions() -> None:
    desk = Desk(orders=4)
    desk.enter("s1", instance_id="one")
    desk.enter("b")
    desk.beat("s1", 1, orders(0, 1, 2, 3), instance_id="one")
    desk.beat("s1", 1, orders(0, 1), instance_id="one")
    desk.beat("b", 2)
    assert desk.refusal(joining("s2", instance_id="one")) is GroupError.UNRELEASED_INSTANCE_ID
    desk.beat("s1", STATIC_LEAVE_EPOCH, instance_id="one")
    assert desk.beat("b", 2).assignment is None
    back = desk.enter("s2", instance_id="one")
    assert (back.member_epoch, back.assignment) == (2, orders(0, 1))
    stale = ConsumerHeartbeat("s1", 2, instance_id="one")
    assert desk.refusal(stale) is GroupError.FENCED_INSTANCE_ID
    desk.restart()
    assert desk.beat("s2", 2, instance_id="one").member_epoch == 2


def test_static_member_that_comes_back_to_a_smaller_share_need_not_give_up_what_it_has_not() -> None:
    desk = Desk(orders=2)
    desk.enter("s1", instance_id="one")
    desk.beat("s1", STATIC_LEAVE_EPOCH, instance_id="one")
    desk.enter("b")
    back = desk.enter("s2", instance_id="one")
    assert (back.member_epoch, len(back.assignment or ())) == (2, 1)
    assert len(desk.beat("b", 2).assignment or ()) == 1


def test_static_member_that_does_not_come_back_loses_its_place() -> None:
    desk = Desk(orders=2)
    desk.enter("s1", instance_id="one")
    desk.beat("s1", STATIC_LEAVE_EPOCH, instance_id="one")
    desk.pass_time(45_000)
    assert desk.group.is_empty


def test_static_member_that_leaves_for_good_is_gone_at_once() -> None:
    desk = Desk(orders=2)
    desk.enter("s1", instance_id="one")
    desk.beat("s1", LEAVE_EPOCH, instance_id="one")
    assert desk.group.is_empty


def test_topic_that_grows_or_appears_is_shared_out() -> None:
    desk = Desk(orders=1)
    assert desk.enter("a", "orders", "payments").assignment == orders(0)
    desk.topics.set("orders", 2)
    reply = desk.beat("a", 1)
    assert (reply.member_epoch, reply.assignment) == (2, orders(0, 1))
    desk.topics.set("payments", 1)
    assert len(desk.beat("a", 2).assignment or ()) == 3


def test_topic_that_nobody_reads_changes_nothing() -> None:
    desk = two_settled()
    desk.topics.set("other", 9)
    assert (desk.beat("a", 2).member_epoch, desk.records) == (2, ())


def test_topics_can_be_named_by_an_expression() -> None:
    desk = Desk(orders=1)
    desk.enter("a", "orders", topic_regex="pay")
    desk.topics.set("payments", 2)
    assert len(desk.beat("a", 1).assignment or ()) == 3


def test_subscription_that_changes_moves_partitions() -> None:
    desk = Desk(orders=2, payments=1)
    desk.enter("a", "orders")
    told = desk.beat("a", 1, topic_names=("payments",))
    assert (told.member_epoch, told.assignment) == (1, ())
    payments = (b"payments".ljust(16, b"."), 0)
    assert desk.beat("a", 1, ()).assignment == (payments,)


def test_most_votes_choose_the_assignor() -> None:
    desk = Desk(orders=4)
    desk.enter("a", assignor="range")
    desk.enter("b", assignor="range")
    assert {record.member_id: record.partitions for record in desk.log if isinstance(record, TargetStored)} == {
        "a": orders(0, 1),
        "b": orders(2, 3),
    }


@pytest.mark.parametrize(
    ("wishes", "error"),
    [
        ({"rebalance_timeout_ms": -1}, GroupError.INVALID_REQUEST),
        ({"owned": None}, GroupError.INVALID_REQUEST),
        ({"owned": orders(1)}, GroupError.INVALID_REQUEST),
        ({"topic_names": ()}, GroupError.INVALID_REQUEST),
        ({"instance_id": ""}, GroupError.INVALID_REQUEST),
        ({"member_epoch": STATIC_LEAVE_EPOCH}, GroupError.INVALID_REQUEST),
        ({"member_epoch": -3}, GroupError.INVALID_REQUEST),
        ({"member_epoch": LEAVE_EPOCH, "member_id": ""}, GroupError.INVALID_REQUEST),
        ({"assignor": "magic"}, GroupError.UNSUPPORTED_ASSIGNOR),
        ({"topic_regex": "x" * 2_000}, GroupError.INVALID_REGULAR_EXPRESSION),
    ],
    ids=str,
)
def test_request_that_makes_no_sense_is_refused(wishes: dict[str, object], error: GroupError) -> None:
    desk = Desk(orders=1)
    desk.enter("somebody")
    given = {"member_id": "a", "member_epoch": 0, "rebalance_timeout_ms": 1, "topic_names": ("orders",), "owned": ()}
    command = ConsumerHeartbeat(**{**given, **wishes})  # type: ignore[arg-type]
    assert desk.refusal(command) is error
    assert desk.records == ()


def test_full_group_takes_nobody_in() -> None:
    desk = Desk(GroupConfig(consumer_members_max=1), orders=1)
    desk.enter("a")
    assert desk.refusal(joining("b")) is GroupError.GROUP_MAX_SIZE_REACHED


def test_heartbeats_of_a_large_group_come_more_slowly() -> None:
    config = GroupConfig()
    assert [heartbeat_interval_ms(config, count) for count in (1, 200, 400, 9_999)] == [500, 500, 1_000, 15_000]


def test_commit_of_another_epoch_is_refused() -> None:
    desk = two_settled()
    offsets = (OffsetToCommit("orders", 0, 5),)
    assert isinstance(desk.ask(CommitOffsets(offsets, "a", 2)), OffsetsWritten)
    assert desk.refusal(CommitOffsets(offsets, "a", 3)) is GroupError.STALE_MEMBER_EPOCH
    assert desk.refusal(CommitOffsets(offsets, "a", 0)) is GroupError.STALE_MEMBER_EPOCH
    assert desk.refusal(CommitOffsets(offsets, "x", 2)) is GroupError.UNKNOWN_MEMBER_ID
    assert desk.refusal(CommitOffsets(offsets)) is GroupError.UNKNOWN_MEMBER_ID
    assert desk.refusal(CommitOffsets(offsets, "a", 2, knows_epochs=False)) is GroupError.UNSUPPORTED_VERSION
    assert desk.refusal(FetchOffsets(None, "a", 1)) is GroupError.STALE_MEMBER_EPOCH
    desk.beat("a", LEAVE_EPOCH)
    desk.beat("b", LEAVE_EPOCH)
    assert isinstance(desk.ask(CommitOffsets(offsets)), OffsetsWritten), "an operator may, once nobody is there"


def commits(desk: Desk, epoch: int, *numbers: int) -> bool:
    """Whether `a` may, under that epoch."""
    reply = desk.ask(CommitOffsets(tuple(OffsetToCommit("orders", number, 5) for number in numbers), "a", epoch))
    return isinstance(reply, OffsetsWritten)


def test_partitions_that_were_kept_are_committed_under_an_older_epoch() -> None:
    """KIP-1251: a commit that crosses the answer with the new epoch on its way is not lost."""
    desk = two_settled()
    assert commits(desk, 1, 0, 1)
    assert not commits(desk, 1, 2), "that one has gone to another"
    assert not commits(desk, 1, 0, 2), "one that is gone spoils the request"
    desk.restart()
    assert commits(desk, 1, 0, 1)
    assert not commits(desk, 1, 2)


def test_partition_that_came_back_is_not_committed_under_the_epoch_before_it_went() -> None:
    desk = two_settled()
    desk.beat("b", LEAVE_EPOCH)
    assert desk.beat("a", 2).assignment == orders(0, 1, 2, 3)
    assert commits(desk, 3, 0, 1, 2, 3)
    assert commits(desk, 1, 0, 1)
    assert not commits(desk, 2, 2), "at epoch 2 it was another's"
    assert not commits(desk, 1, 2), "of epoch 1 it has been given up since"


def test_restart_forgets_nothing_but_the_time() -> None:
    desk = Desk(orders=4)
    desk.enter("a")
    desk.enter("b")
    desk.beat("a", 1, orders(0, 1, 2, 3))
    before = desk.group.snapshot()
    desk.restart()
    assert desk.group.snapshot() == before
    desk.pass_time(REBALANCE_MS - 1)
    desk.beat("b", 2)
    desk.pass_time(1)
    assert desk.refusal(ConsumerHeartbeat("a", 1)) is GroupError.UNKNOWN_MEMBER_ID, "its time to let go ran on"


def test_group_may_have_a_session_timeout_and_a_heartbeat_of_its_own() -> None:
    desk = Desk(orders=1)
    desk.enter("a")
    given = {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "2000"}
    desk.group.configure(member_config(GroupConfig(), given))
    assert desk.beat("a", 1).heartbeat_interval_ms == 2_000
    desk.pass_time(59_999)
    assert desk.beat("a", 1).member_epoch == 1, "its session is longer than the node's"
    desk.pass_time(60_000)
    assert desk.refusal(ConsumerHeartbeat("a", 1)) is GroupError.UNKNOWN_MEMBER_ID
