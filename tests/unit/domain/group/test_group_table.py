from __future__ import annotations

from penstock.domain.group.commands import (
    CommitOffsets,
    CommitTransactionOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    EndTransaction,
    FetchOffsets,
    GroupCommand,
    GroupReply,
    OffsetToCommit,
    Refused,
)
from penstock.domain.group.description import DEAD, describe, state_of
from penstock.domain.group.table import GroupTable
from penstock.domain.group.values import GroupConfig, GroupError, GroupKind
from support.group.world import SimTopics


class Coordinator:
    def __init__(self) -> None:
        self.topics = SimTopics()
        self.topics.set("orders", 2)
        self.table = GroupTable(GroupConfig(), self.topics)

    def ask(self, group_id: str, command: GroupCommand, now_ms: int = 0) -> GroupReply | None:
        decision = self.table.decide(group_id, command, now_ms)
        for record in decision.records:
            self.table.apply(group_id, record)
        return decision.reply

    def commit_in_transaction(self, group_id: str, producer_id: int) -> None:
        guard = self.table.guards.begin(producer_id)
        self.ask(group_id, CommitTransactionOffsets(producer_id, 0, (OffsetToCommit("orders", 0, 7),), guard=guard))
        self.table.guards.finish(producer_id, guard)

    def end(self, producer_id: int, *, is_commit: bool) -> list[str]:
        ended = []
        for group_id, decision in self.table.end_transaction(EndTransaction(producer_id, 0, is_commit), 0):
            ended.append(group_id)
            for record in decision.records:
                self.table.apply(group_id, record)
        return ended

    def tick(self, now_ms: int) -> list[str]:
        ticked = self.table.tick(now_ms)
        for group_id, decision in ticked:
            for record in decision.records:
                self.table.apply(group_id, record)
        return [group_id for group_id, _decision in ticked]


def enter(member_id: str) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(member_id, 0, rebalance_timeout_ms=1_000, topic_names=("orders",), owned=())


def test_group_of_which_nothing_is_left_is_forgotten() -> None:
    coordinator = Coordinator()
    coordinator.ask("asked", FetchOffsets(None))
    assert len(coordinator.table) == 0
    coordinator.ask("held", CommitOffsets((OffsetToCommit("orders", 0, 1),)))
    assert list(coordinator.table) == ["held"]
    coordinator.ask("held", DeleteGroup())
    assert len(coordinator.table) == 0


def test_earliest_deadline_of_all_groups_is_named() -> None:
    coordinator = Coordinator()
    coordinator.ask("late", enter("a"), now_ms=9_000)
    coordinator.ask("early", enter("a"), now_ms=1_000)
    assert coordinator.table.next_deadline_ms() == 46_000
    assert coordinator.tick(46_000) == ["early"]
    assert coordinator.table.next_deadline_ms() == 54_000


def test_group_that_was_heard_of_meanwhile_is_woken_in_vain_once() -> None:
    coordinator = Coordinator()
    coordinator.ask("group", enter("a"), now_ms=0)
    coordinator.ask("group", ConsumerHeartbeat("a", 1), now_ms=40_000)
    assert coordinator.table.next_deadline_ms() == 45_000
    assert coordinator.tick(45_000) == ["group"]
    assert coordinator.table.next_deadline_ms() == 85_000
    assert coordinator.table.get("group") is not None


def test_end_of_a_transaction_reaches_every_group_that_waits_for_it() -> None:
    coordinator = Coordinator()
    for group_id in ("b", "a"):
        coordinator.commit_in_transaction(group_id, 5)
    coordinator.commit_in_transaction("c", 6)
    assert coordinator.end(5, is_commit=True) == ["a", "b"]
    assert coordinator.end(5, is_commit=True) == []
    for group_id, expected in (("a", 7), ("c", None)):
        group = coordinator.table.get(group_id)
        assert group is not None
        stored = group.offsets.get("orders", 0)
        assert (None if stored is None else stored.offset) == expected


def test_group_whose_only_transaction_aborts_is_forgotten() -> None:
    coordinator = Coordinator()
    coordinator.commit_in_transaction("group", 5)
    coordinator.end(5, is_commit=False)
    assert len(coordinator.table) == 0


def test_deleted_group_waits_for_no_transaction() -> None:
    coordinator = Coordinator()
    coordinator.commit_in_transaction("group", 5)
    coordinator.ask("group", DeleteGroup())
    assert coordinator.end(5, is_commit=True) == []
    assert len(coordinator.table) == 0


def test_offsets_of_a_transaction_need_a_guard() -> None:
    coordinator = Coordinator()
    command = CommitTransactionOffsets(5, 0, (OffsetToCommit("orders", 0, 7),))
    assert coordinator.ask("group", command) == Refused(GroupError.INVALID_TXN_STATE)
    assert len(coordinator.table) == 0


def test_end_that_comes_while_the_coordinator_is_asked_keeps_the_offsets_out() -> None:
    coordinator = Coordinator()
    guard, others = coordinator.table.guards.begin(5), coordinator.table.guards.begin(6)
    coordinator.end(5, is_commit=True)
    for producer_id, held in ((5, guard), (6, others)):
        command = CommitTransactionOffsets(producer_id, 0, (OffsetToCommit("orders", 0, 7),), guard=held)
        is_refused = coordinator.ask("group", command) == Refused(GroupError.INVALID_TXN_STATE)
        assert is_refused == (producer_id == 5)


def test_guards_leave_nothing_behind() -> None:
    coordinator = Coordinator()
    guards = coordinator.table.guards
    first, second = guards.begin(5), guards.begin(5)
    guards.finish(5, first)
    assert not guards.holds(5, first)
    assert guards.holds(5, second)
    coordinator.end(5, is_commit=False)
    guards.finish(5, second)
    assert len(guards) == 0


def test_sessions_begin_with_the_end_of_the_replay() -> None:
    coordinator = Coordinator()
    coordinator.ask("group", enter("a"))
    replayed = GroupTable(GroupConfig(), coordinator.topics)
    group = coordinator.table.get("group")
    assert group is not None
    for record in group.snapshot():
        replayed.apply("group", record)
    assert replayed.next_deadline_ms() is None
    replayed.load(now_ms=100_000)
    assert replayed.next_deadline_ms() == 145_000


def test_description_shows_members_and_what_they_have() -> None:
    coordinator = Coordinator()
    coordinator.ask("group", enter("a"))
    group = coordinator.table.get("group")
    assert group is not None
    description = describe(group)
    assert (description.kind, description.state, description.epoch) == (GroupKind.CONSUMER, "Stable", 1)
    assert description.protocol == "uniform"
    (member,) = description.members
    assert (member.member_id, member.topic_names, len(member.assigned)) == ("a", ("orders",), 2)
    assert state_of(group) == "Stable"
    assert describe(None).state == DEAD
