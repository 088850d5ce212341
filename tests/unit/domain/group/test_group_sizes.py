"""What members bring is kept up to a bound: of a member, of a group, of all groups of a partition."""

from __future__ import annotations

from penstock.domain.group.commands import (
    ConsumerAlive,
    ConsumerHeartbeat,
    GroupCommand,
    GroupReply,
    Join,
    Joined,
    Leave,
    LeavingMember,
    Refused,
    Sync,
)
from penstock.domain.group.table import GroupTable
from penstock.domain.group.values import GroupConfig, GroupError
from support.group.world import SimTopics

CONFIG = GroupConfig(
    initial_rebalance_delay_ms=0, member_bytes_max=1_000, group_bytes_max=2_500, groups_bytes_max=4_000
)


class Table:
    def __init__(self) -> None:
        topics = SimTopics()
        topics.set("orders", 2)
        self.table = GroupTable(CONFIG, topics)

    def ask(self, group_id: str, command: GroupCommand, now_ms: int = 0) -> GroupReply | None:
        decision = self.table.decide(group_id, command, now_ms)
        for record in decision.records:
            self.table.apply(group_id, record)
        return decision.reply

    @property
    def bytes(self) -> int:
        return self.table.sizes.bytes


def join(member_id: str, size_bytes: int, ticket: int = 1) -> Join:
    return Join(ticket, "", member_id, "work", (("", bytes(size_bytes)),), 10_000, 10_000, requires_known_id=False)


def enter(member_id: str, size_bytes: int) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(member_id, 0, rebalance_timeout_ms=1_000, topic_names=("x" * size_bytes,), owned=())


def error_of(reply: GroupReply | None) -> GroupError | None:
    return reply.error if isinstance(reply, Refused) else None


def test_a_member_that_brings_too_much_is_refused() -> None:
    table = Table()
    assert error_of(table.ask("a", join("m", 1_001))) is GroupError.INVALID_REQUEST
    assert error_of(table.ask("b", enter("m", 1_001))) is GroupError.INVALID_REQUEST
    assert table.bytes == 0
    assert len(table.table) == 0


def test_a_group_is_full_by_what_its_members_have_brought() -> None:
    table = Table()
    for number in range(2):
        assert error_of(table.ask("a", join(f"m{number}", 1_000, number))) is None
    assert error_of(table.ask("a", join("m2", 1_000, 2))) is GroupError.GROUP_MAX_SIZE_REACHED
    assert error_of(table.ask("a", join("m3", 400, 3))) is None


def test_all_groups_together_have_a_bound() -> None:
    table = Table()
    for number in range(4):
        assert error_of(table.ask(f"g{number}", join("m", 1_000, number))) is None
    assert error_of(table.ask("g4", join("m", 1_000, 4))) is GroupError.GROUP_MAX_SIZE_REACHED
    assert error_of(table.ask("g5", enter("m", 1_000))) is GroupError.GROUP_MAX_SIZE_REACHED


def test_what_leaves_makes_room() -> None:
    table = Table()
    table.ask("a", join("m", 1_000))
    table.ask("b", enter("m", 1_000))
    assert table.bytes == 2_000
    table.ask("a", Leave((LeavingMember("m"),)))
    table.ask("b", ConsumerHeartbeat("m", -1))
    assert table.bytes == 0


def test_a_member_that_comes_again_with_the_same_is_no_news() -> None:
    table = Table()
    assert isinstance(table.ask("full", enter("m", 1_000)), ConsumerAlive)
    for number in range(3):
        table.ask(f"g{number}", join("m", 1_000, number))
    assert table.bytes == 4_000
    assert isinstance(table.ask("full", enter("m", 1_000)), ConsumerAlive)
    assert table.bytes == 4_000


def test_assignments_have_the_bound_of_a_group() -> None:
    table = Table()
    joined = table.ask("a", join("m", 500))
    assert isinstance(joined, Joined)
    refused = table.ask("a", Sync(2, "m", joined.generation, assignments=(("m", bytes(2_500)),)))
    assert error_of(refused) is GroupError.INVALID_REQUEST
    table.ask("a", Sync(3, "m", joined.generation, assignments=(("m", bytes(1_500)),)))
    assert table.bytes == 2_000
